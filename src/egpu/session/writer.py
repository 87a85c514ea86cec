"""Writing to the maps of one context: through its command area while its process lives."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from egpu.agent import ArenaLink
from egpu.agent.channel import WriteRow, write_row
from egpu.maps import ArenaLayout, HostArena
from egpu.maps.layout import COMMAND_SIZE

TIMEOUT_S = 10.0
_ROW_HEAD = 32


class ArenaWriter:
    """Changes one context's device arena; one change at a time.

    ``dirty``: something was written since the last snapshot was asked for.  Every method raises
    AgentError if it was not done, or not in time.
    """

    def __init__(self, host: HostArena, layout: ArenaLayout, link: ArenaLink) -> None:
        self._host = host
        self._start = layout.commands
        self._link = link
        self._lock = threading.Lock()
        self._loaded: set[int] = set()
        self.dirty = False

    @property
    def gone(self) -> bool:
        """Whether the maps can no longer be changed: the context or the process has ended."""
        return self._link.gone or self._host.final

    def write(self, rows: Sequence[WriteRow]) -> None:
        """Copy ``rows`` to the device arena."""
        with self._lock:
            self._link.settle(TIMEOUT_S)
            for batch in _batches(rows):
                self._put(0, batch)
                self.dirty = True
                self._link.write(len(batch), TIMEOUT_S)

    def operate(
        self, number: int, image: Callable[[], bytes], operations: Sequence[bytes]
    ) -> list[int]:
        """Run operator ``number`` over ``operations``, all of one size; what each gave, signed.

        ``image`` gives the operator's image, which is loaded once.
        """
        stride = len(operations[0])
        at_once = COMMAND_SIZE // (stride + 8)
        results: list[int] = []
        with self._lock:
            self._ready(number, image)
            for first in range(0, len(operations), at_once):
                part = operations[first : first + at_once]
                data = self._run(number, part)
                results += struct.unpack(f"<{len(part)}q", data[len(part) * stride :])
        return results

    def take(self, number: int, image: Callable[[], bytes], operation: bytes) -> tuple[int, bytes]:
        """Run operator ``number`` once; what it gave, and what it made of the operation."""
        with self._lock:
            self._ready(number, image)
            data = self._run(number, [operation])
        return int.from_bytes(data[len(operation) :], "little", signed=True), data[: len(operation)]

    def _ready(self, number: int, image: Callable[[], bytes]) -> None:
        self._link.settle(TIMEOUT_S)
        if number not in self._loaded:
            self._link.load(number, image(), TIMEOUT_S)
            self._loaded.add(number)

    def _run(self, number: int, part: Sequence[bytes]) -> bytes:
        """Run operator ``number`` over what fits at once: the operations and results after it."""
        stride = len(part[0])
        place = len(part) * stride
        self._put(0, b"".join(part) + bytes(8 * len(part)))
        self.dirty = True
        self._link.operate(number, TIMEOUT_S, count=len(part), stride=stride, results=place)
        end = self._start + place + 8 * len(part)
        return self._host.bytes[self._start : end].tobytes()

    def _put(self, offset: int, data: bytes) -> None:
        start = self._start + offset
        self._host.bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)


def _batches(rows: Sequence[WriteRow]) -> Iterator[bytes]:
    """Rows as the agent reads them, as many at a time as the command area holds."""
    batch = b""
    for row in rows:
        for part in _fitting(row):
            encoded = write_row(part)
            if len(batch) + len(encoded) > COMMAND_SIZE:
                yield batch
                batch = b""
            batch += encoded
    if batch:
        yield batch


def _fitting(row: WriteRow) -> Iterator[WriteRow]:
    """``row`` in parts that each fit into the command area."""
    size, room = len(row.data) // row.rows, COMMAND_SIZE - _ROW_HEAD - 8
    if size > room:
        for number in range(row.rows):
            for at in range(0, size, room):
                start = number * size + at
                data = row.data[start : min(start + room, (number + 1) * size)]
                yield WriteRow(row.offset + number * row.stride + at, data)
        return
    at_once = room // size
    for first in range(0, row.rows, at_once):
        count = min(at_once, row.rows - first)
        data = row.data[first * size : (first + count) * size]
        yield WriteRow(row.offset + first * row.stride, data, count, row.stride)
