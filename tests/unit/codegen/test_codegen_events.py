"""bpf_perf_event_output: Linux's PERF_EVENT_ARRAY and bpftime's ring map."""

from collections import Counter

import pytest
from codegen_programs import ARCHES, assemble_ptx, entry, executable, in_kernel, needs_ptxas, probe
from test_codegen_hash import ALL, BLOCKS, COUNTED, END, RESULTS, THREAD, THREADS
from test_codegen_lanes import Run

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import MapState, run
from egpu.bpf.interp_state import Place
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import HostProgram, compile_probe

PERF = MapSpec("events", MapType.PERF_EVENT_ARRAY, 4, 4, 0)
GPU = MapSpec("events", MapType.GPU_RINGBUF, 4, 56, 16)
CURRENT = 0xFFFFFFFF
OUTPUT = """
stxdw [%r10-16], %r6
stxdw [%r10-8], %r6
mov %r1, {context}
lddw %r2, map_index 0
{flags}
mov %r4, %r10
add %r4, -16
mov %r5, {size}
call 25
neg %r0
"""


def output(*, context="%r9", flags=f"lddw %r3, {CURRENT}", size=16):
    text = OUTPUT.format(context=context, flags=flags, size=size)
    return "mov %r9, %r1\n" + THREAD + text + COUNTED + END


class Crowd:
    def __init__(self, text, spec, threads=THREADS):
        done = Run(probe(text, spec, RESULTS), entry(), blocks=BLOCKS, threads=threads)
        counts = done.words(done.layout.places[1].offset, 32)
        self.results = {n: int(count) for n, count in enumerate(counts) if count}
        self.records = done.records(spec)
        self.produced, self.dropped = done.control("produced"), done.control("dropped")


@pytest.mark.parametrize("spec", [PERF, GPU])
@pytest.mark.parametrize("size", [4, 16])
def test_every_thread_sends_a_record(spec, size):
    crowd = Crowd(output(size=size), spec)
    assert crowd.results == {0: ALL}
    expected = ((n.to_bytes(8, "little") * 2)[:size] for n in range(ALL))
    assert Counter(crowd.records) == Counter(expected)
    assert (crowd.produced, crowd.dropped) == (ALL, 0)


GPU_SMALL = MapSpec("events", MapType.GPU_RINGBUF, 4, 16, 1)


@pytest.mark.parametrize(("spec", "answer"), [(PERF, 28), (GPU_SMALL, -2 & 31)])
def test_what_does_not_fit_is_counted(spec, answer):
    """3 slots with 64 or 256 KiB each."""
    begin, once = output().split(THREAD)
    text = begin + THREAD + once.removesuffix(END) * 15 + END
    crowd = Crowd(text, spec, threads=1024)
    assert crowd.results == {0: crowd.produced, answer: crowd.dropped}
    assert crowd.produced + crowd.dropped == 15 * BLOCKS * 1024
    assert len(crowd.records) == crowd.produced
    assert crowd.dropped > 0


RING = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 20)
RING_OUTPUT = """
stdw [%r10-8], 7
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
mov %r3, 8
lddw %r4, {flags}
call 130
neg %r0
"""
RING_RESERVE = """
lddw %r1, map_index 0
mov %r2, 8
mov %r3, {flags}
call 131
mov %r7, 1
jeq %r0, 0, none
mov %r7, 0
mov %r1, %r0
mov %r2, 0
call 133
none:
mov %r0, %r7
"""


@pytest.mark.parametrize(
    ("text", "flags", "answer"),
    [
        (RING_OUTPUT, 0, 0),
        (RING_OUTPUT, 1, 0),  # BPF_RB_NO_WAKEUP
        (RING_OUTPUT, 2, 0),  # BPF_RB_FORCE_WAKEUP
        (RING_OUTPUT, 3, 0),
        (RING_OUTPUT, 4, 22),
        (RING_OUTPUT, 1 << 32, 22),
        (RING_RESERVE, 0, 0),
        (RING_RESERVE, 1, 1),
        (RING_RESERVE, 2, 1),
    ],
)
def test_flags_of_rings(text, flags, answer):
    """Linux: ____bpf_ringbuf_output takes the two about waking, ____bpf_ringbuf_reserve none."""
    text = text.format(flags=flags)
    crowd = Crowd(THREAD + text + COUNTED + END, RING)
    assert crowd.results == {answer: ALL}
    sent = ALL if text.count("call 130") and not answer else 0
    assert (len(crowd.records), crowd.dropped) == (sent, 0)
    state = MapState(RING)
    code = assemble(text + "exit")
    assert run(program_from_code(code, "p", maps=(RING,)), maps=[state]) == answer
    assert len(state.records) == (1 if sent else 0)


def test_flags_as_on_linux():
    """A CPU is an SM: another's buffer cannot be written to."""
    bounded = MapSpec("events", MapType.PERF_EVENT_ARRAY, 4, 4, 100)
    assert Crowd(output(flags="lddw %r3, 0x1ffffffff"), bounded).results == {22: ALL}
    assert Crowd(output(flags="mov %r3, 100"), bounded).results == {7: ALL}
    assert Crowd(output(flags="mov %r3, 99"), bounded).results == {95 & 31: ALL}
    assert Crowd(output(flags="mov %r3, 2"), PERF).results == {0: ALL // 4, 95 & 31: 3 * ALL // 4}


def test_bpftimes_context_and_flags_mean_nothing():
    text = output(context="0", flags="lddw %r3, 0x123456789ab")
    assert Crowd(text, GPU).results == {0: ALL}


@pytest.mark.parametrize("size", [1, 56, 57])
def test_interpreter_and_host_agree(size):
    text = f"stdw [%r10-64], {size}\n"
    text += "".join(f"stdw [%r10-{at}], {at}\n" for at in range(8, 64, 8))
    text += f"""
    mov %r1, 0
    lddw %r2, map_index 0
    mov %r3, 0
    mov %r4, %r10
    add %r4, -64
    mov %r5, {size}
    call 25
    exit
    """
    verified, state = executable(text, GPU), MapState(GPU)
    expected = 2**64 - 7 if size > 56 else 0
    with HostProgram(verified) as host:
        assert host.run(bytearray()) == expected
    assert run(verified.program, bytearray(), maps=[state]) == expected
    assert len(state.records) == (size <= 56)


@pytest.mark.parametrize(
    ("flags", "sm", "expected"),
    [
        (CURRENT, 3, 0),
        (3, 3, 0),
        (2, 3, -95),
        (200, 3, -7),
        (1 << 32, 3, -22),
    ],
)
def test_interpreter_takes_flags(flags, sm, expected):
    spec = MapSpec("events", MapType.PERF_EVENT_ARRAY, 4, 4, 100)
    text = f"""
    stdw [%r10-8], 5
    lddw %r2, map_index 0
    lddw %r3, {flags}
    mov %r4, %r10
    add %r4, -8
    mov %r5, 8
    call 25
    exit
    """
    program = program_from_code(assemble(text), "p", maps=(spec,))
    state = MapState(spec)
    answer = run(program, bytearray(8), maps=[state], place=Place(sm=sm))
    assert answer == expected & (2**64 - 1)
    assert state.records == ([(5).to_bytes(8, "little")] if expected == 0 else [])


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_it(tmp_path, arch):
    codes = [compile_probe(probe(output(), spec, RESULTS), point=entry()) for spec in (PERF, GPU)]
    assemble_ptx(in_kernel(*codes), tmp_path, arch)
