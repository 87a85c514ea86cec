"""Which rings get stamped slots: those that lanes which are alone fill with records of one size."""

import dataclasses
from pathlib import Path

import pytest

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.object import read_object
from egpu.bpf.program import AttachKind, AttachPoint, Level, MapSpec
from egpu.session.stamping import stamped_maps
from egpu.verifier import verify

ROOT = Path(__file__).resolve().parents[3]
RING = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 20)
OTHER = dataclasses.replace(RING, name="others")
WORDS = "".join(f"stdw [%r10-{at}], {at}\n" for at in range(8, 265, 8))
OUTPUT = """
lddw %r1, map_index {index}
mov %r2, %r10
add %r2, -{size}
mov %r3, {size}
mov %r4, 0
call 130
"""
PERF = """
lddw %r2, map_index 0
lddw %r3, 0xffffffff
mov %r4, %r10
add %r4, -{size}
mov %r5, {size}
call 25
"""
QUERY = """
lddw %r1, map_index 0
mov %r2, 0
call 134
"""
RESERVE = """
lddw %r1, map_index 0
mov %r2, 24
mov %r3, 0
call 131
jeq %r0, 0, none
mov %r1, %r0
mov %r2, 0
call 132
none:
"""
# A size that is one of two.
EITHER = """
call 8
mov %r3, 16
jeq %r0, 0, lower
mov %r3, 24
lower:
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -24
mov %r4, 0
call 130
"""
END = "mov %r0, 0\nexit\n"


def point(level=Level.WARP, kind=AttachKind.EXIT):
    return AttachPoint(kind, "*", level)


LEAVING = (point(),)


def verified(body, maps=(RING,), points=LEAVING):
    code = assemble(WORDS + body + END)
    return verify(program_from_code(code, "p", maps=maps, attach=points, license="GPL"))


def stamped(*bodies, maps=(RING,), points=LEAVING):
    return stamped_maps([verified(body, maps, points) for body in bodies], maps)


def output(size, index=0):
    return OUTPUT.format(size=size, index=index)


@pytest.mark.parametrize("size", [8, 24, 256])
@pytest.mark.parametrize(
    "points",
    [
        LEAVING,
        (point(kind=AttachKind.ENTRY),),
        (point(Level.BLOCK, AttachKind.ENTRY), point(Level.WARP)),
    ],
)
def test_whole_records_of_one_size(size, points):
    assert stamped(output(size), output(size) * 2, points=points) == {0: size}


@pytest.mark.parametrize(
    ("bodies", "points"),
    [
        ([output(20)], LEAVING),  # no whole words
        ([output(264)], LEAVING),  # too many of them
        ([output(16), output(24)], LEAVING),  # two sizes
        ([output(16) + output(24)], LEAVING),
        ([EITHER], LEAVING),
        ([output(16) + QUERY], LEAVING),  # who asks for positions gets those of groups
        ([output(24) + RESERVE], LEAVING),
        ([RESERVE], LEAVING),
        ([output(16)], (point(Level.THREAD),)),  # lanes of a warp write together
        ([output(16)], (point(), point(Level.THREAD))),
        ([""], LEAVING),  # nobody writes
    ],
)
def test_everything_else_has_groups(bodies, points):
    assert stamped(*bodies, points=points) == {}


def test_each_map_is_decided_by_itself():
    maps = (RING, OTHER)
    assert stamped(output(16), output(24, 1), maps=maps) == {0: 16, 1: 24}
    assert stamped(output(16), output(20, 1), maps=maps) == {0: 16}


def test_events_of_perf():
    spec = MapSpec("events", MapType.PERF_EVENT_ARRAY, 4, 4, 0)
    assert stamped(PERF.format(size=32), maps=(spec,)) == {0: 32}
    assert stamped(PERF.format(size=30), maps=(spec,)) == {}


def test_a_ring_of_too_many_slots():
    large = dataclasses.replace(RING, max_entries=1 << 27)
    assert stamped(output(24), maps=(large,)) == {0: 24}
    assert stamped(output(16), maps=(dataclasses.replace(RING, max_entries=1 << 28),)) == {}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("bench/probes/records_room.bpf.o", {"records": 32}),
        ("src/egpu/tools/blocksched/blocksched.bpf.o", {"blocks": 48}),
    ],
)
def test_the_benchmark_and_the_tool(path, found):
    read = read_object((ROOT / path).read_bytes(), path)
    records = stamped_maps([verify(program) for program in read.programs], read.maps)
    assert {read.maps[index].name: size for index, size in records.items()} == found
