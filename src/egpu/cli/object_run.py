"""What ``egpu run OBJECT`` shows: records and lines as they come, then the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from egpu.cli.map_report import WITH_ENTRIES, map_report, ring_report
from egpu.cli.values import plain, shown
from egpu.export.json import render_line
from egpu.maps import HashView, ring_controls
from egpu.report import Paragraph, Part, Report, Weight
from egpu.session.host_programs import HostLine
from egpu.tools.running import run_of
from egpu.tools.sections import common_data, cost, coverage, launch_data

if TYPE_CHECKING:
    from egpu.session import Ring, Session
    from egpu.session.features import Clock
    from egpu.session.prints import Line, Prints


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
        session = self._session
        run = run_of(session)
        parts, maps = self._maps()
        parts += _print_report(session.prints)
        if not session.simulated:  # whose clock the report says is simulated
            parts += _clock_report(session.clocks)
        parts += [*coverage(run), *cost(run)]
        data = {
            "maps": maps,
            "counters": self._counters(),
            "kernels": [launch_data(kernel) for kernel in run.kernels],
            "printed": asdict(session.prints.totals()),
            "clocks": [asdict(clock) for clock in session.clocks],
        }
        return Report("object/1", tuple(parts), common_data(run) | data)

    def _maps(self) -> tuple[list[Part], dict[str, object]]:
        """What the maps hold, and how many records the rings had."""
        views = self._session.maps.items()
        reports = {
            name: map_report(name, view) for name, view in views if isinstance(view, WITH_ENTRIES)
        }
        reports |= {name: ring_report(name, ring) for name, ring in self._rings()}
        parts = [part for report in reports.values() for part in report.parts]
        return parts, {name: report.data for name, report in reports.items()}

    def _counters(self) -> dict[str, dict[str, int]]:
        """What hash maps refused, gave up and evicted."""
        return {
            name: {each: view.counter(each) for each in ("full", "busy", "evicted")}
            for name, view in self._session.maps.items()
            if isinstance(view, HashView)
        }

    def _rings(self) -> Iterator[tuple[str, Ring]]:
        for name, view in self._session.maps.items():
            if not isinstance(view, WITH_ENTRIES):
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
            # A record without a type is bytes as a whole.
            text = shown(record, typed=not isinstance(record, bytes))
            self._stream.write(f"{name}: {text}\n")
        self._stream.flush()


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
