"""Memory for what images unpack to, used again and again.

A process that starts has kernels of a hundred megabytes of images, one after the other.  To touch
so many pages for the first time takes as long as to unpack into them, so a few are used in turn, as
large ones where the system has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_LARGE_PAGE = 2 << 20


class Room(Generic[_Key]):
    """``size`` bytes that are given out in turn; the oldest pieces are taken back for new ones, but
    for those that are held.

    ``taken_back(key)`` is called before a piece's bytes change: nobody may look at them any more.
    Thread-safe.
    """

    def __init__(self, size: int, taken_back: Callable[[_Key], None]) -> None:
        self._size = size
        self._taken_back = taken_back
        self._memory: memoryview | None = None
        self._pieces: OrderedDict[_Key, range] = OrderedDict()  # in the order of their making
        self._end = 0
        self._holders: Counter[_Key] = Counter()
        self._lock = threading.Lock()

    def hold(self, key: _Key) -> None:
        """What ``key`` has, or gets, is not taken back until it was let go as often."""
        with self._lock:
            self._holders[key] += 1

    def let_go(self, key: _Key) -> None:
        """The opposite."""
        with self._lock:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]

    def piece(self, key: _Key, size: int) -> memoryview:
        """``size`` bytes, whatever they hold, for what ``key`` names; memory of its own for more
        than half of the room, or where pieces are held."""
        with self._lock:
            found = self._piece(key, size) if size <= self._size // 2 else None
        return _pages(size) if found is None else found

    def _piece(self, key: _Key, size: int) -> memoryview | None:
        if self._memory is None:
            self._memory = _pages(self._size)
        begin = self._end if self._end + size <= self._size else 0
        wanted = range(begin, begin + size)
        others = [
            other for other, part in self._pieces.items() if other != key and _meet(part, wanted)
        ]
        if self._holders[key] > 1 and key in self._pieces:
            return None
        if held := [other for other in others if self._holders[other]]:
            self._end = max(self._pieces[other].stop for other in held)  # for the next one
            return None
        for other in (*others, key):
            self._take_back(other)
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
