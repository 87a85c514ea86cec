"""Two kernels and the host on the same maps: what the totals must be, whatever the order."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "probes" / "host_maps.bpf.o"
FIRST, SECOND, FACTORS, PRESENT, ABSENT, REFUSED = range(6)
KEYS = 10  # of blocks, by the programs
OURS = 100_000  # the first key of the host
KEPT = 64  # keys of the host that stay, and as many that come and go


class Stepper:
    """A workload that launches when it is told to (workloads/stepper.py)."""

    def __init__(self, folder: Path) -> None:
        self.commands, self.answers = folder / "commands", folder / "answers"
        os.mkfifo(self.commands)
        os.mkfifo(self.answers)
        script = HERE / "workloads" / "stepper.py"
        self.argv = [sys.executable, str(script), str(self.commands), str(self.answers)]
        self._to = self._from = None

    def do(self, line: str) -> None:
        if self._to is None:
            self._to = self.commands.open("w")
            self._from = self.answers.open()
        self._to.write(line + "\n")
        self._to.flush()
        answer = self._from.readline()
        if answer != "done\n":
            raise RuntimeError(f"{line}: the workload answers {answer!r}")

    def close(self) -> None:
        self._to.close()
        self._from.close()

    def end(self, session) -> None:
        self.do("nothing")
        self.close()
        if session.wait(120) != 0 or session.notes:
            raise RuntimeError(f"the workload ended with trouble: {session.notes}")


@dataclass(frozen=True)
class Amount:
    """Blocks of a launch, threads of a block, launches of each kernel in ``together``."""

    grid: int
    block: int
    times: int


class Expected:
    """What the programs have added so far."""

    def __init__(self) -> None:
        self.totals = {FIRST: 0, SECOND: 0, FACTORS: 0, PRESENT: 0, ABSENT: 0}
        self.blocks = dict.fromkeys(range(KEYS), 0)
        self.steps = 0

    def launched(self, kernel: int, grid: int, block: int, *, factor: int, step: int) -> None:
        threads = grid * block
        self.totals[kernel] += threads
        self.totals[FACTORS] += threads * factor
        self.totals[PRESENT] += grid
        self.steps += threads * step
        for key in range(KEYS):
            self.blocks[key] += len(range(key, grid, KEYS))

    def wrong(self, maps, ours) -> list[str]:
        """What is not as it must be; ``ours`` are the host's own entries of ``blocks``."""
        found = []
        totals = maps["totals"].to_dict()
        for key, value in self.totals.items():
            if totals[key] != value:
                found.append(f"totals[{key}] is {totals[key]}, not {value}")
        blocks = maps["blocks"].to_dict()
        wanted = {key: value for key, value in self.blocks.items() if value} | ours
        for key in sorted(blocks.keys() | wanted.keys()):
            if blocks.get(key) != wanted.get(key):
                found.append(f"blocks[{key}] is {blocks.get(key)}, not {wanted.get(key)}")
        if maps[".bss"]["steps"] != self.steps:
            found.append(f"steps is {maps['.bss']['steps']}, not {self.steps}")
        return found[:20]


def alternate(maps, stepper: Stepper, expected: Expected, amount: Amount) -> None:
    """The host sets, a kernel uses it, in turns."""
    for turn in range(6):
        kernel, factor, step = turn % 2, 3 + turn, 1 + turn * turn
        maps["settings"][kernel] = {"factor": factor, "bias": -turn}
        maps[".data"]["step"] = step
        grid, block = amount.grid // (turn + 1) + 1, amount.block - turn
        stepper.do(f"{('first', 'second')[kernel]} {grid} {block}")
        expected.launched(kernel, grid, block, factor=factor, step=step)


def together(maps, stepper: Stepper, expected: Expected, amount: Amount) -> tuple[dict, int, float]:
    """Both kernels at once, many times, while the host inserts, updates and deletes.

    The host's entries, how many changes it made while kernels ran, and the median time of one.
    """
    maps["settings"].update_batch({0: (2, 0), 1: (7, 0)})
    maps[".data"]["step"] = 3
    for kernel, name in enumerate(("first", "second")):
        stepper.do(f"start {name} {amount.grid} {amount.block} {amount.times}")
        for _ in range(amount.times):
            expected.launched(kernel, amount.grid, amount.block, factor=(2, 7)[kernel], step=3)
    running = threading.Thread(target=stepper.do, args=("wait",))
    running.start()
    blocks, changes, times, ours = maps["blocks"], 0, [], {}
    passing = range(OURS + KEPT, OURS + 2 * KEPT)
    while True:
        still = running.is_alive()
        started = time.perf_counter()
        ours = {OURS + key: changes + key for key in range(KEPT)}
        done = blocks.update_batch(ours | dict.fromkeys(passing, changes))
        done += blocks.delete_batch(passing)
        maps["settings"][3] = (changes, -1)
        times.append((time.perf_counter() - started) / 3)
        if not still:
            break
        changes += done + 1
    running.join()
    return ours, changes, sorted(times)[len(times) // 2]
