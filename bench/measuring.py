"""Running a benchmark's kernels with bench/launcher.c under egpu, one row at a time.

Rows are known, printed and kept as they are measured, so that a run which is cut short still says
what it found.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

from building import build_native, command, link_with_driver  # noqa: E402 - the path comes first

START = time.monotonic()
BLOCK = 256  # threads
_POLL_S = 0.01  # seldom, so that few of the launches that are timed are read meanwhile
_WATCH_S, _QUIET_S = 0.0002, 0.02


def say(what: str) -> None:
    """Progress, so that one sees where a slow run is."""
    print(f"{time.monotonic() - START:6.1f} s  {what}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Plan:
    """What the launcher is to do: kernels of ``source``.cu under ``programs``.

    ``steps`` are lines of the launcher's plan.  ``maps`` are read when the workload has ended,
    ``rings`` meanwhile.
    """

    source: str
    programs: tuple[str, ...]
    memory: str
    steps: tuple[str, ...]
    maps: tuple[str, ...] = ()
    rings: tuple[str, ...] = ()
    quiet: bool = False  # rings are read only when nothing came out of device memory for a while
    budget_us: int = 400_000  # a row
    thread_slots: int | None = None


@dataclass
class Measured:
    """What came of a plan: the launcher's rows (``step``: place in the plan, ``at``: when it was
    known), sums of maps, what became of rings' records, and the reader's own pace."""

    rows: list[dict] = field(default_factory=list)
    sums: dict[str, int] = field(default_factory=dict)
    rings: dict[str, dict] = field(default_factory=dict)
    read_bytes: int = 0
    read_s: float = 0.0  # of reading, without waiting
    read: list[tuple[float, int]] = field(default_factory=list)  # when, bytes until then
    drained: list[tuple[float, int]] = field(default_factory=list)  # the same, out of device memory

    def bursts(self, row: dict) -> list[tuple[float, int]]:
        """Of each launch of a row of bursts: seconds from its begin until the last of what it wrote
        to rings in device memory was in the host's, and bytes of that, headers included."""
        begun = [each / 1e6 for each in row["begun"]]
        found = []
        for began, ended in pairwise([*begun, row["ended"] / 1e6]):
            before = max((bytes_ for at, bytes_ in self.drained if at <= began), default=0)
            last = max((bytes_ for at, bytes_ in self.drained if at <= ended), default=before)
            done = next((at for at, bytes_ in self.drained if bytes_ == last), began)
            found.append((max(0.0, done - began), last - before))
        return found

    def row(self, kernel: str) -> dict:
        return next(row for row in self.rows if row["kernel"] == kernel)

    def read_until(self, when: float) -> int:
        """Bytes that were read until then."""
        return max((count for at, count in self.read if at <= when), default=0)

    def threads(self, kernel: str) -> int:
        """Threads of all launches of a kernel."""
        rows = (row for row in self.rows if row["kernel"] == kernel)
        return sum(row["threads"] * row["launches"] for row in rows)


def build(folder: Path, sources: Sequence[str], *, native: bool) -> None:
    """The launcher, the kernels' PTX and, where asked for, egpu's native parts."""
    if shutil.which("nvcc") is None:
        sys.exit("nvcc is needed, to compile the kernels")
    work = folder / "launcher.d"
    work.mkdir(parents=True, exist_ok=True)
    if native:
        build_native()
    command("cc", "-std=c11", "-O2", "-c", HERE / "launcher.c", "-o", work / "launcher.o")
    link_with_driver(work / "launcher.o", folder / "launcher")
    for name in sources:
        ptx = folder / f"{name}.ptx"
        command("nvcc", "-ptx", "-std=c++17", "-arch=compute_80", HERE / f"{name}.cu", "-o", ptx)
    say("built")


def measure(
    plan: Plan,
    folder: Path,
    keep: Callable[[list[dict]], None],
    *,
    simulated: bool,
    rings: str = "host",
) -> Measured:
    """Run a plan; ``keep`` gets the rows so far after each.  Ends the program if a launch fails.
    ``rings``: which memory programs write records to."""
    from egpu import session  # noqa: PLC0415 - its native parts are built by now

    paths = [str(HERE / "probes" / f"{name}.bpf.o") for name in plan.programs]
    options = session.Options(
        simulated=simulated,
        allow_occupancy_loss=True,
        thread_slots=plan.thread_slots,
        rings=session.RingMemory(rings),
    )
    text, output = folder / "plan.txt", folder / "rows.jsonl"
    text.write_text("\n".join((plan.memory, f"budget {plan.budget_us}", *plan.steps)) + "\n")
    output.write_bytes(b"")
    argv = [str(folder / "launcher"), str(folder / f"{plan.source}.ptx"), str(text)]
    shell = ["sh", "-c", 'exec "$0" "$@" > ' + f"'{output}'", *argv]
    found = Measured()
    with session.run(shell, programs=paths, options=options) as running:
        ended = threading.Event()
        readers = [
            threading.Thread(target=_read_rows, args=(output, found, keep, ended)),
            threading.Thread(target=_drain, args=(running, plan, found, ended)),
        ]
        if rings == "device":
            watching = (running, plan.rings, found, ended)
            readers.append(threading.Thread(target=_watch, args=watching))
        for reader in readers:
            reader.start()
        code = running.wait()
        ended.set()
        for reader in readers:
            reader.join()
        say(f"workload ended, exit {code}")
        if code != 0:
            sys.exit(f"{argv[0]}: exit {code}")
        unprobed = [row for row in running.twins() if row.reason]
        for row in unprobed:
            say(f"{row.kernel} was not probed: {row.reason}")
        found.sums = {name: _sum(running.maps[name]) for name in plan.maps}
        found.rings = {name: _finish(running.maps[name]) for name in plan.rings}
        say("maps read")
    return found


def _read_rows(path: Path, found: Measured, keep: Callable, ended: threading.Event) -> None:
    with path.open() as lines:
        line, last = "", False
        while not last:
            last = ended.wait(_POLL_S)
            while part := lines.readline():
                line += part
                if line.endswith("\n"):
                    row, line = json.loads(line), ""
                    row |= {"step": len(found.rows), "at": time.monotonic()}
                    found.rows.append(row)
                    took = f"{row['us']} us" if "us" in row else "bursts"
                    say(f"{row['kernel']}: {took}, {row['launches']} launches")
                    keep(found.rows)


def _drain(running: object, plan: Plan, found: Measured, ended: threading.Event) -> None:
    last, pause = not plan.rings, 0.0
    while not last:
        last, pause = ended.wait(pause), _POLL_S
        if plan.quiet and not last and not _quiet(found):
            continue
        for name in plan.rings:
            for _, reader in running.maps[name].readers():
                began, taken = time.monotonic(), 0
                for batch in reader.batches():
                    taken += batch.count * batch.stride
                if taken:
                    pause = 0.0
                    found.read_bytes += taken
                    now = time.monotonic()
                    found.read_s += now - began
                    found.read.append((now, found.read_bytes))


def _quiet(found: Measured) -> bool:
    """Whether nothing came for a while."""
    if not found.drained:
        return False
    now, bytes_ = found.drained[-1]
    since = next((at for at, drained in reversed(found.drained) if drained != bytes_), 0.0)
    return now - since >= _QUIET_S


def _watch(running: object, names: Sequence[str], found: Measured, ended: threading.Event) -> None:
    """How far the agent has copied records out of device memory, again and again."""
    from egpu.maps.layout import READER_STRIDE, RING_READER  # noqa: PLC0415 - as above

    step = READER_STRIDE // 8
    while not ended.wait(_WATCH_S):
        drained = 0
        for name in names:
            for arena, reader in running.maps[name].readers():
                first = (reader.place.ring_readers + RING_READER["limit"][0]) // 8
                words = arena.host.words[first : first + arena.layout.sm_slots * step : step]
                drained += int(words.sum())
        found.drained.append((time.monotonic(), drained))


def _finish(ring: object) -> dict:
    """What became of a ring's records, the last ones included."""
    from egpu.maps import ring_controls  # noqa: PLC0415 - as above

    counts = {"received": 0, "dropped": 0, "holes": 0}
    for arena, reader in ring.readers():
        place = reader.place
        reader.drain_final(ring_controls(arena.host.snapshot(), place, arena.layout.sm_slots))
        for name in counts:
            counts[name] += getattr(reader.counts, name)
    return counts


def _sum(view: object) -> int:
    """The sum of all values of a map of numbers."""
    if hasattr(view, "_raw_read"):  # a million entries, which nobody needs decoded
        rows = (values[0].tobytes() for _, values in view._raw_read())
        return sum(int.from_bytes(row, "little") for row in rows)
    values = view.values()
    return sum(sum(value) if isinstance(value, tuple | list) else value for value in values)
