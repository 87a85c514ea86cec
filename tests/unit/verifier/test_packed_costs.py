"""Costs as one integer: the greater of each field, and so many times each field."""

import random

import pytest

from egpu.verifier.cost import meter_of, metered, times, worst

FIELDS, BITS = 9, 64  # six of a cost, and three meters
LARGEST = (1 << BITS - 1) - 1


def packed(fields):
    return sum(value << index * BITS for index, value in enumerate(fields))


def unpacked(number):
    return [number >> index * BITS & (1 << BITS) - 1 for index in range(FIELDS)]


@pytest.mark.parametrize("seed", range(50))
def test_worst_takes_the_greater_of_each_field(seed):
    rng = random.Random(seed)
    values = [0, 1, 2, LARGEST - 1, LARGEST, rng.getrandbits(20), rng.getrandbits(63)]
    one, other = ([rng.choice(values) for _ in range(rng.randint(1, FIELDS))] for _ in range(2))
    found = worst(packed(one), packed(other))
    longest = max(len(one), len(other))
    one, other = (fields + [0] * (longest - len(fields)) for fields in (one, other))
    assert found == packed([max(pair) for pair in zip(one, other, strict=True)])


@pytest.mark.parametrize("number", [0, 1, 32, (1 << 31) - 1, 1 << 31, 1 << 40])
@pytest.mark.parametrize("value", [0, 1, (1 << 32) - 1, 1 << 32, LARGEST])
def test_times_never_leaves_a_field(value, number):
    fields = [value, 1, value, 0, 7, value]
    wanted = [min(field * number, LARGEST) for field in fields]
    assert unpacked(times(packed(fields), number))[:6] == wanted
    assert unpacked(times(packed([*fields, 5]), number))[6] == 0  # meters are not costs


def test_meters_are_above_the_costs():
    assert meter_of(metered(0) + 3 * metered(2) + LARGEST, 2) == 3
