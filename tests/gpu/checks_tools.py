"""blocksched: a record for each block, whatever the grid; what found no room is counted."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from building import Built
from observing import Observed, plain, probed, require, require_same, rows_by_name

from egpu.bpf.demangle import demangle

LAUNCHES, SIZE = 4, 11_500_011  # 20 launches of five kernels, about a million blocks, odd grids
# On an H200 no record was dropped in these runs (docs/results.md); a slow machine may drop some.
MOST_LOST = 0.01  # of all blocks
_BLOCKS_OF_AN_SM = 32  # CUDA C++ programming guide, compute capability 9.0


def expected_blocks(run: Observed) -> dict[str, int]:
    return {demangle(name): row["blocks"] for name, row in run.last["kernels"].items()}


def require_accounted(report: Mapping | None, expected: Mapping[str, int]) -> str:
    """Every block has a record or is counted as lost, and no record is of another block."""
    require(report is not None, "no report")
    records, rows = report["records"], rows_by_name(report)
    lost = records["dropped"] + records["missing"]
    total = sum(expected.values())
    require(not records["crowded"] and not records["oversized"], f"lost: {records}")
    require(lost <= MOST_LOST * total, f"{lost} of {total} blocks lost: {records}")
    require(
        records["received"] + lost == total, f"{records} of {total} blocks; {report['warnings']}"
    )
    for name, blocks in expected.items():
        found = rows[name]["blocks"]
        require(blocks - lost <= found <= blocks, f"{name}: {found} blocks of {blocks}")
    require(report["partial"] == bool(lost or records["left_out"]), f"partial? {records}")
    for each in report["schedules"]:
        x, y, z = each["grid"]
        require(each["blocks"] <= x * y * z, f"too many blocks: {each}")
        require(1 <= each["sms"] <= report["sms"], f"SMs: {each}")
        # Not threads: an SM gives the place of a warp that ended to the next block, while others of
        # its block still run (seen on an H200: 32 blocks of 3 warps, of which 1 ran).
        require(each["places"] <= report["sms"] * _BLOCKS_OF_AN_SM, f"places: {each}")
        require(0 <= each["tail"] <= each["time"], f"times: {each}")
    return f"{records['received']:,} of {total:,} blocks, {lost:,} dropped"


def blocksched(built: Built) -> str:
    """20 launches of odd grids, about a million blocks; results as without."""
    argv = [str(built.demo), "--launches", str(LAUNCHES), "--size", str(SIZE), "--json"]
    unprobed = plain(argv, timeout=300)
    run = probed(argv, tool="blocksched", options=("--explain",), timeout=300)
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    require(run.output == unprobed.output, f"output differs:\n{run.output}{unprobed.output}")
    answer = require_accounted(run.report, expected_blocks(run))
    longest = run.report["schedules"][0]
    require(len(run.report["schedules"]) == 5 * LAUNCHES, "launches without a record")
    require(longest["waves"] > 1, f"one wave: {longest}")
    registers = {row["short_name"]: (row["registers_before"], row["registers_after"],
                                     row["blocks_before"], row["blocks_after"])
                 for row in run.report["explain"]}  # fmt: skip
    return f"{answer}; longest: {longest['name'][:20]} {longest['waves']} waves; {registers}"


def blocksched_graphs(built: Built) -> str:
    """Thousands of small launches and graph replays of every shape."""
    argv = [built.program("runtime_static")]
    unprobed = plain(argv)
    run = probed(argv, tool="blocksched")
    require_same(unprobed, run)
    return require_accounted(run.report, expected_blocks(run))


def blocksched_perfetto(built: Built) -> str:
    """The file has a slice for each block, by the official messages."""
    if importlib.util.find_spec("perfetto") is None:
        return "skipped: no perfetto package"
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace  # noqa: PLC0415

    argv = [str(built.demo), "--launches", "2", "--size", "100003", "--json"]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "blocks.pftrace"
        run = probed(argv, tool="blocksched", options=("--perfetto", str(file)))
        require_accounted(run.report, expected_blocks(run))
        trace = Trace()
        trace.ParseFromString(file.read_bytes())
    begun = sum(packet.track_event.type == 1 for packet in trace.packet)
    require(begun == run.report["records"]["received"], f"{begun} slices")
    return f"{begun} slices"


def blocksched_machine_code(built: Built) -> str:
    """Kernels that have no PTX: a record for each block of each launch that was probed."""
    argv = [built.program("machine_code"), "4"]
    unprobed = plain(argv)
    options = ("--allow-occupancy-loss", "--explain")
    run = probed(argv, tool="blocksched", options=options)
    require_same(unprobed, run)
    rows = [row for row in rows_by_name(run.report, run.errors).values() if row["launches_probed"]]
    records = run.report["records"]
    lost = records["dropped"] + records["missing"]
    known = [row for row in rows if row["blocks_expected"] is not None]
    expected = sum(row["blocks_expected"] for row in known)
    found = sum(row["blocks"] for row in known)
    require(lost <= MOST_LOST * expected, f"{lost} of {expected} blocks lost: {records}")
    require(expected - lost <= found <= expected, f"{found} of {expected} blocks, {records}")
    require(bool(known), "no kernel was probed")
    ways = [row["way"] for row in run.report["explain"]]
    reasons = {text for row in run.report["explain"] for text in row["why_not"]}
    return f"{found:,} blocks of {len(known)} kernels; {ways.count('SASS')} SASS; not: {reasons}"


CHECKS = (blocksched, blocksched_graphs, blocksched_perfetto, blocksched_machine_code)
