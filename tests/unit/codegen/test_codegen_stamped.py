"""Records into stamped slots: every slot is given once, what finds no room is counted, and each
word of a slot says which lap it is of."""

import re
import struct
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from codegen_programs import (
    ARCHES,
    OUTPUT,
    RING,
    assemble_ptx,
    entry,
    executable,
    in_kernel,
    leave,
    needs_ptxas,
    probe,
)
from test_codegen_lanes import Run

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.program import Level
from egpu.codegen import HostArenas, HostProgram, RelocKind, compile_probe, run_host
from egpu.maps.layout import RING_CONTROL, RING_ROOM, stamped_stride
from egpu.maps.memory import taken_slots
from egpu.verifier import Limits, Policy, verify

ASKED = (1 << RING_ROOM) - 1
THREADS, ROUNDS, LAPS = 4, 40, 30
PATIENCE_S = 60
# r1 = memory: the thread's number, how many records it sent, how many found no room.
SEND = f"""
mov %r6, %r1
mov %r7, 0
round:
ldxdw %r1, [%r6]
stxdw [%r10-24], %r1
ldxdw %r2, [%r6+8]
stxdw [%r10-16], %r2
mul %r1, 1000003
add %r1, %r2
stxdw [%r10-8], %r1
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -24
mov %r3, 24
mov %r4, 0
call 130
jeq %r0, 0, sent
ldxdw %r1, [%r6+16]
add %r1, 1
stxdw [%r6+16], %r1
ja next
sent:
ldxdw %r1, [%r6+8]
add %r1, 1
stxdw [%r6+8], %r1
next:
add %r7, 1
jlt %r7, {ROUNDS}, round
mov %r0, 0
exit
"""


def stamped(size=24, spec=RING):
    return replace(spec, on_device=True, stamped=size)


class Rings:
    """The rings of the only map in a device arena's bytes, read by the description of the layout
    alone."""

    def __init__(self, device, layout):
        self.words = np.frombuffer(device, np.uint64)
        self.place, self.layout = layout.places[0], layout
        self.stride = stamped_stride(self.place.ring_stamped)
        self.read = [0] * layout.sm_slots

    def control(self, name, sm=0):
        at = self.place.offset + sm * self.place.stride + RING_CONTROL[name][0]
        return int(self.words[at // 8])

    def set_control(self, name, value, sm=0):
        at = self.place.offset + sm * self.place.stride + RING_CONTROL[name][0]
        self.words[at // 8] = value

    def next(self, sm=0):
        """The next record of an SM's ring, None if it is not there."""
        number, slots = self.read[sm], self.place.ring_slots
        at = self.place.ring_device + sm * self.place.ring_size + number % slots * self.stride
        first, *words = map(int, self.words[at // 8 : at // 8 + 1 + self.place.ring_stamped // 8])
        lap = 1 - number // slots % 2
        if first >> 32 != number + 1 & 0xFFFFFFFF or any(word & 1 != lap for word in words):
            return None
        self.read[sm] += 1
        return tuple(word & ~1 | first >> at & 1 for at, word in enumerate(words))

    def records(self):
        return [
            record
            for sm in range(self.layout.sm_slots)
            for record in iter(lambda sm=sm: self.next(sm), None)
        ]

    def give_room(self):
        self.set_control("tail", self.read[0] * self.stride)


def test_threads_take_each_slot_once():
    """Several threads write while another reads and gives room: through a small ring."""
    program = program_from_code(assemble(SEND), "p", maps=(stamped(),))
    limits = Limits(cost=10**9)
    verified = verify(program, policy=Policy.EXECUTOR, memory_size=24, limits=limits)
    arenas = HostArenas(verified)
    rings = Rings(arenas.device, arenas.layout)
    blocks = [bytearray(struct.pack("<QQQ", number, 0, 0)) for number in range(THREADS)]
    received, last = [0] * THREADS, [-1] * THREADS

    def take():
        while (record := rings.next()) is not None:
            thread, number, both = record
            assert both == thread * 1000003 + number
            assert number == last[thread] + 1, "a record was lost or came twice"
            last[thread] = number
            received[thread] += 1
        rings.give_room()

    enough, over = LAPS * rings.place.ring_slots, threading.Event()
    with HostProgram(verified, arenas=arenas) as host:

        def work(block):
            while not over.is_set():
                host.run(block)

        workers = [threading.Thread(target=work, args=(block,)) for block in blocks]
        for worker in workers:
            worker.start()
        try:
            deadline = time.monotonic() + PATIENCE_S
            while sum(received) < enough:
                take()
                assert time.monotonic() < deadline, "a slot is never written"
        finally:
            over.set()
            for worker in workers:
                worker.join()
    take()
    counts = [struct.unpack("<QQQ", block) for block in blocks]
    assert received == [sent for _, sent, _ in counts]
    assert rings.control("dropped") == sum(lost for _, _, lost in counts) > 0
    assert taken_slots(rings.control("head")) == sum(received) >= enough


# Twice around, where the ring begins, where stamps begin anew and far beyond.
@pytest.mark.parametrize("start", [0, 255, (1 << 32) - 3, 12345 << 20])
def test_laps(start):
    verified = executable(OUTPUT.format(size=24), stamped())
    arenas = HostArenas(verified)
    rings = Rings(arenas.device, arenas.layout)
    slots = rings.place.ring_slots
    rings.read = [start]
    rings.set_control("head", start)
    rings.give_room()
    for _ in range(4):
        for _ in range(slots // 2 + 1):
            assert run_host(verified, bytearray(), arenas=arenas) == 0
        assert rings.records() == [(11, 22, 33)] * (slots // 2 + 1)
        rings.give_room()
    assert taken_slots(rings.control("head")) == start + 4 * (slots // 2 + 1)


def test_a_full_ring_drops_until_there_is_room():
    verified = executable(OUTPUT.format(size=24), stamped())
    arenas = HostArenas(verified)
    rings = Rings(arenas.device, arenas.layout)
    slots = rings.place.ring_slots
    answers = [run_host(verified, bytearray(), arenas=arenas) for _ in range(slots + 5)]
    assert [answer - (1 << 64) if answer else 0 for answer in answers] == [0] * slots + [-11] * 5
    assert rings.control("dropped") == 5
    assert taken_slots(rings.control("head")) == slots
    for _ in range(3):
        rings.next()
    rings.give_room()
    answers = [run_host(verified, bytearray(), arenas=arenas) for _ in range(5)]
    assert [bool(answer) for answer in answers] == [False] * 3 + [True] * 2
    assert len(rings.records()) == slots
    assert rings.control("dropped") == 7


@pytest.mark.parametrize("vain", [1 << 20, (1 << 20) + 1, (1 << 22)])
def test_what_was_asked_for_in_vain_does_not_fill_the_word(vain):
    """However many ask while nobody reads."""
    verified = executable(OUTPUT.format(size=24), stamped())
    arenas = HostArenas(verified)
    rings = Rings(arenas.device, arenas.layout)
    slots = rings.place.ring_slots
    rings.set_control("head", (slots + vain) | ((1 << 24) - vain << RING_ROOM))
    assert taken_slots(rings.control("head")) == slots
    assert run_host(verified, bytearray(), arenas=arenas) != 0
    assert rings.control("head") == slots
    assert rings.control("dropped") == 1
    rings.set_control("tail", slots * rings.stride)
    assert run_host(verified, bytearray(), arenas=arenas) == 0
    assert rings.control("head") == slots + 1 | slots - 1 << RING_ROOM


def test_numbers_never_repeat():
    """A ring that would come to the end of what a slot's number can be takes nothing any more."""
    verified = executable(OUTPUT.format(size=24), stamped())
    arenas = HostArenas(verified)
    rings = Rings(arenas.device, arenas.layout)
    last = (1 << RING_ROOM) - (1 << RING_ROOM - 8)
    rings.set_control("tail", last * rings.stride)
    for head, taken in ((last - 1, True), (last, False)):
        rings.set_control("head", head)
        assert (run_host(verified, bytearray(), arenas=arenas) == 0) == taken


@pytest.mark.parametrize("size", [8, 16, 24])
@pytest.mark.parametrize("point", [entry(Level.WARP), leave(Level.WARP), entry(Level.BLOCK)])
def test_records_are_those_of_groups(size, point):
    """Every warp's, of a block that is no multiple of 32: by the same simulated device."""
    spec = replace(RING, max_entries=16 << 16)
    text = OUTPUT.format(size=size)
    expected = Run(probe(text, spec, points=(point,)), point, threads=70)
    found = Run(probe(text, stamped(size, spec), points=(point,)), point, threads=70)
    device = bytearray(found.memory.read(found.device, found.layout.device_bytes))
    rings = Rings(device, found.layout)
    records = sorted(struct.pack(f"<{size // 8}Q", *record) for record in rings.records())
    assert records == sorted(expected.records(spec))
    assert len(records) > 1
    taken = sum(taken_slots(rings.control("head", sm)) for sm in range(found.layout.sm_slots))
    assert taken == len(records)
    assert not any(found.memory.read(found.host, found.layout.host_size))


def test_words_keep_their_lowest_bits():
    text = "".join(f"stdw [%r10-{8 * at}], {value}\n" for at, value in ((3, 7), (2, 4), (1, 9)))
    verified = executable(text + OUTPUT[OUTPUT.index("lddw") :].format(size=24), stamped())
    arenas = HostArenas(verified)
    rings = Rings(arenas.device, arenas.layout)
    slots = rings.place.ring_slots
    for _ in range(slots + 1):
        run_host(verified, bytearray(), arenas=arenas)
        assert rings.next() == (7, 4, 9)
        rings.give_room()


def test_text_waits_for_one_addition_only():
    code = compile_probe(probe(OUTPUT.format(size=24), stamped(), points=(leave(Level.WARP),)),
                         point=leave(Level.WARP))  # fmt: skip
    groups = replace(RING, on_device=True)
    other = compile_probe(probe(OUTPUT.format(size=24), groups, points=(leave(Level.WARP),)),
                          point=leave(Level.WARP))  # fmt: skip
    assert not re.search(r"release|membar|fence|\.sys|\.b16 \[", code.text)
    first = re.search(r"\b(atom|ld\.relaxed)\.\S+", code.text)
    assert first[0] == "atom.relaxed.gpu.global.add.u64"
    kinds = {each.kind for each in code.relocations}
    assert RelocKind.RING_SLOTS in kinds
    assert RelocKind.RING_FLAGS not in kinds
    assert code.digest != other.digest


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_it(arch, tmp_path):
    points = (entry(Level.WARP), leave(Level.WARP), entry(Level.BLOCK))
    codes = [
        compile_probe(probe(OUTPUT.format(size=size), stamped(size), points=(point,)), point=point)
        for point in points
        for size in (8, 16, 24)
    ]
    assemble_ptx(in_kernel(*codes), tmp_path, arch)
