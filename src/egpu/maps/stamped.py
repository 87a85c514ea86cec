"""Stamped slots of rings in device memory, whose form ``maps/layout.py`` has: reading what is
whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from egpu.maps.groups import RUN_LIMIT, Run, pieces
from egpu.maps.layout import READER_STRIDE, RING_READER, RING_STAMP, MapPlace, stamped_stride
from egpu.maps.memory import HostArena

_STAMP = 32  # bits of a slot's first word from here on
_LOWEST = np.uint64(1)


class Slots:
    """The slots in a map's rings.  ``slot`` names the ring, as for groups; positions are bytes."""

    def __init__(self, arena: HostArena, place: MapPlace) -> None:
        self._arena = arena
        self._place = place
        self._stride = stamped_stride(place.ring_stamped)
        self._missing = (place.ring_readers + RING_READER["missing"][0]) // 8

    def run(self, slot: int, start: int, limit: int) -> Run | None:
        """The records of the slots from ``start`` up to ``limit`` that are whole, as many as lie
        together; None if the first one is not, which the agent is asked for."""
        most = min(limit, start + RUN_LIMIT // self._stride * self._stride)
        _, end = next(pieces(start, most, self._place.ring_size))
        whole = self._whole(slot, start, end)
        if not whole[0]:
            self._arena.words[self._missing + slot * READER_STRIDE // 8] = start + 1
            return None
        end = start + (len(whole) if whole.all() else int(np.argmin(whole))) * self._stride
        rows = self._rows(slot, start, end)
        bits = rows[:, :1] >> np.arange(self._words, dtype=np.uint64)
        records = self._records(rows) & ~_LOWEST | bits & _LOWEST
        return Run(end, self._place.ring_stamped, len(rows), records.tobytes())

    def clear(self, slot: int, start: int, end: int) -> None:
        """Nothing: the words of a later lap tell themselves from what was read."""

    def published(self, slot: int, start: int, end: int) -> tuple[int, int] | None:
        """Where the next whole slot below ``end`` begins, and where those that follow it without a
        hole end; None if there is none."""
        whole = [self._whole(slot, *piece) for piece in pieces(start, end, self._place.ring_size)]
        found = np.concatenate([*whole, [False]])  # where the last ones end
        if not found.any():
            return None
        first = int(np.argmax(found))
        last = first + int(np.argmin(found[first:]))
        return start + first * self._stride, start + last * self._stride

    @property
    def _words(self) -> int:
        """Of a record."""
        return self._place.ring_stamped // 8

    def _rows(self, slot: int, start: int, end: int) -> NDArray[np.uint64]:
        """The words of the slots from ``start`` to ``end``, in one lap."""
        size = self._place.ring_size
        base = (self._place.ring_data + slot * size + start % size) // 8
        words: NDArray[np.uint64] = self._arena.words[base : base + (end - start) // 8]
        return words.reshape(-1, self._stride // 8)

    def _records(self, rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
        first = RING_STAMP // 8
        return rows[:, first : first + self._words]

    def _whole(self, slot: int, start: int, end: int) -> NDArray[np.bool_]:
        """Which slots from ``start`` to ``end``, in one lap, have only words of it."""
        rows = self._rows(slot, start, end)
        number, lap = start // self._stride, start // self._place.ring_size
        stamps = np.arange(number + 1, number + 1 + len(rows)) & (1 << _STAMP) - 1
        parity = np.uint64(1 - lap % 2)
        whole: NDArray[np.bool_] = (self._records(rows) & _LOWEST == parity).all(axis=1)
        whole &= rows[:, 0] >> np.uint64(_STAMP) == stamps.astype(np.uint64)
        return whole
