"""What ran where and when, as plain values: between tools, which know no format, and exporters,
which know no tool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Track:
    """A line of the picture.  ``parent`` is the place of another track in the timeline, None for
    one at the top; children stand in the order in which they are given."""

    name: str
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took from ``start`` to ``end`` (ns) on a track, given by its place.

    The slices of a track do not overlap and come in order.
    """

    track: int
    name: str
    start: int
    end: int
    arguments: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """Tracks, and their slices, which can be read once."""

    tracks: tuple[Track, ...]
    slices: Iterable[Slice]
