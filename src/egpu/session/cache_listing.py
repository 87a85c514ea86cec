"""What is in the cache of twins, and clearing it.  Sessions may use the cache meanwhile."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from egpu.session.cache import SUFFIX, Origin, build_identity, read_origin, remove_least_recent

_NAME = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIX)}")  # nothing else in the folder is ours


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One kept twin.

    ``age_s``: seconds since its last use.  ``origin`` is None for a file of another version's
    format; ``current``: this egpu would still use it.
    """

    path: Path
    size: int
    age_s: float
    origin: Origin | None
    current: bool


def list_entries(directory: Path) -> tuple[CacheEntry, ...]:
    """Every entry, least recently used last; entries that cannot be read are left out.

    OSError if the folder is there and cannot be read.
    """
    found: list[CacheEntry] = []
    now = time.time()
    for path in _files(directory):
        with contextlib.suppress(OSError), path.open("rb") as file:
            row = read_origin(file)
            status = path.stat()
            origin, build = row if row is not None else (None, "")
            age = max(0.0, now - status.st_mtime)
            found.append(
                CacheEntry(path, status.st_size, age, origin, current=build == build_identity())
            )
    return tuple(sorted(found, key=lambda entry: (entry.age_s, entry.path.name)))


@dataclass(frozen=True, slots=True)
class Cleared:
    """How many entries and bytes went, and how many entries could not be removed."""

    entries: int
    bytes: int
    failed: int


def clear(directory: Path, *, keep: int = 0) -> Cleared:
    """Remove the least recently used entries until at most ``keep`` bytes are left; OSError as
    ``list_entries``."""
    before = {path: _size(path) for path in _files(directory)}
    if keep:
        remove_least_recent(directory, keep)
    else:
        for path in before:
            with contextlib.suppress(OSError):
                path.unlink()
        remove_least_recent(directory, 0)  # and what was stored meanwhile, or left half-written
    left = {path for path in before if path.exists()}
    gone = [size for path, size in before.items() if path not in left]
    return Cleared(len(gone), sum(gone), 0 if keep else len(left))


def _files(directory: Path) -> list[Path]:
    try:
        return [
            path
            for path in directory.iterdir()
            if _NAME.fullmatch(path.name) and not path.is_fifo()
        ]
    except FileNotFoundError:
        return []  # not made yet


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
