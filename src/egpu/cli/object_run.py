"""What ``egpu run OBJECT`` shows: records as they come, then every map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from egpu.bpf.maptypes import traits
from egpu.bpf.program import BPF_F_WRONLY
from egpu.cli.values import plain, shown
from egpu.export.json import render_line
from egpu.maps import (
    BloomView,
    HashView,
    Kept,
    MapView,
    OuterView,
    QueueView,
    ThreadView,
    ring_controls,
    summable,
)
from egpu.report import Align, Column, Paragraph, Part, Report, Table, Weight
from egpu.session.host_programs import HostLine
from egpu.session.stacks import StackView
from egpu.tools.running import run_of
from egpu.tools.sections import common_data, cost, coverage, launch_data

if TYPE_CHECKING:
    from egpu.session import Ring, Session
    from egpu.session.features import Clock
    from egpu.session.prints import Line, Prints

ROWS = 64  # entries of one map shown in the text; JSON has all
_NO_RINGS = (MapView, HashView, ThreadView, QueueView, BloomView, OuterView, StackView)
_CONSTANTS = re.compile(r"\.rodata\.(cst|str)\d.*")  # what compilers put aside for themselves


class ObjectOutput:
    """Writes the records of a session's rings to ``stream`` and builds the closing report."""

    def __init__(self, session: Session, stream: TextIO, *, as_json: bool) -> None:
        self._session = session
        self._stream = stream
        self._as_json = as_json

    def collect(self) -> None:
        """Write the records and the printed lines that are there now."""
        for line in self._session.prints:
            self._write_line(line)
        for name, ring in self._rings():
            for record in ring:
                self._write(name, record)

    def report(self) -> Report:
        """Write the last records and lines, and give the report of every map."""
        for line in self._session.prints.finish():
            self._write_line(line)
        for name, ring in self._rings():
            for arena, reader in ring.readers():
                controls = ring_controls(arena.host.snapshot(), reader.place, arena.layout.sm_slots)
                for batch in reader.drain_final(controls):
                    for record in batch.records():
                        self._write(name, reader.decode(record))
        run = run_of(self._session)
        parts: list[Part] = []
        data: dict[str, object] = {}
        counters = {
            name: {each: view.counter(each) for each in ("full", "busy", "evicted")}
            for name, view in self._session.maps.items()
            if isinstance(view, HashView)
        }
        for name, view in self._session.maps.items():
            if isinstance(view, Kept) and view.spec.flags & BPF_F_WRONLY:
                parts.append(Paragraph(f"{name}: not shown, only programs read it (BPF_F_WRONLY)"))
                data[name] = None
            elif isinstance(view, MapView):
                entries = _entries(view)
                if not _CONSTANTS.fullmatch(name):
                    parts += _shown(name, entries)
                data[name] = [{"key": key, **value} for key, value in entries]
            elif isinstance(view, HashView):
                shown_part, data[name] = _hash_report(name, view)
                parts += shown_part
            elif isinstance(view, OuterView):
                parts += _shown(
                    name, [(key, {"value": inner}) for key, inner in view.names().items()]
                )
                data[name] = view.names()
            elif isinstance(view, QueueView):
                queued = _queue_rows(view)
                parts += _shown(name, queued)
                data[name] = [value for _, value in queued]
            elif isinstance(view, BloomView):
                parts.append(Paragraph(f"{name}: {view.fill():.1%} of its bits are set"))
                data[name] = {"fill": view.fill()}
            elif isinstance(view, StackView):
                stacks = _stack_rows(view)
                parts += _shown(name, stacks, empty="no stacks", kind=("stack", "stacks"))
                data[name] = [{"key": key, **value} for key, value in stacks]
            elif isinstance(view, ThreadView):
                rows = _thread_rows(view)
                parts += _shown(name, rows)
                data[name] = [value for _, value in rows]
        for name, ring in self._rings():
            totals = ring.totals()
            parts.append(
                Paragraph(
                    f"{name}: {totals.received:,} records received, {totals.discarded:,} discarded "
                    f"by the program, {totals.dropped:,} dropped, {totals.holes:,} missing",
                    Weight.WARNING if totals.dropped or totals.holes else Weight.PLAIN,
                )
            )
            data[name] = {
                "received": totals.received,
                "discarded": totals.discarded,
                "dropped": totals.dropped,
                "missing": totals.holes,
            }
        parts += _print_report(self._session.prints)
        if not self._session.simulated:  # whose clock the report says is simulated
            parts += _clock_report(self._session.clocks)
        parts += [*coverage(run), *cost(run)]
        printed = asdict(self._session.prints.totals())
        kernels = [launch_data(kernel) for kernel in run.kernels]
        return Report(
            "object/1",
            tuple(parts),
            common_data(run)
            | {"maps": data, "counters": counters, "kernels": kernels, "printed": printed}
            | {"clocks": [asdict(clock) for clock in self._session.clocks]},
        )

    def _rings(self) -> Iterator[tuple[str, Ring]]:
        for name, view in self._session.maps.items():
            if not isinstance(view, _NO_RINGS):
                yield name, view

    def _write_line(self, line: Line | HostLine) -> None:
        if self._as_json and isinstance(line, HostLine):
            self._stream.write(render_line("print/1", asdict(line)))
        elif self._as_json and not isinstance(line, HostLine):
            sent = line.printed
            self._stream.write(
                render_line(
                    "print/1",
                    {
                        "pid": line.pid,
                        "kernel": line.kernel,
                        "launch": sent.launch_id,
                        "sm": sent.sm,
                        "block": list(sent.block),
                        "thread": list(sent.thread),
                        "time": sent.time,
                        "text": sent.text,
                    },
                )
            )
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def _write(self, name: str, record: object) -> None:
        if self._as_json:
            self._stream.write(render_line("record/1", {"map": name, "value": plain(record)}))
        else:
            # Bytes of a ring without a type are no text, even if they look like it.
            text = record.hex() if isinstance(record, bytes) else shown(record)
            self._stream.write(f"{name}: {text}\n")
        self._stream.flush()


def _stack_rows(view: StackView) -> list[tuple[int, dict[str, object]]]:
    """Every stack, innermost frame first."""
    return [(number, {"value": [str(frame) for frame in view[number]]}) for number in view]


def _clock_report(clocks: Sequence[Clock]) -> list[Part]:
    """How far times of bpf_ktime_get_ns may be off."""
    parts: list[Part] = []
    for clock in clocks:
        if not clock.error_ns:
            text = "times are the device's own: its clock could not be compared with the host's"
        else:
            text = f"times are the host's CLOCK_MONOTONIC within {clock.error_ns / 1e3:.1f} us"
        if clock.span_ns:
            text += f"; the clocks went {clock.drift_ns / 1e3:+.1f} us apart"
            text += f" in {clock.span_ns / 1e9:.1f} s"
        weight = Weight.PLAIN if clock.error_ns else Weight.WARNING
        parts.append(Paragraph(f"bpf_ktime_get_ns ({clock.device}): {text}", weight))
    return parts


def _print_report(prints: Prints) -> list[Part]:
    """How many lines were printed, and how many were not."""
    if not prints.used:
        return []
    totals = prints.totals()
    text = f"bpf_printk: {totals.shown:,} lines, {totals.dropped:,} dropped (ring full)"
    if totals.suppressed:
        text += f", {totals.suppressed:,} held back by --print-limit"
    if totals.missing:
        text += f", {totals.missing:,} missing"
    lost = totals.dropped or totals.suppressed or totals.missing
    return [Paragraph(text, Weight.WARNING if lost else Weight.PLAIN)]


def _entries(view: MapView) -> list[tuple[int, dict[str, object]]]:
    """Every entry that is not all zero, with the parts of a per-SM map that cannot be summed."""
    from egpu.errors import InputError  # noqa: PLC0415

    found: list[tuple[int, dict[str, object]]] = []
    copies = view.copies() or (view,)  # before a launch, what programs of the host have set
    for number, copy in enumerate(copies):
        context = {"context": number} if len(copies) > 1 else {}
        keys = copy.nonzero_keys()
        try:
            values = copy.lookup_batch(keys).items()
            rows = [(key, {"value": plain(value)}) for key, value in values if _holds(value)]
        except InputError:  # values that cannot be summed are shown by SM
            parts = ((key, copy.per_sm(key)) for key in keys)
            rows = [
                (key, {"per_sm": [plain(part) for part in values]})
                for key, values in parts
                if any(_holds(part) for part in values)
            ]
        found += [(key, {**context, **value}) for key, value in rows]
    return found


def _queue_rows(view: QueueView) -> list[tuple[int, dict[str, object]]]:
    """What a queue or stack holds, in the order of popping."""
    found: list[tuple[int, dict[str, object]]] = []
    for number, copy in enumerate(view.copies()):
        context: dict[str, object] = {"context": number} if len(view.copies()) > 1 else {}
        found += [(place, {**context, "value": plain(value)}) for place, value in enumerate(copy)]
    return found


def _thread_rows(view: ThreadView) -> list[tuple[str, dict[str, object]]]:
    """Every value of a thread that is not all zero."""
    found: list[tuple[str, dict[str, object]]] = []
    for number, copy in enumerate(view.copies()):
        context: dict[str, object] = {"context": number} if len(view.copies()) > 1 else {}
        for key, values in copy.items():
            for thread, value in enumerate(values):
                if _holds(value):
                    row = {"key": key, "thread": thread, "value": plain(value), **context}
                    found.append((f"{key}, thread {thread}", row))
    return found


def _hash_report(name: str, view: HashView) -> tuple[list[Part], list[dict[str, object]]]:
    """Every entry, smallest key first, and how many insertions a full map refused."""
    found: list[tuple[str, dict[str, object]]] = []
    data: list[dict[str, object]] = []
    copies = view.copies() or (view,)
    for number, copy in enumerate(copies):
        context: dict[str, object] = {"context": number} if len(copies) > 1 else {}
        summed = not traits(view.spec.type).per_sm or summable(view.spec)
        entries: dict[Any, object] = copy.to_dict() if summed else dict(copy.parts())
        for key, value in sorted(entries.items(), key=lambda item: (str(type(item[0])), item[0])):
            row: dict[str, object] = {"value" if summed else "per_sm": plain(value), **context}
            found.append((shown(key), row))
            data.append({"key": plain(key), **row})
    parts = _shown(name, found, empty="no entries", kind=("entry", "entries"))
    refused, given_up = view.counter("full"), view.counter("busy")
    if view.counter("evicted"):
        parts.append(Paragraph(f"{name}: {view.counter('evicted'):,} entries were evicted"))
    if refused or given_up:
        text = f"{name}: {refused:,} insertions refused because the map was full"
        text += f", {given_up:,} updates given up under contention" if given_up else ""
        parts.append(Paragraph(text, Weight.WARNING))
    return parts, data


def _holds(value: object) -> bool:
    if isinstance(value, tuple):
        return any(_holds(item) for item in value)
    return any(value) if isinstance(value, bytes) else bool(value)


def _shown(
    name: str,
    entries: Sequence[tuple[int | str, dict[str, object]]],
    *,
    empty: str = "all zero",
    kind: tuple[str, str] = ("entry that is not zero", "entries that are not zero"),
) -> list[Part]:
    if not entries:
        return [Paragraph(f"{name}: {empty}")]
    columns = (Column("KEY"), Column("VALUE", Align.LEFT, may_shorten=True))
    rows = tuple(
        (_key(key, value), _line(value.get("value", value.get("per_sm"))))
        for key, value in entries[:ROWS]
    )
    parts: list[Part] = [
        Table(f"{name} ({len(entries):,} {kind[len(entries) > 1]})", columns, rows)
    ]
    if len(entries) > ROWS:
        parts.append(Paragraph(f"... and {len(entries) - ROWS:,} more; --json has them"))
    return parts


def _key(key: int | str, value: dict[str, object]) -> str:
    return f"{key} (context {value['context']})" if "context" in value else str(key)


def _line(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_line(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(_line(item) for item in value) + "]"
    return str(value)
