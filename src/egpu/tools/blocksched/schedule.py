"""How the blocks of one launch were spread over SMs and time.

All times are nanoseconds; a block is on its SM from ``start`` up to, not including, ``end``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from egpu.tools.blocksched.blocks import Blocks, LaunchBlocks

STEPS = 40  # parts of a launch's time in which resident blocks are told
_Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LastBlock:
    """The block that ended last; ``took`` and ``median`` (of all blocks) in ns."""

    index: int
    sm: int
    start: int
    took: int
    median: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """One launch.

    ``blocks`` of ``expected`` left a record.  ``places``: blocks that were resident at one time at
    most, added up over the ``sms`` that ran any; ``waves`` is blocks / places.  ``tail``: from the
    moment in which the first of these SMs was left without blocks to the end; ``late``: blocks that
    ended in it.  ``imbalance``: most block time of an SM / mean.  ``fill``: block time / (places x
    time).  ``gap``: from a block's end to the next one's start in its place, mean and most over
    ``gaps``.  ``resident``: mean number of resident blocks in each of STEPS equal parts of it.
    """

    source: LaunchBlocks
    expected: int
    start: int
    time: int
    sms: int
    places: int
    tail: int
    late: int
    imbalance: float
    fill: float
    gaps: int
    gap_mean: float
    gap_most: int
    resident: tuple[float, ...]
    last: LastBlock

    @property
    def blocks(self) -> int:
        return len(self.source.blocks)

    @property
    def waves(self) -> float:
        return self.blocks / self.places

    @property
    def tail_share(self) -> float:
        """Of the launch's time; 0 if that is not resolved."""
        return self.tail / self.time if self.time else 0.0


def schedule_of(launch: LaunchBlocks) -> Schedule:
    """The figures of a launch with at least one block."""
    rows = launch.blocks
    x, y, z = launch.grid
    begin, end = launch.start, launch.end
    starts = (rows["start"] - np.uint64(begin)).astype(np.int64)
    ends = (rows["end"] - np.uint64(begin)).astype(np.int64)
    groups = _by_sm(rows)
    places = gaps = gap_sum = gap_most = 0
    last_ends, work = [], []
    for group in groups:
        peak, waits = _places(starts[group], ends[group])
        places += peak
        gaps += len(waits)
        gap_sum += int(waits.sum())
        gap_most = max(gap_most, int(waits.max(initial=0)))
        last_ends.append(int(ends[group].max()))
        work.append(int((ends[group] - starts[group]).sum()))
    time, idle = end - begin, min(last_ends)
    total = sum(work)
    return Schedule(
        source=launch,
        expected=x * y * z,
        start=begin,
        time=time,
        sms=len(groups),
        places=places,
        tail=time - idle,
        late=int((ends > idle).sum()),
        imbalance=max(work) * len(work) / total if total else 1.0,
        fill=total / (places * time) if time else 0.0,
        gaps=gaps,
        gap_mean=gap_sum / gaps if gaps else 0.0,
        gap_most=gap_most,
        resident=_resident(starts, ends, time),
        last=_last(rows, starts, ends),
    )


def _by_sm(rows: Blocks) -> list[NDArray[np.int64]]:
    """Places of the rows of each SM, each by start."""
    order = np.argsort(rows["sm"], kind="stable")
    edges = np.flatnonzero(np.diff(rows["sm"][order])) + 1
    return np.split(order, edges)


def _places(starts: _Times, ends: _Times) -> tuple[int, _Times]:
    """(most blocks at one time, how long places stood empty between two blocks) on one SM.

    With n places the k-th block to start came when at least k - n had ended, so the wait before it
    is since the (k - n)-th end: which of the free places it took makes no difference to the sum.
    """
    ordered = np.sort(ends)
    begun = np.arange(1, len(starts) + 1)
    peak = max(1, int((begun - np.searchsorted(ordered, starts, side="right")).max()))
    return peak, starts[peak:] - ordered[: len(starts) - peak]


def _resident(starts: _Times, ends: _Times, time: int) -> tuple[float, ...]:
    """The integral of resident blocks over each part, by its length."""
    if not time:
        return ()
    edges = np.linspace(0, time, STEPS + 1)

    def before(times: _Times) -> NDArray[np.float64]:
        """Sum over blocks of the time since ``times``, at each edge."""
        ordered = np.sort(times)
        number = np.searchsorted(ordered, edges, side="left")
        sums = np.concatenate(([0], np.cumsum(ordered)))
        result: NDArray[np.float64] = number * edges - sums[number]
        return result

    area = np.diff(before(starts) - before(ends))
    return tuple(np.maximum(area / (time / STEPS), 0.0).tolist())


def _last(rows: Blocks, starts: _Times, ends: _Times) -> LastBlock:
    at = int(np.argmax(ends))
    took = ends - starts
    return LastBlock(
        index=int(rows["index"][at]),
        sm=int(rows["sm"][at]),
        start=int(starts[at]),
        took=int(took[at]),
        median=int(np.median(took)),
    )
