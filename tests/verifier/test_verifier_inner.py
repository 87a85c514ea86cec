"""Maps of maps as the verifier sees them, and as Linux does if asked."""

import functools
import os
import struct

import linux_oracle
import pytest
from differential import Case

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec

INNER = MapSpec("inner", MapType.HASH, 4, 16, 8)
OUTER = MapSpec("outer", MapType.ARRAY_OF_MAPS, 4, 4, 2, inner=(1,))
MAPS = (OUTER, INNER)
LOOK = """
stw [%r10-4], 0
stdw [%r10-24], 1
stdw [%r10-16], 2
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
"""
NULL = "jeq %r0, 0, none\n"
KEY = "mov %r2, %r10\nadd %r2, -4\n"
END = "\nnone:\nmov %r0, 0\nexit\n"
# name: (program, whether it is taken)
PROGRAMS = {
    "look up": (LOOK + NULL + "mov %r1, %r0\n" + KEY + "call 1" + END, True),
    "look up and read": (
        LOOK + NULL + "mov %r1, %r0\n" + KEY + "call 1\n" + NULL + "ldxdw %r1, [%r0+8]" + END,
        True,
    ),
    "read past the value": (
        LOOK + NULL + "mov %r1, %r0\n" + KEY + "call 1\n" + NULL + "ldxdw %r1, [%r0+16]" + END,
        False,
    ),
    "update": (
        LOOK
        + NULL
        + "mov %r1, %r0\n"
        + KEY
        + "mov %r3, %r10\nadd %r3, -24\nmov %r4, 0\ncall 2"
        + END,
        True,
    ),
    "delete": (LOOK + NULL + "mov %r1, %r0\n" + KEY + "call 3" + END, True),
    "without a test": (LOOK + "mov %r1, %r0\n" + KEY + "call 1\nmov %r0, 0\nexit\n", False),
    "read the map itself": (LOOK + NULL + "ldxdw %r1, [%r0]" + END, False),
    "move the pointer": (LOOK + NULL + "add %r0, 8\nmov %r1, %r0\n" + KEY + "call 1" + END, False),
    "kept on the stack": (
        LOOK + NULL + "stxdw [%r10-32], %r0\nldxdw %r1, [%r10-32]\n" + KEY + "call 1" + END,
        True,
    ),
    "push": (LOOK + NULL + "mov %r1, %r0\n" + KEY + "mov %r3, 0\ncall 87" + END, False),
    "update the outer map": (
        LOOK.replace("call 1", "mov %r3, %r10\nadd %r3, -24\nmov %r4, 0\ncall 2")
        + "mov %r0, 0\nexit\n",
        False,
    ),
    "delete from the outer map": (LOOK.replace("call 1", "call 3") + "mov %r0, 0\nexit\n", False),
}


@functools.cache
def created(spec):
    if spec is not OUTER:
        return real(spec)
    shape = struct.pack("<IIIIII", spec.type, 4, 4, spec.max_entries, 0, real(INNER))
    descriptor, error = linux_oracle._bpf(linux_oracle._MAP_CREATE, shape)
    if descriptor < 0:
        raise OSError(error, os.strerror(error))
    return descriptor


real = linux_oracle.created


def case(name):
    return Case(name, program_from_code(assemble(PROGRAMS[name][0]), "p", maps=MAPS), 0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_verdict(name):
    error = case(name).ours()
    assert (error is None) == PROGRAMS[name][1], error


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.skipif(bool(linux_oracle.unavailable()), reason="bpf(2) is not permitted")
def test_linux_says_the_same(name, monkeypatch):
    """Asked without the right to leak memory: with it, a map's own fields can be read."""
    monkeypatch.setattr(linux_oracle, "created", created)
    ((accepted, log),) = linux_oracle.without_leaks([case(name).job()])
    assert accepted == PROGRAMS[name][1], log


def test_callbacks_need_a_map_of_the_object():
    text = (
        LOOK
        + NULL
        + "mov %r1, %r0\nlddw %r2, code each\nmov %r3, 0\nmov %r4, 0\ncall 164"
        + END
        + "each:\nmov %r0, 0\nexit\n"
    )
    program = program_from_code(assemble(text), "p", maps=MAPS)
    assert "must be a map of the object" in str(Case("each", program, 0).ours())


@pytest.mark.parametrize("spec", [OUTER.__class__("outer", MapType.HASH_OF_MAPS, 4, 4, 2)])
def test_an_empty_one_is_refused(spec):
    program = program_from_code(assemble(PROGRAMS["look up"][0]), "p", maps=(spec, INNER))
    assert "0 maps in it" in str(Case("look up", program, 0).ours())
