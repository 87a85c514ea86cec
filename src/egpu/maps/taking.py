"""Taking records out of rings with the native reader (``native/reader``), where it was built."""

from __future__ import annotations

import ctypes
import functools
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egpu.maps.layout import MapPlace

LIBRARY_NAME = "libegpu_reader.so"
_AT_ONCE = 1 << 19  # bytes taken at once, so that a producer gets its room back early
_local = threading.local()


class _Rings(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("readers", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("ring_size", ctypes.c_uint64),
        ("out_size", ctypes.c_uint64),
        ("limited", ctypes.c_uint64),
        ("stamped", ctypes.c_uint64),
    )


class Taken(ctypes.Structure):
    """``count`` records of ``size`` bytes of ring ``slot`` that lay next to each other, ``bytes``
    in all; ``discarded`` were passed."""

    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("slot", "size", "count", "bytes", "discarded")
    )
    slot: int
    size: int
    count: int
    bytes: int
    discarded: int


@functools.cache
def native_reader() -> ctypes.CDLL | None:
    """The library; None where it was not built, cannot be loaded or is another: Python reads."""
    path = Path(__file__).resolve().parents[1] / "_native" / LIBRARY_NAME
    try:
        library = ctypes.CDLL(str(path))
        take = library.egpu_rings_take
    except (OSError, AttributeError):
        return None
    take.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
    take.restype = None
    return library


class Taker:
    """Takes records of one map; ``positions`` are the reader's, which it moves."""

    def __init__(self, library: ctypes.CDLL, place: MapPlace, positions: array[int]) -> None:
        self._take: Any = library.egpu_rings_take
        self._place = place
        self._positions = positions  # the library writes there
        self._rings = _Rings(
            positions=positions.buffer_info()[0],
            ring_size=place.ring_size,
            out_size=_AT_ONCE,
            limited=int(place.ring_device != 0),
            stamped=place.ring_stamped,
        )
        self._taken = Taken()
        self._at = ctypes.addressof(self._rings), ctypes.addressof(self._taken)

    def take(self, words: NDArray[np.uint64], slot: int, end: int) -> tuple[Taken, bytes]:
        """What the first ring from ``slot`` to before ``end`` has that has something, of one size.

        The slot is ``end`` if none has.  If it is not and the count is 0, the ring's next group is
        larger than what is taken at once.  ``words`` is the arena: while it is referred to, it is
        not unmapped.  The first value is good until the next call.
        """
        rings, taken = self._rings, self._taken
        address = words.ctypes.data
        rings.data = address + self._place.ring_data
        rings.readers = address + self._place.ring_readers
        out, rings.out = _buffer()
        taken.slot, taken.count, taken.bytes, taken.discarded = slot, 0, 0, 0
        self._take(self._at[0], end, self._at[1])
        return taken, out[: taken.bytes].tobytes()


def _buffer() -> tuple[NDArray[np.uint8], int]:
    """This thread's, and its address."""
    buffer: tuple[NDArray[np.uint8], int] | None = getattr(_local, "buffer", None)
    if buffer is None:
        array = np.empty(_AT_ONCE, np.uint8)
        buffer = _local.buffer = (array, array.ctypes.data)
    return buffer
