"""The records of blocksched's probe: a row for each block, kept as they come and put in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LIMIT = 4_000_000  # records kept, 48 bytes each; later ones are counted
FROM_GRAPH = 1  # bit of ``flags``

BLOCK = np.dtype(
    [
        ("launch", "<u8"),
        ("start", "<u8"),
        ("end", "<u8"),
        ("kernel", "<u4"),
        ("index", "<u4"),
        ("grid_x", "<u4"),
        ("grid_y", "<u2"),
        ("grid_z", "<u2"),
        ("sm", "<u2"),
        ("threads", "<u2"),
        ("flags", "<u4"),
    ]
)

Blocks = NDArray[np.void]  # of BLOCK


@dataclass(frozen=True, slots=True)
class LaunchBlocks:
    """The blocks of one launch, by start.

    ``place``: which of the session's contexts (a device in a process) it ran in.  ``replay``: 0
    for a launch by itself, else counted from 1 for one that a graph holds.
    """

    place: int
    launch: int
    replay: int
    blocks: Blocks

    @property
    def kernel_id(self) -> int:
        return int(self.blocks["kernel"][0])

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks along x, y and z."""
        row = self.blocks[0]
        return int(row["grid_x"]), int(row["grid_y"]), int(row["grid_z"])

    @property
    def start(self) -> int:
        """First entry, ns."""
        return int(self.blocks["start"][0])

    @property
    def end(self) -> int:
        """Last exit, ns."""
        return int(self.blocks["end"].max())


class BlockStore:
    """Keeps records by context, the first ``limit`` of all."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._room = limit
        self._parts: dict[int, list[Blocks]] = {}
        self.received = 0
        self.left_out = 0

    def add(self, place: int, payload: bytes) -> None:
        """Take in records that lie next to each other."""
        rows = np.frombuffer(payload, BLOCK)
        kept = rows[: self._room]
        self._room -= len(kept)
        self.received += len(rows)
        self.left_out += len(rows) - len(kept)
        if len(kept):
            self._parts.setdefault(place, []).append(kept)

    def by_kernel(self) -> dict[int, int]:
        """How many blocks of each kernel are kept."""
        found: dict[int, int] = {}
        for parts in self._parts.values():
            for rows in parts:
                ids, numbers = np.unique(rows["kernel"], return_counts=True)
                for key, number in zip(ids.tolist(), numbers.tolist(), strict=True):
                    found[key] = found.get(key, 0) + number
        return found

    def launches(self) -> Iterator[LaunchBlocks]:
        """Every launch of which a block is kept, by context, launch id and replay."""
        for place, parts in self._parts.items():
            rows = np.concatenate(parts)
            rows = rows[np.lexsort((rows["index"], rows["start"], rows["launch"]))]
            edges = np.flatnonzero(np.diff(rows["launch"])) + 1
            for group in np.split(rows, edges):
                yield from _replays(place, group)


def _replays(place: int, rows: Blocks) -> Iterator[LaunchBlocks]:
    """A launch from a graph has one id for all replays, which do not overlap: the n-th time that a
    block runs is the n-th replay."""
    launch = int(rows["launch"][0])
    if not int(rows["flags"][0]) & FROM_GRAPH:
        yield LaunchBlocks(place, launch, 0, rows)
        return
    order = np.argsort(rows["index"], kind="stable")
    index = rows["index"][order]
    first = np.flatnonzero(np.concatenate(([True], np.diff(index) != 0)))
    run = np.repeat(first, np.diff(np.append(first, len(index))))
    turn = np.empty(len(rows), np.int64)
    turn[order] = np.arange(len(index)) - run
    for number in range(int(turn.max()) + 1):
        yield LaunchBlocks(place, launch, number + 1, rows[turn == number])
