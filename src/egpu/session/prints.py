"""What programs print with bpf_printk: lines as they come, with who printed them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from egpu.bpf.demangle import demangle
from egpu.bpf.prints import PrintCall, Printed, decode_record
from egpu.maps import ring_controls
from egpu.session.arenas import Arena
from egpu.session.host_programs import HostLine
from egpu.session.ring import Ring, RingTotals
from egpu.verifier import VerifiedProgram


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the process and the kernel it came from, and what was sent."""

    pid: int
    kernel: str
    printed: Printed

    def __str__(self) -> str:
        block, thread = (",".join(map(str, of)) for of in (self.printed.block, self.printed.thread))
        where = f"{self.kernel}[{self.pid}] block {block} thread {thread}"
        return f"{where}: {self.printed.text}"


@dataclass(frozen=True, slots=True)
class PrintTotals:
    """``shown`` lines were given out, ``suppressed`` held back by the limit; ``dropped`` did not
    fit the ring, ``missing`` were begun and never finished."""

    shown: int
    suppressed: int
    dropped: int
    missing: int


def print_calls(programs: Iterable[VerifiedProgram]) -> dict[int, PrintCall]:
    """Every call that ``programs`` print by, by site."""
    return {
        call.site: call
        for program in programs
        for shown in program.facts.prints.values()
        for call in shown.each()
    }


class Prints:
    """The lines of a session; for one thread at a time.  Empty if no program prints.

    At most ``limit`` lines are given out in a second (0: all); the others are counted.
    """

    def __init__(
        self,
        ring: Ring | None,
        calls: Mapping[int, PrintCall],
        kernel_name: Callable[[int], str],
        *,
        limit: int,
        host: Callable[[], Sequence[HostLine]] = tuple,
    ) -> None:
        """``host`` gives the lines that programs on the host printed since it was last called."""
        self._ring = ring
        self._calls = calls
        self._kernel_name = kernel_name
        self._limit = limit
        self._host = host
        self._second = 0.0
        self._in_second = 0
        self._shown = 0
        self._suppressed = 0

    @property
    def used(self) -> bool:
        """Whether a program prints at all."""
        return self._ring is not None

    def __iter__(self) -> Iterator[Line | HostLine]:
        """The lines that are there now, in the order of their times on each device."""
        yield from (line for line in self._host() if self._may_show())
        if self._ring is not None:
            for arena, reader in self._ring.readers():
                found = [record for batch in reader.batches() for record in batch.records()]
                yield from self._lines(arena, found)

    def finish(self) -> Iterator[Line | HostLine]:
        """The last lines, after the workload ended; then :meth:`totals` is complete."""
        yield from (line for line in self._host() if self._may_show())
        if self._ring is None:
            return
        for arena, reader in self._ring.readers():
            controls = ring_controls(arena.host.snapshot(), reader.place, arena.layout.sm_slots)
            batches = reader.drain_final(controls)
            yield from self._lines(arena, [r for batch in batches for r in batch.records()])

    def totals(self) -> PrintTotals:
        """The counts so far; drops and losses as of the last snapshot."""
        rings = self._ring.totals() if self._ring is not None else RingTotals(0, 0, 0, 0, 0)
        return PrintTotals(self._shown, self._suppressed, rings.dropped, rings.holes)

    def _lines(self, arena: Arena, records: list[bytes]) -> Iterator[Line]:
        found = [line for each in records if (line := decode_record(each, self._calls))]
        for line in sorted(found, key=lambda line: line.time):
            if self._may_show():
                yield Line(arena.pid, demangle(self._kernel_name(line.kernel_id)), line)

    def _may_show(self) -> bool:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._in_second = now, 0
        self._in_second += 1
        if self._limit and self._in_second > self._limit:
            self._suppressed += 1
            return False
        self._shown += 1
        return True
