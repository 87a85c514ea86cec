"""Which maps may have several copies per SM: those that programs only add to."""

import dataclasses
from pathlib import Path

import pytest

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.object import read_object
from egpu.bpf.program import AttachKind, AttachPoint
from egpu.session.additive import additive_maps
from egpu.verifier import verify

TOOLS = Path(__file__).resolve().parents[3] / "src" / "egpu" / "tools"
COUNTS = read_object(
    (TOOLS / "kernelcount" / "kernelcount.bpf.o").read_bytes(), "kernelcount.bpf.o"
)
BENCH = Path(__file__).resolve().parents[3] / "bench" / "probes" / "counters.bpf.o"
(U64,) = read_object(BENCH.read_bytes(), BENCH.name).maps

LOOKUP = """
mov %r1, 0
stxw [%r10-4], %r1
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
jeq %r0, 0, out
"""
END = """
out:
mov %r0, 0
exit
"""
UPDATE = """
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
stdw [%r10-16], 1
mov %r3, %r10
add %r3, -16
mov %r4, 0
call 2
"""
ADD = "ldxdw %r1, [%r0]\nadd %r1, 3\nstxdw [%r0], %r1\n"


def additive(body, kind=MapType.PERCPU_ARRAY, spec=U64):
    spec = dataclasses.replace(spec, type=kind, key_size=4, value_size=8, max_entries=1)
    point = AttachPoint(AttachKind.ENTRY, "*")
    program = program_from_code(
        assemble(LOOKUP + body + END), "probe", maps=(spec,), attach=(point,), license="GPL"
    )
    return additive_maps([verify(program)], (spec,))


@pytest.mark.parametrize(
    "body",
    [
        ADD,
        "mov %r1, 1\nlock add [%r0], %r1\n",
        "mov %r1, 1\nlock fetch add [%r0], %r1\n",
        "mov %r3, 1\nlock fetch add [%r0], %r3\nmov %r3, 7\n",
        "ldxdw %r1, [%r0]\nsub %r1, 3\nstxdw [%r0], %r1\n",
    ],
)
def test_adding_only(body):
    assert additive(body) == {0}


@pytest.mark.parametrize(
    "body",
    [
        "ldxdw %r1, [%r0]\nmov %r3, %r1\n",  # read
        "mov %r1, 5\nstxdw [%r0], %r1\n",  # written
        "ldxdw %r1, [%r0]\nor %r1, 3\nstxdw [%r0], %r1\n",  # another operation
        "mov %r1, 1\nlock fetch add [%r0], %r1\nmov %r3, %r1\n",  # the old value is seen
        "mov %r1, 1\nlock fetch add [%r0], %r1\njeq %r1, 7, out\nmov %r1, 2\n",
        "mov %r1, 1\nlock fetch or [%r0], %r1\n",
        "mov %r1, 1\nlock or [%r0], %r1\n",
        ADD + "ldxdw %r1, [%r0]\n",
        UPDATE,
    ],
)
def test_anything_else(body):
    assert additive(body) == frozenset()


def test_values_that_cannot_be_summed():
    assert additive(ADD, spec=dataclasses.replace(U64, btf=None)) == frozenset()


def test_kernelcount_is_spread():
    verified = [verify(program) for program in COUNTS.programs]
    names = {COUNTS.maps[index].name for index in additive_maps(verified, COUNTS.maps)}
    assert names == {"counts"}
