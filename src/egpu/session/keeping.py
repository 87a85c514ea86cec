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
        """As ``TwinCache.store``, at the next ``settle``."""
        self._waiting[key] = twin, origin

    def settle(self) -> None:
        """Write everything that was stored before; what cannot be written is given up, as by
        ``TwinCache.store``."""
        with self._writing:
            for key, (twin, origin) in list(self._waiting.items()):
                try:
                    self._cache.store(key, twin, origin)
                finally:  # what came under this key meanwhile is the same
                    del self._waiting[key]
