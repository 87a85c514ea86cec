"""Queues, stacks and Bloom filters: against lists and sets, and by many lanes with known totals."""

import threading

import numpy as np
import pytest
from codegen_programs import (
    ARCHES,
    assemble_ptx,
    entry,
    executable,
    in_kernel,
    needs_ptxas,
    probe,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_codegen_hash import ALL, BLOCKS, COUNTED, END, RESULTS, THREAD, THREADS
from test_codegen_lanes import Run

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import MapState, run
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import HostArenas, HostProgram, compile_probe
from egpu.maps.layout import DEQUE_CONTROL, DEQUE_CONTROL_SIZE, DEQUE_FULL
from egpu.verifier import Limits, Policy, verify

M64 = 2**64 - 1
ENOENT, E2BIG, EINVAL = (-n & M64 for n in (2, 7, 22))
DEQUES = [MapType.QUEUE, MapType.STACK]
PUSH, POP, PEEK = range(3)

# r1 = memory: operation, value, flags, then what was taken (8 bytes each); r0 = the answer.
OPERATE = """
mov %r9, %r1
ldxdw %r6, [%r9]
ldxdw %r7, [%r9+8]
stxdw [%r10-16], %r7
stxdw [%r10-8], %r7
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -16
jeq %r6, 1, pop
jeq %r6, 2, peek
ldxdw %r3, [%r9+16]
call 87
exit
pop:
call 88
ja taken
peek:
call 89
taken:
ldxw %r1, [%r10-{last}]
stxdw [%r9+24], %r1
exit
"""


def pushed(kind, entries, size=8, extra=0):
    return MapSpec("q", kind, 0, size, entries, extra=extra)


def operations(spec):
    return executable(OPERATE.format(last=20 - spec.value_size), spec, memory=32)


class Model:
    def __init__(self, room, *, lifo):
        self.room, self.lifo, self.items = room, lifo, []

    def do(self, operation, value, flags):
        if operation == PUSH:
            if flags not in (0, 2):
                return EINVAL, None
            if len(self.items) == self.room:
                if not flags:
                    return E2BIG, None
                del self.items[0]
            self.items.append(value)
            return 0, None
        if not self.items:
            return ENOENT, 0
        number = -1 if self.lifo else 0
        value = self.items[number]
        if operation == POP:
            del self.items[number]
        return 0, value


STEPS = st.lists(
    st.tuples(
        st.sampled_from([PUSH, PUSH, POP, PEEK]),
        st.integers(0, 2**32 - 1),
        st.sampled_from([0, 0, 1, 2, 3]),
    ),
    max_size=60,
)


@settings(max_examples=15, deadline=None)
@given(steps=STEPS, size=st.sampled_from([4, 8, 12]), kind=st.sampled_from(DEQUES))
def test_as_a_list(steps, size, kind):
    """Values of 12 bytes have the pushed number in their last four, too."""
    spec = pushed(kind, 3, size)
    verified = operations(spec)
    model, state = Model(3, lifo=kind is MapType.STACK), MapState(spec)
    with HostProgram(verified) as host:
        for operation, value, flags in steps:
            number = value if size != 8 else value << 32
            memory = b"".join(n.to_bytes(8, "little") for n in (operation, number, flags, 77))
            expected, taken = model.do(operation, value, flags)
            for execute in (
                lambda block: run(verified.program, block, maps=[state]),
                host.run,
            ):
                block = bytearray(memory)
                assert execute(block) == expected
                assert int.from_bytes(block[24:], "little") == (77 if taken is None else taken)


@settings(max_examples=10, deadline=None)
@given(
    values=st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=20),
    # Enough that chance alone cannot have half of them seem to be there.
    others=st.sets(st.integers(0, 2**32 - 1), min_size=40, max_size=60),
    extra=st.sampled_from([0, 1, 3, 15]),
)
def test_bloom_filter(values, others, extra):
    """Everything pushed is there; of the rest, host and interpreter say the same."""
    spec = pushed(MapType.BLOOM_FILTER, 30, 4, extra)
    text = OPERATE.format(last=16).replace("jeq %r6, 1, pop\n", "").replace("pop:\ncall 88\n", "")
    verified = executable(text.replace("ja taken\n", ""), spec, memory=32)
    state = MapState(spec)

    def both(operation, value, flags=0):
        words = (operation, value, flags, 0)
        memory = b"".join(n.to_bytes(8, "little") for n in words)
        answers = (
            run(verified.program, bytearray(memory), maps=[state]),
            host.run(memory_of(memory)),
        )
        assert answers[0] == answers[1]
        return answers[0]

    with HostProgram(verified) as host:
        assert both(PEEK, min(values)) == ENOENT
        assert both(PUSH, min(values), 1) == EINVAL
        for value in values:
            assert both(PUSH, value) == 0
        assert {both(PEEK, value) for value in values} == {0}
        missed = [both(PEEK, value) for value in others - values]
        assert missed.count(0) <= len(missed) // 2


def memory_of(data):
    return bytearray(data)


PUSH_OWN = """
stxdw [%r10-16], %r6
mov %r7, %r6
mul %r7, 3
stxdw [%r10-8], %r7
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -16
mov %r3, {flags}
call 87
neg %r0
"""
# What was taken is a pair n, 3 * n, or the answer is counted as 31.
TAKE = """
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -16
call {helper}
neg %r0
ldxdw %r1, [%r10-16]
ldxdw %r2, [%r10-8]
mul %r1, 3
jeq %r1, %r2, whole
mov %r0, 31
whole:
add %r0, 16
"""


class Crowd:
    """What 1,152 threads left in map 0, and how often each answer came; those of TAKE + 16."""

    def __init__(self, text, spec):
        done = Run(probe(text, spec, RESULTS), entry(), blocks=BLOCKS, threads=THREADS)
        data = done.memory.read(done.device, done.layout.device_size)
        counts = done.words(done.layout.places[1].offset, 32)
        self.results = {n: int(count) for n, count in enumerate(counts) if count}
        start = done.layout.places[0].offset
        place = int.from_bytes(data[start : start + 8], "little")
        first, count = place & 0xFFFFFFFF, place >> 32
        self.counters = {
            name: int.from_bytes(data[start + at : start + at + size], "little")
            for name, (at, size) in DEQUE_CONTROL.items()
        }
        words = np.frombuffer(data, np.uint64, 3 * spec.max_entries, start + DEQUE_CONTROL_SIZE)
        cells = words.reshape(-1, 3)
        numbers = [(first + n) % spec.max_entries for n in range(count)]
        assert {int(cells[n, 0]) & 3 for n in numbers} <= {DEQUE_FULL}
        assert not {int(cell[0]) & 3 for n, cell in enumerate(cells) if n not in numbers} - {0}
        self.values = [int(cells[n, 1]) for n in numbers]
        assert [3 * value for value in self.values] == [int(cells[n, 2]) for n in numbers]


@pytest.mark.parametrize("kind", DEQUES)
def test_every_thread_pushes(kind):
    crowd = Crowd(THREAD + PUSH_OWN.format(flags=0) + COUNTED + END, pushed(kind, ALL, 16))
    assert crowd.results == {0: ALL}
    assert sorted(crowd.values) == list(range(ALL))


@pytest.mark.parametrize("kind", DEQUES)
def test_full_refuses_and_loses_nothing(kind):
    crowd = Crowd(THREAD + PUSH_OWN.format(flags=0) + COUNTED + END, pushed(kind, 100, 16))
    assert crowd.results == {0: 100, 7: ALL - 100}
    assert len(set(crowd.values)) == 100
    assert crowd.counters["full"] == ALL - 100


@pytest.mark.parametrize("kind", DEQUES)
def test_full_gives_up_the_oldest(kind):
    crowd = Crowd(THREAD + PUSH_OWN.format(flags=2) + COUNTED + END, pushed(kind, 50, 16))
    assert crowd.results == {0: ALL}
    assert (len(set(crowd.values)), crowd.counters["dropped"]) == (50, ALL - 50)


@pytest.mark.parametrize("kind", DEQUES)
@pytest.mark.parametrize("room", [1, 7, 300])
def test_pushed_and_taken(kind, room):
    """Every value that was pushed was taken or is there, whole; half of the threads only look."""
    text = THREAD + PUSH_OWN.format(flags=0) + COUNTED + TAKE.format(helper=89) + COUNTED
    text += TAKE.format(helper=88).replace("whole", "also") + COUNTED + END
    crowd = Crowd(text, pushed(kind, room, 16))
    pushes = crowd.results[0]
    assert pushes + crowd.results.get(7, 0) == ALL
    assert crowd.results[16] + crowd.results.get(18, 0) == 2 * ALL
    assert 15 not in crowd.results  # a torn value
    peeked_and_popped = crowd.results[16]
    assert pushes - len(crowd.values) <= peeked_and_popped
    assert crowd.counters["busy"] == 0


def test_threads_of_this_machine_take_turns():
    """Pushes less pops are what is left, by threads that really run at once."""
    text = OPERATE.format(last=12).replace("call 87\nexit", "call 87\nstxdw [%r9+24], %r0\nexit")
    for kind in DEQUES:
        spec = pushed(kind, 5)
        program = program_from_code(assemble(text), "p", maps=(spec,))
        verified = verify(program, policy=Policy.EXECUTOR, memory_size=32, limits=Limits())
        arenas = HostArenas(verified)
        balance = [0] * 4
        with HostProgram(verified, arenas=arenas) as host:

            def work(number, host=host, balance=balance):
                for step in range(3000):
                    operation = (PUSH, POP, PUSH, PEEK, POP)[(step + number) % 5]
                    words = (operation, (number << 32) + step, 2 * (step & 1), 0)
                    block = bytearray(b"".join(n.to_bytes(8, "little") for n in words))
                    answer = host.run(block)
                    balance[number] += {PUSH: 1, POP: -1, PEEK: 0}[operation] * (answer == 0)

            workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        start = arenas.layout.places[0].offset
        left = int.from_bytes(arenas.device[start + 4 : start + 8], "little")
        dropped = int.from_bytes(arenas.device[start + 24 : start + 32], "little")
        assert sum(balance) - dropped == left <= 5


BLOOM = THREAD + """
mul %r6, 7919
stxdw [%r10-8], %r6
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
mov %r3, 0
call 87
neg %r0
""" + COUNTED + """
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
call 89
neg %r0
add %r0, 16
""" + COUNTED + END  # fmt: skip


def test_bloom_filter_of_a_crowd():
    verified = probe(BLOOM, pushed(MapType.BLOOM_FILTER, 2000), RESULTS)
    done = Run(verified, entry(), blocks=BLOCKS, threads=THREADS)
    counts = done.words(done.layout.places[1].offset, 32)
    assert {n: int(c) for n, c in enumerate(counts) if c} == {0: ALL, 16: ALL}


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_it(tmp_path, arch):
    text = THREAD + PUSH_OWN.format(flags=2) + COUNTED + TAKE.format(helper=89) + COUNTED
    text += TAKE.format(helper=88).replace("whole", "also") + COUNTED + END
    codes = [
        compile_probe(probe(text, pushed(kind, 9, 16), RESULTS), point=entry()) for kind in DEQUES
    ]
    bloom = probe(BLOOM, pushed(MapType.BLOOM_FILTER, 2000), RESULTS)
    codes.append(compile_probe(bloom, point=entry()))
    assemble_ptx(in_kernel(*codes), tmp_path, arch)
