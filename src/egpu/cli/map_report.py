"""How maps stand in the report of an object: as tables for people, as rows for JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from egpu.bpf.maptypes import traits
from egpu.bpf.program import BPF_F_WRONLY
from egpu.cli.values import key_typed, plain, shown, value_typed
from egpu.errors import InputError
from egpu.maps import (
    BloomView,
    HashView,
    Kept,
    MapView,
    OuterView,
    QueueView,
    ThreadView,
    summable,
)
from egpu.report import Align, Column, Paragraph, Part, Table, Weight
from egpu.session.stacks import StackView

if TYPE_CHECKING:
    from egpu.session import Ring

ROWS = 64  # entries of one map shown in the text; JSON has all
WITH_ENTRIES = (MapView, HashView, ThreadView, QueueView, BloomView, OuterView, StackView)
_CONSTANTS = re.compile(r"\.rodata\.(cst|str)\d.*")  # what compilers put aside for themselves


@dataclass(frozen=True, slots=True)
class MapReport:
    """One map: what people see of it, and its JSON."""

    parts: tuple[Part, ...]
    data: object


@dataclass(frozen=True, slots=True)
class _Row:
    """An entry: its key for people, its value (by SM where it cannot be summed), and its JSON.
    ``context`` is its number where there are several, else None."""

    key: str
    value: object
    data: dict[str, object]
    context: int | None = None


def map_report(name: str, view: object) -> MapReport:
    """What the map holds; ``view`` is one of WITH_ENTRIES."""
    if isinstance(view, Kept) and view.spec.flags & BPF_F_WRONLY:
        text = f"{name}: not shown, only programs read it (BPF_F_WRONLY)"
        return MapReport((Paragraph(text),), None)
    match view:
        case MapView():
            rows = list(_array_rows(view))
            hidden = _CONSTANTS.fullmatch(name) is not None
            parts = () if hidden else _table(name, rows, typed=value_typed(view.spec))
            return MapReport(parts, [row.data for row in rows])
        case HashView():
            return _hash_report(name, view)
        case OuterView():
            inner = view.names()
            rows = [_Row(str(key), of, {}) for key, of in inner.items()]
            return MapReport(_table(name, rows), inner)
        case QueueView():
            rows = list(_queue_rows(view))
            values = [row.data for row in rows]
            return MapReport(_table(name, rows, typed=value_typed(view.spec)), values)
        case BloomView():
            text = f"{name}: {view.fill():.1%} of its bits are set"
            return MapReport((Paragraph(text),), {"fill": view.fill()})
        case StackView():
            rows = list(_stack_rows(view))
            stacks = _table(name, rows, empty="no stacks", kind=("stack", "stacks"))
            return MapReport(stacks, [row.data for row in rows])
        case ThreadView():
            rows = list(_thread_rows(view))
            threads = [row.data for row in rows]
            return MapReport(_table(name, rows, typed=value_typed(view.spec)), threads)
    raise TypeError(f"{name}: a {type(view).__name__} has no entries")


def ring_report(name: str, ring: Ring) -> MapReport:
    """How many records came, and how many did not."""
    totals = ring.totals()
    text = (
        f"{name}: {totals.received:,} records received, {totals.discarded:,} discarded "
        f"by the program, {totals.dropped:,} dropped, {totals.holes:,} missing"
    )
    weight = Weight.WARNING if totals.dropped or totals.holes else Weight.PLAIN
    counts = {
        "received": totals.received,
        "discarded": totals.discarded,
        "dropped": totals.dropped,
        "missing": totals.holes,
    }
    return MapReport((Paragraph(text, weight),), counts)


def _in_context(number: int, copies: Sequence[object]) -> tuple[int | None, dict[str, object]]:
    """The number of a context where there are several, and its JSON."""
    return (number, {"context": number}) if len(copies) > 1 else (None, {})


def _array_rows(view: MapView) -> Iterator[_Row]:
    """Every entry that is not all zero, with the parts of a per-SM map that cannot be summed."""
    copies = view.copies() or (view,)  # before a launch, what programs of the host have set
    for number, copy in enumerate(copies):
        context, extra = _in_context(number, copies)
        keys = copy.nonzero_keys()
        kind = "value"
        try:
            entries: dict[int, Any] = copy.lookup_batch(keys)
        except InputError:  # values that cannot be summed are shown by SM
            kind, entries = "per_sm", {key: copy.per_sm(key) for key in keys}
        for key, value in entries.items():
            if _holds(value):
                data = {"key": key, **extra, kind: plain(value)}
                yield _Row(str(key), value, data, context)


def _queue_rows(view: QueueView) -> Iterator[_Row]:
    """What a queue or stack holds, in the order of popping."""
    copies = view.copies()
    for number, copy in enumerate(copies):
        context, extra = _in_context(number, copies)
        for place, value in enumerate(copy):
            yield _Row(str(place), value, {**extra, "value": plain(value)}, context)


def _stack_rows(view: StackView) -> Iterator[_Row]:
    """Every stack, innermost frame first."""
    for number in view:
        frames = tuple(str(frame) for frame in view[number])
        yield _Row(str(number), frames, {"key": number, "value": list(frames)})


def _thread_rows(view: ThreadView) -> Iterator[_Row]:
    """Every value of a thread that is not all zero."""
    copies = view.copies()
    for number, copy in enumerate(copies):
        context, extra = _in_context(number, copies)
        for key, values in copy.items():
            for thread, value in enumerate(values):
                if _holds(value):
                    data = {"key": key, "thread": thread, "value": plain(value), **extra}
                    yield _Row(f"{key}, thread {thread}", value, data, context)


def _hash_report(name: str, view: HashView) -> MapReport:
    """Every entry, smallest key first, and how many insertions a full map refused."""
    rows = list(_hash_rows(view))
    kind = ("entry", "entries")
    parts = [*_table(name, rows, typed=value_typed(view.spec), empty="no entries", kind=kind)]
    refused, given_up = view.counter("full"), view.counter("busy")
    if view.counter("evicted"):
        parts.append(Paragraph(f"{name}: {view.counter('evicted'):,} entries were evicted"))
    if refused or given_up:
        text = f"{name}: {refused:,} insertions refused because the map was full"
        text += f", {given_up:,} updates given up under contention" if given_up else ""
        parts.append(Paragraph(text, Weight.WARNING))
    return MapReport(tuple(parts), [row.data for row in rows])


def _hash_rows(view: HashView) -> Iterator[_Row]:
    spec = view.spec
    summed = not traits(spec.type).per_sm or summable(spec)
    typed = key_typed(spec)
    copies = view.copies() or (view,)
    for number, copy in enumerate(copies):
        context, extra = _in_context(number, copies)
        entries: dict[Any, object] = copy.to_dict() if summed else dict(copy.parts())
        for key, value in sorted(entries.items(), key=lambda item: (str(type(item[0])), item[0])):
            data = {"key": plain(key), "value" if summed else "per_sm": plain(value), **extra}
            yield _Row(shown(key, typed=typed), value, data, context)


def _holds(value: object) -> bool:
    if isinstance(value, tuple):
        return any(_holds(item) for item in value)
    return any(value) if isinstance(value, bytes) else bool(value)


def _table(
    name: str,
    rows: Sequence[_Row],
    *,
    typed: bool = True,
    empty: str = "all zero",
    kind: tuple[str, str] = ("entry that is not zero", "entries that are not zero"),
) -> tuple[Part, ...]:
    if not rows:
        return (Paragraph(f"{name}: {empty}"),)
    columns = (Column("KEY"), Column("VALUE", Align.LEFT, may_shorten=True))
    cells = tuple((_key(row), shown(row.value, typed=typed)) for row in rows[:ROWS])
    parts: list[Part] = [Table(f"{name} ({len(rows):,} {kind[len(rows) > 1]})", columns, cells)]
    if len(rows) > ROWS:
        parts.append(Paragraph(f"... and {len(rows) - ROWS:,} more; --json has them"))
    return tuple(parts)


def _key(row: _Row) -> str:
    return row.key if row.context is None else f"{row.key} (context {row.context})"
