"""The threads on which a server has its broker work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class Workers:
    """A few threads, and what they were given that is not done.  ``problems`` gets a line for each
    exception."""

    def __init__(self, problems: list[str], *, threads: int = 4) -> None:
        self._problems = problems
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="egpu-broker")
        self._lock = threading.Lock()
        self._given: set[Future[None]] = set()

    def submit(self, function: Callable[..., None], *arguments: object) -> None:
        """Have it called; when closing it is not: nobody waits for the answer any more."""
        try:
            future = self._pool.submit(function, *arguments)
        except RuntimeError:
            return
        with self._lock:
            self._given.add(future)
        future.add_done_callback(self._done)

    def _done(self, future: Future[None]) -> None:
        with self._lock:
            self._given.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            self._problems.append(f"broker: {error!r}")

    def settle(self, timeout: float) -> bool:
        """Wait for what was given until now; True if it is done."""
        with self._lock:
            waiting, self._given = self._given, set()
        _, late = wait(waiting, timeout)
        return not late

    def close(self) -> None:
        """Wait for what runs; the rest is not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
