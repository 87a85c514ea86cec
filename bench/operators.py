"""What probes in machine code cost eight PyTorch operators, as ratios within one process.

    PYTHONPATH=src python bench/operators.py [--rounds N] [--operator NAME]... [--json FILE]
                                              [--rings host|device]

All processes are there at once, and are asked for one operator after the other, in turn, so that
only one has work.  In ``linked`` probes are attached for a measurement and taken out for the next:

    counters      threads counted per SM at entry and exit by a lane of each warp
    kernelcount   the tool
    records       32 bytes for each warp that leaves, launch after launch; most find no room
    records room  the same into rings that hold a launch's, which are read before the next launch

and each is compared with the measurement before it, without any.  ``sampled out``: in the same way
counters that are attached, but left out of all launches but a kernel's first.  ``unmatched``: a
process under the tool with a glob that matches no kernel, and so reads no image, compared with the
plain process before it; ``again`` is a second plain process, compared with the first.  A ratio is
the median over rounds; beside it stand the least and the most, and how many of the launches (a
spinning kernel's and those that wait for twins among them) were probed: where none was, the ratio
says nothing.  Every process and every way must give the same results.  Needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

from observing import environment  # noqa: E402 - the path above comes first

from egpu import session  # noqa: E402 - as above
from egpu.bpf.object import read_object  # noqa: E402 - as above
from egpu.maps import ring_controls  # noqa: E402 - as above

PROBES = HERE / "probes"
KERNELCOUNT = ROOT / "src" / "egpu" / "tools" / "kernelcount" / "kernelcount.bpf.o"
OBJECTS = {
    "counters": PROBES / "counters.bpf.o",
    "kernelcount": KERNELCOUNT,
    "records": PROBES / "records.bpf.o",
    "records room": PROBES / "records_room.bpf.o",
}
MANY = {"do": "time", "warm": 3, "calls": 20, "times": 3}
ONE = {"do": "time", "warm": 0, "calls": 1, "times": 1}
ONES = 5  # launches one by one, each with a pause behind it
_ANSWER_S = 120.0
_POLL_S = 0.001
_ROOM_S = 0.005  # until what was read is room again


class Asked:
    """A workload that is asked through two pipes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.pipes = [folder / f"{name}.{which}" for which in ("commands", "answers")]
        for each in self.pipes:
            os.mkfifo(each)
        self.argv = [sys.executable, str(HERE / "operators_workload.py"), *map(str, self.pipes)]
        self._files = [os.open(each, os.O_RDWR) for each in self.pipes]
        self._text = b""

    def ask(self, **command: object) -> None:
        os.write(self._files[0], json.dumps(command).encode() + b"\n")

    def answer(self) -> object:
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._files[1]], [], [], _ANSWER_S)
            if not ready:
                sys.exit(f"operators.py: {self.name} does not answer")
            self._text += os.read(self._files[1], 1 << 16)
        line, _, self._text = self._text.partition(b"\n")
        return json.loads(line)

    def asked(self, **command: object) -> float:
        self.ask(**command)
        return float(self.answer())


class Records:
    """Reads the rings of a session all the time, as ``egpu run`` does, and counts records."""

    def __init__(
        self, running: session.Session, names: Sequence[str], memory: session.RingMemory
    ) -> None:
        self._running = running
        self._memory = memory
        self._names = names
        self._ended = threading.Event()
        self._passes = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            taken = 0
            for name in self._names:
                for _, reader in self._running.maps[name].readers():
                    taken += sum(batch.count for batch in reader.batches())
            if not taken:
                self._passes += 1
                time.sleep(_POLL_S)

    def drained(self) -> None:
        """Wait until everything that is there now was read."""
        until = self._passes + 2
        while self._passes < until:
            time.sleep(_POLL_S)
        if self._memory is session.RingMemory.DEVICE:
            while any(self.left(name) for name in self._names):
                time.sleep(_POLL_S)
            time.sleep(_ROOM_S)

    def left(self, name: str) -> int:
        """Records of rings in device memory that were written and not read yet."""
        read = [reader.counts for _, reader in self._running.maps[name].readers()]
        done = sum(each.received + each.discarded for each in read)
        return self.counts(name)[0] - done

    def counts(self, name: str) -> tuple[int, int]:
        """(written, dropped) until now, by the device's own counters."""
        self._running.snapshot()
        written = dropped = 0
        for arena, reader in self._running.maps[name].readers():
            controls = ring_controls(arena.host.snapshot(), reader.place, arena.layout.sm_slots)
            written += sum(each.produced for each in controls)
            dropped += sum(each.dropped for each in controls)
        return written, dropped

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def ring_of(way: str) -> str:
    """The map of a way's object: both have one of that name."""
    return f"{OBJECTS[way].name}.records"


class Linked:
    """A workload of a session, whose probes come and go."""

    def __init__(
        self,
        asked: Asked,
        running: session.Session,
        ways: Sequence[str],
        records: Records | None,
    ) -> None:
        self.asked = asked
        self.running = running
        self.records = records
        names = iter(running.links)  # object by object, as they were given
        self.links = {
            way: [next(names) for _ in read_object(OBJECTS[way].read_bytes(), way).programs]
            for way in ways
        }

    @contextlib.contextmanager
    def attached(self, way: str) -> Iterator[None]:
        self.running.change_links(self.links[way], attached=True)
        yield
        self.running.change_links(self.links[way], attached=False)


Row = dict[str, float]


class Counted:
    """What a session counted of a way between two moments: launches that were probed and all, and
    records that were written and that found no room."""

    def __init__(self, linked: Linked, way: str) -> None:
        self._linked, self._way = linked, way
        self._before = self._now()

    def _now(self) -> Row:
        kernels = self._linked.running.kernels()
        found = {
            "launches": sum(row.seen for row in kernels),
            "probed": sum(row.probed for row in kernels),
        }
        if self._way.startswith("records") and self._linked.records:
            written, dropped = self._linked.records.counts(ring_of(self._way))
            found |= {"written": written, "dropped": dropped}
        return found

    def since(self) -> Row:
        return {name: value - self._before[name] for name, value in self._now().items()}


def many(linked: Linked, way: str, operator: str) -> Row:
    """Launch after launch, without and with probes."""
    before = linked.asked.asked(**MANY, operator=operator)
    counted = Counted(linked, way)
    with linked.attached(way):
        after = linked.asked.asked(**MANY, operator=operator)
        return {"us": after, "without_us": before, "ratio": after / before} | counted.since()


def one_by_one(linked: Linked, way: str, operator: str) -> Row:
    """One launch after the other, with pauses in which records are read."""
    records = linked.records
    assert records is not None

    def launches() -> list[float]:
        times = []
        for _ in range(ONES + 1):
            times.append(linked.asked.asked(**ONE, operator=operator))
            records.drained()
        return times[1:]  # the first one waits for its twin

    before = launches()
    counted = Counted(linked, way)
    with linked.attached(way):
        after = launches()
        found = {
            "us": statistics.median(after),
            "without_us": statistics.median(before),
            "ratio": statistics.median(after) / statistics.median(before),
        }
        return found | counted.since()


def beside(one: Asked, other: Asked, operator: str) -> Row:
    """Another process, compared with the plain one."""
    before = one.asked(**MANY, operator=operator)
    after = other.asked(**MANY, operator=operator)
    return {"us": after, "without_us": before, "ratio": after / before}


class Bench:
    """Every process, and what is measured in them."""

    def __init__(
        self, folder: Path, stack: contextlib.ExitStack, memory: session.RingMemory
    ) -> None:
        self._memory = memory
        self._report = folder / "report.json"
        egpu = [sys.executable, "-m", "egpu", "run", "kernelcount", "--json", "-o"]
        unmatched = [*egpu, str(self._report), "--kernels", "no_such_kernel", "--"]
        self.started: list[subprocess.Popen] = []
        self.plain = self._process(folder, "plain", [])
        self.again = self._process(folder, "again", [])
        self.unmatched = self._process(folder, "unmatched", unmatched)
        self.linked = self._session(folder, stack, [*OBJECTS], sample=1)
        self.sampled = self._session(folder, stack, ["counters"], sample=1_000_000)
        self.all = (self.plain, self.again, self.unmatched, self.linked.asked, self.sampled.asked)
        self.operators, *_ = [each.answer() for each in self.all]

    def _process(self, folder: Path, name: str, egpu: list[str]) -> Asked:
        asked = Asked(folder, name)
        self.started.append(subprocess.Popen([*egpu, *asked.argv], env=environment()))
        return asked

    def _session(
        self, folder: Path, stack: contextlib.ExitStack, ways: Sequence[str], *, sample: int
    ) -> Linked:
        asked = Asked(folder, "linked" if sample == 1 else "sampled")
        paths = [str(OBJECTS[way]) for way in ways]
        options = session.Options(sample=sample, rings=self._memory)
        running = stack.enter_context(session.run(asked.argv, programs=paths, options=options))
        running.detach()
        records = None
        if "records" in ways:
            records = Records(running, [*map(ring_of, ("records", "records room"))], self._memory)
            stack.callback(records.close)
        return Linked(asked, running, ways, records)

    def digests(self) -> None:
        """End the program where something has another result."""
        for each in self.all:
            each.ask(do="digests")
        expected, *others = [each.answer() for each in self.all]
        for way in OBJECTS:
            with self.linked.attached(way):
                self.linked.asked.ask(do="digests")
                others.append(self.linked.asked.answer())
        if any(each != expected for each in others):
            sys.exit(f"operators.py: other results: {expected}, {others}")

    def ways(self) -> dict[str, Callable[[str], Row]]:
        return {
            "again": lambda name: beside(self.plain, self.again, name),
            "unmatched": lambda name: beside(self.plain, self.unmatched, name),
            "sampled out": lambda name: many(self.sampled, "counters", name),
            **{
                way: (lambda name, way=way: many(self.linked, way, name))
                for way in ("counters", "kernelcount", "records")
            },
            "records room": lambda name: one_by_one(self.linked, "records room", name),
        }

    def end(self) -> None:
        """Let every process end; the unmatched one must have read no image."""
        for each in self.all:
            each.ask(do="end")
        for process in self.started:
            if process.wait(60):
                sys.exit(f"operators.py: a process ended with {process.returncode}")
        for linked in (self.linked, self.sampled):
            linked.running.wait(60)
        cost = json.loads(self._report.read_text())["cost"]
        if cost["images"] or cost["twins"]:
            sys.exit(f"operators.py: no kernel matches, and yet {cost}")
        if not any(row.probed for row in self.linked.running.kernels()):
            sys.exit("operators.py: nothing was probed")
        left_out = sum(row.seen - row.probed for row in self.sampled.running.kernels())
        probed = sum(row.probed for row in self.sampled.running.kernels())
        if not 0 < probed < left_out / 100:
            sys.exit(f"operators.py: {probed} probed, {left_out} left out by sampling")
        for row in self.linked.running.explain():
            for reason in row.why_not:
                print(f"operators.py: {row.kernel} in some way: {reason}", file=sys.stderr)


def measure(
    rounds: int, chosen: Sequence[str], keep: Callable[[dict], None], memory: session.RingMemory
) -> dict:
    """Rows of every round by way and operator."""
    seen: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        bench = Bench(Path(folder), stack, memory)
        bench.digests()
        for _ in range(rounds):
            for name in chosen or bench.operators:
                for way, run in bench.ways().items():
                    seen[way][name].append(run(name))
            keep(seen)
        bench.end()
    return seen


def summary(seen: dict[str, dict[str, list[Row]]]) -> dict[str, dict[str, Row]]:
    """Medians by way and operator, with the spread of ratios; "geomean" over operators."""
    found: dict[str, dict[str, Row]] = {}
    for way, operators in seen.items():
        rows: dict[str, Row] = {}
        for name, each in operators.items():
            ratios = [row["ratio"] for row in each]
            rows[name] = {key: statistics.median(row[key] for row in each) for key in each[0]}
            rows[name] |= {"least": min(ratios), "most": max(ratios)}
        by_round = [
            math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows_of_round))
            for rows_of_round in zip(*operators.values(), strict=True)
        ]
        rows["geomean"] = {
            "ratio": math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows.values())),
            "least": min(by_round),
            "most": max(by_round),
        }
        found[way] = rows
    return found


def table(result: dict[str, dict[str, Row]]) -> str:
    lines = []
    for way, rows in result.items():
        lines.append(way)
        for name, row in rows.items():
            times = f"{row['without_us']:>9.1f} us" if "us" in row else " " * 12
            line = f"  {name:<22}{times}{row['ratio']:>9.4f}  {row['least']:.4f}-{row['most']:.4f}"
            if "probed" in row:
                line += f"  {row['probed']:,.0f} of {row['launches']:,.0f} launches probed"
            if "written" in row:
                line += f", {row['written']:,.0f} records written, {row['dropped']:,.0f} dropped"
            lines.append(line)
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--operator", action="append", default=[], metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rings", choices=["host", "device"], default="host")
    options = parser.parse_args(arguments)

    def keep(seen: dict) -> None:
        if options.json:
            options.json.write_text(json.dumps({"raw": seen, "summary": summary(seen)}) + "\n")

    memory = session.RingMemory(options.rings)
    print(table(summary(measure(options.rounds, options.operator, keep, memory))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
