"""The tools' programs inside a kernel on the simulated device: exact totals, whole blocks."""

import struct

import numpy as np
import pytest

from egpu.codegen import Launch, compile_probe
from egpu.image.ptx import parse
from egpu.maps import (
    HostArena,
    MapCopy,
    MapView,
    Snapshot,
    initial_chunks,
    plan,
)
from egpu.maps.layout import LAYOUT_VERSION
from egpu.sim.machine import Machine
from egpu.sim.memory import DeviceMemory
from egpu.splice import splice_ptx
from egpu.tools.constants import with_constants
from egpu.tools.kernelcount.tool import MAX_KERNELS, read_counts, read_overflow
from egpu.tools.kernellat.times import MEETING, read_times
from egpu.tools.registry import find_tool, load_object
from egpu.verifier import verify

# Threads leave at three places: odd lanes at once, threads from 40 on later, the rest at the end.
KERNEL = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry leaves(.param .u32 unused)
{
  .reg .pred %p<3>;
  .reg .b32 %r<4>;
  mov.u32 %r1, %tid.x;
  and.b32 %r2, %r1, 1;
  setp.eq.u32 %p1, %r2, 1;
  @%p1 ret;
  setp.ge.u32 %p2, %r1, 40;
  @%p2 bra $L_far;
  ret;
$L_far:
  exit;
}
"""
KERNEL_ID = 5
SLOTS = 4


class Rig:
    """One tool's programs in ``leaves``, with both arenas in simulated memory."""

    def __init__(self, name, launch=Launch.DIRECT, **constants):
        loaded = with_constants(load_object(find_tool(name)), constants)
        self.maps = loaded.maps
        self.layout = plan(self.maps, SLOTS)
        codes = [
            compile_probe(verify(p), point=p.attach[0], launch=launch) for p in loaded.programs
        ]
        twin = splice_ptx(parse(KERNEL), "leaves", codes, self.layout)
        self.hidden = twin.hidden_offset
        self.module = parse(twin.text)
        self.memory = DeviceMemory()
        self.machine = Machine(self.memory)
        self.device = self.memory.allocate(self.layout.device_size)
        for offset, data in initial_chunks(self.layout, self.maps, 1):
            self.memory.write(self.device + offset, data)
        self.arena = HostArena.create(self.layout)
        self.host = 0x7000_0000_0000
        self.memory.add(self.host, self.arena.bytes, self.arena.size)

    def launch(self, launch_id, grid, block, *, flags=0, kernel=KERNEL_ID):
        parameters = bytearray(self.hidden + 32)
        struct.pack_into(
            "<QQQII",
            parameters,
            self.hidden,
            self.device,
            self.host,
            launch_id,
            kernel,
            flags | LAYOUT_VERSION << 24,
        )
        self.machine.launch(self.module, "leaves", grid, block, bytes(parameters))

    def snapshot(self):
        data = self.memory.read(self.device, self.layout.device_size)
        return Snapshot(bytes(data), 1, 1, True)

    def view(self, name):
        index = [spec.name for spec in self.maps].index(name)
        copy = MapCopy(self.layout.places[index], SLOTS, self.snapshot)
        return MapView(self.maps[index], [copy])

    def times(self):
        return read_times(self.view("times").raw(), self.view("meetings").raw())

    def lost(self):
        return tuple(self.view("lost")[0])


SHAPES = [
    ((1, 1, 1), (1, 1, 1)),
    ((3, 1, 1), (31, 1, 1)),
    ((2, 2, 1), (33, 1, 1)),
    ((2, 1, 3), (96, 1, 1)),
    ((1, 2, 1), (257, 1, 1)),
    ((2, 1, 1), (8, 4, 4)),
    ((1, 1, 1), (1024, 1, 1)),
]


def size(shape):
    return shape[0] * shape[1] * shape[2]


def test_kernelcount_is_exact_for_every_shape():
    rig = Rig("kernelcount")
    for number, (grid, block) in enumerate(SHAPES, 1):
        rig.launch(number, grid, block)
    (row,) = read_counts(rig.view("counts"))
    threads = sum(size(grid) * size(block) for grid, block in SHAPES)
    assert row.kernel_id == KERNEL_ID
    assert sum(row.threads) == sum(row.exits) == threads
    assert sum(row.blocks) == sum(size(grid) for grid, _ in SHAPES)
    assert len(row.threads) == SLOTS
    assert read_overflow(rig.view("counts")) == 0


def test_kernels_beyond_the_rows_are_counted_together():
    rig = Rig("kernelcount")
    for number, kernel in enumerate((MAX_KERNELS - 1, MAX_KERNELS, 70_000), 1):
        rig.launch(number, (2, 1, 1), (40, 1, 1), kernel=kernel)
    (row,) = read_counts(rig.view("counts"))
    assert (row.kernel_id, sum(row.threads), sum(row.exits)) == (MAX_KERNELS - 1, 80, 80)
    assert read_overflow(rig.view("counts")) == 160


@pytest.mark.parametrize("flags", [0, 1])
def test_kernellat_measures_every_block_of_every_launch(flags):
    """Replays of a graph (flag 1) have one launch id and follow each other."""
    rig = Rig("kernellat")
    launches = SHAPES if not flags else [((2, 2, 1), (96, 1, 1))] * 3
    for number, (grid, block) in enumerate(launches, 1):
        rig.launch(7 if flags else number, grid, block, flags=flags)
    times = rig.times()[KERNEL_ID]
    assert len(times.blocks) == sum(size(grid) for grid, _ in launches)
    assert len(times.launches) == len(launches)
    assert times.open_blocks == times.open_launches == 0
    assert 0 < times.blocks.least <= times.blocks.most <= times.launches.most
    assert times.launches.total >= times.launches.least * len(launches)
    assert rig.lost() == (0, 0, 0, 0)
    meetings = np.frombuffer(rig.view("meetings").raw()[0], MEETING)
    for name in ("key", "early", "late", "count"):
        assert not meetings[name].any()  # whoever completes a meeting clears it


def test_a_launch_of_many_blocks_meets_in_parts():
    rig = Rig("kernellat")
    grids = (31, 32, 33, 1023, 1024, 1025, 2100)
    for number, blocks in enumerate(grids, 1):
        rig.launch(number, (blocks, 1, 1), (33, 1, 1))
    times = rig.times()[KERNEL_ID]
    assert (len(times.blocks), len(times.launches)) == (sum(grids), len(grids))
    assert times.open_blocks == times.open_launches == 0
    assert rig.lost() == (0, 0, 0, 0)


def test_a_share_of_the_blocks_is_measured_whole():
    rig = Rig("kernellat", every=4)
    for number in range(1, 9):
        rig.launch(number, (50, 1, 1), (64, 1, 1))
    times = rig.times()[KERNEL_ID]
    assert 60 <= len(times.blocks) <= 140  # 400 / 4, by a hash
    assert len(times.launches) == 0
    assert times.open_blocks == 0
    assert rig.lost() == (0, 0, 0, 0)


def test_blocks_that_did_not_become_complete_are_found():
    rig = Rig("kernellat")
    # A block whose first group of lanes arrived and no other: what a fault in between leaves.
    rig.launch(1, (1, 1, 1), (64, 1, 1))
    assert rig.times()[KERNEL_ID].open_blocks == 0
    index = [spec.name for spec in rig.maps].index("meetings")
    entry = np.zeros(1, MEETING)
    entry[0] = (1 << 34 | 0 << 32 | 9, 1, 2, 31, KERNEL_ID, 0)
    rig.memory.write(rig.device + rig.layout.places[index].offset, entry.tobytes())
    assert rig.times()[KERNEL_ID].open_blocks == 1
    assert rig.times()[KERNEL_ID].open_launches == 1


def test_a_taken_place_is_avoided():
    """Both places of a block are taken: its groups are counted as lost, nothing is mixed up."""
    rig = Rig("kernellat")
    index = [spec.name for spec in rig.maps].index("meetings")
    table = np.zeros(1 << 17, MEETING)
    table["key"] = 3
    rig.memory.write(rig.device + rig.layout.places[index].offset, table.tobytes())
    rig.launch(1, (1, 1, 1), (64, 1, 1))
    rig.launch(2, (1, 1, 1), (1, 1, 1))  # one group: it needs no place
    assert rig.lost()[0] > 0
    assert len(rig.times()[KERNEL_ID].blocks) == len(rig.times()[KERNEL_ID].launches) == 1


def test_a_disabled_arena_stops_captured_launches_only():
    rig = Rig("kernelcount", Launch.CAPTURED)
    rig.memory.write(rig.device + 64, bytes(4))
    rig.launch(1, (1, 1, 1), (32, 1, 1), flags=1)
    assert read_counts(rig.view("counts")) == []
    rig = Rig("kernelcount")
    rig.memory.write(rig.device + 64, bytes(4))
    rig.launch(2, (1, 1, 1), (32, 1, 1))
    (row,) = read_counts(rig.view("counts"))
    assert sum(row.threads) == 32
