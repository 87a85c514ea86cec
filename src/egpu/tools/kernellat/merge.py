"""From one record per leaving warp to latencies of blocks and launches.

A record holds the lanes that left together, when their warp entered and when it left.  A block is
complete when its records' lanes sum to its threads; it lasted from its least entry to its greatest
exit.  A launch is complete when all its blocks are.

Launches recorded into a graph keep one launch id over all replays.  Replays of one graph never
overlap, so for each block the records in order of their exit are cut whenever the lanes sum to the
block's threads: the n-th piece is the n-th replay.  If records were lost the cuts may be wrong, so
then only pieces whose warps were all inside at one moment count, and launches are not told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from egpu.maps.layout import LAUNCH_FLAG_CAPTURED
from egpu.tools.kernellat.latencies import Latencies

# The struct of kernellat.bpf.c.
RECORD = np.dtype(
    [
        ("launch_id", "<u8"),
        ("start", "<u8"),
        ("end", "<u8"),
        ("kernel_id", "<u4"),
        ("block", "<u4"),
        ("blocks", "<u4"),
        ("sm", "<u4"),
        ("threads", "<u2"),
        ("lanes", "u1"),
        ("flags", "u1"),
        ("reserved", "<u4"),
    ]
)
PENDING_LIMIT = 1 << 23  # records of incomplete launches kept at once: 384 MiB
_DENSE = 8  # blocks per record up to which a table of all blocks is smaller than sorting is slow

Records = NDArray[np.void]
Key = tuple[int, int]  # source, launch id


@dataclass(slots=True)
class KernelLatency:
    """What was merged for one kernel; durations in nanoseconds.

    ``incomplete_blocks``: of which some records came and others did not, or whose records do not
    fit each other.  ``missing_blocks``: without any record although their launch has some.
    ``unmerged_records``: left out because too many launches were incomplete at once.
    """

    launches: Latencies = field(default_factory=Latencies)
    blocks: Latencies = field(default_factory=Latencies)
    records: int = 0
    incomplete_blocks: int = 0
    missing_blocks: int = 0
    incomplete_launches: int = 0
    unmerged_records: int = 0


@dataclass(slots=True)
class _Pending:
    """The records of a launch that is not complete yet."""

    parts: list[Records] = field(default_factory=list)
    lanes: int = 0
    captured: bool = False


class Merger:
    """Takes records in any order; call :meth:`finish` once at the end."""

    def __init__(self, *, limit: int = PENDING_LIMIT) -> None:
        self._limit = limit
        self._pending: dict[Key, _Pending] = {}
        self._closed: set[Key] = set()  # merged early, to keep within the limit
        self._kept = 0
        self.kernels: dict[int, KernelLatency] = {}

    def add(self, records: Records, *, source: int = 0) -> None:
        """Take ``records`` (dtype RECORD) in; launches that became complete are merged.

        ``source`` tells contexts apart, which number their launches each by themselves.
        """
        if not len(records):
            return
        order = np.argsort(records["launch_id"], kind="stable")
        ordered = records[order]
        cuts = np.flatnonzero(np.diff(ordered["launch_id"])) + 1
        for part in np.split(ordered, cuts):
            self._add_launch((source, int(part[0]["launch_id"])), part)

    def finish(self, *, lossy: bool) -> dict[int, KernelLatency]:
        """Merge what is left and give everything by kernel id.

        ``lossy``: some records of this run were dropped or are missing.
        """
        for key in list(self._pending):
            self._merge(key, lossy=lossy)
        return self.kernels

    def _add_launch(self, key: Key, part: Records) -> None:
        kernel = self.kernels.setdefault(int(part[0]["kernel_id"]), KernelLatency())
        kernel.records += len(part)
        if key in self._closed or not self._make_room(key, len(part)):
            kernel.unmerged_records += len(part)
            return
        launch = self._pending.setdefault(key, _Pending())
        launch.captured |= bool(part[0]["flags"] & LAUNCH_FLAG_CAPTURED)
        launch.parts.append(part)
        launch.lanes += int(part["lanes"].sum(dtype=np.int64))
        self._kept += len(part)
        expected = int(part[0]["blocks"]) * int(part[0]["threads"])
        if launch.lanes >= expected and not launch.captured:
            self._merge(key, lossy=False)

    def _make_room(self, key: Key, wanted: int) -> bool:
        """Give up the oldest incomplete launches until there is room; graphs are kept."""
        while self._kept + wanted > self._limit:
            old = [
                other
                for other, launch in self._pending.items()
                if not launch.captured and other != key
            ]
            if not old:
                return False
            self._closed.add(min(old))
            self._merge(min(old), lossy=True)
        return True

    def _merge(self, key: Key, *, lossy: bool) -> None:
        launch = self._pending.pop(key)
        records = np.concatenate(launch.parts)
        self._kept -= len(records)
        kernel = self.kernels[int(records[0]["kernel_id"])]
        if kernel.unmerged_records:
            lossy = True
        blocks = int(records[0]["blocks"])
        dense = int(records["block"].max()) < blocks <= _DENSE * len(records)
        pieces = _by_block(records) if dense and not launch.captured else _cut(records)
        good = pieces.complete
        if launch.captured and lossy:
            good = good & pieces.overlapping
        kernel.blocks.add((pieces.end - pieces.start)[good])
        kernel.incomplete_blocks += int((~good).sum())
        present, replays = np.unique(pieces.block, return_counts=True)
        kernel.missing_blocks += int(records[0]["blocks"]) - len(present)
        whole = (
            bool(good.all())
            and len(present) == int(records[0]["blocks"])
            and bool((replays == replays[0]).all())
            and (launch.captured or replays[0] == 1)
            and not (launch.captured and lossy)
        )
        if whole:
            kernel.launches.add(_spans(pieces, int(replays[0])))
        else:
            kernel.incomplete_launches += 1


@dataclass(frozen=True, slots=True)
class _Pieces:
    """One entry per block and replay, sorted by block."""

    block: NDArray[np.int64]
    replay: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    complete: NDArray[np.bool_]
    overlapping: NDArray[np.bool_]  # all warps of the piece were inside at one moment


def _by_block(records: Records) -> _Pieces:
    """The blocks of one launch that has no replays: what ``_cut`` gives, without sorting."""
    size, block = int(records[0]["blocks"]), records["block"].astype(np.int64)
    lanes = np.bincount(block, weights=records["lanes"], minlength=size).astype(np.int64)
    start = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(start, block, records["start"].astype(np.int64))
    end = np.zeros(size, np.int64)
    np.maximum.at(end, block, records["end"].astype(np.int64))
    present = np.flatnonzero(lanes)
    start, end = start[present], end[present]
    complete = (lanes[present] == int(records[0]["threads"])) & (end >= start)
    none = np.zeros(len(present), np.int64)
    return _Pieces(present, none, start, end, complete, np.ones(len(present), np.bool_))


def _cut(records: Records) -> _Pieces:
    """Cut the records of one launch into blocks and replays."""
    records = records[np.lexsort((records["start"], records["end"], records["block"]))]
    block = records["block"].astype(np.int64)
    start, end = records["start"].astype(np.int64), records["end"].astype(np.int64)
    lanes = records["lanes"].astype(np.int64)
    threads = int(records[0]["threads"])
    first = np.flatnonzero(np.diff(block, prepend=-1))
    before = np.cumsum(lanes) - lanes
    before = before - np.repeat(before[first], np.diff(first, append=len(block)))
    replay = before // threads
    keys = np.flatnonzero((np.diff(block, prepend=-1) != 0) | (np.diff(replay, prepend=-1) != 0))
    lane_sum = np.add.reduceat(lanes, keys)
    least, greatest = np.minimum.reduceat(start, keys), np.maximum.reduceat(end, keys)
    overlapping = np.maximum.reduceat(start, keys) <= np.minimum.reduceat(end, keys)
    complete = (lane_sum == threads) & (greatest >= least)
    return _Pieces(block[keys], replay[keys], least, greatest, complete, overlapping)


def _spans(pieces: _Pieces, replays: int) -> NDArray[np.int64]:
    """The duration of each replay: every block has all of them, in order."""
    start = pieces.start.reshape(-1, replays).min(axis=0)
    end = pieces.end.reshape(-1, replays).max(axis=0)
    return np.asarray(end - start, np.int64)
