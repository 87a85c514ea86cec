"""bpf_probe_read and its like: device code against the interpreter, by a table made by hand."""

import ctypes
import random

import pytest

from egpu.bpf.asm import assemble
from egpu.bpf.helpers import HELPERS
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import run
from egpu.bpf.interp_state import MapState, Place
from egpu.bpf.own_maps import (
    ALLOCATIONS,
    ALLOCATIONS_HEADER,
    ALLOCATIONS_LIMIT,
    ALLOCATIONS_READERS,
    ALLOCATIONS_ROW,
    own_map,
    with_own_maps,
)
from egpu.bpf.program import AttachKind, AttachPoint
from egpu.codegen import HostArenas, run_host
from egpu.errors import UnsupportedError, VerifierError
from egpu.verifier import Policy, verify

EFAULT = 2**64 - 14
READ, TEXT = (4, 112, 113), (45, 114, 115)


def program(number, size, address, at):
    """Reads to the stack, whose bytes were 0xff; r0 = byte ``at`` of it << 32 | the result's low
    half."""
    fill = "".join(f"stdw [%r10-{8 * slot}], -1\n" for slot in range(1, 9))
    text = f"""
    {fill}
    mov %r1, %r10
    add %r1, -64
    mov %r2, {size}
    lddw %r3, {address}
    call {number}
    and %r0, 0x7fffffff
    ldxb %r1, [%r10-{64 - at}]
    lsh %r1, 32
    or %r0, %r1
    exit
    """
    return with_own_maps(program_from_code(assemble(text)))


class Memory:
    """Pieces of this process's memory, as allocations of a workload."""

    def __init__(self, *contents):
        self.buffers = [ctypes.create_string_buffer(data, len(data)) for data in contents]
        self.starts = [ctypes.addressof(buffer) for buffer in self.buffers]
        self.pieces = dict(zip(self.starts, contents, strict=True))

    def fill(self, arenas, made, half):
        place = arenas.layout.places[own_map(made.maps, ALLOCATIONS)]
        rows = sorted((start, start + len(data)) for start, data in self.pieces.items())
        at = place.offset + ALLOCATIONS_HEADER + half * ALLOCATIONS_LIMIT * ALLOCATIONS_ROW
        for number, (start, end) in enumerate(rows):
            row = start.to_bytes(8, "little") + end.to_bytes(8, "little")
            arenas.device[at + 16 * number : at + 16 * number + 16] = row
        state = len(rows) | half << 16 | 7 << 32
        arenas.device[place.offset : place.offset + 8] = state.to_bytes(8, "little")

    def readers(self, arenas, made):
        """Bytes of the counters of those who read: all 0 when nobody does."""
        at = arenas.layout.places[own_map(made.maps, ALLOCATIONS)].offset
        return bytes(arenas.device[at + ALLOCATIONS_READERS : at + ALLOCATIONS_HEADER])


def both(number, size, address, at, memory, *, half=0):
    made = program(number, size, address, at)
    maps = [MapState(spec) for spec in made.maps]
    expected = run(made, place=Place(allocations=memory.pieces), maps=maps)
    verified = verify(made, policy=Policy.PROBE)
    arenas = HostArenas(verified)
    memory.fill(arenas, made, half)
    assert run_host(verified, bytearray(), arenas=arenas) == expected
    assert not any(memory.readers(arenas, made))
    return expected >> 32, expected & 0x7FFFFFFF


DATA = bytes(range(1, 65))


@pytest.mark.parametrize("number", READ)
@pytest.mark.parametrize("size", [1, 3, 7, 8, 16, 24, 64])
def test_reads(number, size):
    memory = Memory(DATA)
    start = memory.starts[0]
    assert both(number, size, start, size - 1, memory) == (size, 0)
    assert both(number, size, start + 64 - size, 0, memory) == (65 - size, 0)
    for address in (start + 65 - size, start - 1, 8, 0, 2**64 - 4):
        byte, result = both(number, size, address, 0, memory)
        assert (byte, result) == (0, EFAULT & 0x7FFFFFFF)


@pytest.mark.parametrize("seed", range(12))
def test_many_allocations(seed):
    rng = random.Random(seed)
    memory = Memory(*(rng.randbytes(rng.randint(1, 40)) for _ in range(rng.randint(1, 40))))
    for _ in range(6):
        start = rng.choice(memory.starts)
        address = start + rng.randint(-4, 44)
        both(rng.choice(READ + TEXT), rng.randint(1, 48), address, 0, memory, half=seed % 2)


TEXTS = {
    "ends": (b"text\0more", 8, (0, 5)),
    "empty": (b"\0", 8, (0, 1)),
    "cut": (b"a long text\0", 4, (3, 4)),
    "fits": (b"abc\0", 4, (3, 4)),
    "one": (b"abc", 1, (0, 1)),
    "no end": (b"abc", 8, (0, None)),
    "cut at the end": (b"abc", 4, (2, 4)),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("number", TEXT)
def test_texts(number, name):
    data, size, (at, length) = TEXTS[name]
    memory = Memory(data)
    _, result = both(number, size, memory.starts[0], at, memory)
    assert result == (EFAULT & 0x7FFFFFFF if length is None else length)
    for place in range(size):
        byte, _ = both(number, size, memory.starts[0], place, memory)
        text = b"" if length is None else data.partition(b"\0")[0][: size - 1]
        assert byte == text.ljust(size, b"\0")[place]


@pytest.mark.parametrize("number", READ + TEXT)
def test_nothing_is_read(number):
    """Of size 0, as Linux takes it: 0, and no byte changes, wherever the address leads."""
    memory = Memory(DATA)
    for address in (memory.starts[0], memory.starts[0] + 64, 8, 0, 2**64 - 4):
        for at in (0, 63):
            assert both(number, 0, address, at, memory) == (0xFF, 0)


@pytest.mark.parametrize("number", READ + TEXT)
def test_nothing_is_read_without_a_table(number):
    made = program_from_code(program(number, 0, 8, 5).code)
    assert run(made) == 0xFF << 32
    assert run_host(verify(made, policy=Policy.PROBE), bytearray()) == 0xFF << 32


WRONG = {
    "no pointer": ("mov %r1, 0\nmov %r2, 0", "r1 is a number"),
    "outside the frame": ("mov %r1, %r10\nmov %r2, 0", "outside its frame"),
    "no constant": (
        "call 7\nand %r0, 7\nmov %r2, %r0\nmov %r1, %r10\nadd %r1, -8",
        "a constant size from 0 to 256",
    ),
    "below 0": ("mov %r1, %r10\nadd %r1, -8\nmov %r2, -1", "a constant size from 0 to 256"),
    "one or the other": (
        "call 7\nmov %r1, %r10\nadd %r1, -8\nmov %r2, 0\njset %r0, 1, +1\nmov %r2, 8",
        "r2 of {name} is a different constant on different ways to this call",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("number", READ + TEXT)
def test_refused_sizes(number, name):
    text, words = WRONG[name]
    made = program_from_code(assemble(f"{text}\nmov %r3, 8\ncall {number}\nmov %r0, 0\nexit"))
    with pytest.raises(VerifierError, match=words.format(name=HELPERS[number].name)):
        verify(made)


def test_memory_of_programs_is_read_directly():
    text = "mov %r1, %r10\nadd %r1, -8\nmov %r2, 8\nmov %r3, %r10\nadd %r3, -16\ncall 4\nexit"
    with pytest.raises(VerifierError, match="r3 is a pointer"):
        verify(program_from_code(assemble(text), attach=(AttachPoint(AttachKind.ENTRY, "*"),)))


def test_without_a_table_nothing_compiles():
    made = program_from_code(program(4, 8, 8, 0).code)
    with pytest.raises(UnsupportedError, match="without a table"):
        run_host(verify(made, policy=Policy.PROBE), bytearray())
