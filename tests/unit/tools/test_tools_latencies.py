"""Quantiles of many durations: against sorting them all."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.tools.kernellat.latencies import Latencies


def of(values):
    latencies = Latencies()
    latencies.add(np.array(values, np.int64))
    return latencies


def nearest_rank(values, part):
    rank = max(1, -(-part.numerator * len(values) // part.denominator))
    return sorted(values)[rank - 1]


@given(
    st.lists(st.integers(0, 2**40) | st.integers(0, 300), min_size=1, max_size=200),
    st.sampled_from([Fraction(1, 2), Fraction(95, 100), Fraction(99, 100), Fraction(1)]),
)
def test_quantiles_are_at_most_a_128th_above_the_true_value(values, part):
    exact, found = nearest_rank(values, part), of(values).quantile(part)
    assert exact <= found <= exact + exact // 128
    if exact < 256:
        assert found == exact


@given(st.lists(st.integers(0, 2**53 - 1), max_size=100), st.integers(0, 100))
def test_summary_and_octaves_are_exact(values, cut):
    latencies = of(values[:cut])
    latencies.add(np.array(values[cut:], np.int64))
    figures = latencies.summary()
    assert figures.count == len(values) == len(latencies)
    if values:
        assert (figures.minimum, figures.maximum) == (min(values), max(values))
        assert figures.mean == pytest.approx(sum(values) / len(values))
    rows = latencies.octaves()
    assert sum(count for _, _, count in rows) == len(values)
    for low, high, count in rows:
        assert count == sum(low <= value < high for value in values)
        assert high == max(1, 2 * low)
    if rows:
        assert rows[0][2]
        assert rows[-1][2]


def test_nothing():
    assert Latencies().summary().p99 == 0
    assert Latencies().octaves() == ()


def test_values_beyond_the_last_bucket_count_as_the_greatest():
    assert of([2**60]).summary().maximum == 2**53 - 1
