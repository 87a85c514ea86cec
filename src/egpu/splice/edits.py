"""Edits of a text by character offsets: how anything is rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from egpu.errors import InternalError
from egpu.image.ptx.syntax import Span


@dataclass(frozen=True, slots=True)
class Edit:
    """``text`` in the place of the characters ``start`` to ``end`` (none: an insertion)."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: Iterable[Edit], *, within: Span | None = None) -> str:
    """``text`` (or its part ``within``) edited; all offsets are those of the whole unedited text.

    Insertions at one place keep their order.  InternalError when edits overlap.
    """
    begin, end = (within.start, within.end) if within else (0, len(text))
    pieces: list[str] = []
    at = begin
    for edit in sorted(edits, key=lambda each: (each.start, each.end)):
        if not at <= edit.start <= edit.end <= end:
            raise InternalError(f"edit of characters {edit.start} to {edit.end} overlaps another")
        pieces += (text[at : edit.start], edit.text)
        at = edit.end
    pieces.append(text[at:end])
    return "".join(pieces)
