"""The machine code of a section as two columns of numbers, to look at thousands of instructions.

A kernel has up to a hundred thousand; the few that are changed are taken out as single words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from egpu.errors import InputError
from egpu.splice.sass_encoding import OPCODE, SIZE, Field

_HALF = 64  # bits of a column
_Numbers = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """Instructions; ``low`` and ``high`` are the two halves of each, ``opcodes`` its opcode."""

    low: _Numbers
    high: _Numbers
    opcodes: _Numbers

    @classmethod
    def of(cls, data: bytes) -> Code:
        """The instructions of a section; InputError when its size is not a whole number of them."""
        if len(data) % SIZE:
            raise InputError(f"{len(data)} bytes of machine code", where="cubin")
        halves = np.frombuffer(data, "<u8").reshape(-1, 2)
        return _code(halves[:, 0].copy(), halves[:, 1].copy())

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, index: int) -> int:
        """One instruction as the encoding's functions take it."""
        return int(self.high[index]) << _HALF | int(self.low[index])

    def __iter__(self) -> Iterator[int]:
        return (
            high << _HALF | low
            for low, high in zip(self.low.tolist(), self.high.tolist(), strict=True)
        )

    def field(self, field: Field) -> _Numbers:
        """That field of every instruction."""
        mask = np.uint64((1 << field.width) - 1)
        if field.at >= _HALF:
            return self.high >> np.uint64(field.at - _HALF) & mask
        values = self.low >> np.uint64(field.at)
        if field.at + field.width > _HALF:
            values = values | self.high << np.uint64(_HALF - field.at)
        return values & mask

    def where(self, *opcodes: int) -> list[int]:
        """Indices of the instructions with one of these opcodes."""
        chosen = self.opcodes == opcodes[0]
        for opcode in opcodes[1:]:
            chosen |= self.opcodes == opcode
        found: list[int] = np.flatnonzero(chosen).tolist()
        return found

    def some(self, chosen: NDArray[np.bool_]) -> Code:
        """The chosen ones, in their order."""
        return Code(self.low[chosen], self.high[chosen], self.opcodes[chosen])

    def with_words(self, changed: dict[int, int]) -> Code:
        """The same with some instructions replaced."""
        low, high = self.low.copy(), self.high.copy()
        for index, word in changed.items():
            low[index] = word & (1 << _HALF) - 1
            high[index] = word >> _HALF
        return _code(low, high)

    def followed_by(self, other: Code) -> Code:
        """Both, one behind the other."""
        return _code(np.concatenate([self.low, other.low]), np.concatenate([self.high, other.high]))

    def data(self) -> bytes:
        """The bytes of the section."""
        return np.stack([self.low, self.high], axis=1).astype("<u8").tobytes()


def _code(low: _Numbers, high: _Numbers) -> Code:
    return Code(low, high, low & np.uint64((1 << OPCODE.width) - 1))
