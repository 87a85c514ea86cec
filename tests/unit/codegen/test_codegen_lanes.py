"""Probes on many lanes: spliced into a kernel that parts its lanes, run by the simulated device."""

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from codegen_programs import COUNT, OUTPUT, PER_SM, RING, entry, leave, probe

from egpu.bpf.context import FIELDS
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import Level, MapSpec
from egpu.codegen import Launch, Together, compile_probe
from egpu.image.ptx import parse
from egpu.maps.initial import initial_chunks
from egpu.maps.layout import (
    LAUNCH_BLOCK,
    LAUNCH_BLOCK_SIZE,
    RING_CONTROL,
)
from egpu.maps.planning import plan
from egpu.maps.ringbuf import RingReader
from egpu.sim import DeviceMemory, Machine
from egpu.splice import splice_ptx

KERNEL = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry work()
{
	.reg .pred %p<2>;
	.reg .b32 %r<3>;
	mov.u32 %r1, %laneid;
	setp.lt.u32 %p1, %r1, 5;
	@%p1 ret;
	ret;
}
"""
SLOTS = 3
SMS = 4  # more than slots: the last SM shares the first one's
OFFSETS = {row.name: row.offset for row in FIELDS}
# Sizes of 8, 16 and 24 bytes by lane, so that the lanes of a warp agree in groups.
SIZES = f"ldxw %r6, [%r1+{OFFSETS['lane']}]\n" + OUTPUT.format(size=0).replace(
    "mov %r3, 0", "mov %r3, %r6\nmod %r3, 3\nadd %r3, 1\nlsh %r3, 3\nstxdw [%r10-24], %r6"
)
RESERVED = f"""
ldxw %r7, [%r1+{OFFSETS["lane"]}]
lddw %r1, map_index 0
mov %r2, 16
mov %r3, 0
call 131
jeq %r0, 0, done
stxdw [%r0], %r7
stdw [%r0+8], 99
mov %r1, %r0
mov %r2, 0
and %r7, 3
jeq %r7, 3, drop
call 132
mov %r0, 0
exit
drop:
call 133
done:
mov %r0, 0
exit
"""


class Run:
    """A spliced kernel, launched once; what its maps hold then."""

    def __init__(
        self,
        verified,
        point,
        *,
        blocks=7,
        threads=96,
        shape=None,
        launch=Launch.DIRECT,
        enabled=1,
        additive=(),
        thread_slots=1024,
        together=Together.WARP,
    ):
        maps = verified.program.maps
        self.layout = plan(maps, SLOTS, additive=additive, thread_slots=thread_slots)
        code = compile_probe(verified, point=point, launch=launch, together=together)
        self.text = code.text
        image = splice_ptx(parse(KERNEL), "work", [code], self.layout)
        self.memory = DeviceMemory()
        self.device = self.memory.allocate(self.layout.device_bytes)
        self.host = self.memory.allocate(self.layout.host_size)
        for offset, data in initial_chunks(self.layout, maps, 1234):
            self.memory.write(self.device + offset, data)
        self.memory.write(self.device + 64, enabled.to_bytes(4, "little"))
        block = bytearray(LAUNCH_BLOCK_SIZE)
        for name, value in (
            ("device_arena", self.device),
            ("host_arena", self.host),
        ):
            offset, size = LAUNCH_BLOCK[name]
            block[offset : offset + size] = value.to_bytes(size, "little")
        machine = Machine(self.memory, SMS)
        grid, size = shape or ((blocks, 1, 1), (threads, 1, 1))
        machine.launch(parse(image.text), "work", grid, size, bytes(block))

    def words(self, offset, count):
        return np.frombuffer(self.memory.read(self.device + offset, 8 * count), np.uint64)

    def values(self, entry_index):
        """The u64 of each SM slot's copy of map 0."""
        place = self.layout.places[0]
        copies = [
            int(self.words(place.offset + copy * place.stride + 8 * entry_index, 1)[0])
            for copy in range(SLOTS * place.spread)
        ]
        return [sum(copies[i : i + place.spread]) for i in range(0, len(copies), place.spread)]

    def control(self, name):
        place = self.layout.places[0]
        return sum(
            int(self.words(place.offset + slot * place.stride + RING_CONTROL[name][0], 1)[0])
            for slot in range(SLOTS)
        )

    def records(self, spec):
        data = np.frombuffer(self.memory.read(self.host, self.layout.host_size), np.uint8).copy()
        arena = SimpleNamespace(bytes=data, words=data.view(np.uint64))
        self.reader = RingReader(arena, self.layout, self.layout.places[0], spec)
        return list(self.reader)


@pytest.mark.parametrize("threads", [1, 31, 33, 96])
@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (entry(), lambda threads: threads),
        (leave(), lambda threads: threads),
        (entry(Level.WARP), lambda threads: -(-threads // 32)),
        (entry(Level.BLOCK), lambda threads: 1),
    ],
    ids=["entry", "exit", "warp", "block"],
)
def test_counts_are_exact(point, expected, threads):
    run = Run(probe(COUNT, PER_SM, points=(point,)), point, threads=threads)
    # Blocks 0-6 go to SMs 0-3 in turn; SM 3, which has no slot of its own, uses the last one.
    assert run.values(2) == [3 * blocks * expected(threads) for blocks in (2, 2, 3)]
    assert run.values(1) == [0, 0, 0]


def test_a_warp_leaves_in_two_parts():
    run = Run(probe(COUNT, PER_SM, points=(leave(Level.WARP),)), leave(Level.WARP))
    assert sum(run.values(2)) == 3 * 7 * 3 * 2


@pytest.mark.parametrize("level", [Level.THREAD, Level.WARP])
def test_active_mask_is_the_lanes_of_the_site(level):
    text = f"""
    ldxw %r6, [%r1+{OFFSETS["active_mask"]}]
    lddw %r2, map_index_value 0
    lock or [%r2], %r6
    mov %r0, 0
    exit
    """
    spec = MapSpec("mask", MapType.ARRAY, 4, 8, 1)
    run = Run(probe(text, spec, points=(entry(level),)), entry(level), blocks=1, threads=7)
    assert run.values(0)[0] == 0x7F


@pytest.mark.parametrize("threads", [1, 33, 1024])
def test_warps_of_an_sm_are_dealt_over_its_copies(threads):
    run = Run(probe(COUNT, PER_SM), entry(), threads=threads, additive={0})
    place = run.layout.places[0]
    assert place.spread == 8
    assert run.values(2) == [3 * blocks * threads for blocks in (2, 2, 3)]
    used = [
        bool(run.words(place.offset + copy * place.stride + 16, 1)[0])
        for copy in range(SLOTS * place.spread)
    ]
    assert sum(used) >= min(8, -(-threads // 32))


@pytest.mark.parametrize(
    ("launch", "enabled", "runs"),
    [
        (Launch.DIRECT, 1, True),
        (Launch.DIRECT, 0, True),
        (Launch.CAPTURED, 1, True),
        (Launch.CAPTURED, 0, False),
    ],
)
def test_enable_word_of_captured_launches(launch, enabled, runs):
    run = Run(probe(COUNT, PER_SM), entry(), launch=launch, enabled=enabled, blocks=1, threads=32)
    assert run.values(2)[0] == (96 if runs else 0)


@pytest.mark.parametrize("level", [Level.THREAD, Level.WARP])
@pytest.mark.parametrize("size", [4, 24])
def test_output_by_many_lanes(level, size):
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 17)
    point = entry(level)
    run = Run(probe(OUTPUT.format(size=size), spec, points=(point,)), point)
    records = run.records(spec)
    expected = 7 * 96 if level is Level.THREAD else 7 * 3
    data = b"".join(word.to_bytes(8, "little") for word in (11, 22, 33))
    assert records == [data[:size]] * expected
    assert (run.control("produced"), run.control("dropped")) == (expected, 0)
    group = (16 + (32 if level is Level.THREAD else 1) * -(-size // 8) * 8 + 15) & ~15
    assert run.control("head") == 21 * group


def test_lanes_whose_sizes_are_known_at_run_time_go_by_themselves():
    """A loop copies their records, over which no lanes are held together."""
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 17)
    run = Run(probe(SIZES, spec), entry())
    records = run.records(spec)
    seen = Counter((int.from_bytes(record[:8], "little"), len(record)) for record in records)
    assert seen == {(lane, 8 * (lane % 3 + 1)): 21 for lane in range(32)}
    # A warp has 11 lanes of 8 and of 16 bytes, 10 of 24.
    sizes = ((11, 8), (11, 16), (10, 24))
    assert run.control("head") == 21 * sum(n * ((16 + size + 15) & ~15) for n, size in sizes)


def test_reserve_by_many_lanes():
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 17)
    run = Run(probe(RESERVED, spec), entry())
    records = run.records(spec)
    seen = Counter(int.from_bytes(record[:8], "little") for record in records)
    assert seen == {lane: 21 for lane in range(32) if lane % 4 != 3}
    assert {record[8:] for record in records} == {(99).to_bytes(8, "little")}
    assert run.reader.counts.discarded == 21 * 8
    assert run.control("produced") == 21 * 32


@pytest.mark.parametrize(("size", "stores"), [(16, [16]), (24, [8, 8, 8]), (20, [8, 8, 4])])
def test_records_of_whole_pairs_of_words_are_stored_by_pairs(size, stores):
    """A link to a host takes half a pair in the time of a whole one."""
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 17)
    run = Run(probe(OUTPUT.format(size=size), spec), entry())
    found = re.findall(r"^st\.global\.(v2\.)?[bu](\d+) ", run.text, re.MULTILINE)
    assert [int(bits) // 8 * (2 if pair else 1) for pair, bits in found] == stores
    data = b"".join(word.to_bytes(8, "little") for word in (11, 22, 33))
    assert run.records(spec) == [data[:size]] * (7 * 96)


# Lanes reserve 16 or 24 bytes at two calls and submit them at one.
TWO_SIZES = f"""
ldxw %r7, [%r1+{OFFSETS["lane"]}]
lddw %r1, map_index 0
mov %r3, 0
jset %r7, 1, large
mov %r2, 16
call 131
jeq %r0, 0, done
stxdw [%r0], %r7
stdw [%r0+8], 99
ja send
large:
mov %r2, 24
call 131
jeq %r0, 0, done
stxdw [%r0], %r7
stdw [%r0+8], 99
stdw [%r0+16], 98
send:
mov %r1, %r0
mov %r2, 0
call 132
done:
mov %r0, 0
exit
"""


@pytest.mark.parametrize("together", list(Together))
def test_a_size_that_submitting_cannot_know_is_written_by_reserving(together):
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 17)
    run = Run(probe(TWO_SIZES, spec, points=(leave(),)), leave(), together=together)
    words = [[lane, 99] + [98] * (lane % 2) for lane in range(32)]
    rows = [b"".join(word.to_bytes(8, "little") for word in row) for row in words]
    assert Counter(run.records(spec)) == dict.fromkeys(rows, 21)
    assert "st.release.sys.global.b64" in run.text
    one_size = Run(probe(RESERVED, spec, points=(leave(),)), leave(), together=together)
    assert "st.release.sys.global.b64" not in one_size.text


@pytest.mark.parametrize("text", [SIZES, RESERVED, OUTPUT.format(size=24)])
def test_lanes_that_work_for_themselves_write_the_same_records(text):
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 17)
    made = []
    for together in Together:
        run = Run(probe(text, spec, points=(leave(),)), leave(), together=together)
        made.append((Counter(run.records(spec)), run.control("produced"), run.control("dropped")))
        lines = [line for line in run.text.splitlines() if ".sync" in line]
        assert bool(lines) == (together is Together.WARP and text != SIZES)
    assert made[0] == made[1]


@pytest.mark.parametrize("level", [Level.THREAD, Level.WARP])
def test_lanes_wait_for_each_other_at_the_entry_only(level):
    """Groups that leave at the same time could be merged, and wait for one's lanes only."""
    text = OUTPUT.format(size=24)
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 17)
    last = [
        compile_probe(probe(text, spec, points=(point,)), point=point).text.splitlines()[-1]
        for point in (entry(level), leave(level))
    ]
    assert last[0].startswith("bar.warp.sync ")
    assert last[1].endswith(":")


@pytest.mark.parametrize("together", list(Together))
def test_lanes_that_work_for_themselves_count_alike(together):
    run = Run(probe(COUNT, PER_SM, points=(leave(),)), leave(), together=together, additive={0})
    assert sum(run.values(2)) == 7 * 96 * 3


def test_a_full_ring_drops_whole_groups_and_counts_lanes():
    run = Run(probe(OUTPUT.format(size=24), RING), entry(), threads=128)
    records = run.records(RING)
    assert run.control("produced") == len(records)
    assert run.control("produced") + run.control("dropped") == 7 * 128
    assert run.control("dropped") > 0
    assert len(records) % 32 == 0


def test_lanes_that_guess_where_the_head_will_be_drop_only_what_has_no_room():
    point = leave()
    verified = probe(OUTPUT.format(size=24), RING, points=(point,))
    run = Run(verified, point, threads=128, together=Together.ONE)
    assert "%clock" in run.text  # what they guess by
    groups = RING.max_entries // 48  # of a header and 24 bytes, rounded up to 16
    assert len(run.records(RING)) == SLOTS * groups
    assert run.control("produced") == SLOTS * groups
    assert run.control("dropped") == 7 * 128 - SLOTS * groups


def test_lanes_whose_records_exceed_a_ring_claim_alone():
    text = OUTPUT.replace("mov %r2, %r10\nadd %r2, -24", "mov %r2, %r10\nadd %r2, -200")
    words = "".join(f"stdw [%r10-{8 * n}], {n}\n" for n in range(4, 26))
    run = Run(probe(words + text.format(size=200), RING), entry(), blocks=1, threads=32)
    records = run.records(RING)
    # 32 records of 200 bytes do not fit 4096 bytes; 18 groups of 224 bytes do.
    assert len(records) == 18
    assert run.control("dropped") == 32 - 18
    assert {len(record) for record in records} == {200}
