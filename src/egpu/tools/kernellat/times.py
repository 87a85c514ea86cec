"""What kernellat's probe left in its maps: durations by bucket, and what never became complete.

The structs are those of kernellat.bpf.c.  Below 64 a bucket is one value, then there are 32 to an
octave, so a quantile is at most 1/32 above the value it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

BUCKETS = 1152
COPIES = 4  # of a kernel's times
MAX_KERNELS = 256
_SUB = 32  # buckets of an octave
_ALL = (1 << 64) - 1  # least durations are kept inverted
_BLOCK = 0  # level of a meeting; higher ones are parts and groups of a launch, and launches
_LAUNCH_SHIFT = 34  # of a meeting's key

TIMES = np.dtype([("sum", "<u8"), ("least", "<u8"), ("most", "<u8"), ("bucket", "<u8", (BUCKETS,))])
MEETING = np.dtype(
    [
        ("key", "<u8"),
        ("early", "<u8"),
        ("late", "<u8"),
        ("count", "<u8"),
        ("kernel", "<u4"),
        ("level", "<u4"),
    ]
)


@dataclass(frozen=True, slots=True)
class Summary:
    """The usual figures, in nanoseconds; all 0 when ``count`` is."""

    count: int = 0
    minimum: int = 0
    mean: float = 0.0
    p50: int = 0
    p95: int = 0
    p99: int = 0
    maximum: int = 0


@dataclass(frozen=True, slots=True)
class Durations:
    """Many durations in nanoseconds: their number by bucket, sum, least and greatest."""

    counts: tuple[int, ...] = ()
    total: int = 0
    least: int = 0
    most: int = 0

    def __len__(self) -> int:
        return sum(self.counts)

    def quantile(self, part: Fraction) -> int:
        """The least value that ``part`` of all do not exceed (nearest rank), at most 1/32 above."""
        rank = max(1, -(-part.numerator * len(self) // part.denominator))
        index = int(np.searchsorted(np.cumsum(self.counts), rank))
        return max(self.least, min(self.most, _low(index + 1) - 1))

    def summary(self) -> Summary:
        """The figures of a report."""
        number = len(self)
        if not number:
            return Summary()
        p50, p95, p99 = (self.quantile(Fraction(percent, 100)) for percent in (50, 95, 99))
        return Summary(number, self.least, self.total / number, p50, p95, p99, self.most)

    def octaves(self) -> tuple[tuple[int, int, int], ...]:
        """Exact numbers by power of two: (inclusive low, exclusive high, count), no empty ends."""
        rows: dict[int, int] = {}
        for index, number in enumerate(self.counts):
            rows[_low(index).bit_length()] = rows.get(_low(index).bit_length(), 0) + number
        full = [bits for bits, number in rows.items() if number]
        if not full:
            return ()
        return tuple(
            (1 << bits - 1 if bits else 0, 1 << bits, rows[bits])
            for bits in range(full[0], full[-1] + 1)
        )


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """What was measured of one kernel.

    ``open_blocks`` and ``open_launches``: begun and not complete at the end.
    """

    blocks: Durations = field(default_factory=Durations)
    launches: Durations = field(default_factory=Durations)
    open_blocks: int = 0
    open_launches: int = 0


@dataclass(frozen=True, slots=True)
class Losses:
    """What the probe gave up, as in its ``struct lost``; all 0 in a complete run."""

    crowded: int = 0
    unsettled: int = 0
    oversized: int = 0
    overflow: int = 0


def read_times(times: Iterable[bytes], meetings: Iterable[bytes]) -> Mapping[int, KernelTimes]:
    """The kernels that were measured, by id, from both maps' bytes (one copy for each context)."""
    rows = sum_copies([np.frombuffer(data, TIMES) for data in times])
    left = [_left(np.frombuffer(data, MEETING)) for data in meetings]
    ids = {key // 2 for key in rows} | {key for part in left for key in part}
    return {
        key: KernelTimes(
            rows.get(2 * key, Durations()),
            rows.get(2 * key + 1, Durations()),
            sum(part[key][0] for part in left if key in part),
            sum(part[key][1] for part in left if key in part),
        )
        for key in sorted(ids)
    }


def sum_copies(tables: Iterable[NDArray[np.void]]) -> dict[int, Durations]:
    """Durations by row (twice the kernel, one more for launches), added up over copies."""
    found: dict[int, Durations] = {}
    stacked = [table.reshape(-1, COPIES) for table in tables]
    used = {
        int(row) for table in stacked for row in np.flatnonzero(table["bucket"].any(axis=(1, 2)))
    }
    for row in sorted(used):
        parts = np.concatenate([table[row] for table in stacked])
        parts = parts[parts["bucket"].any(axis=1)]
        found[row] = Durations(
            tuple(int(number) for number in parts["bucket"].sum(axis=0)),
            sum(int(number) for number in parts["sum"]),
            min(_ALL - int(number) for number in parts["least"]),
            max(int(number) for number in parts["most"]),
        )
    return found


def _left(table: NDArray[np.void]) -> dict[int, tuple[int, int]]:
    """(blocks, launches) by kernel that began and did not become complete."""
    table = table[table["key"] != 0]
    found: dict[int, tuple[int, int]] = {}
    for kernel in np.unique(table["kernel"]):
        own = table[table["kernel"] == kernel]
        launches = np.unique(own["key"] >> np.uint64(_LAUNCH_SHIFT))
        found[int(kernel)] = (int((own["level"] == _BLOCK).sum()), len(launches))
    return found


def _low(index: int) -> int:
    """The least value of a bucket."""
    if index < 2 * _SUB:
        return index
    return (_SUB + index % _SUB) << (index // _SUB - 1)
