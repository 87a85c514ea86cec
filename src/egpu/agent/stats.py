"""What one process counts, in memory that it writes and the server reads."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from egpu.agent import channel
from egpu.agent import protocol as wire
from egpu.agent.protocol import Reason
from egpu.agent.twin import Resident
from egpu.errors import AgentError
from egpu.maps.layout import LAUNCH_STACK_MASK

_HEADER = struct.Struct(f"<QII{len(wire.STATS_HEADER) - 3}Q")
_HEADER_NAMES = tuple(name for name, _ in wire.STATS_HEADER)
_COUNTED = _HEADER_NAMES[4:]  # behind magic, version, slots and how many of these are used
_SLOT_WORDS = len(wire.STATS_SLOT) + wire.STATS_REASONS + len(wire.STATS_SLOT_END)
_SLOT = struct.Struct(f"<{_SLOT_WORDS}Q")
_SLOT_NAMES = tuple(name for name, _ in wire.STATS_SLOT)
_COUNTERS = wire.STATS_HEADER_SIZE + wire.STATS_SLOTS * wire.STATS_SLOT_SIZE  # bytes
_SIZE = _COUNTERS + wire.LAUNCHES_KEPT * 8


def resident_of(word: int) -> Resident | None:
    """The word ``resident`` of a stats slot; None if nothing was decided yet."""
    if not word:
        return None
    threads, shared = word >> 32 & 0xFFFF, word & 0xFFFFFFFF
    return Resident(threads, shared, before=word >> 48 & 0xFF, after=word >> 56)


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """One slot since counting began: its fields by name, launches that were not probed by reason.
    ``used``: whether anything in it is not zero."""

    fields: dict[str, int]
    not_probed: dict[Reason, int]
    resident: Resident | None
    used: bool


class StatsMemory:
    """Counters of a process and its slots, and from which stack each of its last launches came;
    thread-safe.  They can be read after the process, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: mmap.mmap | bytes = b""
        self._marked = bytes(_COUNTERS)  # as it was when counting began
        self._launches: dict[int, int] = {}  # kept when the process is gone

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def size(self) -> int:
        """Bytes that the process maps."""
        return _SIZE

    def open(self) -> int:
        """Makes the memory; gives a descriptor that the caller closes."""
        file = channel.memory_file("egpu-stats", _SIZE)
        try:
            memory = mmap.mmap(file, _SIZE)
        except OSError as error:
            os.close(file)
            raise AgentError(f"stats memory cannot be mapped: {error.strerror}") from error
        unused = [0] * (len(wire.STATS_HEADER) - 3)
        _HEADER.pack_into(memory, 0, wire.STATS_MAGIC, wire.WIRE_VERSION, wire.STATS_SLOTS, *unused)
        self._memory = memory
        return file

    def counted(self) -> tuple[dict[str, int], list[SlotCounts]]:
        """The process's counters by name, and its slots by number."""
        with self._lock:
            header = self._header(self._memory)
            before = self._header(self._marked)
            header |= {name: header[name] - before[name] for name in _COUNTED}
            return header, list(self._slots(header["used"]))

    @staticmethod
    def _header(memory: mmap.mmap | bytes) -> dict[str, int]:
        return dict(zip(_HEADER_NAMES, _HEADER.unpack_from(memory, 0), strict=True))

    def _slots(self, used: int) -> Iterator[SlotCounts]:
        for slot in range(min(used + 1, wire.STATS_SLOTS)):
            at = wire.STATS_HEADER_SIZE + slot * wire.STATS_SLOT_SIZE
            *now, resident = _SLOT.unpack_from(self._memory, at)
            before = _SLOT.unpack_from(self._marked, at)[:-1]
            values = [one - other for one, other in zip(now, before, strict=True)]
            fields = dict(zip(_SLOT_NAMES, values, strict=False))
            reasons = {reason: values[len(_SLOT_NAMES) + reason] for reason in Reason}
            probed = fields["probed"] + fields["captured_probed"]
            rest = fields["launches"] + fields["captured"] - probed - sum(reasons.values())
            # Words are read while they are written: never below zero.
            reasons[Reason.UNMATCHED] += max(rest, 0)
            found = {reason: count for reason, count in reasons.items() if count}
            anything = any(values) or bool(resident)
            yield SlotCounts(fields, found, resident_of(resident), anything)

    def launches(self) -> dict[int, int]:
        """The number of the stack of each launch that is kept, by its id."""
        with self._lock:
            if not isinstance(self._memory, mmap.mmap):
                return self._launches
            words = np.frombuffer(self._memory[_COUNTERS:_SIZE], "<u8")
        kept = np.sort(words[words & LAUNCH_STACK_MASK != 0])
        numbers = (kept & LAUNCH_STACK_MASK) - 1
        return dict(zip((kept >> wire.LAUNCH_ID_SHIFT).tolist(), numbers.tolist(), strict=True))

    def mark(self) -> None:
        """Counts from now on only."""
        with self._lock:
            self._marked = bytes(self._memory[:_COUNTERS])

    def freeze(self, *, launches: bool) -> None:
        """Keeps only the used part, and ``launches`` if there are some; the process must be
        gone."""
        self._launches = self.launches() if launches else {}
        with self._lock:
            if isinstance(self._memory, mmap.mmap):
                used = min(_HEADER.unpack_from(self._memory, 0)[3] + 1, wire.STATS_SLOTS)
                size = wire.STATS_HEADER_SIZE + used * wire.STATS_SLOT_SIZE
                memory, self._memory = self._memory, self._memory[:size]
                memory.close()
