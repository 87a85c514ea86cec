"""Hash maps and per-thread maps of a real workload on the simulated device, read by the session."""

import importlib.util
import json
import sys

import pytest
from test_runtime_cli import PATIENCE, ROOT, egpu, pytestmark, workload

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from map_totals import (
    RESULTS,
    wrong_budgets,
    wrong_callbacks,
    wrong_inner,
    wrong_per_thread,
    wrong_pushed,
    wrong_totals,
    wrong_walks,
)
from ring_totals import wrong_ring

import egpu as api
from egpu.bpf import isa
from egpu.bpf.object import read_object

__all__ = ["pytestmark"]


@pytest.mark.parametrize("name", ["hashes", "hash_roomy"])
def test_totals_are_exact(name):
    program = ROOT / "tests" / "gpu" / "probes" / f"{name}.bpf.o"
    done = egpu("run", program, "--sim", "--json", "--", *workload(launches=1))
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    assert wrong_totals(report, threads) == []


@pytest.mark.parametrize("full", [True, False])
def test_records_of_a_ring_at_full_rate(full):
    """The device check (checks_maps.rings_full) in small: nobody reads until the workload ends, or
    the ring has room for all."""
    size = 40_000 if full else 500
    program = ROOT / "tests" / "gpu" / "probes" / "full_ring.bpf.o"
    options = api.Options(simulated=True)
    argv = [str(word) for word in workload(launches=1, size=size)]
    with api.run(argv, programs=program, options=options) as session:
        assert session.wait(PATIENCE) == 0
        ring = session.maps["entries"]
        records = [*ring, *ring.finish()]
        threads = sum(row.threads_probed for row in session.kernels())
        counted, totals = session.maps["threads"][0], ring.totals()
    assert wrong_ring(records, totals, (counted, threads), full=full) == []
    assert len(wrong_ring(records[1:], totals, (counted, threads), full=full)) == 1
    assert len(wrong_ring([*records[1:], records[1]], totals, (counted, threads), full=full)) == 1
    mixed = [records[0][:3] + records[1][3:], *records[1:]]
    assert len(wrong_ring(mixed, totals, (counted, threads), full=full)) == 1
    assert wrong_ring(records, totals, (counted, threads + 1), full=full)


def test_slots_at_full_rate():
    """The device check (checks_maps.slots_full) in small."""
    program = ROOT / "tests" / "gpu" / "probes" / "full_slots.bpf.o"
    options = api.Options(simulated=True, rings=api.RingMemory.DEVICE)
    argv = [str(word) for word in workload(launches=1, size=300_000)]
    with api.run(argv, programs=program, options=options) as session:
        assert session.wait(PATIENCE) == 0
        ring = session.maps["entries"]
        records = [*ring, *ring.finish()]
        threads = sum(row.threads_probed for row in session.kernels())
        (sent, lanes), totals = session.maps["threads"].values(), ring.totals()
    assert wrong_ring(records, totals, (sent, sent), full=True) == []
    assert lanes == 2 * threads


def test_evictions_with_room_left_are_seen():
    """What the check of device runs would say of a map that gave up an entry too early."""
    rows = [{"key": key, "value": 2} for key in range(1000)]
    results = {"threads": 2000, "fitted": 1000, "again": 1000}
    report = {"counters": {"roomy": {"evicted": 0}, "recent": {"evicted": 300}}}
    report["maps"] = {"results": _results(results), "roomy": rows}
    assert wrong_totals(report, 2000) == []
    early = {"threads": 2000, "fitted": 1001, "again": 999}
    report["maps"] = {"results": _results(early), "roomy": [{"key": 0, "value": 1}, *rows[1:]]}
    report["counters"]["roomy"]["evicted"] = 1
    assert len(wrong_totals(report, 2000)) == 3
    recent = [{"key": key, "value": [3 * key] * 2} for key in range(200)]
    report["maps"] = {"results": _results({"threads": 2000, "kept": 500}), "recent": recent}
    assert wrong_totals(report, 2000) == []
    for evicted in (0, 301):
        report["counters"]["recent"]["evicted"] = evicted
        assert len(wrong_totals(report, 2000)) == 1


def _results(counts):
    return [{"key": RESULTS.index(name), "value": value} for name, value in counts.items()]


def test_totals_of_an_object_for_the_first_processor(tmp_path):
    """-mcpu=v1 has no 32-bit arithmetic and no 32-bit jumps."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed, so no C is compiled")
    spec = importlib.util.spec_from_file_location(
        "objects_build", ROOT / "tests" / "unit" / "objects" / "build.py"
    )
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    program = tmp_path / "hashes.bpf.o"
    source = ROOT / "tests" / "gpu" / "probes" / "hashes.bpf.c"
    build.compile_object(source, program, cpu="v1")
    classes = {insn.opcode & 7 for each in read(program).programs for insn in each.code}
    assert not classes & {isa.Class.ALU, isa.Class.JMP32}
    done = egpu("run", program, "--sim", "--json", "--", *workload(launches=1))
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    assert wrong_totals(report, threads) == []


def read(path):
    return read_object(path.read_bytes(), path.name)


@pytest.mark.parametrize("size", [5000, 4097])
def test_callbacks(size):
    """The device checks' programs with callbacks, by all threads of five kernels."""
    probes = ROOT / "tests" / "gpu" / "probes"
    for name, wrong, unit in (
        ("callbacks", wrong_callbacks, "threads"),
        ("callbacks_hash", wrong_walks, "blocks"),
    ):
        program = probes / f"{name}.bpf.o"
        done = egpu("run", program, "--sim", "--json", "--", *workload(launches=1, size=size))
        assert done.returncode == 0, done.stderr
        totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
        assert wrong(report["maps"], sum(row[unit] for row in totals["kernels"].values())) == []


@pytest.mark.parametrize("size", [300, 97])
def test_budgets(size):
    """The device checks' loops of an unknown number of turns; some lanes are cut short."""
    program, limit = ROOT / "tests" / "gpu" / "probes" / "budgets.bpf.o", ("--cost-limit", "800")
    verified = json.loads(egpu("verify", program, "--json", *limit).stdout)
    turns = {row["name"]: row["budget"] for row in verified["programs"]}
    argv = workload(launches=1, size=size)
    done = egpu("run", program, "--sim", "--json", *limit, "--", *argv)
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    short = report["cost"]["runs_cut_short"]
    assert 0 < short < 3 * threads
    assert wrong_budgets(report["maps"], threads, turns, short) == []


def test_queue_stack_and_filter():
    program = ROOT / "tests" / "gpu" / "probes" / "pushed.bpf.o"
    done = egpu("run", program, "--sim", "--json", "--", *workload(launches=1, size=60))
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    assert wrong_pushed(report["maps"], threads) == []
    assert 0 < report["maps"]["seen"]["fill"] < 0.5
    done = egpu("run", program, "--sim", "--", *workload(launches=1, size=60))
    assert "of its bits are set" in done.stdout


def test_maps_of_maps():
    program = ROOT / "tests" / "gpu" / "probes" / "inner.bpf.o"
    done = egpu("run", program, "--sim", "--json", "--", *workload())
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    assert wrong_inner(report["maps"], totals["kernels"]) == []
    assert report["maps"]["arrays"] == {"0": "array_a", "1": "array_b", "3": "array_c"}


def test_maps_of_maps_in_python():
    """Through the outer map one reads and sets the inner maps."""
    program = ROOT / "tests" / "gpu" / "probes" / "inner.bpf.o"
    obj = api.Object(program)
    obj.maps["arrays"][1][3] = 1 << 40
    assert obj.maps["array_b"][3] == 1 << 40
    options = api.Options(simulated=True)
    with api.run(
        [*map(str, workload(launches=1, size=100))], programs=obj, options=options
    ) as session:
        assert session.wait() == 0
        maps = session.maps
        assert [(key, inner.spec.name) for key, inner in maps["arrays"].items()] == [
            (0, "array_a"),
            (1, "array_b"),
            (3, "array_c"),
        ]
        assert 2 not in maps["arrays"]
        assert maps["arrays"][1][3] >= 1 << 40
        for outer in (maps["arrays"], obj.maps["arrays"]):
            for inner in outer.values():
                assert dict(inner) == dict(maps[inner.spec.name])
        assert sum(sum(inner.values()) for inner in maps["arrays"].values()) > 1 << 40


def test_text_shows_entries_and_refusals():
    program = ROOT / "tests" / "gpu" / "probes" / "hashes.bpf.o"
    done = egpu("run", program, "--sim", "--", *workload(launches=1))
    assert done.returncode == 0, done.stderr
    assert "small (100 entries)" in done.stdout
    assert "insertions refused because the map was full" in done.stdout


def test_values_of_each_thread(monkeypatch):
    monkeypatch.setenv("BPFTIME_MAP_GPU_THREAD_COUNT", "700")
    program = ROOT / "tests" / "gpu" / "probes" / "per_thread.bpf.o"
    done = egpu("run", program, "--sim", "--json", "--", *workload())
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    assert wrong_per_thread(report["maps"], totals["kernels"], 700) == []


def test_bad_thread_count(monkeypatch):
    monkeypatch.setenv("BPFTIME_MAP_GPU_THREAD_COUNT", "many")
    program = ROOT / "tests" / "gpu" / "probes" / "per_thread.bpf.o"
    done = egpu("run", program, "--sim", "--", *workload())
    assert done.returncode == 1
    assert "BPFTIME_MAP_GPU_THREAD_COUNT: 'many' is no number of threads" in done.stderr
