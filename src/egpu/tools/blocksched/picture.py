"""blocksched's launches as a timeline.

A track for each SM, below it one for each place that a block can take, and a slice for each block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from egpu.timeline import Slice, Timeline, Track
from egpu.tools.blocksched.blocks import LaunchBlocks
from egpu.tools.blocksched.report import coordinates
from egpu.tools.model import Run

_Row = tuple[int, int, int, int]  # start, end, launch's place in the list, block's place in it


def timeline_of(
    run: Run, launches: Sequence[LaunchBlocks], contexts: Mapping[int, str]
) -> Timeline:
    """The timeline of all launches; ``contexts`` names a device in a process by its place."""
    tracks: list[Track] = []
    lanes: list[tuple[int, list[_Row]]] = []  # (track, its blocks)
    for place in sorted({each.place for each in launches}):
        top = len(tracks)
        tracks.append(Track(contexts.get(place, f"context {place}")))
        for sm, rows in sorted(_by_sm(launches, place).items()):
            parent = len(tracks)
            tracks.append(Track(f"SM {sm}", top))
            for number, lane in enumerate(_lanes(rows)):
                lanes.append((len(tracks), lane))
                tracks.append(Track(f"SM {sm}, place {number}", parent))
    return Timeline(tuple(tracks), _slices(run, launches, lanes))


def _by_sm(launches: Sequence[LaunchBlocks], place: int) -> dict[int, list[_Row]]:
    found: dict[int, list[_Row]] = {}
    for number, each in enumerate(launches):
        if each.place != place:
            continue
        rows = each.blocks
        columns = (rows["sm"].tolist(), rows["start"].tolist(), rows["end"].tolist())
        for at, (sm, start, end) in enumerate(zip(*columns, strict=True)):
            found.setdefault(sm, []).append((start, end, number, at))
    for blocks in found.values():
        blocks.sort()
    return found


def _lanes(rows: Sequence[_Row]) -> list[list[_Row]]:
    """The rows of an SM, sorted by start, spread over as few lanes as need be: each goes to the
    first lane that is free by then.  The hardware's own places are not known."""
    lanes: list[list[_Row]] = []
    free: list[int] = []  # lanes
    busy: list[tuple[int, int]] = []  # (end, lane)
    for row in rows:
        while busy and busy[0][0] <= row[0]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(row)
        heapq.heappush(busy, (row[1], lane))
    return lanes


@dataclass(frozen=True, slots=True)
class _Launch:
    """What the slices of a launch have in common, and its blocks' indices by their place."""

    label: str
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, int | str], ...]
    index: list[int]
    sm: list[int]


def _common(run: Run, each: LaunchBlocks) -> _Launch:
    arguments = (
        ("kernel", run.name(each.kernel_id)),
        ("kernel_id", each.kernel_id),
        ("launch_id", each.launch),
        ("replay", each.replay),
        ("threads", int(each.blocks["threads"][0])),
    )
    indices, sms = each.blocks["index"].tolist(), each.blocks["sm"].tolist()
    return _Launch(run.label(each.kernel_id), each.grid, arguments, indices, sms)


def _slices(
    run: Run, launches: Sequence[LaunchBlocks], lanes: Sequence[tuple[int, list[_Row]]]
) -> Iterator[Slice]:
    common = [_common(run, each) for each in launches]
    for track, rows in lanes:
        for start, end, number, at in rows:
            launch = common[number]
            index = launch.index[at]
            x, y, z = coordinates(index, launch.grid)
            own = (
                ("block", index),
                ("block_x", x),
                ("block_y", y),
                ("block_z", z),
                ("sm", launch.sm[at]),
            )
            yield Slice(track, launch.label, start, end, (*launch.arguments, *own))
