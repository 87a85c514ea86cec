"""kretprobe.block of a real workload on the simulated device."""

import json
import sys
from dataclasses import replace

from test_runtime_cli import DEMO, ROOT, egpu, pytestmark, workload

from egpu.bpf import own_maps
from egpu.session import Options, run

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from block_exit_totals import ALONE, ENTERED, wrong_block_exits, wrong_warnings

__all__ = ["pytestmark"]
PROGRAM = ROOT / "tests" / "gpu" / "probes" / "block_exits.bpf.o"


def test_once_a_block():
    done = egpu("run", PROGRAM, "--sim", "--json", "--", *workload())
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    wrong, answer = wrong_block_exits(totals["kernels"], report)
    assert (wrong, answer) == ([], "42 blocks of 5 kernels left once")


def test_warnings_are_awaited_where_threads_may_trap():
    rows = [
        {"name": "a", "launches_probed": 3, "not_probed": {}},
        {"name": "b", "launches_probed": 0, "not_probed": {"no twin can be made": 2}},
    ]
    trap = "{}: threads that end by trap at 0x1b0 are not seen to leave."

    def wrong(*warnings, trapping=("a", "b")):
        report = {"kernels": rows, "warnings": warnings}
        return wrong_warnings(report, set(trapping))

    assert wrong(trap.format("a")) == []
    assert wrong() == ["no warning of the trap in a"]
    assert wrong(trap.format("a"), trap.format("b")) == []  # a twin that is not used
    assert wrong(trap.format("a"), trapping=()) == [f"warning: {trap.format('a')}"]
    assert wrong(trap.format("a"), "a: missed") == ["warning: a: missed"]
    assert wrong(trap.format("a"), "b: not supported: an exit probe") == []
    assert wrong("a: not supported: it", trapping=()) == ["warning: a: not supported: it"]


def test_totals_are_over_all_contexts():
    row = {"name": "a", "not_probed": {}, "launches_probed": 1}
    half = 1 << 63
    values = {ENTERED: 2, 1: 64, 2: half, 3: 2, 4: 64, 5: half, ALONE: 2}
    totals = [{"key": k, "value": v, "context": n} for n in range(2) for k, v in values.items()]
    report = {"kernels": [row], "warnings": [], "maps": {"totals": totals}}
    kernels = {"a": {"blocks": 4, "threads": 128}}
    assert wrong_block_exits(kernels, report) == ([], "4 blocks of 1 kernels left once")
    report["maps"]["totals"] = totals[:-1]
    assert wrong_block_exits(kernels, report)[0] == [f"total {ALONE} is 2, expected 4"]


def test_missed_blocks_are_said(monkeypatch):
    small = replace(own_maps.SPECS[own_maps.BLOCKS], max_entries=1)
    monkeypatch.setitem(own_maps.SPECS, own_maps.BLOCKS, small)
    command = [str(DEMO / "demo"), "--launches", "1", "--size", "777"]
    with run(command, programs=PROGRAM, options=Options(simulated=True)) as session:
        assert session.wait() == 0
        assert list(session.maps) == ["totals"]
        totals = session.maps["totals"].to_dict()
        (note,) = session.notes
    # One place for two programs: the second finds none while a block's threads leave.
    assert totals[ALONE] < totals[ENTERED] == 21
    assert note.startswith("kretprobe.block missed blocks: ")


def test_the_cost_is_that_of_what_runs():
    done = egpu("verify", PROGRAM, "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["programs"]}
    assert rows["leave"]["cost"]["atomics"] > rows["enter"]["cost"]["atomics"]
    assert rows["leave"]["cost"]["instructions"] > rows["leave"]["instructions"]
    assert rows["enter"]["cost"]["instructions"] <= rows["enter"]["instructions"]
