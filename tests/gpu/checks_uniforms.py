"""Probes in as few uniform registers as kernels leave: exact counts and records, same results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from building import HERE, ROOT, Built
from leaving_totals import documents
from observing import (
    Observed,
    plain,
    require,
    require_same,
    require_totals,
    rows_by_name,
    split_report,
)

from egpu.bpf.demangle import demangle

# What probes are put to: a pair, which is what an access to memory takes, and some single ones.
_LEFT = (2, 3, 4, 5)
_FOR_BLOCKSCHED = 3
_LEFT_LANES, _SENT = range(2)  # totals of probes/groups.bpf.c


def few_uniforms(built: Built) -> str:
    """Kernels that use nearly all uniform registers while their lanes leave one by one, and others
    whose registers are kept from the probes: threads, blocks, durations and records are exact."""
    with ThreadPoolExecutor(len(_LEFT)) as pool:
        counted = list(pool.map(lambda left: _few(built, left), _LEFT))
    launches, blocks, records = (sum(each) for each in zip(*counted, strict=True))
    return f"{launches:,} launches, {blocks:,} blocks and {records:,} records exact"


def _few(built: Built, left: int) -> tuple[int, int, int]:
    """Launches, blocks and records that were exact with so many registers."""
    hogs, kernels = built.program("hogging"), built.program("machine_code")
    launches = blocks = records = 0
    for argv in ([hogs, "300"], [kernels, "20"]):
        launches += _counted(left, argv)
    for argv in ([hogs, "60"], [kernels, "4"]):
        blocks += _timed(left, argv)
    for rings in ("host", "device"):
        records += _grouped(left, [hogs, "4"], rings)
        if left >= _FOR_BLOCKSCHED:
            blocks += _scheduled(left, [hogs, "20"], rings)
    _summed(left, [hogs, "100"])
    return launches, blocks, records


def _run(left: int, tool: str, argv: Sequence[str], *options: str) -> Observed:
    start = [sys.executable, str(HERE / "few_uniforms.py"), str(left)]
    return plain([*start, "run", tool, "--json", *options, "--", *argv], timeout=300)


def _with_tool(left: int, tool: str, argv: Sequence[str], *options: str) -> Observed:
    """A run whose output is that of the workload without probes."""
    raw = _run(left, tool, argv, *options)
    output, report = split_report(raw.output)
    run = Observed(raw.code, output, raw.errors, report)
    require_same(plain(argv), run)
    return run


def _counted(left: int, argv: Sequence[str]) -> int:
    return require_totals(_with_tool(left, "kernelcount", argv))


def _timed(left: int, argv: Sequence[str]) -> int:
    run = _with_tool(left, "kernellat", argv, "--allow-occupancy-loss")
    blocks = 0
    for name, totals in run.last["kernels"].items():
        row = rows_by_name(run.report)[demangle(name)]
        # A cooperative launch never runs a twin of which fewer blocks fit.
        require(not row["not_probed"] or name == "together", f"{left}: {row} {run.report}")
        if row["not_probed"]:
            continue
        found = (row["block"]["count"], row["launch"]["count"])
        expected = (totals["blocks"], totals["launches"])
        require(found == expected, f"{left}: {name}: {found}, expected {expected}")
        blocks += totals["blocks"]
    return blocks


def _scheduled(left: int, argv: Sequence[str], rings: str) -> int:
    options = ("--allow-occupancy-loss", "--rings", rings)
    run = _with_tool(left, "blocksched", argv, *options)
    lost = run.report["records"]["dropped"] + run.report["records"]["missing"]
    launched = sum(totals["blocks"] for totals in run.last["kernels"].values())
    rows = rows_by_name(run.report).values()
    missed = [row["name"] for row in rows if row["not_probed"]]
    require(not missed, f"{left}: not probed: {missed} {run.report['warnings'][:3]}")
    found = sum(row["blocks"] for row in rows)
    require(found + lost == launched, f"{left}: {found} and {lost} lost of {launched} blocks")
    return found


def _grouped(left: int, argv: Sequence[str], rings: str) -> int:
    """A record for each group of lanes that left, whole, with the lanes in it."""
    probe = str(HERE / "probes" / "groups.bpf.o")
    unprobed = plain(argv)
    run = _run(left, probe, argv, "--allow-occupancy-loss", "--rings", rings)
    require(run.code == 0, f"{left}: exit {run.code}: {run.errors[-2000:]}")
    found, report, kernels, lines = documents(run.output)
    require(lines == unprobed.output.strip().splitlines(), f"{left}: output differs")
    threads = sum(totals["threads"] for totals in kernels.values())
    totals = {0: 0, 1: 0}
    for row in report["maps"]["totals"]:
        totals[row["key"]] += row["value"]
    groups = report["maps"]["groups"]
    torn = [
        each
        for each in found
        if each["sum"] != sum(each[key] for key in ("block", "warp", "sm", "lanes", "clock"))
    ]
    lanes = sum(each["lanes"].bit_count() for each in found)
    facts = {
        "lanes that left": (totals[_LEFT_LANES], threads),
        "records": (groups["received"] + groups["dropped"], totals[_SENT]),
        "received": (len(found), groups["received"]),
        "missing": (groups["missing"], 0),
        "torn": (torn[:3], []),
        "lanes in records": (lanes if not groups["dropped"] else threads, threads),
    }
    wrong = [f"{name}: {pair}" for name, pair in facts.items() if pair[0] != pair[1]]
    require(not wrong, f"{left} {rings}: {'; '.join(wrong)} {report['warnings'][:3]}")
    return len(found)


def _summed(left: int, argv: Sequence[str]) -> None:
    """Threads counted at entry and exit by one lane of each warp."""
    probe = str(ROOT / "bench" / "probes" / "counters.bpf.o")
    unprobed = plain(argv)
    run = _run(left, probe, argv)
    require(run.code == 0, f"{left}: exit {run.code}: {run.errors[-2000:]}")
    _, report, kernels, lines = documents(run.output)
    require(lines == unprobed.output.strip().splitlines(), f"{left}: output differs")
    threads = sum(totals["threads"] for totals in kernels.values())
    sums = {0: 0, 1: 0}
    for row in report["maps"]["counts"]:
        sums[row["key"]] += row["value"]
    require(sums == {0: threads, 1: threads}, f"{left}: {sums} of {threads} threads")


CHECKS = (few_uniforms,)
