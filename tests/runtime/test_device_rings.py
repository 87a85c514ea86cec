"""Rings whose records programs write to device memory: what comes out is what comes out of rings in
host memory, on the simulated device."""

import os
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from test_runtime_cli import PATIENCE, ROOT, egpu, pytestmark, totals_and_report, workload

from egpu import Options, RingMemory, run
from egpu.bpf.asm import assemble
from egpu.bpf.context import FIELDS
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import AttachKind, AttachPoint, Level, MapSpec, Object
from egpu.maps import ring_controls

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from host_maps import Stepper
from print_lines import documents, wrong_lines

__all__ = ["pytestmark"]
TWO_DEVICES = ROOT / "tests" / "runtime" / "sim_programs" / "two_devices.py"
OFFSETS = {row.name: row.offset for row in FIELDS}
HEAD = f"""
ldxdw %r6, [%r1+{OFFSETS["launch_id"]}]
ldxw %r7, [%r1+{OFFSETS["block_x"]}]
ldxw %r8, [%r1+{OFFSETS["thread_x"]}]
stxdw [%r10-24], %r6
stxdw [%r10-16], %r7
stxdw [%r10-8], %r8
"""
OUTPUT = (
    HEAD
    + """
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -24
mov %r3, 24
mov %r4, 0
call 130
mov %r0, 0
exit
"""
)
# Records of 8, 16 or 24 bytes, each claimed alone.
SIZES = (
    HEAD
    + """
stxdw [%r10-24], %r6
mov %r3, %r8
mod %r3, 3
lsh %r3, 3
add %r3, 8
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -24
mov %r4, 0
call 130
mov %r0, 0
exit
"""
)
# Every third thread gives its record back.
RESERVE = (
    HEAD
    + """
lddw %r1, map_index 0
mov %r2, 24
mov %r3, 0
call 131
jeq %r0, 0, none
stxdw [%r0+0], %r6
stxdw [%r0+8], %r7
stxdw [%r0+16], %r8
mov %r1, %r0
mov %r2, 0
mod %r8, 3
jeq %r8, 0, back
call 132
ja none
back:
call 133
none:
mov %r0, 0
exit
"""
)


def program(text, kind=AttachKind.ENTRY, level=Level.THREAD, size=1 << 20):
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, size)
    point = AttachPoint(kind, "*", level)
    made = program_from_code(assemble(text), "p", maps=(spec,), attach=(point,))
    return Object("made", (made,), (spec,))


def warps(size=1 << 20):
    """Records in stamped slots."""
    return program(OUTPUT, AttachKind.EXIT, Level.WARP, size)


class Taken:
    """Records of a session as they come."""

    def __init__(self, session):
        self.ring = session.maps["events"]
        self.records = Counter()
        self.last = {}

    def take(self):
        for arena, reader in self.ring.readers():
            self._add(arena, reader.batches())

    def finish(self):
        for arena, reader in self.ring.readers():
            controls = ring_controls(arena.host.snapshot(), reader.place, arena.layout.sm_slots)
            self._add(arena, reader.drain_final(controls))
        self.totals = self.ring.totals()
        totals = self.totals
        assert totals.received + totals.discarded + totals.holes == totals.produced
        assert totals.received == sum(self.records.values())

    def wait_until_copied(self):
        """Until all that the last snapshot says was claimed may be read."""
        end = time.monotonic() + PATIENCE
        for arena, reader in self.ring.readers():
            controls = ring_controls(arena.host.snapshot(), reader.place, arena.layout.sm_slots)
            assert sum(control.head for control in controls) > 0
            for slot, control in enumerate(controls):
                while reader._limit(slot) < control.head:
                    assert time.monotonic() < end, f"slot {slot}: {reader._limit(slot)}"
                    time.sleep(0.005)

    def _add(self, arena, batches):
        for batch in batches:
            for record in batch.records():
                launch = int.from_bytes(record[:8], "little")
                place = id(arena), batch.sm
                assert launch >= self.last.get(place, 0)  # launches follow each other
                self.last[place] = launch
                self.records[record] += 1


@contextmanager
def session_of(argv, source, memory, **more):
    options = Options(simulated=True, rings=memory, **more)
    with run(list(map(str, argv)), programs=source, options=options) as session:
        yield session, Taken(session)


def all_of(argv, source, memory, *, reading=True, **more):
    with session_of(argv, source, memory, **more) as (session, taken):
        while session.running():
            if reading:
                taken.take()
            time.sleep(0.005)
        assert session.wait() == 0
        assert (session.notes, session.stale()) == ((), "")
        sizes = {arena.layout.device_rings for arena in session.arenas.all()}
        assert (0 in sizes) == (memory is RingMemory.HOST)
        taken.finish()
        return taken, sum(row.threads_probed for row in session.kernels())


@pytest.mark.parametrize(
    "source",
    [
        program(OUTPUT),
        warps(),
        program(OUTPUT, AttachKind.ENTRY, Level.BLOCK),
        program(OUTPUT, AttachKind.EXIT),
        program(SIZES),
        program(RESERVE),
        program(RESERVE, level=Level.WARP),
    ],
    ids=["output", "warps", "blocks", "exits", "sizes", "reserve", "reserve-warps"],
)
def test_records_are_those_of_rings_in_host_memory(source):
    argv = workload(launches=3)
    expected, threads = all_of(argv, source, RingMemory.HOST)
    found, same = all_of(argv, source, RingMemory.DEVICE)
    assert found.records == expected.records
    assert found.totals == expected.totals
    assert (same, found.totals.dropped, found.totals.holes) == (threads, 0, 0)
    assert found.totals.received > 15


def test_slots_that_nobody_reads_fill_up(tmp_path):
    stepper, slots = Stepper(tmp_path), 4 * 128  # of four SMs
    with session_of(stepper.argv, warps(4096), RingMemory.DEVICE) as (session, taken):
        for _ in range(2):
            stepper.do("first 100 128")
        stepper.end(session)
        taken.finish()
    assert (taken.totals.received, taken.totals.holes) == (slots, 0)
    assert taken.totals.dropped == 2 * 100 * 4 - slots
    assert set(taken.records.values()) == {1}


def test_rings_that_nobody_reads_fill_up_and_what_they_hold_comes_at_the_end():
    source, argv = program(OUTPUT, size=4096), workload(launches=3)
    expected, threads = all_of(argv, source, RingMemory.HOST, reading=False)
    found, _ = all_of(argv, source, RingMemory.DEVICE, reading=False)
    assert found.totals == expected.totals
    assert found.totals.dropped > 0
    assert found.totals.received + found.totals.dropped == threads


@pytest.mark.parametrize(
    ("source", "threads", "laps"),
    [
        (program(OUTPUT, size=4096), 7 * 33, 10),
        (program(RESERVE, size=4096), 7 * 33, 10),
        (warps(4096), 7 * 2, 5),
    ],
    ids=["output", "reserve", "warps"],
)
def test_small_rings_go_round_many_times(tmp_path, source, threads, laps):
    """As many launches as it takes: the slower it is read, the more finds no room."""
    stepper, rounds = Stepper(tmp_path), 0
    enough = laps * 4 * 4096  # of four SMs
    end = time.monotonic() + PATIENCE
    with session_of(stepper.argv, source, RingMemory.DEVICE) as (session, taken):
        while taken.records.total() * 24 <= enough:
            assert time.monotonic() < end, f"{taken.records.total()} records of {rounds} launches"
            stepper.do("first 7 33")
            rounds += 1
            taken.take()
            time.sleep(0.005)
        stepper.end(session)
        taken.finish()
    totals = taken.totals
    assert totals.produced + totals.dropped == rounds * threads
    assert totals.holes == 0
    assert totals.produced * 24 > enough
    assert set(taken.records.values()) == {1}
    for record in taken.records:
        launch, block, thread = (int.from_bytes(record[at : at + 8], "little") for at in (0, 8, 16))
        assert (launch < rounds + 2, block < 7, thread < 33) == (True, True, True)


@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize(
    ("source", "records"), [(program(OUTPUT), 33), (warps(), 2)], ids=["output", "warps"]
)
def test_a_workload_that_is_killed(tmp_path, source, records, reading):
    """What had been copied by then is given out, and nothing else is made of the rest."""
    stepper = Stepper(tmp_path)
    with session_of(stepper.argv, source, RingMemory.DEVICE) as (session, taken):
        for _ in range(3):
            stepper.do("first 7 33")
        session.snapshot()
        taken.wait_until_copied()
        if reading:
            taken.take()
        os.kill(session.pid, signal.SIGKILL)
        assert session.wait() == -signal.SIGKILL
        stepper.close()
        taken.finish()
    assert (taken.totals.received, taken.totals.holes) == (3 * 7 * records, 0)
    assert set(taken.records.values()) == {1}


@pytest.mark.parametrize("source", [program(OUTPUT), warps()], ids=["output", "warps"])
def test_every_context_has_rings_of_its_own(monkeypatch, source):
    monkeypatch.setenv("EGPU_SIM_DEVICES", "3")
    argv = [sys.executable, TWO_DEVICES]
    expected, threads = all_of(argv, source, RingMemory.HOST)
    found, same = all_of(argv, source, RingMemory.DEVICE)
    assert (found.totals, same) == (expected.totals, threads)
    assert len({arena for arena, _ in found.last}) == 3


def test_lines_of_bpf_printk():
    source = ROOT / "tests" / "gpu" / "probes" / "prints.bpf.o"
    options = ("--sim", "--json", "--print-limit", "0", "--rings", "device")
    done = egpu("run", source, *options, "--", *workload())
    assert done.returncode == 0, done.stderr
    lines, report, kernels = documents(done.stdout)
    assert wrong_lines(lines, report, kernels) == []
    assert report["printed"]["dropped"] == report["printed"]["suppressed"] == 0


def test_a_tool_that_reads_records():
    rows = []
    for memory in ("host", "device"):
        options = ("--sim", "--json", "--rings", memory)
        done = egpu("run", "blocksched", *options, "--", *workload())
        assert done.returncode == 0, done.stderr
        _, report = totals_and_report(done.stdout)
        rows.append(
            {row["name"]: (row["blocks"], row["launches_recorded"]) for row in report["kernels"]}
        )
        assert report["records"]["received"] == sum(blocks for blocks, _ in rows[-1].values())
        assert report["cost"]["records_dropped"] == report["cost"]["records_missing"] == 0
    assert rows[0] == rows[1]
