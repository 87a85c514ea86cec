"""Global memory of the simulated device: ranges of 64-bit addresses over shared bytes.

An access outside every range, or not aligned to its size, faults.  Shared, local and parameter
memory are windows of the generic address space (``WINDOWS``), held by the running chunk.
"""

from __future__ import annotations

import bisect
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from egpu.errors import InputError
from egpu.sim.faults import FaultKind, LaneFault
from egpu.sim.types import Array

# Generic addresses of the windows: far above every address that user space or a heap can have.
SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 2 << 56
PARAM_WINDOW = 3 << 56
WINDOW_MASK = (1 << 56) - 1

Views: TypeAlias = dict[int, Array]


def typed_views(data: Array) -> Views:
    """The same bytes as elements of 1, 2, 4 and 8 bytes; the length must be a multiple of 8."""
    return {size: data.view(f"u{size}") for size in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class Segment:
    """``[base, end)``; ``views`` cover it, rounded up to 8 bytes."""

    base: int
    end: int
    views: Views


@dataclass(frozen=True, slots=True)
class Place:
    """Elements ``index`` of ``view``, for the lanes ``lanes`` (slice(None): all) of an access."""

    view: Array
    index: Array
    lanes: slice | Array


class DeviceMemory:
    """Address ranges, each a window on a numpy byte array.

    ``add`` maps a range; ``map_file`` maps part of a file descriptor (a heap or registered host
    memory).  ``allocate`` serves callers without a driver: it gives zeroed private memory.
    """

    def __init__(self, heap_base: int = 0x3000_0000_0000) -> None:
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._base_array: Array = np.zeros(0, np.uint64)
        self._end_array: Array = np.zeros(0, np.uint64)
        self._next = heap_base + 4096

    def add(self, base: int, data: Array, size: int) -> None:
        """Map ``size`` bytes at ``base``; ``data`` (uint8, a multiple of 8 long) holds them.

        InputError if the range overlaps another or ``base`` is not a multiple of 8.
        """
        if base % 8 or size <= 0 or data.size % 8 or data.size < size:
            raise InputError(f"range at {base:#x} of {size} bytes cannot be mapped")
        at = bisect.bisect_right(self._bases, base)
        below = self._segments[at - 1].end if at else 0
        above = self._bases[at] if at < len(self._bases) else LOCAL_WINDOW
        if below > base or base + size > above or base + size > SHARED_WINDOW:
            raise InputError(f"range at {base:#x} of {size} bytes overlaps another")
        self._segments.insert(at, Segment(base, base + size, typed_views(data)))
        self._changed()

    def remove(self, base: int) -> None:
        """Unmap the range that begins at ``base``; InputError if none does."""
        at = bisect.bisect_left(self._bases, base)
        if at == len(self._bases) or self._bases[at] != base:
            raise InputError(f"no range begins at {base:#x}")
        del self._segments[at]
        self._changed()

    def _changed(self) -> None:
        self._bases = [segment.base for segment in self._segments]
        self._base_array = np.array(self._bases, np.uint64)
        self._end_array = np.array([segment.end for segment in self._segments], np.uint64)

    def allocate(self, size: int) -> int:
        """A fresh zeroed range of ``size`` bytes, aligned to 256; gives its address."""
        padded = max(8, -(-size // 8) * 8)
        base = self._next
        self.add(base, np.zeros(padded, np.uint8), max(1, size))
        self._next = -(-(base + padded + 256) // 256) * 256
        return base

    def read(self, address: int, size: int) -> bytes:
        """Bytes of one range; InputError if they leave it."""
        view, start = self._span(address, size)
        return view[start : start + size].tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Store bytes into one range; InputError if they leave it."""
        view, start = self._span(address, len(data))
        view[start : start + len(data)] = np.frombuffer(data, np.uint8)

    def _span(self, address: int, size: int) -> tuple[Array, int]:
        at = bisect.bisect_right(self._bases, address) - 1
        if at < 0 or address + size > self._segments[at].end:
            raise InputError(f"{size} bytes at {address:#x} are not device memory")
        return self._segments[at].views[1], address - self._bases[at]

    def places(self, address: Array, size: int, width: int) -> Iterator[Place]:
        """Where elements of ``size`` bytes at the addresses lie.

        ``width`` is the bytes of the whole access (a vector's), to which it must be aligned and for
        which its range must have room.  LaneFault otherwise.
        """
        require_aligned(address, width)
        low, high = int(address.min()), int(address.max())
        at = bisect.bisect_right(self._bases, low) - 1
        if at >= 0 and high + width <= self._segments[at].end:
            segment = self._segments[at]
            yield Place(segment.views[size], _index(address, segment.base, size), slice(None))
            return
        which = np.searchsorted(self._base_array, address, side="right") - 1
        outside = which < 0
        if not outside.all():
            outside |= address + np.uint64(width) > self._end_array[np.maximum(which, 0)]
        if outside.any():
            lane = int(np.flatnonzero(outside)[0])
            raise LaneFault(
                FaultKind.ILLEGAL_ADDRESS,
                f"{width} bytes at {int(address[lane]):#x} are not allocated",
                lane,
            )
        for number in np.unique(which):
            lanes = np.flatnonzero(which == number)
            segment = self._segments[int(number)]
            index = _index(address[lanes], segment.base, size)
            yield Place(segment.views[size], index, lanes)


def _index(address: Array, base: int, size: int) -> Array:
    return ((address - np.uint64(base)) // np.uint64(size)).astype(np.int64)


def require_aligned(address: Array, width: int) -> None:
    """LaneFault for the first address that is not a multiple of ``width``."""
    if width == 1:
        return
    wrong = address & np.uint64(width - 1)
    if wrong.any():
        lane = int(np.flatnonzero(wrong)[0])
        raise LaneFault(
            FaultKind.MISALIGNED_ADDRESS,
            f"address {int(address[lane]):#x} is not a multiple of {width}",
            lane,
        )


class FileMapping:
    """Shared bytes of a file descriptor, as one uint8 array; the descriptor stays the caller's."""

    def __init__(self, fd: int, size: int, offset: int = 0) -> None:
        end = os.fstat(fd).st_size
        if size <= 0 or offset < 0 or offset % mmap.PAGESIZE or offset + size > -(-end // 8) * 8:
            raise InputError(f"{size} bytes at {offset} are not inside a file of {end} bytes")
        padded = min(-(-size // 8) * 8, end - offset)
        if padded % 8:
            raise InputError(f"a file of {end} bytes does not end on 8 bytes")
        self._map = mmap.mmap(fd, padded, mmap.MAP_SHARED, offset=offset)
        self.data: Array = np.frombuffer(self._map, np.uint8)
