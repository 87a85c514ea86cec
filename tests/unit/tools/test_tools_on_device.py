"""The tools' programs inside a kernel on the simulated device: exact totals, whole blocks."""

import struct
from collections import Counter

import numpy as np
import pytest

from egpu.codegen import Launch, compile_probe
from egpu.image.ptx import parse
from egpu.maps import (
    HostArena,
    MapCopy,
    MapView,
    RingReader,
    Snapshot,
    initial_chunks,
    plan,
    ring_controls,
)
from egpu.maps.layout import LAYOUT_VERSION
from egpu.sim.machine import Machine
from egpu.sim.memory import DeviceMemory
from egpu.splice import splice_ptx
from egpu.tools.kernelcount.tool import read_counts
from egpu.tools.kernellat.merge import Merger
from egpu.tools.kernellat.tool import records_of
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

    def __init__(self, name, launch=Launch.DIRECT):
        loaded = load_object(find_tool(name))
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

    def launch(self, launch_id, grid, block, *, flags=0):
        parameters = bytearray(self.hidden + 32)
        struct.pack_into(
            "<QQQII",
            parameters,
            self.hidden,
            self.device,
            self.host,
            launch_id,
            KERNEL_ID,
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

    def reader(self, name):
        index = [spec.name for spec in self.maps].index(name)
        return RingReader(self.arena, self.layout, self.layout.places[index], self.maps[index])


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
    assert rig.view("overflow")[0] == 0


@pytest.mark.parametrize("flags", [0, 1])
def test_kernellat_merges_every_block_of_every_launch(flags):
    rig = Rig("kernellat")
    launches = SHAPES if not flags else [((2, 2, 1), (96, 1, 1))] * 3
    for number, (grid, block) in enumerate(launches, 1):
        rig.launch(7 if flags else number, grid, block, flags=flags)
    reader = rig.reader("events")
    batches = list(reader.batches())
    records = np.concatenate([records_of(batch) for batch in batches])
    threads = sum(size(grid) * size(block) for grid, block in launches)
    assert records["lanes"].sum() == threads
    assert (records["kernel_id"] == KERNEL_ID).all()
    assert (records["end"] >= records["start"]).all()
    blocks = sum(size(grid) for grid, _ in launches)
    if not flags:
        lanes = Counter()
        for record in records:
            lanes[int(record["launch_id"]), int(record["block"])] += int(record["lanes"])
        assert len(lanes) == blocks
        for number, (grid, block) in enumerate(launches, 1):
            for linear in range(size(grid)):
                assert lanes[number, linear] == size(block)
    merger = Merger()
    for batch in batches:
        merger.add(records_of(batch))
    latency = merger.finish(lossy=False)[KERNEL_ID]
    assert len(latency.blocks) == blocks
    assert len(latency.launches) == len(launches)
    assert latency.incomplete_blocks == latency.missing_blocks == latency.incomplete_launches == 0
    place = reader.place
    reader.drain_final(ring_controls(rig.snapshot(), place, SLOTS))
    counts = reader.counts
    assert (counts.received, counts.dropped, counts.holes) == (len(records), 0, 0)
    assert counts.produced == len(records)


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
