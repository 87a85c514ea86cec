"""Durations by bucket: exact where they say so, close where they do not."""

import random
from fractions import Fraction

import numpy as np
import pytest

from egpu.tools.kernellat.times import (
    BUCKETS,
    COPIES,
    MEETING,
    TIMES,
    Durations,
    Summary,
    read_times,
)


def bucket_of(value):
    """As the probe does it."""
    shift = max(0, value.bit_length() - 6)
    return min(BUCKETS - 1, 32 * shift + (value >> shift))


def durations(values):
    counts = [0] * BUCKETS
    for value in values:
        counts[bucket_of(value)] += 1
    return Durations(tuple(counts), sum(values), min(values), max(values))


def table(*rows):
    """Times with (row, copy, values)."""
    made = np.zeros((8, COPIES), TIMES)
    for row, copy, values in rows:
        each = durations(values)
        made[row, copy] = (each.total, (1 << 64) - 1 - each.least, each.most, each.counts)
    return made.tobytes()


def test_figures_are_exact_below_64():
    values = list(range(1, 64))
    assert durations(values).summary() == Summary(63, 1, 32.0, 32, 60, 63, 63)


@pytest.mark.parametrize("seed", range(4))
def test_quantiles_are_at_most_a_32nd_above(seed):
    rng = random.Random(seed)
    values = sorted(int(rng.lognormvariate(9, 3)) + 1 for _ in range(997))
    made = durations(values)
    for percent in (1, 50, 95, 99, 100):
        exact = values[max(0, -(-percent * len(values) // 100) - 1)]
        assert exact <= made.quantile(Fraction(percent, 100)) <= exact * 33 / 32
    assert (made.summary().minimum, made.summary().maximum) == (values[0], values[-1])


def test_octaves_are_exact_and_have_no_empty_ends():
    rows = durations([0, 1, 3, 4, 63, 64, 127, 128, 1 << 20]).octaves()
    assert rows[:4] == ((0, 1, 1), (1, 2, 1), (2, 4, 1), (4, 8, 1))
    assert (64, 128, 2) in rows
    assert (32, 64, 1) in rows
    assert rows[-1] == (1 << 20, 1 << 21, 1)
    assert sum(row[2] for row in rows) == 9
    assert Durations().octaves() == ()


def test_nothing_has_no_figures():
    assert Durations().summary() == Summary()
    assert len(Durations()) == 0


def test_copies_and_contexts_are_added_up():
    first = table((2, 0, [10, 20]), (2, 3, [5]), (3, 1, [40]))
    second = table((2, 0, [7]), (7, 2, [9]))
    times = read_times([first, second], [])
    assert times[1].blocks == durations([10, 20, 5, 7])
    assert times[1].launches == durations([40])
    assert times[3].launches == durations([9])
    assert len(times[3].blocks) == 0


def test_open_meetings_are_counted_by_kernel():
    rows = np.zeros(16, MEETING)
    rows[1] = (5 << 34 | 0 << 32 | 7, 1, 1, 32, 2, 0)
    rows[2] = (5 << 34 | 0 << 32 | 8, 1, 1, 32, 2, 0)
    rows[3] = (5 << 34 | 1 << 32 | 1, 1, 1, 3, 2, 1)  # a part of the same launch
    rows[4] = (6 << 34 | 3 << 32, 1, 1, 3, 2, 3)
    times = read_times([], [rows.tobytes()])
    assert (times[2].open_blocks, times[2].open_launches) == (2, 2)
