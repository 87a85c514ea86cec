"""How long a loader has had nothing to ask, in time that it had itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Between two looks.  More says only that who looks was kept from running, as they may have been.
_PASSED_S = 0.05


class Quiet:
    """The time since ``reset`` in which processes slept or ran.

    That in which one of them waited for a processor is not counted: on a machine with much to do a
    loader that is about to attach its next program says nothing for as long as it does not run.
    """

    def __init__(self) -> None:
        self._ran = 0
        self.reset()

    def reset(self) -> None:
        """They were heard just now."""
        self._seconds, self._seen = 0.0, time.monotonic()

    def seconds(self, pids: Iterable[int]) -> float:
        """How long it has been by now; to be asked every few hundredths of a second."""
        now = time.monotonic()
        passed, self._seen = min(now - self._seen, _PASSED_S), now
        looks = [look(pid) for pid in pids]
        before, self._ran = self._ran, sum(ticks for _, ticks in looks)
        if any(runnable for runnable, _ in looks):
            passed = min(passed, max(0, self._ran - before) * _TICK_S)
        self._seconds += passed
        return self._seconds


def look(pid: int) -> tuple[bool, int]:
    """Whether a thread of the process runs or wants to, and how many ticks all of them have run."""
    runnable, ran = False, 0
    with suppress(OSError):  # it has ended, or a thread has
        for thread in Path(f"/proc/{pid}/task").iterdir():
            fields = (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()
            runnable |= fields[0] in "RD"  # D: it waits for a page or a disk
            ran += int(fields[11]) + int(fields[12])
    return runnable, ran
