"""Memory for what images unpack to, used again and again.

A process that starts has kernels of a hundred megabytes of images, one after the other.  To touch
so many pages for the first time takes as long as to unpack into them, so a few are used in turn, as
large ones where the system has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_LARGE_PAGE = 2 << 20


class Room(Generic[_Key]):
    """``size`` bytes that are given out in turn; the oldest pieces are taken back for new ones.

    ``taken_back(key)`` is called before a piece's bytes change: nobody may look at them any more.
    Not thread-safe.
    """

    def __init__(self, size: int, taken_back: Callable[[_Key], None]) -> None:
        self._size = size
        self._taken_back = taken_back
        self._memory: memoryview | None = None
        self._pieces: OrderedDict[_Key, range] = OrderedDict()  # in the order of their making
        self._end = 0

    def piece(self, key: _Key, size: int) -> memoryview:
        """``size`` bytes, whatever they hold, for what ``key`` names; memory of its own for more
        than half of the room."""
        if size > self._size // 2:
            return _pages(size)
        if self._memory is None:
            self._memory = _pages(self._size)
        begin = self._end if self._end + size <= self._size else 0
        wanted = range(begin, begin + size)
        for other in [other for other, held in self._pieces.items() if _meet(held, wanted)]:
            self._take_back(other)
        self._take_back(key)
        self._pieces[key] = wanted
        self._end = wanted.stop
        return self._memory[wanted.start : wanted.stop]

    def _take_back(self, key: _Key) -> None:
        if self._pieces.pop(key, None) is not None:
            self._taken_back(key)


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _pages(size: int) -> memoryview:
    """``size`` bytes that begin at a large page, where there are such."""
    whole = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = -ctypes.addressof(ctypes.c_char.from_buffer(whole)) % _LARGE_PAGE
    with contextlib.suppress(AttributeError, OSError):  # a kernel without them
        whole.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(whole)[first : first + size]
