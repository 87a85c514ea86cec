"""Predicates that instructions have as guards, and that they may write.

Of an instruction that is not in the tables it is assumed that it writes what lies where others name
their result.
"""

from __future__ import annotations

from egpu.splice.sass_encoding import BASE, GUARD, GUARD_REGISTER, PT, UPT, Field
from egpu.splice.sass_uniform import predicate_fields

# Whether it is a uniform one, and its number, with the top bit for "not" in a guard.
Predicate = tuple[bool, int]

PREDICATE_RESULTS = (81, 84)  # first bits
# By base opcode.
# fmt: off
_R2P = 0x004  # writes any of them
_TWO_RESULTS = frozenset({
    0x00B, 0x00C, 0x010, 0x01C, 0x02A, 0x034, 0x048,  # FSETP, ISETP, IADD3, PLOP3, ..., VIMNMX
})
_NO_RESULT = frozenset({
    0x002, 0x005, 0x007, 0x024, 0x016, 0x017, 0x019,  # MOV, CS2R, SEL, IMAD, PRMT, IMNMX, SHF
    0x01A, 0x021, 0x023, 0x035, 0x036,                # SGXT, FADD, FFMA, HFMA2, VIADD
    0x105, 0x106, 0x108, 0x109, 0x118, 0x119,         # F2I, I2F, MUFU, POPC, NOP, S2R
    0x11A, 0x11B, 0x11D,                              # DEPBAR, ENDCOLLECTIVE, BAR
    0x141, 0x142, 0x145, 0x146, 0x147, 0x14D,         # BSYNC, BREAK, BSSY, YIELD, BRA, EXIT
    0x180, 0x182, 0x183, 0x184,                       # LD, LDC, LDL, LDS
    0x186, 0x187, 0x188, 0x18E,                       # STG, STL, STS, RED
    0x18F, 0x192, 0x1AB,                              # CCTL, MEMBAR, ERRBAR
    0x1C3, *range(0x80, 0xC0),                        # S2UR; whose results are uniform
})
# fmt: on


def guard_of(word: int) -> Predicate | None:
    """What an instruction is guarded by, None if by nothing."""
    if GUARD.of(word) == PT:
        return None
    return GUARD_REGISTER.at in (predicate_fields(word) or ()), GUARD.of(word)


def is_of(guard: Predicate, predicates: frozenset[Predicate]) -> bool:
    """Whether a guard is one of these predicates, negated or not."""
    return (guard[0], guard[1] & PT) in predicates


def predicates_written(word: int) -> frozenset[Predicate]:
    """Predicates that an instruction may write, never fewer than it does."""
    base = BASE.of(word)
    if base == _R2P:
        return frozenset((False, number) for number in range(PT))
    named = predicate_fields(word) or ()
    uniform = {Field(at, 3).of(word) for at in named if at in PREDICATE_RESULTS} - {UPT}
    results = PREDICATE_RESULTS if base in _TWO_RESULTS else PREDICATE_RESULTS[:1]
    fields = () if base in _NO_RESULT else results
    own = {Field(at, 3).of(word) for at in fields} - {PT}
    return frozenset({(True, each) for each in uniform} | {(False, each) for each in own})
