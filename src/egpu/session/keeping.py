"""Twins are kept on disk behind the answers: a launch waits for its twin, never for the disk."""

from __future__ import annotations

import threading

from egpu.session.cache import BuiltTwin, Origin, TwinCache


class TwinKeeper:
    """A cache that is written when there is time for it; thread-safe.  What is stored is found at
    once."""

    def __init__(self, cache: TwinCache) -> None:
        self._cache = cache
        self._waiting: dict[str, tuple[BuiltTwin, Origin]] = {}
        self._writing = threading.Lock()

    def load(self, key: str) -> BuiltTwin | None:
        """As ``TwinCache.load``."""
        found = self._waiting.get(key)
        return found[0] if found else self._cache.load(key)

    def store(self, key: str, twin: BuiltTwin, origin: Origin) -> None:
        """As ``TwinCache.store``, at the next ``write`` or ``settle``."""
        self._waiting[key] = twin, origin

    def write(self) -> None:
        """Write what was stored; what cannot be written is given up, as by ``TwinCache.store``.

        A thread that finds another one writing leaves it to that: a disk that does not answer holds
        one thread, and the others go on.
        """
        while self._waiting and self._writing.acquire(blocking=False):
            try:
                self._write_all()
            finally:
                self._writing.release()

    def settle(self) -> None:
        """The same; everything that was stored before is on disk then, or given up."""
        with self._writing:
            self._write_all()

    def _write_all(self) -> None:
        for key, (twin, origin) in list(self._waiting.items()):
            try:
                self._cache.store(key, twin, origin)
            finally:  # what came under this key meanwhile is the same
                del self._waiting[key]
