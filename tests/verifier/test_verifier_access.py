"""Maps that are declared with BPF_F_RDONLY_PROG or BPF_F_WRONLY_PROG: what programs may do, and
that Linux says the same."""

import linux_oracle
import pytest
from verifier_programs import LOOKUP, VALUE

from egpu.bpf.asm import assemble
from egpu.bpf.insn import encode, program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG, MapSpec
from egpu.errors import VerifierError
from egpu.verifier import verify

FLAGS = {"any": 0, "read": BPF_F_RDONLY_PROG, "write": BPF_F_WRONLY_PROG}
END = "\nmov %r0, 0\nexit\n"
HELPER = """
stdw [%r10-8], 0
stdw [%r10-24], 0
stdw [%r10-16], 0
lddw %r1, map_index 0
mov %r2, %r10
add %r2, {key}
mov %r3, {third}
{more}
call {number}
"""


def helper(number, key=-8, third="0", more=""):
    return HELPER.format(number=number, key=key, third=third, more=more) + END


VALUE_THIRD = "mov %r3, %r10\nadd %r3, -24\nmov %r4, 0"
INTO_VALUE = "mov %r3, %r6\nmov %r4, 0\nlddw %r1, map_index 0\nmov %r2, %r10\nadd %r2, -4\ncall 2"
# For each what it does to the map: where it is refused.
KEYED = {
    "look up": (LOOKUP.format(0) + END, ()),
    "load": (VALUE.format(0) + "ldxdw %r1, [%r6]" + END, ("write",)),
    "narrow load": (VALUE.format(0) + "ldxb %r1, [%r6+3]" + END, ("write",)),
    "store": (VALUE.format(0) + "stdw [%r6], 1" + END, ("read",)),
    "atomic": (VALUE.format(0) + "mov %r1, 1\nlock add [%r6], %r1" + END, ("read", "write")),
    "helper reads": (VALUE.format(0) + INTO_VALUE + END, ("read", "write")),
    "update": (helper(2, more=VALUE_THIRD), ("read",)),
}
HASHED = {"delete": (helper(3), ("read",)), **KEYED}
PUSHED = {
    "push": (helper(87, -24), ("read",)),
    "pop": (helper(88, -24), ("read",)),
    "peek": (helper(89, -24), ()),
}
SHAPES = (
    (MapSpec("m", MapType.ARRAY, 4, 16, 4), KEYED),
    (MapSpec("m", MapType.PERCPU_ARRAY, 4, 16, 4), KEYED),
    (MapSpec("m", MapType.HASH, 4, 16, 4), HASHED),
    (MapSpec("m", MapType.LRU_HASH, 4, 16, 4), HASHED),
    (MapSpec("m", MapType.QUEUE, 0, 16, 4), PUSHED),
    (MapSpec("m", MapType.STACK, 0, 16, 4), PUSHED),
)


def cases():
    for spec, programs in SHAPES:
        for name, (text, refused) in programs.items():
            for way, flags in FLAGS.items():
                if refused is not None:
                    shaped = MapSpec(spec.name, spec.type, spec.key_size, spec.value_size, 4, flags)
                    named = f"{spec.type.name} {way}: {name}"
                    yield pytest.param(shaped, text, way in refused, id=named)


def refusal(spec, code):
    try:
        verify(program_from_code(code, "p", maps=(spec,)))
    except VerifierError as error:
        return error
    return None


@pytest.mark.parametrize(("spec", "text", "refused"), [*cases()])
def test_what_flags_allow(spec, text, refused):
    error = refusal(spec, assemble(text))
    if not refused:
        assert error is None
        return
    assert error is not None
    assert error.rule == "P2"
    assert "map m is read-only" in error.message or "BPF_F_WRONLY_PROG" in error.hint


@pytest.mark.skipif(
    linux_oracle.unavailable() != "", reason=f"Linux is not asked: {linux_oracle.unavailable()}"
)
@pytest.mark.parametrize(("spec", "text", "refused"), [*cases()])
def test_linux_says_the_same(spec, text, refused):
    code = linux_oracle.with_descriptors(assemble(text), (spec,))
    accepted, log = linux_oracle.load(encode(code))
    assert accepted is not refused, log
    assert accepted or "map forbidden" in log
