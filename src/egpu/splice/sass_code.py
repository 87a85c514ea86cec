"""The machine code of a section as columns of numbers, to look at thousands of instructions.

A kernel has up to a hundred thousand; the few that are changed are taken out as single words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egpu.errors import InputError
from egpu.splice.sass_encoding import OPCODE, SIZE, Field

_Numbers = NDArray[np.unsignedinteger]
_SMALLEST = 8  # bits of a column, or twice as many, and so on
_OPCODES = np.uint16((1 << OPCODE.width) - 1)


class Code:
    """Instructions; ``opcodes`` has the opcode of each.  Its bytes are never changed."""

    __slots__ = ("_bytes", "_count", "opcodes")

    def __init__(self, data: bytes) -> None:
        self._bytes = data
        self._count = len(data) // SIZE
        self.opcodes: NDArray[np.uint16] = self._column(0, 16) & _OPCODES

    @classmethod
    def of(cls, data: bytes) -> Code:
        """The instructions of a section; InputError when its size is not a whole number of them."""
        if len(data) % SIZE:
            raise InputError(f"{len(data)} bytes of machine code", where="cubin")
        return cls(data)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        """One instruction as the encoding's functions take it."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        return int.from_bytes(self._bytes[index * SIZE : (index + 1) * SIZE], "little")

    def __iter__(self) -> Iterator[int]:
        return map(self.__getitem__, range(self._count))

    def _column(self, at: int, width: int) -> NDArray[Any]:
        """Bits of every instruction that lie in one number of so many."""
        return np.ndarray(
            (self._count,),
            f"<u{width // 8}",
            self._bytes if self._count else None,
            at // 8,
            (SIZE,) if self._count else None,
        )

    def field(self, field: Field) -> _Numbers:
        """That field of every instruction, in as few bytes as hold it where it lies."""
        width = _SMALLEST
        while field.at // width != (field.at + field.width - 1) // width:
            width *= 2
        column = self._column(field.at // width * width, width)
        kind = column.dtype.type
        found: _Numbers = column >> kind(field.at % width) & kind((1 << field.width) - 1)
        return found

    def where(self, *opcodes: int) -> list[int]:
        """Indices of the instructions with one of these opcodes."""
        chosen = self.opcodes == opcodes[0]
        for opcode in opcodes[1:]:
            chosen |= self.opcodes == opcode
        found: list[int] = chosen.nonzero()[0].tolist()
        return found

    def with_bytes(self, data: bytes) -> Code:
        """As many instructions with the same opcodes, whose other bits may differ."""
        found = Code.__new__(Code)
        found._bytes, found._count, found.opcodes = data, self._count, self.opcodes
        return found

    def with_words(self, changed: dict[int, int]) -> Code:
        """The same with some instructions replaced."""
        return self.spliced(changed, b"")

    def spliced(self, changed: dict[int, int], added: bytes) -> Code:
        """The same with some instructions replaced, and others behind it."""
        data = bytearray(self._bytes)
        for index, word in changed.items():
            data[index * SIZE : (index + 1) * SIZE] = word.to_bytes(SIZE, "little")
        return Code(bytes(data + added))

    def data(self) -> bytes:
        """The bytes of the section."""
        return self._bytes
