"""What the instructions of a straight probe read and write.

Only instructions of the tables are known; a probe with any other keeps the order in which the
assembler put it.  Where a field is used by some forms of an instruction only, it counts for all.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from egpu.splice.sass_encoding import (
    BASE,
    CS2R,
    DESTINATION,
    FORM,
    GUARD,
    GUARD_REGISTER,
    LDC,
    OPCODE,
    PREDICATE_RESULT,
    PREDICATE_SOURCE,
    PT,
    RZ,
    S2R,
    SOURCE_A,
    SOURCE_B,
    SOURCE_C,
    SPECIAL,
    ULDC,
    UPT,
    URZ,
    Field,
)


class Kind(enum.Enum):
    """What an operand is."""

    REGISTER = enum.auto()
    PREDICATE = enum.auto()
    UNIFORM = enum.auto()
    UNIFORM_PREDICATE = enum.auto()
    MEMORY = enum.auto()
    TIME = enum.auto()


Resource = tuple[Kind, int]


@dataclass(frozen=True, slots=True)
class Operands:
    """``reads``, ``writes``: what may be read or written; ``surely``: of the latter what is written
    whatever form of the instruction it is, and by all lanes.  ``tracked``: the result comes when it
    comes, and a scoreboard tells; that of others is there after a number of cycles."""

    reads: frozenset[Resource]
    writes: frozenset[Resource]
    surely: frozenset[Resource]
    tracked: bool


# fmt: off
_POPC, _ELECT, _VOTE, _RED = 0x309, 0x82F, 0x806, 0x18E
# Ordinary arithmetic, by base opcode: registers at bits 24, 64 and, by its form, 32.
_ARITHMETIC = frozenset({
    0x002, 0x007, 0x010, 0x011, 0x012, 0x019, 0x01A,  # MOV, SEL, IADD3, LEA, LOP3, SHF, SGXT
    0x024, 0x025, 0x036, 0x048, 0x00C,                # IMAD, IMAD.WIDE, VIADD, VIMNMX, ISETP
})
_WITHOUT_A = frozenset({0x002})
_WITHOUT_C = frozenset({0x002, 0x01A, 0x036, 0x048})
_WIDE = frozenset({0x025})                                 # two registers at 16 and 64
_ONE_PREDICATE = frozenset({0x010, 0x011, 0x012, 0x024, 0x025, 0x048, 0x00C})   # written, at 81
_TWO_PREDICATES = frozenset({0x010, 0x048, 0x00C})                              # and at 84
_READS_PREDICATE = frozenset({0x007, *_ONE_PREDICATE})                          # at 87
_SECOND_RESULT, _CARRY, _EXTENDED = Field(84, 3), Field(77, 3), Field(68, 3)
_READS_CARRY, _READS_EXTENDED = frozenset({0x010}), frozenset({0x00C})
# The same of the whole warp: uniform registers at 24, 32 and 64.
_UNIFORM = frozenset({
    0x082, 0x090, 0x092, 0x0A4, 0x0A5, 0x0BF,         # UMOV, UIADD3, ULOP3, UIMAD, .WIDE, UPOPC
})
_NO_PREDICATES = frozenset({0x082, 0x0BF})
_VOTEU = 0x886
_LOAD_SIZE, _LOAD_PAIR, _READS_PAIR = Field(73, 3), 5, Field(80, 1)   # of LDC; of CS2R
_REGISTER_B, _UNIFORM_B, _UNIFORM_C = 1, 6, 7         # forms
_PLAIN_B = frozenset({1, 4, 5, 6})                    # B stands at bit 32, not at 64
_TIMES = frozenset({0x50, 0x51, 0x52, 0x53})          # SR_CLOCKLO, SR_CLOCKHI, SR_GLOBALTIMERLO, HI
# fmt: on
_NONE = frozenset(
    {
        (Kind.REGISTER, RZ),
        (Kind.REGISTER, RZ + 1),
        (Kind.PREDICATE, PT),
        (Kind.UNIFORM, URZ),
        (Kind.UNIFORM, URZ + 1),
        (Kind.UNIFORM_PREDICATE, UPT),
    }
)


def register_sources(word: int) -> tuple[tuple[Field, int], ...]:
    """Where arithmetic of the tables names the registers that it reads, and how many from there
    on; nothing for other instructions."""
    base, form = BASE.of(word), FORM.of(word)
    if base not in _ARITHMETIC:
        return ()
    found = [] if base in _WITHOUT_A else [(SOURCE_A, 1)]
    if form == _REGISTER_B:
        found.append((SOURCE_B, 1))
    if base not in _WITHOUT_C or form not in _PLAIN_B:
        found.append((SOURCE_C, 2 if base in _WIDE else 1))
    return tuple(found)


def operands(word: int) -> Operands | None:
    """What ``word`` reads and writes, None if it is not in the tables."""
    opcode, base = OPCODE.of(word), BASE.of(word)
    found: _Found | None = None
    if opcode in (S2R, CS2R):
        time = {(Kind.TIME, 0)} if SPECIAL.of(word) in _TIMES else set()
        width = 1 if opcode == S2R else 2
        found = set(), _registers(DESTINATION.of(word), width) | time
    elif opcode == LDC and SOURCE_A.of(word) == RZ:
        found = set(), _registers(DESTINATION.of(word), 2)
    elif opcode == ULDC:
        found = {_uniform_guard(word)}, _uniform(DESTINATION.of(word), 2)
    elif opcode == _POPC:
        found = _registers(SOURCE_B.of(word)), _registers(DESTINATION.of(word))
    elif opcode == _ELECT and DESTINATION.of(word) & URZ == URZ:
        found = set(), _predicates(word, PREDICATE_RESULT)
    elif opcode == _VOTE:
        written = _registers(DESTINATION.of(word)) | _predicates(word, PREDICATE_RESULT)
        found = _predicates(word, PREDICATE_SOURCE), written
    elif base == _RED:
        found = _reduction(word)
    elif base in _ARITHMETIC:
        found = _arithmetic(word)
    elif base in _UNIFORM or opcode == _VOTEU:
        found = _of_the_warp(word)
    if found is None:
        return None
    reads, writes = found
    if opcode not in (ULDC, _VOTEU) and base not in _UNIFORM:
        reads |= _predicates(word, GUARD_REGISTER)
    tracked = opcode in (S2R, LDC, _POPC)
    writes -= _NONE
    surely = _surely(word, writes)
    return Operands(frozenset(reads - _NONE), frozenset(writes), frozenset(surely), tracked)


def _surely(word: int, writes: set[Resource]) -> set[Resource]:
    """Of what an instruction may write, without what some of its forms, or some lanes, leave."""
    if GUARD.of(word) != PT:
        return set()
    opcode, second = OPCODE.of(word), DESTINATION.of(word) + 1
    pair = BASE.of(word) in _WIDE
    pair |= opcode == LDC and _LOAD_SIZE.of(word) == _LOAD_PAIR
    pair |= opcode == CS2R and bool(_READS_PAIR.of(word))
    return writes if pair else writes - {(Kind.REGISTER, second), (Kind.UNIFORM, second)}


_Found = tuple[set[Resource], set[Resource]]


def _reduction(word: int) -> _Found:
    """Address and value may be pairs, and there is a descriptor."""
    reads = _registers(SOURCE_A.of(word), 2) | _registers(SOURCE_B.of(word), 2)
    return reads | _uniform(SOURCE_C.of(word), 2), {(Kind.MEMORY, 0)}


def _arithmetic(word: int) -> _Found:
    base, form = BASE.of(word), FORM.of(word)
    width = 2 if base in _WIDE else 1
    reads: set[Resource] = set()
    for field, count in register_sources(word):
        reads |= _registers(field.of(word), count)
    if form in (_UNIFORM_B, _UNIFORM_C):
        pair = form == _UNIFORM_C and base in _WIDE  # what a wide product is added to
        reads |= _uniform(SOURCE_B.of(word), 2 if pair else 1)
    writes = _registers(DESTINATION.of(word), width) if base != _ISETP else set()
    for bases, field, into in (
        (_READS_PREDICATE, PREDICATE_SOURCE, reads),
        (_READS_CARRY, _CARRY, reads),
        (_READS_EXTENDED, _EXTENDED, reads),
        (_ONE_PREDICATE, PREDICATE_RESULT, writes),
        (_TWO_PREDICATES, _SECOND_RESULT, writes),
    ):
        if base in bases:
            into.update(_predicates(word, field))
    return reads, writes


_ISETP = 0x00C


def _of_the_warp(word: int) -> _Found:
    vote, predicates = OPCODE.of(word) == _VOTEU, BASE.of(word) not in _NO_PREDICATES
    reads: set[Resource] = {_uniform_guard(word)}
    writes = _uniform(DESTINATION.of(word), 2)
    if vote:  # of a predicate of each lane
        reads |= _predicates(word, PREDICATE_SOURCE)
        return reads, writes | {(Kind.UNIFORM_PREDICATE, PREDICATE_RESULT.of(word))}
    for field in (SOURCE_A, SOURCE_B, SOURCE_C):
        reads |= _uniform(field.of(word), 2)
    if predicates:
        for field in (_EXTENDED, _CARRY, PREDICATE_SOURCE):
            reads |= {(Kind.UNIFORM_PREDICATE, field.of(word) & UPT)}
        for field in (PREDICATE_RESULT, _SECOND_RESULT):
            writes |= {(Kind.UNIFORM_PREDICATE, field.of(word))}
    return reads, writes


def _uniform_guard(word: int) -> Resource:
    return Kind.UNIFORM_PREDICATE, GUARD_REGISTER.of(word)


def _registers(first: int, count: int = 1) -> set[Resource]:
    if first == RZ:
        return set()
    return {(Kind.REGISTER, first + at) for at in range(count)}


def _uniform(first: int, count: int = 1) -> set[Resource]:
    return {(Kind.UNIFORM, (first & URZ) + at) for at in range(count)}


def _predicates(word: int, field: Field) -> set[Resource]:
    return {(Kind.PREDICATE, field.of(word) & PT)}
