"""What a warp has once for all its lanes: uniform registers, their predicates, barriers.

Lanes that leave share them with lanes that go on.  So an exit probe gets numbers that the kernel
does not use, instead of saving and restoring what the others may be using meanwhile.

Instructions are known by table where the splicer must change them; of others it is assumed that
every field that can name a uniform register does.
"""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from egpu.errors import UnsupportedError
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    BARRIER,
    BARRIERS,
    BASE,
    BMOV_FROM,
    BMOV_TO,
    BRA,
    BRA_UNIFORM,
    BREAK,
    BRXU,
    BSSY,
    BSYNC,
    FORM,
    GUARD_REGISTER,
    HAS_UNIFORM,
    LDS,
    OPCODE,
    PREDICATE_SOURCE,
    R2UR,
    R2UR_BEFORE_90,
    REDUX,
    S2UR,
    SETMAXREG,
    ULDC,
    UMOV,
    UMOV_IMMEDIATE,
    UNIFORM_PREDICATES,
    UNIFORM_REGISTERS,
    URZ,
    VOTEU,
    Field,
    bytes_of,
)
from egpu.splice.sass_native import Kinds, Numbers, Places

REGISTER = 6  # bits that name a uniform register
# Fields that name uniform registers, by opcode (their first bit).
# fmt: off
ALWAYS: dict[int, tuple[int, ...]] = {
    0x287: (16, 24, 32),     0x887: (16, 24),        # USEL
    0x28C: (24, 32),         0x88C: (24,),           # UISETP
    0x290: (16, 24, 32, 64), 0x890: (16, 24, 64),    # UIADD3
    0x291: (16, 24, 32, 64), 0x891: (16, 24, 64),    # ULEA
    0x292: (16, 24, 32, 64), 0x892: (16, 24, 64),    # ULOP3
    0x896: (16, 24, 64),     # UPRMT
    0x297: (16, 24, 32, 64),                         # UIADD3.64
    0x299: (16, 24, 32, 64), 0x899: (16, 24, 64),    # USHF
    0x29B: (16, 24, 32),     0x89B: (16, 24),        # UBMSK
    0x89A: (16, 24),                                 # USGXT
    0x2A4: (16, 24, 32, 64), 0x8A4: (16, 24, 64), 0x4A4: (16, 24, 64),  # UIMAD
    0x2A5: (16, 24, 32, 64), 0x8A5: (16, 24, 64),    # UIMAD.WIDE
    0x2BD: (16, 32),         # UFLO
    0x2BE: (16, 32),         # UBREV
    0x2BF: (16, 32),         # UPOPC
    UMOV: (16, 32),          UMOV_IMMEDIATE: (16,),
    0x82F: (16, 32),         # ELECT
    ULDC: (16,),             VOTEU: (16,),           REDUX: (16,),
    R2UR: (16,),             R2UR_BEFORE_90: (16,),  S2UR: (16,),
}
# ... when HAS_UNIFORM is set.
SOMETIMES: dict[int, tuple[int, ...]] = {
    0x980: (32,), 0x981: (32,), LDS: (32,), 0x983: (32,), 0x83B: (32,),  # LD, LDG, LDS, LDL, LDSM
    0x985: (64,), 0x986: (64,), 0x988: (64,), 0x987: (64,), 0x844: (64,),  # ST ... STL, STSM
    0x98A: (64,), 0x98E: (64,), 0x9A8: (64,), 0xF8C: (64,),    # ATOM, RED, ATOMG, ATOMS
    0x9A2: (64,), 0x9A6: (64,), 0x98C: (64,),                  # ATOM, REDG of floats, ATOMS
    0xDAE: (64,), 0xFAE: (64,),                                # LDGSTS
    BRA: (24,),
    0x9C7: (), 0xDC7: (), SETMAXREG: (),                       # UCGABAR_ARV, UCGABAR_WAIT
}
# Instructions that kernels have and probes do not: fields, and how many more registers each names.
_KERNEL_FIELDS: dict[int, tuple[tuple[int, int], ...]] = {
    0x5B2: ((16, 1), (24, 1), (32, 1)),           # SYNCS.EXCH
    0x9A7: ((64, 0),),                            # SYNCS.ARRIVE
    0x5A7: ((64, 0),),                            # SYNCS.PHASECHK
    0x897: ((16, 1), (24, 1), (64, 1)),           # UIADD3.64
    0x9B0: ((64, 0),),                            # ARRIVES
    0x9F0: ((24, 3),), 0x9F1: ((24, 3),), 0x9F3: ((24, 3),),  # HGMMA, IGMMA, QGMMA: descriptors
    0x5B4: ((24, 1), (32, 6), (40, 1), (64, 0)),  # UTMALDG: map, place and coordinates, descriptor
    0x3B4: ((24, 1), (32, 6), (40, 1), (64, 0)),  # UTMALDG.MULTICAST: blocks
    0x3B5: ((24, 1), (32, 6), (40, 1)),           # UTMASTG
    0x3B6: ((24, 1), (32, 6), (40, 1)),           # UTMAREDG
    0x9B9: ((24, 1),),                            # UTMACCTL
    0x3BA: ((24, 3), (32, 3), (64, 3)),           # UBLKCP
    0x3BB: ((24, 3), (32, 3), (64, 3)),           # UBLKRED
    0x883: ((16, 0), (24, 0)),                    # UP2UR
    0x89C: (),                                    # UPLOP3
    0x9C9: (),                                    # USETSHMSZ
    0xABB: ((16, 1), (24, 0)),                    # ULDC with an index
    0x499: ((16, 1), (24, 1), (64, 1)),           # USHF
    BRA_UNIFORM: (),
    BRXU: ((24, 1),),
}
_MMA_BASES = (0x037, 0x03C, 0x03D, 0x03F)  # IMMA, HMMA, BMMA, DMMA: a uniform predicate at 87
_UNIFORM_FORMS = (6, 7)  # an operand of an ordinary instruction is a uniform register, at bit 32
_OPERAND_B = 32
# Fields that name uniform predicates.
_PREDICATES: dict[int, tuple[int, ...]] = {
    0x287: (87,),            0x887: (87,),
    0x28C: (81, 84, 87, 68), 0x88C: (81, 84, 87, 68),
    0x290: (81, 84, 87, 77), 0x890: (81, 84, 87, 77),
    0x291: (81, 87),         0x891: (81, 87),
    0x896: (),
    0x297: (81, 84, 87, 77),
    0x29B: (),               0x89B: (),
    0x292: (81, 87),         0x892: (81, 87),
    0x299: (),               0x899: (),
    0x89A: (),
    0x2A4: (),               0x8A4: (),              0x4A4: (),
    0x2A5: (81, 87),         0x8A5: (81, 87),
    0x2BD: (81,),            0x2BE: (),              0x2BF: (),
    UMOV: (),                UMOV_IMMEDIATE: (),     ULDC: (),
    VOTEU: (81,),            SETMAXREG: (81,),       0x9C7: (), 0xDC7: (),
    S2UR: (),
}
# Instructions of the uniform kind whose guard is an ordinary predicate.
_ORDINARY_GUARD = (R2UR, R2UR_BEFORE_90, REDUX)
_PLOP3, _PLOP3_UNIFORM, _PLOP3_SOURCE = 0x81C, Field(67, 1), 68
_UNIFORM_BASES = (*range(0x80, 0xC0), 0xCA, 0x1C2, 0x1C3, 0x1C4, 0x1C7, 0x1C8, 0x1CE, 0x1B1, 0x1B2)
_ALL_FIELDS = (16, 24, 32, 64)
_ALL_PREDICATES = (24, 68, 77, 81, 84, 87)
# fmt: on
_PAIR = 1  # a field can name the first of two registers
_EVEN = sum(1 << number for number in range(0, 1 << REGISTER, 2))
_UNKNOWN_SPAN = 15  # ... of more, in an instruction that is not in the tables


def register_fields(word: int) -> tuple[int, ...] | None:
    """First bits of the fields that name uniform registers; None for an unknown instruction."""
    opcode = OPCODE.of(word)
    if opcode in _KERNEL_FIELDS:
        return None
    if opcode in ALWAYS:
        return ALWAYS[opcode]
    if opcode in SOMETIMES:
        return SOMETIMES[opcode] if HAS_UNIFORM.of(word) else ()
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


NOTHING = Usage(frozenset(), frozenset(), frozenset())
EVERYTHING = Usage(
    frozenset(range(UNIFORM_REGISTERS)),
    frozenset(range(UNIFORM_PREDICATES)),
    frozenset(range(BARRIERS)),
)
_BARRIER_OPCODES = {BSSY: 16, BSYNC: 16, BREAK: 16, BMOV_FROM: 24, BMOV_TO: 24}


def usage(words: Sequence[int]) -> Usage:
    """What code may use, never less than it does."""
    return usage_of(Code.of(bytes_of(words)))


def usage_of(code: Code) -> Usage:
    """What code may use, never less than it does."""
    masks = dict.fromkeys(_What, 0)
    for field, numbers in _numbers_named(code):
        what, _, span = _NAMED.fields[field]
        masks[what] |= _spread(numbers, span)
    if (code.opcodes == _READS_ALL_PREDICATES).any():
        masks[_What.PREDICATE] |= (1 << UNIFORM_PREDICATES) - 1
    return Usage(
        _numbers(masks[_What.REGISTER], UNIFORM_REGISTERS),
        _numbers(masks[_What.PREDICATE], UNIFORM_PREDICATES),
        _numbers(masks[_What.BARRIER], BARRIERS),
    )


def _numbers_named(code: Code) -> Iterable[tuple[int, int]]:
    """Fields of ``_NAMED`` that instructions have, and bit n for each number n that one holds in
    one."""
    found, begin, data = Numbers(), 0, code.data()
    with _NAMED.lock:  # the table names fields that ``places`` has to have
        while (begin := _NAMED.kinds.numbers(data, begin, _NAMED.places, found)) < len(code):
            _NAMED.add(_kind_of(code[begin]))
    return ((at, numbers) for at, numbers in enumerate(found) if numbers)


def _spread(numbers: int, span: int) -> int:
    """Bits of numbers, and of ``span`` more behind each, but for URZ, which is none; a pair begins
    at an even number."""
    numbers &= ~(1 << URZ)
    if span == _PAIR:
        return numbers | (numbers & _EVEN) << 1
    for _ in range(span):
        numbers |= numbers << 1
    return numbers


def _numbers(mask: int, count: int) -> frozenset[int]:
    return frozenset(number for number in range(count) if mask >> number & 1)


class _What(enum.Enum):
    """What a field names."""

    REGISTER = enum.auto()
    PREDICATE = enum.auto()
    BARRIER = enum.auto()


_WIDTHS = {_What.REGISTER: REGISTER, _What.PREDICATE: 3, _What.BARRIER: BARRIER.width}
_OPCODE_MASK = (1 << OPCODE.width) - 1
# What decides, beside the opcode, which fields of an instruction name what.
_KIND_BITS = ((HAS_UNIFORM, 12), (_PLOP3_UNIFORM, 13))
_READS_ALL_PREDICATES = 0x883  # UP2UR


class _Named:
    """What instructions of each kind name: bit n for the n-th of ``fields``, which are
    ``places``.  Filled as kinds are met."""

    def __init__(self) -> None:
        self.kinds = Kinds([OPCODE, *(field for field, _ in _KIND_BITS)])
        self.fields: list[tuple[_What, int, int]] = []
        self.places = Places(())
        self.lock = threading.Lock()  # a rehearsal is beside what kernels ask for

    def add(self, kind: int) -> None:
        """A kind is met."""
        bits = 0
        for field in _named_by(kind):
            if field not in self.fields:
                self.fields.append(field)
            bits |= 1 << self.fields.index(field)
        self.places = Places([Field(at, _WIDTHS[what]) for what, at, _ in self.fields])
        self.kinds[kind] = bits


_NAMED = _Named()


def _kind_of(word: int) -> int:
    kind = OPCODE.of(word)
    for field, bit in _KIND_BITS:
        kind |= field.of(word) << bit
    return kind


@functools.cache
def _named_by(kind: int) -> tuple[tuple[_What, int, int], ...]:
    """Fields of instructions of a kind: what each names, its first bit, how many more numbers."""
    opcode = kind & _OPCODE_MASK
    word = opcode
    for field, bit in _KIND_BITS:
        word = field.set(word, kind >> bit & 1)
    fields = register_fields(word)
    if fields is not None:
        registers = tuple((at, _PAIR) for at in fields)
    else:
        unknown = tuple((at, _UNKNOWN_SPAN) for at in _ALL_FIELDS)
        registers = _KERNEL_FIELDS.get(opcode, unknown)
    predicates = predicate_fields(word)
    if predicates is None:
        predicates = (*_ALL_PREDICATES, GUARD_REGISTER.at)
    barriers = [_BARRIER_OPCODES[opcode]] if opcode in _BARRIER_OPCODES else []
    return (
        *((_What.REGISTER, at, span) for at, span in registers),
        *((_What.PREDICATE, at, 0) for at in predicates),
        *((_What.BARRIER, at, 0) for at in barriers),
    )


@functools.lru_cache(maxsize=256)
def usage_exact(words: tuple[int, ...]) -> tuple[Usage, frozenset[int]]:
    """What a probe uses, and the numbers of uniform registers that it names; UnsupportedError for
    an instruction that is not in the tables."""
    named: set[int] = set()
    for word in words:
        fields = register_fields(word)
        if fields is None or predicate_fields(word) is None:
            raise _unknown(word)
        if OPCODE.of(word) in (BMOV_FROM, BMOV_TO):
            raise _unknown(word)
        named.update(Field(at, REGISTER).of(word) for at in fields)
    return usage(words), frozenset(named - {URZ})


def _unknown(word: int) -> UnsupportedError:
    return UnsupportedError(f"a probe with the instruction {OPCODE.of(word):#x}")
