"""Machine code of sm_80, 86, 89 and 90: the instructions and fields that splicing touches.

An instruction is 128 bits, held as one integer.  NVIDIA documents none of this.  Every row of the
tables was read back from the vendor's disassembler, and the tests compare each with it again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from egpu.errors import InputError, InternalError

SIZE = 16  # bytes of an instruction
ARCHS = (80, 86, 89, 90)
RZ, URZ, PT, UPT = 255, 63, 7, 7
UNIFORM_REGISTERS = 63
UNIFORM_PREDICATES = 7
BARRIERS = 16  # convergence barriers
NO_SCOREBOARD = 7
ALL_SCOREBOARDS = 0x3F


@dataclass(frozen=True, slots=True)
class Field:
    """A place in an instruction: bit and width."""

    at: int
    width: int

    @property
    def mask(self) -> int:
        """Its bits in an instruction."""
        return (1 << self.width) - 1 << self.at

    def of(self, word: int) -> int:
        return word >> self.at & (1 << self.width) - 1

    def set(self, word: int, value: int) -> int:
        if value >> self.width:
            raise InternalError(f"{value} in {self.width} bits of an instruction")
        return word & ~((1 << self.width) - 1 << self.at) | value << self.at


# fmt: off
OPCODE           = Field(0, 12)
BASE             = Field(0, 9)    # the opcode without the form of its operands
FORM             = Field(9, 3)
GUARD            = Field(12, 4)   # predicate, top bit: negated
GUARD_REGISTER   = Field(12, 3)
DESTINATION      = Field(16, 8)
SOURCE_A         = Field(24, 8)
SOURCE_B         = Field(32, 8)
SOURCE_C         = Field(64, 8)
UNIFORM_A        = Field(24, 6)
IMMEDIATE        = Field(32, 32)
CONSTANT_OFFSET  = Field(38, 16)
CONSTANT_BANK    = Field(54, 5)
SHARED_OFFSET    = Field(40, 24)  # of LDS and STS
SPECIAL          = Field(72, 8)   # special register of S2R and CS2R
SECOND_GUARD     = Field(87, 4)   # of EXIT and BRA; top bit: negated
CARRY_SOURCE     = Field(68, 3)   # of ISETP.EX
PREDICATE_RESULT = Field(81, 3)
PREDICATE_SOURCE = Field(87, 3)
HAS_UNIFORM      = Field(91, 1)   # a uniform register among the sources
STALL            = Field(105, 4)  # cycles until the next instruction of the warp
YIELD            = Field(109, 1)  # 0: prefer another warp
WRITE_SCOREBOARD = Field(110, 3)  # released when the result is there
READ_SCOREBOARD  = Field(113, 3)  # released when the sources have been read
WAIT             = Field(116, 6)  # scoreboards that must be free before
REUSE            = Field(122, 4)
BARRIER          = Field(16, 4)   # convergence barrier of BSSY and BSYNC

MOV, MOV_IMMEDIATE, MOV_UNIFORM = 0x202, 0x802, 0xC02
CS2R, S2R, NOP, EXIT, BRA       = 0x805, 0x919, 0x918, 0x94D, 0x947
BSSY, BSYNC, BREAK, YIELD_OP    = 0x945, 0x941, 0x942, 0x946
BMOV_FROM, BMOV_TO              = 0x355, 0x356
LDS, LDC, ULDC, UMOV_IMMEDIATE  = 0x984, 0xB82, 0xAB9, 0x882
ULDC_INDEXED                    = 0xABB
BRA_UNIFORM, BRXU, TRAP         = 0x547, 0x958, 0x95C
R2UR_BEFORE_90, R2UR, UMOV, S2UR = 0x3C2, 0x2CA, 0xC82, 0x9C3
VOTEU, REDUX, BRX, RET          = 0x886, 0x3C4, 0x949, 0x950
CALL                            = 0x944
WARPSYNCS                       = (0x348, 0x948, 0xB48)
SR_CLOCK, SR_GLOBALTIMER        = 0x50, 0x52

# Words with everything but operands: low and high half as the assembler writes them.
_WORDS = {
    MOV:           (0x00000000_00000202, 0x00000000_00000F00),
    MOV_IMMEDIATE: (0x00000000_00000802, 0x00000000_00000F00),
    CS2R:          (0x00000000_00000805, 0x00000000_00010000),
    NOP:           (0x00000000_00000918, 0x00000000_00000000),
    EXIT:          (0x00000000_0000094D, 0x00000000_03800000),
    BRA:           (0x00000000_00000947, 0x00000000_03800000),
    BSSY:          (0x00000000_00000945, 0x00000000_03800000),
    BSYNC:         (0x00000000_00000941, 0x00000000_03800000),
}

# Instructions that count a distance from where they stand, or remember where they stand.
RELATIVE = frozenset({
    BRA, BSSY, BREAK, BRX, RET, BRA_UNIFORM, BRXU,
    0x343, 0x344, 0x943, CALL,   # CALL
    *WARPSYNCS,                  # (with a target)
    0x34E, 0x94E,                # LEPC
    0x349, 0x34A, 0x94A, 0x350,  # BRX, JMP, RET with other operands
})
RETURNS = frozenset({RET, 0x350})
MEETINGS = frozenset({BSSY, BSYNC, BREAK})  # what keeps convergence barriers
# What several lanes do together, with a mask that says which.
COLLECTIVES = frozenset({
    *WARPSYNCS,
    0x3A1,                       # MATCH
    0x389, 0x589, 0x989, 0xF89,  # SHFL: the assembler's, behind one addition for many lanes
})
# Stores, reductions and atomics, by base opcode: they read their sources after they were issued.
LATE_READERS = frozenset({
    0x185, 0x186, 0x187, 0x188,                # ST, STG, STL, STS
    0x18E, 0x1A6,                              # RED of integers and of floating-point numbers
    0x18A, 0x18B, 0x1A2,                       # ATOM: likewise, and compare-and-swap
    0x1A3, 0x1A8, 0x1A9,                       # ATOMG
    0x18C, 0x18D,                              # ATOMS
    0x1AE, 0x044,                              # LDGSTS, STSM
    0x19B, 0x19C, 0x19D, 0x19E,                # SUST
    0x193, 0x194, 0x195, 0x196, 0x19F, 0x1A0,  # SUATOM, SURED
    0x1BD, 0x1BE,                              # STAS, REDAS
})
LOADS = frozenset({0x180, 0x181, 0x183, 0x184})  # LD, LDG, LDL, LDS, by base opcode
# Those and what else takes as long as it takes, by base opcode.
SLOW = LOADS | {
    0x100, 0x101, 0x105, 0x106, 0x108, 0x109, 0x110,  # FLO, BREV, F2I, I2F, MUFU, POPC, F2F
    0x111, 0x112, 0x119, 0x182, 0x189, 0x1A1,         # F2I.64, I2F.64, S2R, LDC, SHFL, MATCH
    0x1C3, 0x1C4,                                     # S2UR, REDUX
}
SETMAXREG = 0x9C8  # setmaxnreg: registers at bit 32
# fmt: on


def words_of(code: bytes) -> list[int]:
    """The instructions of a section; InputError when its size is not a whole number of them."""
    if len(code) % SIZE:
        raise InputError(f"{len(code)} bytes of machine code", where="cubin")
    return [int.from_bytes(code[at : at + SIZE], "little") for at in range(0, len(code), SIZE)]


def bytes_of(words: Iterable[int]) -> bytes:
    """The bytes of instructions."""
    return b"".join(word.to_bytes(SIZE, "little") for word in words)


@functools.lru_cache(maxsize=1024)  # a kernel's exits are alike
def instruction(
    opcode: int,
    *,
    guard: int = PT,
    second: int = PT,
    stall: int = 5,
    wait: int = 0,
    scoreboard: int = NO_SCOREBOARD,
) -> int:
    """An instruction of the table without operands; ``second`` counts for EXIT and BRA only."""
    low, high = _WORDS[opcode]
    word = GUARD.set(high << 64 | low, guard)
    if opcode in (EXIT, BRA):
        word = SECOND_GUARD.set(word, second)
    word = YIELD.set(STALL.set(word, stall), int(0 < stall < _LONG_STALL))
    word = READ_SCOREBOARD.set(WRITE_SCOREBOARD.set(word, NO_SCOREBOARD), scoreboard)
    return WAIT.set(word, wait)


_LONG_STALL = 12  # from here on, and without a stall, the yield bit must be clear


def branch(arch: int, distance: int, *, guard: int = PT, second: int = PT, wait: int = 0) -> int:
    """A jump over ``distance`` bytes, counted from the instruction behind it."""
    return with_distance(instruction(BRA, guard=guard, second=second, wait=wait), arch, distance)


def distance_of(word: int, arch: int) -> int:
    """Bytes from the instruction behind a BRA, BSSY, CALL or RET to the place that it names."""
    if _distance_is_split(word, arch):
        value = _DISTANCE_HIGH.of(word) << 8 | _DISTANCE_LOW.of(word)
        width = _DISTANCE_HIGH.width + 8
    else:
        value, width = _DISTANCE.of(word), _DISTANCE.width
    if value >> width - 1:
        value -= 1 << width
    return value * 4


def with_distance(word: int, arch: int, distance: int) -> int:
    """A BRA or BSSY that names another place."""
    if distance % SIZE:
        raise InternalError(f"a jump over {distance} bytes")
    units = distance // 4
    if not _distance_is_split(word, arch):
        return _DISTANCE.set(word, units & (1 << _DISTANCE.width) - 1)
    word = _DISTANCE_LOW.set(word, units & 0xFF)
    return _DISTANCE_HIGH.set(word, units >> 8 & (1 << _DISTANCE_HIGH.width) - 1)


def _distance_is_split(word: int, arch: int) -> bool:
    return arch >= _SPLIT_DISTANCE and OPCODE.of(word) != BSSY  # whose barrier has that place


_SPLIT_DISTANCE = 90  # from here on the low 8 bits have a place of their own
_DISTANCE = Field(34, 48)
_DISTANCE_LOW = Field(16, 8)
_DISTANCE_HIGH = Field(34, 48)


def copy_register(
    destination: int, source: int, *, guard: int = PT, wait: int = 0, stall: int = 0
) -> int:
    """A MOV that takes ``stall`` cycles, and as many that its result is there for the next one."""
    word = instruction(MOV, guard=guard, stall=max(stall, _ALU_LATENCY), wait=wait)
    return SOURCE_B.set(DESTINATION.set(word, destination), source)


_ALU_LATENCY = 6  # the assembler leaves 4 or 5 cycles


def read_clock(destination: int, special: int) -> int:
    """A 64-bit special register (SR_CLOCK, SR_GLOBALTIMER) into a pair of registers."""
    if destination % 2:
        raise InternalError(f"a pair of registers at R{destination}")
    word = instruction(CS2R, stall=_ALU_LATENCY)
    return SPECIAL.set(DESTINATION.set(word, destination), special)


def constant_of(word: int) -> tuple[int, int | None] | None:
    """(bank, byte offset) of an operand in a constant bank, offset None where a register counts in.

    None without one.  Instructions of other kinds may be taken for one that has.
    """
    if FORM.of(word) not in CONSTANT_FORMS:
        return None
    indexed = (OPCODE.of(word) == LDC and SOURCE_A.of(word) != RZ) or (
        OPCODE.of(word) == ULDC_INDEXED and UNIFORM_A.of(word) != URZ
    )
    return CONSTANT_BANK.of(word), None if indexed else CONSTANT_OFFSET.of(word)


CONSTANT_FORMS = (3, 5)


STACK_POINTER = 1


def loads_stack_pointer(word: int) -> bool:
    """Whether it is how a kernel that keeps nothing on the stack begins: nothing waits for it."""
    untracked = WRITE_SCOREBOARD.of(word) == NO_SCOREBOARD
    return OPCODE.of(word) == LDC and DESTINATION.of(word) == STACK_POINTER and untracked


def for_all(word: int) -> bool:
    """Whether all lanes go where a BRA, CALL, RET or EXIT leads: it has no predicate, and does not
    ask whether lanes are together (BRA.DIV, BRA.CONV)."""
    asks = OPCODE.of(word) == BRA and HAS_UNIFORM.of(word)
    return GUARD.of(word) == PT and SECOND_GUARD.of(word) == PT and not asks


def is_store(word: int) -> bool:
    """Whether an instruction reads its sources late."""
    return BASE.of(word) in LATE_READERS
