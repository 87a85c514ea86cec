"""blocksched: figures against a plain count, what its report says, and its probe in a kernel."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tools_on_device import SHAPES, Rig, size
from test_tools_reports import as_json, line_with

from egpu.codegen import Launch
from egpu.export.text import render_text
from egpu.maps import RingReader, ring_controls
from egpu.tools.blocksched.blocks import BLOCK, FROM_GRAPH, BlockStore, LaunchBlocks
from egpu.tools.blocksched.picture import timeline_of
from egpu.tools.blocksched.report import Records, build_report
from egpu.tools.blocksched.schedule import STEPS, schedule_of
from egpu.tools.model import KernelLaunches, Run
from egpu.tools.registry import find_tool, load_object


def rows(*blocks, launch=1, kernel=7, flags=0, grid=None):
    """(sm, start, end) of each block, in order of their index."""
    out = np.zeros(len(blocks), BLOCK)
    for index, (sm, start, end) in enumerate(blocks):
        out[index]["sm"], out[index]["start"], out[index]["end"] = sm, start, end
        out[index]["index"] = index
    out["launch"], out["kernel"], out["flags"], out["threads"] = launch, kernel, flags, 96
    out["grid_x"], out["grid_y"], out["grid_z"] = grid or (len(blocks), 1, 1)
    return out


def launches_of(*parts):
    store = BlockStore()
    for part in parts:
        store.add(0, part.tobytes())
    return tuple(store.launches())


# Two SMs, two places each: a full wave, then two more blocks on SM 0 of which one is slow.
UNEVEN = rows(
    (0, 100, 200), (1, 100, 210), (0, 100, 190), (1, 102, 200), (0, 195, 400), (0, 200, 260)
)  # fmt: skip


def test_the_figures_of_an_uneven_launch():
    (launch,) = launches_of(UNEVEN[::-1])
    figures = schedule_of(launch)
    assert (figures.blocks, figures.expected, figures.sms, figures.places) == (6, 6, 2, 4)
    assert figures.waves == 1.5
    assert (figures.start, figures.time) == (100, 300)
    assert figures.tail == 400 - 210
    assert figures.late == 2
    work = [100 + 90 + 205 + 60, 110 + 98]
    assert figures.imbalance == pytest.approx(max(work) * 2 / sum(work))
    assert figures.fill == pytest.approx(sum(work) / (4 * 300))
    assert (figures.gaps, figures.gap_mean, figures.gap_most) == (2, 2.5, 5)
    last = figures.last
    assert (last.index, last.sm, last.start, last.took, last.median) == (4, 0, 95, 205, 99)


TIMES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 25)), min_size=1, max_size=40
)


@given(TIMES)
def test_the_figures_are_those_of_a_plain_count(blocks):
    blocks = [(sm, start, start + took) for sm, start, took in blocks]
    (launch,) = launches_of(rows(*blocks))
    figures = schedule_of(launch)
    begin, end = min(b[1] for b in blocks), max(b[2] for b in blocks)
    assert figures.time == end - begin
    places = 0
    for sm in {b[0] for b in blocks}:
        own = [b for b in blocks if b[0] == sm]
        # a place that a block of no length takes is one, too
        peak = max(sum(b[1] <= at < b[2] for b in own) for at in range(begin, end + 1))
        starts = max(
            sum(b[1] <= at for b in own) - sum(b[2] <= at for b in own) for at in range(end + 1)
        )
        assert peak == starts
        places += max(1, peak)
    assert figures.places == places
    idle = min(max(b[2] for b in blocks if b[0] == sm) for sm in {b[0] for b in blocks})
    assert figures.tail == end - idle
    assert figures.late == sum(b[2] > idle for b in blocks)
    assert figures.gap_mean >= 0
    assert figures.gap_most >= 0
    area = sum(b[2] - b[1] for b in blocks)
    if figures.time:
        assert len(figures.resident) == STEPS
        assert sum(figures.resident) * figures.time / STEPS == pytest.approx(area)


def test_replays_of_a_graph_are_told_apart():
    first = rows((0, 10, 20), (1, 10, 30), flags=FROM_GRAPH)
    second = rows((1, 50, 60), (0, 40, 70), flags=FROM_GRAPH)
    third = rows((1, 80, 81), (0, 80, 89), flags=FROM_GRAPH)
    found = launches_of(third, second, first, rows((0, 1, 2), launch=2))
    assert [(each.launch, each.replay, each.start, each.end) for each in found] == [
        (1, 1, 10, 30), (1, 2, 40, 70), (1, 3, 80, 89), (2, 0, 1, 2)]  # fmt: skip


def test_records_past_the_limit_are_counted():
    store = BlockStore(limit=4)
    for _ in range(3):
        store.add(0, rows((0, 1, 2), (0, 1, 2)).tobytes())
    assert (store.received, store.left_out, store.by_kernel()) == (6, 2, {7: 4})


RUN = Run(
    "NVIDIA H200",
    False,
    (KernelLaunches(7, "_a_kernel<1, 2>(int*)", 3, 3, blocks_probed=8, short="a_kernel<…>"),),
)


def report(*parts, run=RUN, records=None, sms=132):
    store = BlockStore()
    for part in parts:
        store.add(0, part.tobytes())
    launches = [schedule_of(each) for each in store.launches()]
    records = records or Records(received=store.received)
    return build_report(run, launches, store.by_kernel(), records, sms=sms)


def test_the_report():
    whole = report(UNEVEN, rows((3, 5, 9), launch=2), rows((3, 15, 16), launch=3))
    text = render_text(whole)
    assert all(len(line) <= 80 for line in text.splitlines())
    kernel = line_with(text, "a_kernel<…>")
    assert kernel.split()[1:4] == ["3", "8", "305"]
    longest = text.split("Longest launch of each")[1].splitlines()[2]
    assert longest.split() == [
        "a_kernel<…>", "1", "6", "300", "ns", "1.50", "63", "%", "1.37x", "55", "%", "2", "2/132"
    ]  # fmt: skip
    assert "4,0,0" in text
    assert "not in the numbers" not in text
    data = as_json(whole)
    assert data["schema"] == "egpu.blocksched/1"
    assert data["partial"] is False
    assert [each["launch_id"] for each in data["schedules"]] == [1, 2, 3]
    assert data["kernels"][0]["name"] == "_a_kernel<1, 2>(int*)"
    assert data["kernels"][0]["short_name"] == "a_kernel<…>"
    assert len(data["schedules"][0]["resident"]) == STEPS


def test_what_is_missing_is_marked_and_said():
    some = report(UNEVEN, records=Records(received=6, dropped=2))
    text = render_text(some)
    assert "6+" in line_with(text, "a_kernel<…>")
    assert "2 blocks of probed launches are not in the numbers" in text
    assert "2 records found the ring full" in text
    assert as_json(some)["partial"] is True
    assert as_json(report(UNEVEN, records=Records(received=6, crowded=1)))["partial"] is True


def test_a_report_without_a_launch():
    text = render_text(report(run=Run("no device", False, ())))
    assert "KERNEL" in text


def test_a_clock_that_does_not_tick():
    text = render_text(report(rows((0, 5, 5), (1, 5, 5)), run=RUN))
    assert "shorter than the clock's step" in text


def test_the_picture_has_every_block_and_nothing_overlaps():
    random.seed(3)
    blocks = [(random.randrange(3), start := random.randrange(90), start + random.randrange(30))
              for _ in range(200)]  # fmt: skip
    launches = launches_of(rows(*blocks, grid=(10, 20, 1)))
    timeline = timeline_of(RUN, launches, {0: "device 0"})
    slices = list(timeline.slices)
    assert len(slices) == 200
    assert {dict(each.arguments)["block"] for each in slices} == set(range(200))
    for number, track in enumerate(timeline.tracks):
        own = [each for each in slices if each.track == number]
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))
        if own:
            parent = timeline.tracks[track.parent]
            assert {f"SM {dict(each.arguments)['sm']}" for each in own} == {parent.name}
    one = dict(next(each for each in slices if dict(each.arguments)["block"] == 123).arguments)
    assert (one["block_x"], one["block_y"], one["block_z"]) == (3, 12, 0)
    assert one["kernel"] == "_a_kernel<1, 2>(int*)"


def test_rows_are_the_struct_of_the_probe():
    spec = next(s for s in load_object(find_tool("blocksched")).maps if s.name == "blocks")
    row = spec.btf.resolve(spec.value_type)
    assert spec.btf.size_of(spec.value_type) == BLOCK.itemsize == 48
    assert {
        member.name: (member.offset // 8, spec.btf.size_of(member.type)) for member in row.members
    } == {field: (offset, each.itemsize) for field, (each, offset) in BLOCK.fields.items()}


class BlockRig(Rig):
    """blocksched's program in a kernel of which threads leave at three places."""

    def records(self):
        index = [spec.name for spec in self.maps].index("blocks")
        place = self.layout.places[index]
        reader = RingReader(self.arena, self.layout, place, self.maps[index])
        controls = ring_controls(self.snapshot(), place, self.layout.sm_slots)
        parts = [np.frombuffer(batch.payload, BLOCK) for batch in reader.drain_final(controls)]
        assert reader.counts.dropped == reader.counts.holes == 0
        return np.concatenate(parts)


def test_each_block_sends_one_record_for_every_shape():
    rig = BlockRig("blocksched")
    for number, (grid, block) in enumerate(SHAPES):
        rig.launch(number + 1, grid, block)
    found = rig.records()
    assert len(found) == sum(size(grid) for grid, _ in SHAPES)
    for number, (grid, block) in enumerate(SHAPES):
        own = np.sort(found[found["launch"] == number + 1], order="index")
        assert own["index"].tolist() == list(range(size(grid)))
        assert set(own["threads"].tolist()) == {size(block)}
        assert LaunchBlocks(0, 1, 0, own).grid == grid
        assert (own["kernel"] == 5).all()
        assert (own["sm"] == own["index"] % 4).all()
        assert (own["start"] <= own["end"]).all()
    assert not rig.view("meetings")[0][0]
    assert tuple(rig.view("lost")[0]) == (0, 0)


def test_launches_from_graphs_are_marked():
    rig = BlockRig("blocksched", Launch.CAPTURED)
    for _ in range(2):
        rig.launch(9, (2, 1, 1), (33, 1, 1), flags=FROM_GRAPH)
    store = BlockStore()
    store.add(0, rig.records().tobytes())
    assert [(each.replay, len(each.blocks)) for each in store.launches()] == [(1, 2), (2, 2)]
