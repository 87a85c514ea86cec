"""Return addresses of a process as places in its files, while it is still there."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CallFrame:
    """A return address: byte ``offset`` of the file ``path``; "" for memory of no file, which is
    then at ``offset``."""

    path: str
    offset: int


class CodePlaces:
    """The executable mappings of one process, read anew when an address is in none of them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._rows: list[tuple[int, int, int, str]] = []

    def frame(self, address: int) -> CallFrame:
        """Where ``address`` lies."""
        found = self._find(address)
        if found is None:
            self._rows = _mappings(self._pid)
            found = self._find(address)
        return found or CallFrame("", address)

    def _find(self, address: int) -> CallFrame | None:
        at = bisect_right(self._rows, (address, 1 << 64, 0, "")) - 1
        if at < 0:
            return None
        start, end, offset, path = self._rows[at]
        if address >= end:
            return None
        return CallFrame(path, address - start + offset) if path else CallFrame("", address)


def _mappings(pid: int) -> list[tuple[int, int, int, str]]:
    """(start, end, offset in the file, path) of what may be executed, in order; none of a process
    that is gone."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) < 5 or "x" not in fields[1]:
            continue
        start, _, end = fields[0].partition("-")
        path = fields[5] if len(fields) > 5 and fields[5].startswith("/") else ""
        rows.append((int(start, 16), int(end, 16), int(fields[2], 16), path))
    return sorted(rows)
