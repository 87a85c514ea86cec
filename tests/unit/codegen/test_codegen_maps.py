"""Map helpers on the host JIT: the bytes in the arenas, and the reader as the ring's judge."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from codegen_programs import ARRAY, COUNT, OUTPUT, PER_SM, RING, executable, probe

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import HostArenas, run_host
from egpu.errors import InputError, UnsupportedError
from egpu.maps.layout import RING_CONTROL
from egpu.maps.ringbuf import RingReader

M64 = 2**64 - 1
UPDATE = """
stw [%r10-4], {key}
stdw [%r10-24], 77
stw [%r10-16], 88
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
mov %r3, %r10
add %r3, -24
lddw %r4, {flags}
call 2
exit
"""
RESERVE = """
lddw %r1, map_index 0
mov %r2, {size}
mov %r3, 0
call 131
mov %r6, 0
jeq %r0, 0, done
stdw [%r0], {value}
mov %r1, %r0
mov %r2, 0
call {end}
mov %r6, 1
done:
mov %r0, %r6
exit
"""
# Two records at once, of two rings, submitted in the order in which they were reserved.
NESTED = """
lddw %r1, map_index 0
mov %r2, 8
mov %r3, 0
call 131
jeq %r0, 0, none
mov %r6, %r0
lddw %r1, map_index {other}
mov %r2, 8
mov %r3, 0
call 131
jeq %r0, 0, one
mov %r7, %r0
stdw [%r6], 1
stdw [%r7], 2
mov %r1, %r6
mov %r2, 0
call 132
mov %r1, %r7
mov %r2, 0
call {end}
mov %r0, 2
exit
one:
mov %r1, %r6
mov %r2, 0
call 133
none:
mov %r0, 0
exit
"""


def reader(arenas, index=0):
    """A reader of a host arena that is not a memfd."""
    bytes_ = np.frombuffer(arenas.host, np.uint8)
    arena = SimpleNamespace(bytes=bytes_, words=bytes_.view(np.uint64))
    return RingReader(arena, arenas.layout, arenas.layout.places[index], RING)


def control(arenas, name, index=0):
    start = arenas.layout.places[index].offset + RING_CONTROL[name][0]
    return int.from_bytes(arenas.device[start : start + 8], "little")


def acknowledge(arenas, read, index=0):
    """What the agent does: tell the producer how far the reader is."""
    start = arenas.layout.places[index].offset + RING_CONTROL["tail"][0]
    arenas.device[start : start + 8] = read._position[0].to_bytes(8, "little")


def value(arenas, key, size, index=0):
    place = arenas.layout.places[index]
    start = place.offset + key * place.entry_stride
    return bytes(arenas.device[start : start + size])


@pytest.mark.parametrize("spec", [PER_SM, MapSpec("plain", MapType.ARRAY, 4, 8, 4)])
def test_counting(spec):
    verified = executable(COUNT, spec)
    arenas = HostArenas(verified)
    for _ in range(3):
        assert run_host(verified, bytearray(), arenas=arenas) == 0
    assert [value(arenas, key, 8)[0] for key in range(4)] == [0, 0, 9, 0]


def test_fresh_maps_without_arenas():
    text = "lddw %r1, map_index_value 0\nldxdw %r0, [%r1]\nstdw [%r1], 5\nexit"
    verified = executable(text, MapSpec("plain", MapType.ARRAY, 4, 8, 1))
    assert [run_host(verified, bytearray()) for _ in range(2)] == [0, 0]


def test_initial_contents():
    spec = MapSpec(".rodata", MapType.ARRAY, 4, 8, 1, initial=b"abcdefgh", read_only=True)
    verified = executable("lddw %r1, map_index_value 0+2\nldxb %r0, [%r1]\nexit", spec)
    assert run_host(verified, bytearray()) == ord("c")


@pytest.mark.parametrize(("key", "answer"), [(0, 1), (2, 1), (3, 0), (-1, 0)])
def test_lookup_past_the_end_is_null(key, answer):
    text = COUNT.replace("[%r10-4], 2", f"[%r10-4], {key}")
    text = text.replace("done:", "mov %r0, 1\nexit\ndone:")
    assert run_host(executable(text, ARRAY), bytearray()) == answer


@pytest.mark.parametrize(
    ("key", "flags", "answer"),
    [(1, 0, 0), (1, 2, 0), (1, 1, -17), (3, 0, -7), (1, 5, -22), (3, 1, -7), (3, 3, -22)],
)
def test_update(key, flags, answer):
    verified = executable(UPDATE.format(key=key, flags=flags), ARRAY)
    arenas = HostArenas(verified)
    assert run_host(verified, bytearray(), arenas=arenas) == answer & M64
    wanted = (77).to_bytes(8, "little") + (88).to_bytes(4, "little") if answer == 0 else bytes(12)
    assert value(arenas, 1, 12) == wanted
    assert value(arenas, 2, 12) == bytes(12)


def test_large_values_are_copied_whole():
    spec = MapSpec("large", MapType.ARRAY, 4, 301, 2)
    text = "stw [%r10-312], 1\n" + "".join(
        f"stb [%r10-{304 - n}], {n & 0x7F}\n" for n in range(301)
    )
    text += "lddw %r1, map_index 0\nmov %r2, %r10\nadd %r2, -312\nmov %r3, %r10\nadd %r3, -304\n"
    verified = executable(text + "mov %r4, 0\ncall 2\nexit", spec)
    arenas = HostArenas(verified)
    assert run_host(verified, bytearray(), arenas=arenas) == 0
    assert value(arenas, 1, 304) == bytes(n & 0x7F for n in range(301)) + bytes(3)


def test_delete_is_refused():
    text = "stw [%r10-4], 1\nlddw %r1, map_index 0\nmov %r2, %r10\nadd %r2, -4\ncall 3\nexit"
    assert run_host(executable(text, ARRAY), bytearray()) == -22 & M64


@pytest.mark.parametrize("size", [1, 4, 7, 8, 9, 20, 24])
def test_output(size):
    verified = executable(OUTPUT.format(size=size), RING)
    arenas = HostArenas(verified)
    read = reader(arenas)
    for _ in range(3):
        assert run_host(verified, bytearray(), arenas=arenas) == 0
    data = b"".join(word.to_bytes(8, "little") for word in (11, 22, 33))
    assert list(read) == [data[:size]] * 3
    assert control(arenas, "produced") == 3


def test_output_size_known_at_run_time():
    text = OUTPUT.format(size=0).replace(
        "mov %r3, 0", "ldxdw %r3, [%r10-16]\nand %r3, 15\nadd %r3, 1"
    )
    verified = executable(text, RING)
    arenas = HostArenas(verified)
    assert run_host(verified, bytearray(), arenas=arenas) == 0
    assert list(reader(arenas)) == [bytes([11]) + bytes(6)]


@pytest.mark.parametrize("end", [132, 133])
def test_reserve(end):
    verified = executable(RESERVE.format(size=8, value=5, end=end), RING)
    arenas = HostArenas(verified)
    read = reader(arenas)
    assert run_host(verified, bytearray(), arenas=arenas) == 1
    assert list(read) == ([(5).to_bytes(8, "little")] if end == 132 else [])
    assert (read.counts.received, read.counts.discarded) == ((1, 0) if end == 132 else (0, 1))


@pytest.mark.parametrize("end", [132, 133])
@pytest.mark.parametrize("other", [0, 1])
def test_records_at_once(end, other):
    second = MapSpec("second", MapType.RINGBUF, 0, 0, 8192)
    verified = executable(NESTED.format(other=other, end=end), RING, second)
    arenas = HostArenas(verified)
    readers = [reader(arenas, 0), reader(arenas, 1)]
    seen = [[], []]
    for _ in range(700):  # more than a ring full
        assert run_host(verified, bytearray(), arenas=arenas) == 2
        for index, read in enumerate(readers):
            seen[index] += list(read)
            acknowledge(arenas, read, index)
    one, two = ((value).to_bytes(8, "little") for value in (1, 2))
    kept = 700 if end == 132 else 0
    if other == 0:
        assert sorted(seen[0]) == [one] * 700 + [two] * kept
        assert seen[1] == []
    else:
        assert seen == [[one] * 700, [two] * kept]


def test_full_ring_drops_and_counts():
    verified = executable(OUTPUT.format(size=24), RING)
    arenas = HostArenas(verified)
    read = reader(arenas)
    room = 4096 // 48  # groups of 16 + 24 bytes rounded up to 16; the filler's room is not enough
    answers = [run_host(verified, bytearray(), arenas=arenas) for _ in range(room + 5)]
    taken = answers.count(0)
    assert set(answers) == {0, -11 & M64}
    assert answers == sorted(answers)
    assert taken == room
    assert control(arenas, "dropped") == len(answers) - taken
    assert control(arenas, "produced") == taken
    assert len(list(read)) == taken
    acknowledge(arenas, read)
    assert run_host(verified, bytearray(), arenas=arenas) == 0
    assert len(list(read)) == 1


def test_records_wrap_around_the_end():
    rng = random.Random(7)
    programs = [executable(OUTPUT.format(size=size), RING) for size in (1, 9, 20, 24)]
    arenas = HostArenas(programs[0])
    read = reader(arenas)
    sent = []
    received = []
    for _ in range(800):
        number = rng.randrange(4)
        size = (1, 9, 20, 24)[number]
        assert run_host(programs[number], bytearray(), arenas=arenas) == 0
        sent.append(size)
        if rng.random() < 0.1 or control(arenas, "head") - control(arenas, "tail") > 3000:
            received += [len(record) for record in read]
            acknowledge(arenas, read)
    received += [len(record) for record in read]
    assert received == sent
    assert control(arenas, "head") > 4 * arenas.layout.places[0].ring_size


def test_oversize_records_are_refused_and_counted():
    verified = executable(RESERVE.format(size=4096, value=5, end=132), RING)
    arenas = HostArenas(verified)
    assert run_host(verified, bytearray(), arenas=arenas) == 0
    assert control(arenas, "dropped") == 1
    assert control(arenas, "head") == 0


def test_a_record_may_fill_the_ring():
    verified = executable(RESERVE.format(size=4080, value=5, end=132), RING)
    arenas = HostArenas(verified)
    read = reader(arenas)
    assert run_host(verified, bytearray(), arenas=arenas) == 1
    assert [len(record) for record in read] == [4080]


@pytest.mark.parametrize(("what", "answer"), [(0, 80), (1, 4096), (2, 16), (3, 96), (4, 0)])
def test_query(what, answer):
    text = OUTPUT.format(size=1)
    verified = executable(text, RING)
    arenas = HostArenas(verified)
    for _ in range(3):
        run_host(verified, bytearray(), arenas=arenas)
    start = arenas.layout.places[0].offset + RING_CONTROL["tail"][0]
    arenas.device[start : start + 8] = (16).to_bytes(8, "little")
    query = executable(f"lddw %r1, map_index 0\nmov %r2, {what}\ncall 134\nexit", RING)
    assert run_host(query, bytearray(), arenas=arenas) == answer


def test_identity_of_the_one_thread():
    assert run_host(executable("call 8\nexit"), bytearray()) == 0
    assert run_host(executable("call 511\nexit"), bytearray()) == 0
    pointers = "".join(f"mov %r{n}, %r10\nadd %r{n}, -{8 * n}\n" for n in (1, 2, 3))
    text = pointers + "call 504\nldxdw %r0, [%r10-8]\nldxdw %r1, [%r10-24]\nadd %r0, %r1\nexit"
    assert run_host(executable(text), bytearray()) == 2


def test_clock_and_random_numbers_move():
    for helper in (5, 7, 502):
        verified = executable(f"call {helper}\nexit")
        values = [run_host(verified, bytearray()) for _ in range(4)]
        assert len(set(values)) == 4
    assert all(value < 2**32 for value in [run_host(executable("call 7\nexit"), bytearray())])


def test_memory_must_be_what_was_verified():
    verified = executable("ldxb %r0, [%r1+3]\nexit", memory=4)
    assert run_host(verified, bytearray([0, 0, 0, 9])) == 9
    with pytest.raises(InputError, match="verified for 4 bytes of memory, 3 were given"):
        run_host(verified, bytearray(3))


def test_memory_is_changed_in_place():
    memory = bytearray(8)
    run_host(executable("stw [%r1+2], -2\nmov %r0, 0\nexit", memory=8), memory)
    assert memory == bytes([0, 0, 0xFE, 0xFF, 0xFF, 0xFF, 0, 0])


def test_parameters_exist_in_kernels_only():
    verified = probe("ldxdw %r0, [%r1+112]\nmov %r0, 0\nexit")
    with pytest.raises(UnsupportedError, match="needs a kernel launch"):
        run_host(verified, bytearray())
