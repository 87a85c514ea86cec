"""Many durations in little memory: exact count, sum, least and greatest; quantiles within 0.8 %.

Durations are kept in buckets of 128 to an octave (values below 256 exactly), so a quantile is at
most 1/128 above the value it stands for, whatever the number of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_SUB_BITS = 7
_SUB = 1 << _SUB_BITS
_MAXIMUM = (1 << 53) - 1  # 104 days in nanoseconds; float64 is exact up to here
_LOW = (1 << 26) - 1
_BUCKETS = _SUB * (54 - _SUB_BITS + 1)


@dataclass(frozen=True, slots=True)
class Summary:
    """The usual figures, in the unit of the values; all 0 when ``count`` is."""

    count: int
    minimum: int
    mean: float
    p50: int
    p95: int
    p99: int
    maximum: int


class Latencies:
    """A growing set of non-negative integers."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self._count = 0
        self._sum = 0
        self._minimum = _MAXIMUM
        self._maximum = 0

    def __len__(self) -> int:
        return self._count

    def add(self, values: NDArray[np.int64]) -> None:
        """Take ``values`` in. Values above 2**53 - 1 count as that."""
        if not len(values):
            return
        clipped = np.minimum(values, _MAXIMUM).astype(np.int64)
        self._counts += np.bincount(_bucket(clipped), minlength=_BUCKETS)
        self._count += len(clipped)
        # In two halves: 2**53 times a few thousand does not fit 64 bits.
        self._sum += (int((clipped >> 26).sum()) << 26) + int((clipped & _LOW).sum())
        self._minimum = min(self._minimum, int(clipped.min()))
        self._maximum = max(self._maximum, int(clipped.max()))

    def quantile(self, part: Fraction) -> int:
        """The least value that ``part`` of all values do not exceed (nearest rank)."""
        if not self._count:
            return 0
        rank = max(1, -(-part.numerator * self._count // part.denominator))
        index = int(np.searchsorted(np.cumsum(self._counts), rank))
        return max(self._minimum, min(self._maximum, _upper(index)))

    def summary(self) -> Summary:
        """The figures of a report."""
        if not self._count:
            return Summary(0, 0, 0.0, 0, 0, 0, 0)
        return Summary(
            self._count,
            self._minimum,
            self._sum / self._count,
            self.quantile(Fraction(50, 100)),
            self.quantile(Fraction(95, 100)),
            self.quantile(Fraction(99, 100)),
            self._maximum,
        )

    def octaves(self) -> tuple[tuple[int, int, int], ...]:
        """Exact counts by power of two: (inclusive low, exclusive high, count), no empty ends."""
        rows = []
        edges = [0, *(1 << bit for bit in range(54))]
        starts = [int(_bucket(np.array([edge]))[0]) for edge in edges[:-1]]
        for index, low in enumerate(edges[:-1]):
            end = starts[index + 1] if index + 1 < len(starts) else _BUCKETS
            rows.append((low, edges[index + 1], int(self._counts[starts[index] : end].sum())))
        full = [index for index, row in enumerate(rows) if row[2]]
        return tuple(rows[full[0] : full[-1] + 1]) if full else ()


def _bucket(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each value: itself below 256, then 128 buckets an octave."""
    _, exponent = np.frexp(values.astype(np.float64))  # value < 2**exponent
    shift = np.maximum(exponent.astype(np.int64) - (_SUB_BITS + 1), 0)
    return np.asarray(shift * _SUB + (values >> shift), np.int64)


def _upper(index: int) -> int:
    """The greatest value of a bucket."""
    if index < 2 * _SUB:
        return index
    shift = index // _SUB - 1
    return ((_SUB + index % _SUB + 1) << shift) - 1
