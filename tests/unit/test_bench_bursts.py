"""How fast records come out of device memory is told from when all of a launch's were there."""

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def measuring(monkeypatch):
    """The benchmarks' module, which puts the tree's sources on the path: not for other tests."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("measuring")


@pytest.fixture
def seen(measuring):
    return lambda *rows: measuring.Measured(drained=[(at, number) for at, number in rows])


def test_a_burst_lasts_from_its_begin_until_its_last_bytes_came(seen):
    found = seen(
        *((1.0, 0), (1.9, 0)),
        *((2.1, 0), (2.2, 600), (2.4, 1000), (2.5, 1000), (3.9, 1000)),
        *((4.3, 1400), (4.6, 2000), (4.7, 2000)),
    )
    row = {"begun": [2.0e6, 4.0e6], "ended": 5.0e6}
    (first, _), (second, _) = bursts = found.bursts(row)
    assert (first, second) == (pytest.approx(0.4), pytest.approx(0.6))
    assert [number for _, number in bursts] == [1000, 1000]


def test_what_comes_before_and_after_is_not_the_bursts(seen):
    found = seen((0.5, 70), (1.2, 100), (1.6, 100), (2.5, 900))
    assert found.bursts({"begun": [1.0e6], "ended": 2.0e6}) == [(pytest.approx(0.2), 30)]


def test_a_launch_that_wrote_nothing_took_no_time(seen):
    assert seen((0.5, 70), (1.5, 70)).bursts({"begun": [1.0e6], "ended": 2.0e6}) == [(0.0, 0)]


@pytest.mark.parametrize(("last", "quiet"), [(0.11, False), (0.121, True), (5.0, True)])
def test_it_is_quiet_when_nothing_came_for_a_while(measuring, seen, last, quiet):
    assert measuring._quiet(seen((0.0, 0), (0.1, 0), (0.101, 7), (last, 7))) is quiet
    assert not measuring._quiet(seen())
