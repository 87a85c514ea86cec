"""Looking through a kernel's machine code in C (``native/image/code.c``).

One loop over the instructions stands for a dozen passes over small columns of numbers, for each of
which Python takes as long: a launch waits for it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from egpu.image.native import image_library
from egpu.splice.sass_encoding import OPCODE, SIZE, Field

_HALF = 64  # bits
UNSEEN = 1 << 63  # in a table of kinds
MOST_FIELDS = 63  # ... which has a bit for each


class _Row(ctypes.Structure):
    """``struct egpu_change``."""

    _fields_ = (
        ("chosen", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("opcodes", "except_mask", "except_")),
        *((name, ctypes.c_uint64) for name in ("mask", "value", "clear", "own", "slow", "least")),
    )


@functools.cache
def _library() -> ctypes.PyDLL:
    library = image_library()
    number, memory = ctypes.c_uint64, ctypes.c_void_p
    library.egpu_code_names.restype = library.egpu_code_change.restype = number
    library.egpu_code_names.argtypes = (
        ctypes.c_char_p,
        *(number, number),
        *(memory, number),
        memory,
        memory,
        memory,
    )
    library.egpu_code_change.argtypes = (memory, number, memory, number)
    return library


@dataclass(frozen=True, slots=True)
class Change:
    """Instructions with the ``chosen`` opcodes get a value of one field, and of another at least
    that of ``least``, where ``fields`` hold what is said, but for those whose ``but`` does.

    ``but`` lies in the lower half of an instruction, the others in the upper one.
    """

    chosen: NDArray[np.bool_]
    fields: tuple[tuple[Field, int], ...]
    gets: tuple[Field, int]
    but: tuple[Field, int] | None = None
    least: tuple[Field, int] | None = None


class Changes:
    """Changes in a form in which the library takes them."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._chosen = [np.ascontiguousarray(each.chosen, np.uint8) for each in changes]
        self._rows = (_Row * len(changes))(*map(_row, changes, self._chosen))

    def made_in(self, code: bytes) -> bytes | None:
        """The same code with them, None if nothing is changed; of each instruction, the first that
        is about it counts."""
        data = bytearray(code)
        at = np.frombuffer(data, np.uint8).ctypes.data if data else None
        count = len(data) // SIZE
        changed = _library().egpu_code_change(at, count, self._rows, len(self._rows))
        return bytes(data) if changed else None


def _row(change: Change, chosen: NDArray[np.uint8]) -> _Row:
    slow, least = change.least or (None, 0)
    but, value = change.but or (None, 1)  # where no bit is looked at, none is 1
    return _Row(
        chosen.ctypes.data,
        OPCODE.mask,
        but.mask if but else 0,
        value << but.at if but else value,
        sum(field.mask for field, _ in change.fields) >> _HALF,
        sum(value << field.at for field, value in change.fields) >> _HALF,
        change.gets[0].mask >> _HALF,
        change.gets[1] << change.gets[0].at >> _HALF,
        slow.mask >> _HALF if slow else 0,
        least << slow.at >> _HALF if slow else 0,
    )


class Places:
    """Fields in a form in which the library takes them; none reaches over both halves."""

    def __init__(self, fields: Sequence[Field]) -> None:
        rows = [(each.at // _HALF, each.at % _HALF, each.width, 0) for each in fields]
        self._rows = np.array(rows, np.uint8).reshape(-1, 4)
        self.address: int = self._rows.ctypes.data
        self.count = len(fields)


class Numbers:
    """Of each field, bit n for each number n that was found there; none to begin with."""

    def __init__(self) -> None:
        self._found = (ctypes.c_uint64 * MOST_FIELDS)()
        self.address = ctypes.addressof(self._found)

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)


class Kinds:
    """What instructions of each kind name: a bit for each of ``fields``, which has MOST_FIELDS at
    most; UNSEEN for those of which nobody has said it.  An instruction's kind is what its ``parts``
    hold, the first of them in the lowest bits."""

    def __init__(self, parts: Sequence[Field]) -> None:
        self._parts = Places(parts)
        self._table = np.full(1 << sum(each.width for each in parts), UNSEEN, np.uint64)
        self._address: int = self._table.ctypes.data

    def __setitem__(self, kind: int, bits: int) -> None:
        self._table[kind] = bits

    def numbers(self, code: bytes, begin: int, fields: Places, found: Numbers) -> int:
        """``found`` gets what instructions from ``begin`` on name.  The index of the first of a
        kind that is not seen yet, or their count."""
        parts, end = self._parts, len(code) // SIZE
        at: int = _library().egpu_code_names(
            *(code, begin, end, parts.address, parts.count),
            *(self._address, fields.address, found.address),
        )
        return at
