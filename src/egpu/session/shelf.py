"""What was made, kept for whoever asks for it next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Kept = TypeVar("_Kept")


class Shelf(Generic[_Key, _Kept]):
    """The most recently used of what was made, up to a number of them and of their bytes (the last
    one stays in any case).  Thread-safe; nothing is made twice at a time."""

    def __init__(
        self, most: int, most_bytes: int = 0, size: Callable[[_Kept], int] = lambda kept: 0
    ) -> None:
        self._most, self._most_bytes, self._size = most, most_bytes, size
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._bytes = 0
        self._under_way: dict[_Key, threading.Event] = {}
        self._lock = threading.Lock()

    def ready(self, key: _Key) -> _Kept | None:
        """What is kept under ``key``, None if nothing is."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def get(self, key: _Key, make: Callable[[], _Kept]) -> _Kept:
        """The same; what ``make`` gives if nothing is.  Where another thread is making it, that is
        waited for; if it fails there, it is tried here."""
        while True:
            with self._lock:
                found = self._kept.get(key)
                if found is not None:
                    self._kept.move_to_end(key)
                    return found
                under_way = self._under_way.get(key)
                if under_way is None:
                    done = self._under_way[key] = threading.Event()
                    break
            under_way.wait()
        try:
            made = make()
            with self._lock:
                self._put(key, made)
            return made
        finally:
            with self._lock:
                del self._under_way[key]
            done.set()

    def _put(self, key: _Key, made: _Kept) -> None:
        self._kept[key] = made
        self._bytes += self._size(made)
        while len(self._kept) > 1 and (
            len(self._kept) > self._most or self._bytes > self._most_bytes
        ):
            self._bytes -= self._size(self._kept.popitem(last=False)[1])

    def drop(self, key: _Key) -> None:
        """It is not kept any more, if it was."""
        with self._lock:
            self._drop(key)

    def forget(self, whether: Callable[[_Key], bool]) -> None:
        """The same of every key of which ``whether`` says so."""
        with self._lock:
            for key in [key for key in self._kept if whether(key)]:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        if key in self._kept:
            self._bytes -= self._size(self._kept.pop(key))
