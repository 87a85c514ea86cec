"""Which uniform values of a probe are the same, as far as single instructions tell."""

from __future__ import annotations

from collections.abc import Sequence

from egpu.splice.sass_carried import reads_and_writes
from egpu.splice.sass_encoding import (
    BASE,
    BREAK,
    BSSY,
    DESTINATION,
    GUARD,
    LATE_READERS,
    LDC,
    LOADS,
    NOP,
    OPCODE,
    PT,
    R2UR,
    R2UR_BEFORE_90,
    S2UR,
    SLOW,
    SOURCE_A,
    STALL,
    ULDC,
    UMOV,
    UMOV_IMMEDIATE,
    URZ,
    Field,
)
from egpu.splice.sass_operands import Kind, operands
from egpu.splice.sass_uniform import REGISTER

# An instruction without its control bits and its result, whether the result's second register, and
# since where what it reads holds; or the instruction that alone gives the value, by its index.
Value = tuple[int, bool, int] | int
_RESULT, _OPERAND_B = Field(16, REGISTER), Field(32, REGISTER)
_WITHOUT_CONTROL = (1 << STALL.at) - 1
# fmt: off
# Instructions that write no ordinary register, beside those of sass_operands: BSSY, BREAK, NOP,
# S2UR, R2UR, MEMBAR, ERRBAR, CGAERRBAR, CCTL.
_WRITES_NONE = frozenset({
    BSSY, BREAK, NOP, S2UR, R2UR, R2UR_BEFORE_90, 0x992, 0x9AB, 0x5AB, 0x98F,
})
# ... and that write some from their result's on, by base opcode: PRMT, IMAD.HI, what takes long.
_WRITE_RESULT = frozenset({0x016, 0x027}) | SLOW | LATE_READERS
# fmt: on
_WIDEST = 4  # registers of a result
_SIZE = Field(73, 3)  # of what is loaded
_LOADED = {5: 2, 6: 4, 7: 4}  # registers of 64 bits, and of 128; one of fewer


class Values:
    """What each instruction of ``words`` writes into uniform registers.

    Copies of an ordinary register are the same where that is not written in between, in one piece
    of straight code (``begins``), and constants wherever they are.
    """

    def __init__(self, words: Sequence[int], begins: frozenset[int]) -> None:
        self._words = words
        self._since = [self._held_since(at, begins) for at in range(len(words))]

    def written(self, at: int, register: int) -> Value:
        """What the instruction writes into the register; the same value for the same contents."""
        word = self._words[at]
        since = self._since[at]
        if since is None or GUARD.of(word) != PT:
            return at
        return (
            _RESULT.set(word & _WITHOUT_CONTROL, 0),
            register != min(reads_and_writes(word)[1]),
            since,
        )

    def _held_since(self, at: int, begins: frozenset[int]) -> int | None:
        """Since which instruction what this one reads is as it is; 0 for constants; None where that
        cannot be told."""
        word = self._words[at]
        opcode = OPCODE.of(word)
        if opcode in (ULDC, UMOV_IMMEDIATE) or (opcode == UMOV and _OPERAND_B.of(word) == URZ):
            return 0
        if opcode not in (R2UR, R2UR_BEFORE_90):
            return None
        register = SOURCE_A.of(word)
        while at not in begins and not _may_write(self._words[at - 1], register):
            at -= 1
        return at


def _may_write(word: int, register: int) -> bool:
    found = operands(word)
    if found is not None:
        return (Kind.REGISTER, register) in found.writes
    if OPCODE.of(word) in _WRITES_NONE:
        return False
    first, base = DESTINATION.of(word), BASE.of(word)
    if base in LOADS or OPCODE.of(word) == LDC:
        return first <= register < first + _LOADED.get(_SIZE.of(word), 1)
    return base not in _WRITE_RESULT or first <= register < first + _WIDEST
