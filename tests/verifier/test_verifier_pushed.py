"""Queues, stacks and Bloom filters as the verifier sees them, and as Linux does if asked."""

import linux_oracle
import pytest
from differential import Case
from verifier_programs import ENTRY

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec

QUEUE = MapSpec("q", MapType.QUEUE, 0, 12, 5)
STACK = MapSpec("s", MapType.STACK, 0, 12, 5)
BLOOM = MapSpec("b", MapType.BLOOM_FILTER, 0, 12, 5)
HASH = MapSpec("h", MapType.HASH, 4, 12, 5)
RING = MapSpec("r", MapType.RINGBUF, 0, 0, 4096)
ALL = {"queue": QUEUE, "stack": STACK, "bloom": BLOOM, "hash": HASH, "ring": RING}
DEQUES = ("queue", "stack")
WRITTEN = "stdw [%r10-16], 1\nstw [%r10-8], 2\n"
CALL = """
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -16
mov %r3, {flags}
call {helper}
{after}
mov %r0, 0
exit
"""


def call(helper, *, flags=0, before=WRITTEN, after=""):
    return before + CALL.format(helper=helper, flags=flags, after=after)


READ = "ldxdw %r1, [%r10-16]\nldxw %r1, [%r10-8]"
# name: (program, which maps are taken)
PROGRAMS = {
    "push": (call(87), (*DEQUES, "bloom")),
    "push with a flag": (call(87, flags=2), (*DEQUES, "bloom")),
    "push what was never written": (call(87, before=""), ()),
    "push what was written in part": (call(87, before="stdw [%r10-16], 1\n"), ()),
    "pop": (call(88), DEQUES),
    "pop into new stack": (call(88, before="", after=READ), DEQUES),
    "pop and read farther": (call(88, before="", after="ldxw %r1, [%r10-4]"), ()),
    "peek": (call(89), (*DEQUES, "bloom")),
    "peek into new stack": (call(89, before="", after=READ), DEQUES),
    "look up": (call(1), ("hash",)),
    "update": (call(2).replace("mov %r3, 0", "mov %r3, %r2\nmov %r4, 0"), ("hash",)),
    "delete": (call(3), ("hash",)),
    "query": (call(134).replace("mov %r2, %r10\nadd %r2, -16", "mov %r2, 0"), ("ring",)),
    "pop past the frame": (call(88).replace("add %r2, -16", "add %r2, -8"), ()),
    "pop to no memory": (call(88).replace("mov %r2, %r10\nadd %r2, -16", "mov %r2, 0"), ()),
    "push a number": (call(87).replace("mov %r2, %r10\nadd %r2, -16", "mov %r2, 5"), ()),
    "flags that are a pointer": (call(87).replace("mov %r3, 0", "mov %r3, %r10"), ()),
}
CASES = [(name, kind) for name in PROGRAMS for kind in ALL]


def case(name, kind):
    text, _ = PROGRAMS[name]
    return Case(name, program_from_code(assemble(text), "p", maps=(ALL[kind],)), 0)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_verdict(name, kind):
    error = case(name, kind).ours()
    assert (error is None) == (kind in PROGRAMS[name][1]), error


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.skipif(bool(linux_oracle.unavailable()), reason="bpf(2) is not permitted")
def test_linux_says_the_same(name, kind):
    """Asked without the right to leak memory: with it, new stack may be read."""
    ((accepted, log),) = linux_oracle.without_leaks([case(name, kind).job()])
    assert accepted == (kind in PROGRAMS[name][1]), log


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (MapSpec("q", MapType.QUEUE, 4, 12, 5), "keys have 4 bytes, must have none"),
        (MapSpec("q", MapType.STACK, 0, 1025, 5), "must be at least 1 of 1 to 1024"),
        (MapSpec("q", MapType.BLOOM_FILTER, 0, 12, 0), "0 values of 12 bytes"),
    ],
)
def test_shapes(spec, words):
    text, _ = PROGRAMS["push"]
    error = Case("push", program_from_code(assemble(text), "p", maps=(spec,)), 0).ours()
    assert words in str(error)


PERF = MapSpec("e", MapType.PERF_EVENT_ARRAY, 4, 4, 4)
EVENT = """
stdw [%r10-8], 1
{context}
lddw %r2, map_index 0
mov %r3, {flags}
mov %r4, %r10
add %r4, -8
mov %r5, {size}
call 25
mov %r0, 0
exit
"""
# name: (program, maps that are taken)
EVENTS = {
    "the context": (EVENT.format(context="", flags=0, size=8), ("perf",)),
    "no context": (EVENT.format(context="mov %r1, 0", flags=0, size=8), ()),
    "the stack for a context": (EVENT.format(context="mov %r1, %r10", flags=0, size=8), ()),
    "more than was written": (EVENT.format(context="", flags=0, size=9), ()),
    "unknown flags": (EVENT.format(context="", flags=-1, size=8), ("perf",)),
}
EVENT_CASES = [(name, kind) for name in EVENTS for kind in ("perf", "ring", "hash")]


def event_case(name, kind):
    maps = (PERF if kind == "perf" else ALL[kind],)
    program = program_from_code(assemble(EVENTS[name][0]), "p", maps=maps, attach=ENTRY)
    return Case(name, program, None)


@pytest.mark.parametrize(("name", "kind"), EVENT_CASES)
def test_event_verdict(name, kind):
    error = event_case(name, kind).ours()
    assert (error is None) == (kind in EVENTS[name][1]), error


@pytest.mark.parametrize(("name", "kind"), EVENT_CASES)
@pytest.mark.skipif(bool(linux_oracle.unavailable()), reason="bpf(2) is not permitted")
def test_linux_says_the_same_of_events(name, kind):
    """A tracepoint's program: those need the right to leak."""
    accepted, log = linux_oracle.load(*event_case(name, kind).job())
    assert accepted == (kind in EVENTS[name][1]), log


def test_no_context_for_bpftimes_map():
    maps = (MapSpec("e", MapType.GPU_RINGBUF, 4, 56, 4),)
    program = program_from_code(assemble(EVENTS["no context"][0]), "p", maps=maps, attach=ENTRY)
    assert Case("e", program, None).ours() is None
