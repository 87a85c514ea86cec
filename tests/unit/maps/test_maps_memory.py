"""The host arena: control page, snapshots under a sequence lock, refusals."""

import gc
import os
import threading

import pytest

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import AgentError
from egpu.maps import initial_chunks, memory
from egpu.maps import layout as L
from egpu.maps.memory import HostArena, RingControl, ring_controls
from egpu.maps.planning import plan as plan_maps

MAPS = [MapSpec("a", MapType.ARRAY, 4, 8, 4), MapSpec("r", MapType.RINGBUF, 0, 0, 1)]
PLAN = plan_maps(MAPS, 2)


def put(arena, name, value):
    offset, size = L.HOST_CONTROL[name]
    arena.bytes[offset : offset + size] = list(value.to_bytes(size, "little"))


def test_a_new_arena_reads_as_its_initial_contents():
    chunks = initial_chunks(PLAN, MAPS, 7)
    with HostArena.create(PLAN, chunks) as arena:
        shot = arena.snapshot()
        assert shot.data[:8] == b"EGPUARNA"
        assert len(shot.data) == PLAN.device_size
        assert (shot.time_ns, shot.sequence, shot.final, shot.complete) == (0, 0, False, True)


def test_another_process_opens_it_by_descriptor():
    with HostArena.create(PLAN) as arena, HostArena.open(os.dup(arena.fd)) as other:
        put(arena, "final", 1)
        put(arena, "snapshot_time", 99)
        assert other.final
        assert other.snapshot().time_ns == 99
        assert other.control("sm_slots") == 2
        assert other.control("snapshot") == PLAN.snapshot


def test_it_cannot_be_shrunk_under_a_reader():
    with HostArena.create(PLAN) as arena, pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 4096)


def test_what_is_not_an_arena_is_refused():
    fd = os.memfd_create("x")
    os.ftruncate(fd, 100)
    with pytest.raises(AgentError, match="100 bytes"):
        HostArena.open(fd)
    os.ftruncate(fd, 8192)
    with pytest.raises(AgentError, match=f"layout version {L.LAYOUT_VERSION}"):
        HostArena.open(fd)
    os.close(fd)


def test_close_twice():
    arena = HostArena.create(PLAN)
    arena.close()
    arena.close()
    with pytest.raises(AgentError, match="read maps before closing"):
        arena.snapshot()


def test_a_snapshot_waits_for_the_copy_to_end(monkeypatch):
    monkeypatch.setattr(memory, "_STABLE_WAIT_S", 100)  # however slow the other thread is
    with HostArena.create(PLAN) as arena:
        put(arena, "sequence", 1)
        arena.bytes[PLAN.snapshot] = 1

        def finish():
            arena.bytes[PLAN.snapshot : PLAN.snapshot + 8] = 7
            put(arena, "sequence", 2)

        timer = threading.Timer(0.05, finish)
        timer.start()
        shot = arena.snapshot()
        timer.join()
        assert shot.data[:8] == bytes([7] * 8)
        assert shot.complete


def test_a_snapshot_whose_writer_died_is_marked(monkeypatch):
    monkeypatch.setattr(memory, "_STABLE_WAIT_S", 0.01)
    with HostArena.create(PLAN) as arena:
        put(arena, "sequence", 5)
        assert arena.snapshot().complete is False


def test_ring_counters_are_read_from_a_snapshot():
    with HostArena.create(PLAN) as arena:
        base = (PLAN.snapshot + PLAN.places[1].offset + L.RING_CONTROL_SIZE) // 8
        arena.words[base : base + 4] = [64, 32, 3, 5]
        rows = ring_controls(arena.snapshot(), PLAN.places[1], 2)
        assert rows == (RingControl(0, 0, 0, 0), RingControl(64, 32, 3, 5))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_an_arena_of_a_process_that_is_gone_keeps_its_contents_without_descriptors():
    gc.collect()  # of earlier tests, lest it comes in between
    before = descriptors()
    arena = HostArena.create(PLAN, [(16, b"initial!")])
    arena.words[-1] = 77
    content, snapshot = arena.bytes.tobytes(), arena.snapshot()
    view = arena.words  # of a reader in another thread
    arena.keep()
    arena.keep()
    assert (arena.fd, arena.size, int(view[-1])) == (-1, len(content), 77)
    assert arena.bytes.tobytes() == content
    assert arena.snapshot() == snapshot
    arena.words[-1] = 78
    assert int(arena.words[-1]) == 78
    del view
    assert descriptors() == before
    arena.close()
    arena.close()
    arena.keep()
    with pytest.raises(AgentError):
        _ = arena.words
