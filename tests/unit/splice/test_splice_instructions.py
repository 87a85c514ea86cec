"""Instruction sites and bpftime's trace stub: which instructions are meant, and exact counts."""

import struct

import numpy as np
import pytest
from splice_probes import COUNT, LAYOUT, code

from egpu.bpf.context import LINE_SIZE
from egpu.bpf.program import MEMORY_CAPTURE, AttachKind
from egpu.codegen.device_code import DeviceCode, Relocation, RelocKind
from egpu.errors import UnsupportedError
from egpu.image.ptx import parse
from egpu.sim import DeviceMemory, Machine
from egpu.splice import splice_ptx
from egpu.splice.ptx_instructions import find_instructions, line_bytes

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
# Every form of access that the memory pass of bpftime misses stands here too.
KERNEL = (
    HEAD
    + """
.func (.param .b32 result) twice(.param .b32 given)
{
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [given];
    add.u32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
}
.visible .entry k(.param .u64 data, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<6>;
    .reg .f32 %f<3>;
    .shared .align 4 .b8 area[256];
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 8;
    add.s64 %rd3, %rd1, %rd2;
    setp.ge.u32 %p1, %r2, %r1;
    ld.global.v2.u32   {%r3, %r4},
        [%rd3];
    @%p1 ld.global.nc.u32 %r3, [%rd3+4];
    @!%p1 ld.volatile.u32 %r4, [%rd3];
    mul.lo.u32 %r5, %r2, 4;
    mov.u32 %r6, area;
    add.u32 %r6, %r6, %r5;
    st.shared.u32 [%r6], %r3;
    atom.global.add.u32 %r7, [%rd3], 0;
    {
        .param .b32 param0;
        .param .b32 retval0;
        st.param.b32 [param0], %r4;
        call.uni (retval0), twice, (param0);
        ld.param.b32 %r8, [retval0];
    }
    st.global.relaxed.gpu.u32 [%rd3], %r8;
    ret;
}
"""
)
LAUNCH, COUNTER = Relocation(RelocKind.LAUNCH, 0), Relocation(RelocKind.MAP, 0)
THREADS, N = 33, 20
VALUES = np.arange(2 * THREADS, dtype=np.uint32)


def probe(wanted, text=COUNT, relocations=(LAUNCH, COUNTER), kind=AttachKind.INSTRUCTION):
    made = code(text, *relocations, kind=kind)
    fields = {name: getattr(made, name) for name in DeviceCode.__slots__}
    return DeviceCode(**(fields | {"detail": wanted}))


def sites(wanted):
    module = parse(KERNEL)
    kernel = module.entry("k")
    bodies = [each for each in module.functions if each.body is not None]
    return find_instructions(kernel, bodies, wanted)


# One access for every thread, + those of threads below n, + those of the others.
COUNTS = {
    MEMORY_CAPTURE: 5 * THREADS + THREADS,  # of the two with a predicate a thread does one
    "load": 3 * THREADS + THREADS,
    "store": 2 * THREADS,
    "atomic": THREADS,
    "ld.global": THREADS + (THREADS - N),
    "ld.volatile": N,
    "mul": 2 * THREADS,
    "branch": 0,
}


def run(probes):
    """The count at the first map, and what the kernel wrote; the twin's text."""
    image = splice_ptx(parse(KERNEL), "k", probes, LAYOUT)
    memory = DeviceMemory()
    machine = Machine(memory)
    data = memory.allocate(VALUES.nbytes)
    memory.write(data, VALUES.tobytes())
    arena = memory.allocate(LAYOUT.device_size)
    parameters = struct.pack("<QI", data, N).ljust(image.hidden_offset, b"\0")
    parameters += struct.pack("<4Q", arena, 0, 1, 0)
    machine.launch(parse(image.text), "k", (1, 1, 1), (THREADS, 1, 1), parameters)
    (count,) = struct.unpack("<Q", memory.read(arena + LAYOUT.places[0].offset, 8))
    return count, memory.read(data, VALUES.nbytes), image, memory.read(arena, 8)


@pytest.mark.parametrize("wanted", COUNTS)
def test_each_execution_is_counted(wanted):
    count, after, image, _ = run((probe(wanted),))
    assert count == COUNTS[wanted]
    unprobed = VALUES.copy()
    # A thread past n took the second word by the predicated load, which changes nothing of %r4.
    unprobed[::2] = np.where(np.arange(THREADS) < N, VALUES[::2], VALUES[1::2]) * 2
    assert after == unprobed.tobytes()
    assert image.instruction_sites == len(sites(wanted).instructions)


def test_parameters_of_calls_are_no_memory():
    opcodes = [each.opcode for each in sites(MEMORY_CAPTURE).instructions]
    assert opcodes == [
        "ld.param.u64", "ld.param.u32", "ld.global.v2.u32", "ld.global.nc.u32", "ld.volatile.u32",
        "st.shared.u32", "st.global.relaxed.gpu.u32",
    ]  # fmt: skip
    assert sites(MEMORY_CAPTURE).uncovered == ()


def test_accesses_in_called_functions_are_named():
    text = KERNEL.replace("add.u32 %r2, %r1, %r1;", "ld.local.u32 %r2, [0];")
    module = parse(text)
    image = splice_ptx(module, "k", (probe(MEMORY_CAPTURE),), LAYOUT)
    assert image.uncovered == ("1 loads and stores in twice",)


def test_text_of_the_instruction():
    module = parse(KERNEL)
    vector = sites("ld.global.v2").instructions[0]
    line = line_bytes(module, vector)
    assert line == b"ld.global.v2.u32 {%r3, %r4}, [%rd3];".ljust(LINE_SIZE, b"\0")
    text = (
        ".reg .b64 %a, %v; mov.b64 %a, __egpu_launch_0; mov.b64 %v, __egpu_line_8; "
        "st.global.b64 [%a], %v;"
    )
    words = (LAUNCH, Relocation(RelocKind.LINE, 8))
    *_, first = run((probe("ld.global.v2", text, words),))
    assert first == line[8:16]


def test_probes_of_one_site_all_run():
    count, *_ = run((probe("load"), probe(MEMORY_CAPTURE), probe("store")))
    assert count == COUNTS["load"] + COUNTS[MEMORY_CAPTURE] + COUNTS["store"]


STUB = (
    HEAD
    + """
.func __bpftime_cuda__kernel_trace()
{
    ret;
}
.visible .entry k(.param .u64 data, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.lt.u32 %p1, %r2, %r1;
    { call.uni __bpftime_cuda__kernel_trace, (); }
    @%p1 call __bpftime_cuda__kernel_trace;
    ret;
}
"""
)


def stub_count(text, threads=THREADS):
    image = splice_ptx(parse(text), "k", (probe("", kind=AttachKind.ENTRY),), LAYOUT)
    memory = DeviceMemory()
    arena = memory.allocate(LAYOUT.device_size)
    parameters = struct.pack("<QI", 0, N).ljust(image.hidden_offset, b"\0")
    parameters += struct.pack("<4Q", arena, 0, 1, 0)
    Machine(memory).launch(parse(image.text), "k", (1, 1, 1), (threads, 1, 1), parameters)
    return struct.unpack("<Q", memory.read(arena + LAYOUT.places[0].offset, 8))[0], image


def test_calls_of_the_stub_are_where_entry_probes_go():
    count, image = stub_count(STUB)
    assert count == THREADS + N
    assert image.entry_sites == 2
    assert "call" not in image.text.partition(".entry")[2]


def test_without_a_call_the_entry_is_probed():
    without = STUB.replace("{ call.uni __bpftime_cuda__kernel_trace, (); }", "")
    without = without.replace("@%p1 call __bpftime_cuda__kernel_trace;", "")
    count, image = stub_count(without)
    assert (count, image.entry_sites) == (THREADS, 1)


def test_a_stub_called_by_a_function_is_refused():
    text = STUB.replace(
        ".visible .entry k",
        ".func deeper()\n{ call __bpftime_cuda__kernel_trace; ret; }\n.visible .entry k",
    ).replace("{ call.uni __bpftime_cuda__kernel_trace, (); }", "call deeper;")
    with pytest.raises(UnsupportedError, match="deeper calls __bpftime_cuda__kernel_trace at line"):
        stub_count(text)
