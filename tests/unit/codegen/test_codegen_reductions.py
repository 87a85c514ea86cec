"""The maximum of many threads, and logarithms: helpers 600 and 601 on every machine."""

import struct

import pytest
from codegen_programs import ARCHES, assemble_ptx, entry, executable, in_kernel, needs_ptxas, probe
from test_codegen_lanes import OFFSETS, Run

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import MapState, run
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import HostArenas, compile_probe, run_host

SPEC = MapSpec("most", MapType.ARRAY, 4, 24, 3)
# The second word of value 1 becomes at least r7.
RAISE = """
stw [%r10-4], 1
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
jeq %r0, 0, done
mov %r1, %r0
add %r1, 8
mov %r2, %r7
call 600
done:
mov %r0, 0
exit
"""
# Of all threads: (thread_x + 1) ** 2 * (block_x + 1), and its logarithm in the third word.
RAISE_BOTH = f"""
ldxw %r7, [%r1+{OFFSETS["thread_x"]}]
ldxw %r2, [%r1+{OFFSETS["block_x"]}]
add %r7, 1
mul %r7, %r7
add %r2, 1
mul %r7, %r2
stw [%r10-4], 1
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
mov %r6, %r0
jeq %r6, 0, done
mov %r1, %r6
add %r1, 8
mov %r2, %r7
call 600
mov %r1, %r7
call 601
mov %r1, %r6
add %r1, 16
mov %r2, %r0
call 600
done:
mov %r0, 0
exit
"""
NUMBERS = [0, 1, 2, 3, 31, 32, 33, (1 << 32) - 1, 1 << 32, (1 << 40) - 1, 1 << 63, (1 << 64) - 1]
LOGARITHM = "lddw %r1, {0}\ncall 601\nexit"


def program(text, *maps):
    return program_from_code(assemble(text), "p", maps=maps)


def value(arenas):
    start = arenas.layout.places[0].offset + 24
    return struct.unpack("<QQQ", arenas.device[start : start + 24])


@pytest.mark.parametrize("number", NUMBERS)
def test_logarithm(number):
    expected = max(number.bit_length() - 1, 0)
    text = LOGARITHM.format(number)
    assert run(program(text)) == expected
    assert run_host(executable(text), bytearray()) == expected


@pytest.mark.parametrize("numbers", [(3, 7, 5), (1 << 63, 1), ((1 << 64) - 1, 0)])
def test_maximum_of_one_thread(numbers):
    """Unsigned, the neighbours left alone, on the host and in the interpreter."""
    text = "lddw %r7, {0}\n" + RAISE
    state = MapState(SPEC)
    arenas = HostArenas(executable(text.format(0), SPEC))
    for number in numbers:
        run(program(text.format(number), SPEC), maps=[state])
        run_host(executable(text.format(number), SPEC), bytearray(), arenas=arenas)
    expected = (0, max(numbers), 0)
    assert struct.unpack("<QQQ", bytes(state.value(1))) == expected
    assert value(arenas) == expected


@pytest.mark.parametrize("shape", [((7, 1, 1), (95, 1, 1)), ((2, 3, 2), (5, 2, 4))])
def test_maximum_of_all_threads(shape):
    done = Run(probe(RAISE_BOTH, SPEC), entry(), shape=shape)
    start = done.device + done.layout.places[0].offset + 24
    most = shape[1][0] ** 2 * shape[0][0]
    expected = (0, most, most.bit_length() - 1)
    assert struct.unpack("<QQQ", bytes(done.memory.read(start, 24))) == expected


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_it(tmp_path, arch):
    text = "call 502\nmov %r1, %r0\ncall 601\nmov %r7, %r0\n" + RAISE
    code = compile_probe(probe(text, SPEC), point=entry())
    kernel = in_kernel(code)
    assert "red.relaxed.gpu.global.max.u64" in kernel
    assert "clz.b64" in kernel
    assemble_ptx(kernel, tmp_path, arch)
