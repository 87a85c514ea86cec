"""Helpers on the device: what they print, read and tell, against what is known otherwise."""

from __future__ import annotations

import json
import os
import sys
import time

import identity_records
from building import HERE, Built
from memory_totals import wrong_looks
from observing import egpu, plain, require
from print_lines import documents, wrong_lines
from read_totals import wrong_reads
from stack_totals import wrong_stacks
from ways import REFUSED, WAYS, Way, answers, demo, run_object


def printk(built: Built) -> str:
    """Lines of five kernels: every one is right, and what was dropped is counted."""
    said = {}
    for way in WAYS:
        run = run_object("prints", demo(built, way, 3, 300_000), way, "--print-limit", "0")
        if run is None:
            said[way] = f"refused, probes {REFUSED['prints']}"
            continue
        lines, report, kernels = documents(run.output)
        wrong = wrong_lines(lines, report, kernels)
        require(not wrong, f"{way.value}: " + "; ".join(wrong[:10]))
        require(bool(lines), f"{way.value}: no line came")
        said[way] = f"{len(lines):,} lines exact, {report['printed']['dropped']:,} dropped"
    return answers(said)


def ktime(built: Built) -> str:
    """Times on the host's clock, within the error that the agent says; who runs."""
    return answers({way: _ktime(built, way) for way in WAYS})


def _ktime(built: Built, way: Way) -> str:
    before = time.monotonic_ns()
    run = run_object("identity", demo(built, way, 3, 300_000), way, "--allow-occupancy-loss")
    after = time.monotonic_ns()
    records, report, kernels = identity_records.documents(run.output)
    uid_gid = os.getgid() << 32 | os.getuid()
    wrong = identity_records.wrong_records(records, kernels, (before, after), uid_gid)
    require(not wrong, f"{way.value}: {len(wrong)} wrong, such as {wrong[:5]}")
    (clock,) = report["clocks"]
    error, drift, span = (clock[name] for name in ("error_ns", "drift_ns", "span_ns"))
    require(0 < error < 1_000_000, f"the clocks were compared within {error} ns only")
    require(span > 0, "the clocks were not compared again")
    # Two comparisons are off by their error each; good clocks part by less than 200 in 10^6.
    require(abs(drift) <= 2 * error + span // 5000, f"{drift} ns apart in {span} ns")
    return f"{len(records):,} records; within {error / 1e3:.1f} us, {drift / 1e3:+.1f} us later"


def probe_read(built: Built) -> str:
    """The workload's inputs read by every thread; nothing beyond them, and no fault.

    Then memory of every kind, before and after it goes, and while it goes.
    """
    size, launches, said = 1_000_003, 5, {}
    for way in WAYS:
        argv = demo(built, way, launches, size)
        run = run_object("reads", argv, way, "--allow-occupancy-loss")
        if run is None:
            said[way] = f"refused, probes {REFUSED['reads']}"
            continue
        wrong = wrong_reads(run.report, size, launches)
        require(not wrong, f"{way.value}: " + "; ".join(wrong))
        said[way] = f"{5 * size * launches:,} reads exact"
    return f"{answers(said)}; {_memory_kinds()}"


def _memory_kinds() -> str:
    workload = [sys.executable, str(HERE / "workloads" / "memory_kinds.py")]
    program = str(HERE / "probes" / "memory_kinds.bpf.o")
    command = egpu("run", program, "--json", "--allow-occupancy-loss", "--", *workload)
    run = plain(command, timeout=240)
    require(run.code == 0, f"memory_kinds: exit {run.code}: {run.errors[-2000:]}")
    said, report = map(json.loads, run.output.strip().splitlines()[-2:])
    wrong = wrong_looks(report, said["looks"])
    require(not wrong, "memory_kinds: " + "; ".join(wrong))
    left_out = said["left_out"]
    missing = {"pools", "behind", "graphs", "mappings"} & left_out.keys()
    require(not missing, f"memory_kinds: {left_out}")
    threads = sum(look["threads"] for look in said["looks"].values())
    without = f", without {', '.join(left_out)}" if left_out else ""
    return f"{threads:,} reads of pools and mappings exact{without}"


def stackid(built: Built) -> str:
    """Blocks by the host stack that launched them."""
    said = {}
    for way in WAYS:
        run = run_object("stacks", demo(built, way, 10, 300_000), way)
        wrong = wrong_stacks(run.report["maps"], run.totals)
        require(not wrong, f"{way.value}: " + "; ".join(wrong))
        said[way] = f"{len(run.report['maps']['stacks'])} stacks exact"
    return answers(said)


def ending(built: Built) -> str:
    """Every third thread of one kernel ends at once; the other kernels are as they were."""
    size, launches = 1_000_003, 3
    workload = [str(built.demo), "--launches", str(launches), "--size", str(size), "--json"]
    program = str(HERE / "probes" / "ending.bpf.o")
    refused = plain(egpu("run", program, "--json", "--", *workload), timeout=120)
    require("--allow-control" in refused.errors, f"not refused: {refused.errors[-500:]}")
    run = plain(egpu("run", program, "--allow-control", "--json", "--", *workload), timeout=120)
    totals, report = map(json.loads, run.output.strip().splitlines()[-2:])
    # Elements that no thread wrote stay 0, as do those whose inputs are 0 both.
    ended = sum(1 for i in range(0, size, 3) if i % 1000 or i % 77)
    require(f"WRONG: {ended} values" in run.output, f"{ended} wrong expected: {run.output[:2000]}")
    require(run.output.count(" ok\n") == len(totals["kernels"]) - 1, run.output[:2000])
    threads = totals["kernels"]["vecadd"]["threads"]
    third = launches * -(-(threads // launches) // 3)
    counted = {row["key"]: row["value"] for row in report["maps"]["threads"]}
    require(counted == {0: threads - third, 1: third}, f"{counted} of {threads}")
    code = demo(built, Way.MACHINE_CODE, 1, 1000)  # not there: nothing ends
    require(run_object("ending", code, Way.MACHINE_CODE, "--allow-control") is None, "it ended")
    return f"{third:,} threads ended, {threads - third:,} ran"


CHECKS = (printk, ktime, probe_read, stackid, ending)
