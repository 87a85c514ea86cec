"""Exact totals and unchanged results for programs that nobody changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from block_exit_totals import wrong_block_exits
from building import HERE, WORKLOADS, Built
from observing import (
    Observed,
    egpu,
    plain,
    probed,
    require,
    require_accounted,
    require_same,
    require_totals,
    rows_by_name,
)

from egpu.bpf.demangle import demangle


def both(argv: Sequence[str], *options: str) -> str:
    """The common case: run plainly, run probed, compare, count."""
    unprobed = plain(argv)
    run = probed(argv, options=options)
    require_same(unprobed, run)
    launches = require_totals(run)
    return f"{launches} launches, {len(run.last['kernels'])} kernels exact"


def runtime_static(built: Built) -> str:
    """nvcc, static cudart, sm_90 code and PTX: at least 5,000 launches of every shape."""
    argv = [built.program("runtime_static")]
    answer = both(argv)
    launches = sum(row["launches"] for row in plain(argv).last["kernels"].values())
    require(launches >= 5000, f"only {launches} launches")
    return answer


def runtime_ptx(built: Built) -> str:
    """The same program, its PTX probed although it has machine code."""
    return both([built.program("runtime_static")], "--no-machine-code")


def runtime_shared(built: Built) -> str:
    """nvcc, shared cudart, no architecture named."""
    return both([built.program("runtime_shared")])


def driver_program(built: Built) -> str:
    """A driver-API program that loads PTX text."""
    return both([built.program("driver"), built.driver_ptx])


def python_program(built: Built) -> str:
    """cuda-bindings in Python, PTX from NVRTC."""
    return both([sys.executable, str(WORKLOADS / "nvrtc_program.py")])


def demo_program(built: Built) -> str:
    """The demo workload on the real driver."""
    argv = [str(built.demo), "--launches", "200", "--size", "100003", "--json"]
    unprobed, run = plain(argv), probed(argv)
    require(unprobed.code == 0, f"unprobed: exit {unprobed.code}: {unprobed.errors[-800:]}")
    require(run.code == 0, f"probed: exit {run.code}: {run.errors[-2000:]}")
    require(run.output == unprobed.output, f"output differs:\n{run.output}{unprobed.output}")
    return f"{require_totals(run)} launches exact"


def two_devices(built: Built) -> str:
    """Two devices in one process, several threads, graphs: exact on each, both ways."""
    argv = [built.program("two_devices")]
    unprobed = plain(argv)
    if unprobed.code == _TOO_FEW:
        return f"skipped: {unprobed.errors.strip()}"
    answers = []
    for option in ("--machine-code", "--no-machine-code"):
        run = probed(argv, options=(option,))
        require_same(unprobed, run)
        launches = require_totals(run)
        rows = rows_by_name(run.report)
        for kernel, given in json.loads(run.output.splitlines()[-2])["devices"].items():
            require(_by_device(rows[kernel]) == sorted(given), f"{option}: {kernel} by device")
        answers.append(f"{launches} launches exact by {option.removeprefix('--')}")
    return "; ".join(answers)


_TOO_FEW = 77


def _by_device(row: Mapping) -> list[list[int]]:
    """[threads, blocks] of each of two devices that are alike; they follow each other in the
    report, in the order in which they were first used."""
    half = len(row["threads_per_sm"]) // 2
    parts = (slice(0, half), slice(half, None))
    return sorted([sum(row["threads_per_sm"][p]), sum(row["blocks_per_sm"][p])] for p in parts)


def latencies(built: Built) -> str:
    """kernellat: every block and launch of every kernel has a duration, at full rate."""
    argv = [str(built.demo), "--launches", "100", "--size", "1048576", "--json"]
    unprobed, run = plain(argv), probed(argv, tool="kernellat")
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    require(run.output == unprobed.output, "output differs")
    seen, count = require_accounted(run)
    require((seen, count) == (500, 500), f"{count} of {seen} launches probed, expected 500 of 500")
    rows, blocks = rows_by_name(run.report), 0
    for name, totals in run.last["kernels"].items():
        row = rows[demangle(name)]
        measured = (row["block"]["count"], row["launch"]["count"])
        expected = (totals["blocks"], totals["launches"])
        require(measured == expected, f"{name}: (blocks, launches) {measured}, expected {expected}")
        require(0 < row["block"]["max"] <= row["launch"]["max"], f"{name}: {row}")
        blocks += totals["blocks"]
    lost = run.report["lost"]
    require(not any(lost.values()), f"lost: {lost}")
    require(not run.report["partial"], "marked as partial")
    return f"500 launches and {blocks} blocks timed"


def followed(built: Built) -> str:
    """Through a shell and its child, and through `python -m`-style starters."""
    program = built.program("increments")
    both(["bash", "-c", f"true; {program}"])
    code = f"import subprocess, sys; sys.exit(subprocess.call([{program!r}]))"
    return both([sys.executable, "-c", code])


def persistent(built: Built) -> str:
    """The occupancy rule: blocks that wait for each other never hang, whoever runs."""
    argv = [built.program("persistent")]
    unprobed, run = plain(argv), probed(argv)
    require_same(unprobed, run)
    seen, count = require_accounted(run)
    if count == seen:
        require_totals(run)
    return f"{count} of {seen} launches probed"


def waiting(built: Built) -> str:
    """Twins run beside a kernel that ends only when they have: counters, and probes that keep
    values in local memory, for which the driver has to have room."""
    argv = [built.program("waiting")]
    unprobed, run = plain(argv), probed(argv)
    require_same(unprobed, run)
    require_totals(run)
    timed = probed(argv, tool="kernellat")
    require_same(unprobed, timed)
    seen, count = require_accounted(timed)
    require(count == seen == 12, f"{count} of {seen} launches timed")
    return f"{count} launches of each tool probed"


def repeated(built: Built) -> str:
    """Twins from the cache count as exactly as fresh ones."""
    argv = [built.program("runtime_static")]
    first, second = probed(argv), probed(argv)
    require_same(first, second)
    require_totals(second)
    cost = _cost(second)
    require(cost["twins_cached"] == cost["twins"], f"not all twins came from the cache: {cost}")
    return f"{cost['twins']} twins from the cache in {cost['twin_ms']:.0f} ms"


def block_exits_ptx(built: Built) -> str:
    """kretprobe.block runs once a block, of every shape, in streams and graphs."""
    found = [
        block_exits(argv, "--no-machine-code", trapping=trapping)
        for argv, trapping in (
            ([built.program("runtime_static")], ["cooperative"]),
            ([built.program("stress_ptx"), "60"], []),
            ([built.program("machine_code_ptx"), "4"], ["together"]),
        )
    ]
    return "; ".join(found)


def block_exits_machine_code(built: Built) -> str:
    """The same in machine code, where groups of a warp leave at the same time."""
    stress = block_exits([built.program("stress"), "60"], "--machine-code")
    kernels = block_exits(
        [built.program("machine_code"), "4"], "--machine-code", trapping=["together"]
    )
    return f"{stress}; {kernels}"


def block_exits(argv: Sequence[str], *options: str, trapping: Sequence[str] = ()) -> str:
    """Count blocks at their last exit, by two programs, in the kernels that can have them."""
    program = str(HERE / "probes" / "block_exits.bpf.o")
    options = (*options, "--json", "--allow-occupancy-loss")
    unprobed = plain(argv)
    run = plain(egpu("run", program, *options, "--", *argv), timeout=60)
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    *output, report = run.output.strip().splitlines()
    require(output == unprobed.output.strip().splitlines(), "output differs")
    kernels = json.loads(output[-1])["kernels"]
    wrong, answer = wrong_block_exits(kernels, json.loads(report), trapping)
    require(not wrong, "; ".join(wrong[:20]))
    return answer


def _cost(run: Observed) -> dict:
    require(run.report is not None, "no report")
    return run.report["cost"]


CHECKS = (
    runtime_static,
    runtime_ptx,
    runtime_shared,
    driver_program,
    python_program,
    demo_program,
    two_devices,
    latencies,
    block_exits_ptx,
    block_exits_machine_code,
    followed,
    persistent,
    waiting,
    repeated,
)
