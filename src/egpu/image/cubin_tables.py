"""Tables of a cubin as columns of numbers, and rows that are made when somebody looks at them.

A cubin has up to ten thousand sections and symbols, of which one kernel needs a few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from egpu.errors import InputError
from egpu.image.model import Buffer

_Row = TypeVar("_Row")
Column = NDArray[np.int64]
Table = NDArray[np.void]

# fmt: off
SECTIONS = np.dtype([
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"),
    ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entsize", "<u8"),
])
SYMBOLS = np.dtype([
    ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
    ("size", "<u8"),
])
# fmt: on


class Rows(Sequence[_Row]):
    """``count`` rows, each made by ``make`` when it is asked for, and kept."""

    __slots__ = ("_count", "_made", "_make")

    def __init__(self, count: int, make: Callable[[int], _Row]) -> None:
        self._count = count
        self._make = make
        self._made: dict[int, _Row] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> _Row: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[_Row, ...]: ...

    def __getitem__(self, at: int | slice) -> _Row | tuple[_Row, ...]:
        if isinstance(at, slice):
            return tuple(self[each] for each in range(*at.indices(self._count)))
        found = self._made.get(at)
        if found is None:
            place = at + self._count if at < 0 else at
            if not 0 <= place < self._count:
                raise IndexError(at)
            found = self._made[at] = self._make(place)
        return found

    def __iter__(self) -> Iterator[_Row]:
        return (self[at] for at in range(self._count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            one == two for one, two in zip(self, other, strict=True)
        )

    def __hash__(self) -> int:
        return hash(tuple(self))  # as the tuples that it equals


class NamedRows(Rows[_Row]):
    """Rows of a table with names, found by name without making any of them.

    ``letters``: the eight bytes that begin at each byte of ``names`` (``letters_at``).
    """

    __slots__ = ("letters", "names", "places")

    def __init__(
        self,
        table: Table,
        names: bytes,
        make: Callable[[int], _Row],
        letters: NDArray[np.uint64] | None = None,
    ) -> None:
        super().__init__(len(table), make)
        self.names = names
        self.letters = letters_at(names, 0, len(names)) if letters is None else letters
        self.places: NDArray[np.uint32] = np.ascontiguousarray(table["name"])

    def called(self, name: str) -> list[int]:
        """Rows that have this name, as ``name_of`` gives it, in their order."""
        if not name or not name.isascii() or "\\" in name:  # name_of may have put it so
            rows = enumerate(self.places.tolist())
            return [at for at, place in rows if name_of(self.names, place) == name]
        text = name.encode() + b"\0"
        found: list[int] = self._ending(text).tolist()
        return [at for at in found if self.names.startswith(text, int(self.places[at]))]

    def _ending(self, text: bytes) -> Column:
        """Rows whose names may be this text, for its last bytes are where it would end."""
        if len(text) > len(self.names):
            return np.zeros(0, np.int64)
        last = text[-8:]
        # Behind the names may be anything: ``called`` looks again.
        begin = np.minimum(self.places.astype(np.int64) + (len(text) - len(last)), len(self.names))
        alike = self.letters[begin] & _mask(len(last)) == int.from_bytes(last, "little")
        found: Column = alike.nonzero()[0]
        return found


def _mask(size: int) -> np.uint64:
    """The bits of so many bytes."""
    return np.uint64((1 << 8 * size) - 1)


class _Called(Protocol):
    @property
    def name(self) -> str: ...


def called(rows: Sequence[_Called], name: str) -> list[int]:
    """Which rows are called so."""
    if isinstance(rows, NamedRows):
        return rows.called(name)
    return [at for at, row in enumerate(rows) if row.name == name]


def called_at(rows: Sequence[_Called], at: int) -> str:
    """The name of one row, which need not be made for it."""
    if isinstance(rows, NamedRows):
        return name_of(rows.names, int(rows.places[at]))
    return rows[at].name


def first_called(rows: Sequence[_Called], name: str) -> int | None:
    """The first of them, None if there is none."""
    return next(iter(called(rows, name)), None)


def table_of(data: Buffer, kind: np.dtype[np.void], begin: int, count: int, step: int) -> Table:
    """``count`` rows of a table, ``step`` bytes from each to the next; all of them are there."""
    if not count:
        return np.zeros(0, kind)
    return np.ndarray((count,), kind, data, begin, (step,))


def reaches_past(table: Table, length: int) -> Column:
    """Rows whose offset and size lead past ``length`` bytes."""
    offset, size = table["offset"], table["size"]
    room = np.uint64(length) - np.minimum(offset, np.uint64(length))
    found: Column = ((offset > np.uint64(length)) | (size > room)).nonzero()[0]
    return found


def unnamed(table: Table, names: bytes) -> Column:
    """Rows whose names do not end within the string table."""
    return (table["name"] >= names.rfind(b"\0") + 1).nonzero()[0]


def name_of(names: bytes, at: int) -> str:
    """The name at a byte of a string table: InputError when it does not end there."""
    end = names.find(b"\0", at)
    if at >= len(names) or end < 0:
        raise InputError(f"a name at byte {at} of a string table of {len(names)}", where="cubin")
    return names[at:end].decode("utf-8", "backslashreplace")


def letters_at(data: Buffer, begin: int, size: int) -> NDArray[np.uint64]:
    """Of a string table that lies there, and of its end, the eight bytes that begin at each byte;
    behind it may be anything."""
    if begin + size + 8 <= len(data):
        return np.ndarray((size + 1,), "<u8", data, begin, (1,))
    return words_at(bytes(data[begin : begin + size]) + bytes(8), "<u8")


def words_at(data: bytes, kind: str) -> NDArray[Any]:
    """The number of ``kind`` that begins at each byte, as far as it is there."""
    count = len(data) - np.dtype(kind).itemsize + 1
    return np.ndarray((count,), kind, data, 0, (1,)) if count > 0 else np.zeros(0, kind)
