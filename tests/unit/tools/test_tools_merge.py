"""kernellat's merging: whole blocks and launches only, and everything else counted."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.tools.kernellat.merge import RECORD, Merger


def record(launch, block, start, end, lanes=32, *, threads=32, blocks=1, kernel=1, flags=0):
    return (launch, start, end, kernel, block, blocks, 0, threads, lanes, flags, 0)


def records(*rows):
    return np.array(list(rows), RECORD)


def merge(*rows, lossy=False, shuffle=None, limit=1 << 20):
    rows = list(rows)
    if shuffle is not None:
        random.Random(shuffle).shuffle(rows)
    merger = Merger(limit=limit)
    for at in range(0, len(rows), 3):
        merger.add(records(*rows[at : at + 3]))
    return merger.finish(lossy=lossy).get(1)


def test_a_block_lasts_from_its_first_entry_to_its_last_exit():
    latency = merge(
        record(5, 0, 100, 150, threads=64),
        record(5, 0, 90, 140, 20, threads=64),
        record(5, 0, 90, 190, 12, threads=64),
    )
    assert latency.blocks.summary().maximum == 100
    assert latency.launches.summary().maximum == 100
    assert latency.incomplete_blocks == latency.missing_blocks == latency.incomplete_launches == 0
    assert latency.records == 3


@pytest.mark.parametrize("seed", range(5))
def test_a_launch_spans_its_blocks(seed):
    rows = [record(9, b, 1000 + b, 1100 + 2 * b, blocks=10) for b in range(10)]
    latency = merge(*rows, shuffle=seed)
    assert len(latency.blocks) == 10
    assert latency.launches.summary().maximum == 1118 - 1000
    assert len(latency.launches) == 1


def test_a_block_with_a_lost_record_is_left_out_and_counted():
    latency = merge(
        record(1, 0, 0, 10, threads=64, blocks=3),
        record(1, 1, 0, 10, threads=64, blocks=3),
        record(1, 1, 0, 20, threads=64, blocks=3),
        lossy=True,
    )
    assert len(latency.blocks) == 1
    assert latency.incomplete_blocks == 1
    assert latency.missing_blocks == 1
    assert latency.incomplete_launches == 1
    assert len(latency.launches) == 0


def test_more_lanes_than_threads_is_never_a_block():
    latency = merge(record(1, 0, 0, 10), record(1, 0, 0, 10))
    assert latency.incomplete_launches >= 1
    assert len(latency.launches) <= 1


def test_a_clock_that_goes_back_is_no_latency():
    latency = merge(record(1, 0, 100, 50))
    assert len(latency.blocks) == 0
    assert latency.incomplete_blocks == 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 5), st.integers(1, 100))
def test_replays_of_a_graph_are_told_apart(seed, replays, blocks, threads):
    rng = random.Random(seed)
    rows, block_spans, launch_spans = [], [], []
    clock = 1000
    for _ in range(replays):
        begin, finish = None, clock
        for block in range(blocks):
            start = clock + rng.randrange(50)
            left, ends = threads, []
            while left:
                lanes = min(left, rng.randint(1, 32))
                left -= lanes
                ends.append(start + rng.randrange(1, 1000))
                rows.append(
                    record(
                        3, block, start, ends[-1], lanes, threads=threads, blocks=blocks, flags=1
                    )
                )
            block_spans.append(max(ends) - start)
            begin = start if begin is None else min(begin, start)
            finish = max(finish, *ends)
        launch_spans.append(finish - begin)
        clock = finish + 1
    latency = merge(*rows, shuffle=seed)
    assert latency.incomplete_blocks == latency.incomplete_launches == 0
    assert len(latency.blocks) == replays * blocks
    assert len(latency.launches) == replays
    assert latency.blocks.summary().mean == pytest.approx(sum(block_spans) / len(block_spans))
    assert latency.launches.summary().mean == pytest.approx(sum(launch_spans) / replays)


def test_a_lossy_graph_gives_no_launches_and_no_mixed_blocks():
    rows = [
        record(3, 0, 0, 10, threads=64, flags=1),  # its other half was lost
        record(3, 0, 100, 110, threads=64, flags=1),
        record(3, 0, 100, 120, threads=64, flags=1),
    ]
    latency = merge(*rows, lossy=True)
    assert len(latency.blocks) == 0  # the first cut would mix two replays
    assert latency.incomplete_blocks == 2
    assert len(latency.launches) == 0
    assert latency.incomplete_launches == 1


def test_old_incomplete_launches_give_way_and_their_late_records_are_counted():
    rows = [record(launch, 0, 0, 10, threads=64) for launch in range(1, 8)]
    latency = merge(*rows, record(1, 0, 0, 10, threads=64), limit=4)
    assert latency.unmerged_records == 1
    assert latency.incomplete_launches == 7
    assert latency.records == 8


def test_graphs_past_the_limit_are_counted():
    latency = merge(*[record(3, 0, i, i + 1, flags=1) for i in range(9)], limit=6)
    assert latency.unmerged_records == 3
    assert len(latency.launches) == 0  # lossy: replays are not told apart


def test_kernels_are_apart():
    merger = Merger()
    merger.add(records(record(1, 0, 0, 5, kernel=1), record(2, 0, 0, 7, kernel=2)))
    result = merger.finish(lossy=False)
    assert {key: row.launches.summary().maximum for key, row in result.items()} == {1: 5, 2: 7}
