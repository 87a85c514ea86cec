"""What a warp has once for all its lanes: uniform registers, their predicates, barriers.

Lanes that leave share them with lanes that go on.  So an exit probe gets numbers that the kernel
does not use, instead of saving and restoring what the others may be using meanwhile.

Instructions are known by table where the splicer must change them; of others it is assumed that
every field that can name a uniform register does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from egpu.errors import InternalError, UnsupportedError
from egpu.splice.sass_encoding import (
    BARRIER,
    BARRIERS,
    BASE,
    BMOV_FROM,
    BMOV_TO,
    BRA,
    BREAK,
    BSSY,
    BSYNC,
    CARRY_SOURCE,
    EXIT,
    FORM,
    GUARD,
    GUARD_REGISTER,
    HAS_UNIFORM,
    LDS,
    OPCODE,
    PREDICATE_RESULT,
    PREDICATE_SOURCE,
    PT,
    R2UR,
    R2UR_BEFORE_90,
    REDUX,
    RELATIVE,
    RZ,
    S2UR,
    SECOND_GUARD,
    SETMAXREG,
    SIZE,
    SOURCE_A,
    SOURCE_B,
    ULDC,
    UMOV,
    UMOV_IMMEDIATE,
    UNIFORM_PREDICATES,
    UNIFORM_REGISTERS,
    UPT,
    URZ,
    VOTEU,
    Field,
    distance_of,
)

_REGISTER = 6  # bits that name a uniform register
# Fields that name uniform registers, by opcode (their first bit).
# fmt: off
_ALWAYS: dict[int, tuple[int, ...]] = {
    0x287: (16, 24, 32),     0x887: (16, 24),        # USEL
    0x28C: (24, 32),         0x88C: (24,),           # UISETP
    0x290: (16, 24, 32, 64), 0x890: (16, 24, 64),    # UIADD3
    0x291: (16, 24, 32, 64),                         # ULEA
    0x292: (16, 24, 32, 64), 0x892: (16, 24, 64),    # ULOP3
    0x299: (16, 24, 32, 64), 0x899: (16, 24, 64),    # USHF
    0x89A: (16, 24),                                 # USGXT
    0x2A4: (16, 24, 32, 64), 0x8A4: (16, 24, 64), 0x4A4: (16, 24, 64),  # UIMAD
    0x2A5: (16, 24, 32, 64), 0x8A5: (16, 24, 64),    # UIMAD.WIDE
    0x2BD: (16, 32),         # UFLO
    0x2BE: (16, 32),         # UBREV
    0x2BF: (16, 32),         # UPOPC
    UMOV: (16, 32),          UMOV_IMMEDIATE: (16,),
    ULDC: (16,),             VOTEU: (16,),           REDUX: (16,),
    R2UR: (16,),             R2UR_BEFORE_90: (16,),  S2UR: (16,),
}
# ... when HAS_UNIFORM is set.
_SOMETIMES: dict[int, tuple[int, ...]] = {
    0x980: (32,), 0x981: (32,), LDS: (32,),                    # LD, LDG, LDS
    0x985: (64,), 0x986: (64,), 0x988: (64,),                  # ST, STG, STS
    0x98A: (64,), 0x98E: (64,), 0x9A8: (64,), 0xF8C: (64,),    # ATOM, RED, ATOMG, ATOMS
    BRA: (24,),
    0x9C7: (), 0xDC7: (), SETMAXREG: (),                       # UCGABAR_ARV, UCGABAR_WAIT
}
# Instructions that kernels have and probes do not, with how many registers a field may begin.
_KERNEL_FIELDS: dict[int, tuple[tuple[int, ...], int]] = {
    0x82F: ((16, 32), 0),          # ELECT
    0x5B2: ((16, 24, 32), 1),      # SYNCS.EXCH
    0x9A7: ((64,), 0),             # SYNCS.ARRIVE
    0x5A7: ((64,), 0),             # SYNCS.PHASECHK
    0x897: ((16, 24, 64), 1),      # UIADD3.64
    0x9F0: ((24,), 3),             # HGMMA: two matrix descriptors
    0x5B4: ((24, 32, 64), 7),      # UTMALDG: addresses, coordinates
    0x3B5: ((24, 32), 7),          # UTMASTG
    0x3B6: ((24, 32), 7),          # UTMAREDG
    0x3BA: ((24, 32, 64), 3),      # UBLKCP
}
_MMA_BASES = (0x037, 0x03C, 0x03D, 0x03F)  # IMMA, HMMA, BMMA, DMMA: a uniform predicate at 87
_UNIFORM_FORMS = (6, 7)  # an operand of an ordinary instruction is a uniform register, at bit 32
_OPERAND_B = 32
# Fields that name uniform predicates.
_PREDICATES: dict[int, tuple[int, ...]] = {
    0x287: (87,),            0x887: (87,),
    0x28C: (81, 84, 87, 68), 0x88C: (81, 84, 87, 68),
    0x290: (81, 84, 87, 77), 0x890: (81, 84, 87, 77),
    0x291: (81, 87),
    0x292: (81, 87),         0x892: (81, 87),
    0x299: (),               0x899: (),
    0x89A: (),
    0x2A4: (),               0x8A4: (),              0x4A4: (),
    0x2A5: (81, 87),         0x8A5: (81, 87),
    0x2BD: (81,),            0x2BE: (),              0x2BF: (),
    UMOV: (),                UMOV_IMMEDIATE: (),     ULDC: (),
    VOTEU: (81,),            SETMAXREG: (81,),       0x9C7: (), 0xDC7: (),
}
# Instructions of the uniform kind whose guard is an ordinary predicate.
_ORDINARY_GUARD = (R2UR, R2UR_BEFORE_90, REDUX)
_PLOP3, _PLOP3_UNIFORM, _PLOP3_SOURCE = 0x81C, Field(67, 1), 68
_UNIFORM_BASES = (*range(0x80, 0xC0), 0xCA, 0x1C2, 0x1C3, 0x1C4, 0x1C7, 0x1C8, 0x1CE, 0x1B1, 0x1B2)
_ALL_FIELDS = (16, 24, 32, 64)
_ALL_PREDICATES = (68, 77, 81, 84, 87)
# fmt: on
_PAIR = 1  # a field can name the first of two registers
_UNKNOWN_SPAN = 15  # ... of more, in an instruction that is not in the tables


def register_fields(word: int) -> tuple[int, ...] | None:
    """First bits of the fields that name uniform registers; None for an unknown instruction."""
    opcode = OPCODE.of(word)
    if opcode in _KERNEL_FIELDS:
        return None
    if opcode in _ALWAYS:
        return _ALWAYS[opcode]
    if opcode in _SOMETIMES:
        return _SOMETIMES[opcode] if HAS_UNIFORM.of(word) else ()
    if BASE.of(word) in _UNIFORM_BASES:
        return None
    if HAS_UNIFORM.of(word):
        return (_OPERAND_B,) if FORM.of(word) in _UNIFORM_FORMS else None
    return ()


def predicate_fields(word: int) -> tuple[int, ...] | None:
    """First bits of the fields that name uniform predicates; None for an unknown instruction."""
    opcode = OPCODE.of(word)
    if opcode in _KERNEL_FIELDS:
        return None
    if BASE.of(word) in _MMA_BASES:
        return (PREDICATE_SOURCE.at,)
    if opcode == _PLOP3:
        return (_PLOP3_SOURCE,) if _PLOP3_UNIFORM.of(word) else ()
    if opcode in _ORDINARY_GUARD:
        return ()
    if opcode == S2UR:
        return () if GUARD_REGISTER.of(word) == UPT else None
    if opcode in _PREDICATES:
        return (*_PREDICATES[opcode], GUARD_REGISTER.at)
    if BASE.of(word) in _UNIFORM_BASES:
        return None
    if HAS_UNIFORM.of(word) and register_fields(word) is None:
        return None
    return ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Which uniform registers, uniform predicates and convergence barriers code may use."""

    registers: frozenset[int]
    predicates: frozenset[int]
    barriers: frozenset[int]


EVERYTHING = Usage(
    frozenset(range(UNIFORM_REGISTERS)),
    frozenset(range(UNIFORM_PREDICATES)),
    frozenset(range(BARRIERS)),
)
_BARRIER_OPCODES = {BSSY: 16, BSYNC: 16, BREAK: 16, BMOV_FROM: 24, BMOV_TO: 24}


def usage(words: Iterable[int]) -> Usage:
    """What code may use, never less than it does."""
    registers: set[int] = set()
    predicates: set[int] = set()
    barriers: set[int] = set()
    for word in words:
        fields, span = register_fields(word), _PAIR
        if fields is None:
            fields, span = _KERNEL_FIELDS.get(OPCODE.of(word), (_ALL_FIELDS, _UNKNOWN_SPAN))
        for at in fields:
            first = Field(at, _REGISTER).of(word)
            if first != URZ:
                registers.update(range(first, min(first + span + 1, UNIFORM_REGISTERS)))
        named = predicate_fields(word)
        for at in (*_ALL_PREDICATES, GUARD_REGISTER.at) if named is None else named:
            predicates.add(Field(at, 3).of(word))
        barriers.update(_barriers(word))
    return Usage(frozenset(registers), frozenset(predicates - {UPT}), frozenset(barriers))


def _barriers(word: int) -> Iterable[int]:
    opcode = OPCODE.of(word)
    if opcode in _BARRIER_OPCODES:
        return (Field(_BARRIER_OPCODES[opcode], BARRIER.width).of(word),)
    return ()


@dataclass(frozen=True, slots=True)
class Renaming:
    """Numbers that a probe's uniform registers, predicates and barriers get."""

    shift: int
    predicates: Mapping[int, int]
    barriers: Mapping[int, int]


def free_numbers(probe: Sequence[int], kernel: Usage) -> Renaming:
    """Numbers for ``probe`` that ``kernel`` does not use; UnsupportedError when there are none.

    Uniform registers keep their distances, so that pairs stay pairs.
    """
    own = usage_exact(probe)
    shift = 0
    if own.registers:
        lowest, highest = min(own.registers), max(own.registers)
        for shift in range(-(lowest & ~_ALIGNED), UNIFORM_REGISTERS - highest, _ALIGNED + 1):
            if kernel.registers.isdisjoint(each + shift for each in own.registers):
                break
        else:
            raise UnsupportedError(
                f"an exit probe that uses {len(own.registers)} uniform registers in a kernel that "
                f"uses {len(kernel.registers)} of {UNIFORM_REGISTERS}"
            )
    return Renaming(
        shift,
        _matched("uniform predicates", own.predicates, kernel.predicates, UNIFORM_PREDICATES),
        _matched("convergence barriers", own.barriers, kernel.barriers, BARRIERS),
    )


_ALIGNED = 3  # registers that are read together begin at a multiple of four at most


def _matched(what: str, wanted: frozenset[int], used: frozenset[int], count: int) -> dict[int, int]:
    free = [each for each in range(count) if each not in used]
    if len(free) < len(wanted):
        raise UnsupportedError(
            f"an exit probe that uses {len(wanted)} {what} in a kernel that uses {len(used)} of "
            f"{count}"
        )
    return dict(zip(sorted(wanted), reversed(free), strict=False))


def usage_exact(words: Sequence[int]) -> Usage:
    """What a probe uses; UnsupportedError for an instruction that is not in the tables."""
    for word in words:
        known = register_fields(word) is not None and predicate_fields(word) is not None
        if not known or OPCODE.of(word) in (BMOV_FROM, BMOV_TO):
            raise UnsupportedError(f"a probe with the instruction {OPCODE.of(word):#x}")
    return usage(words)


def renamed(word: int, renaming: Renaming) -> int:
    """An instruction of a probe with its new numbers."""
    fields, named = register_fields(word), predicate_fields(word)
    if fields is None or named is None:
        raise InternalError(f"an unknown instruction {OPCODE.of(word):#x} to rename")
    for at in fields:
        field = Field(at, _REGISTER)
        if field.of(word) != URZ:
            word = field.set(word, field.of(word) + renaming.shift)
    for at in named:
        field = Field(at, 3)
        if field.of(word) != UPT:
            word = field.set(word, renaming.predicates[field.of(word)])
    if OPCODE.of(word) in (BSSY, BSYNC, BREAK):
        word = BARRIER.set(word, renaming.barriers[BARRIER.of(word)])
    return word


def carried(words: Sequence[int], arch: int) -> frozenset[int]:
    """Uniform registers that are read after lanes may have parted or met again since they were
    written, unless they only ever hold constants.

    Another group of the warp's lanes can run, and write them, where one waits: at a branch that
    lanes take differently and at a barrier where they meet.
    """
    varying = _varying(words)
    known = _written_since(words, arch)
    found: set[int] = set()
    for index, word in enumerate(words):
        before = known[index]
        if before is not None:
            found |= reads_and_writes(word)[0] - before
    return frozenset(found & varying)


def _written_since(words: Sequence[int], arch: int) -> list[frozenset[int] | None]:
    """Per instruction, the registers surely written since the lanes last parted or met; None where
    no lane comes."""
    known: list[frozenset[int] | None] = [None] * len(words)
    work: list[tuple[int, frozenset[int]]] = [(0, frozenset())]
    while work:
        index, arriving = work.pop()
        if index >= len(words):
            continue
        before = known[index]
        merged = arriving if before is None else before & arriving
        if merged == before:
            continue
        known[index] = merged
        word = words[index]
        opcode = OPCODE.of(word)
        after = merged | reads_and_writes(word)[1]
        whole = GUARD.of(word) == PT and SECOND_GUARD.of(word) == PT
        if opcode == BRA:
            if not whole and not _uniform_guard(words, index):
                after = frozenset()
            work.append((index + 1 + distance_of(word, arch) // SIZE, after))
            if whole:
                continue
        elif opcode == EXIT and whole:
            continue
        elif opcode in _MEETINGS:
            after = frozenset()
        work.append((index + 1, after))
    return known


def _uniform_guard(words: Sequence[int], branch: int) -> bool:
    """Whether a branch's predicate comes from constants and uniform registers alone, as far as the
    instructions right before it tell."""
    if SECOND_GUARD.of(words[branch]) != PT:
        return False
    wanted = {GUARD_REGISTER.of(words[branch])}
    for word in reversed(words[:branch]):
        opcode, base = OPCODE.of(word), BASE.of(word)
        if opcode in RELATIVE or opcode in (EXIT, BSYNC):
            return False
        if PREDICATE_RESULT.of(word) not in wanted or base in _NO_PREDICATE:
            continue
        own = base == _ISETP and SOURCE_A.of(word) == RZ and GUARD.of(word) == PT
        if not own or (FORM.of(word) == 1 and SOURCE_B.of(word) != RZ):
            return False
        wanted.remove(PREDICATE_RESULT.of(word))
        wanted |= {PREDICATE_SOURCE.of(word), CARRY_SOURCE.of(word)} - {PT}
        if not wanted:
            return True
    return False


_MEETINGS = (RELATIVE | {BSYNC}) - {BRA, BSSY}
_ISETP = 0x00C
# MOV, SEL, IMAD, NOP, S2R, LDC, CS2R and everything uniform: they write no predicate.
_NO_PREDICATE = frozenset({0x002, 0x007, 0x024, 0x118, 0x119, 0x182, 0x005, *range(0x80, 0xC0)})


def _varying(words: Sequence[int]) -> set[int]:
    """Registers that are written from anything but constants."""
    found: set[int] = set()
    for word in words:
        opcode = OPCODE.of(word)
        same = opcode in (ULDC, UMOV_IMMEDIATE) or (
            opcode == UMOV and Field(_OPERAND_B, _REGISTER).of(word) == URZ
        )
        if not same:
            found |= reads_and_writes(word)[1]
    return found


def reads_and_writes(word: int) -> tuple[set[int], set[int]]:
    """Uniform registers that an instruction of the tables reads and writes."""
    opcode = OPCODE.of(word)
    reads: set[int] = set()
    writes: set[int] = set()
    for at in register_fields(word) or ():
        first = Field(at, _REGISTER).of(word)
        if first == URZ:
            continue
        if at == _DESTINATION and opcode in _ALWAYS and opcode not in _NO_DESTINATION:
            writes |= {first, first + 1} if opcode in _WIDE and _is_wide(word) else {first}
        elif opcode in _SOMETIMES and opcode not in (BRA, LDS):
            reads |= {first, first + 1}  # a memory descriptor
        else:
            wide = (opcode in _WIDE_SOURCE and at == _OPERAND_C) or opcode == _IMAD_WIDE_UNIFORM_C
            reads |= {first, first + 1} if wide else {first}
    return reads, writes


_DESTINATION = 16
_NO_DESTINATION = (0x28C, 0x88C)
_WIDE = (0x2A5, 0x8A5, ULDC)
_WIDE_SOURCE = (0x2A5, 0x8A5)
_OPERAND_C, _IMAD_WIDE_UNIFORM_C = 64, 0xE25
_ULDC_SIZE, _ULDC_64 = Field(73, 3), 5


def _is_wide(word: int) -> bool:
    return OPCODE.of(word) != ULDC or _ULDC_SIZE.of(word) == _ULDC_64
