"""Callbacks on the device: sums that are known whatever the order of the threads."""

from __future__ import annotations

import json

from building import HERE, Built
from map_totals import wrong_callbacks, wrong_walks
from observing import egpu, plain, require
from ways import WAYS, Way, answers, demo, run_object


def _run(argv: list[str], probe: str, *options: str) -> tuple[dict, dict]:
    """The workload's totals and egpu's report."""
    program = str(HERE / "probes" / f"{probe}.bpf.o")
    command = egpu("run", program, "--json", "--allow-occupancy-loss", *options, "--", *argv)
    run = plain(command, timeout=60)
    require(run.code == 0, f"{probe}: exit {run.code}: {run.errors[-2000:]}")
    totals, report = map(json.loads, run.output.strip().splitlines()[-2:])
    return totals["kernels"], report["maps"]


def callbacks(built: Built) -> str:
    """bpf_loop and bpf_for_each_map_elem in launches of every shape, odd block sizes among them."""
    kernels, maps = _run([built.program("runtime_static")], "callbacks")
    threads = sum(row["threads"] for row in kernels.values())
    wrong = wrong_callbacks(maps, threads)
    require(not wrong, "; ".join(wrong))
    return f"{threads:,} threads exact"


def callbacks_hash(built: Built) -> str:
    """Walks over a hash map while all SMs insert."""
    said = {}
    for way in WAYS:
        argv = demo(built, way, 5, 100_003)
        run = run_object("callbacks_hash", argv, way, "--allow-occupancy-loss", timeout=60)
        blocks = sum(row["blocks"] for row in run.totals.values())
        wrong = wrong_walks(run.report["maps"], blocks)
        require(not wrong, f"{way.value}: " + "; ".join(wrong))
        said[way] = f"{blocks:,} walks exact"
    return answers(said)


def callbacks_code(built: Built) -> str:
    """bpf_loop and bpf_for_each_map_elem where there is machine code alone."""
    argv = demo(built, Way.MACHINE_CODE, 3, 100_003)
    run = run_object("callbacks", argv, Way.MACHINE_CODE, "--allow-occupancy-loss", timeout=60)
    threads = sum(row["threads"] for row in run.totals.values())
    wrong = wrong_callbacks(run.report["maps"], threads)
    require(not wrong, "; ".join(wrong))
    return f"{threads:,} threads exact"


CHECKS = (callbacks, callbacks_code, callbacks_hash)
