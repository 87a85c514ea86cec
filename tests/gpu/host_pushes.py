"""Threads and the host on one queue (probes/pushed.bpf.c)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from host_maps import HERE, Stepper

import egpu as api

PROGRAM = HERE / "probes" / "pushed.bpf.o"
PUSHED, REFUSED_PUSHES, POPPED, TORN = 1, 2, 3, 5  # of its results
FAR = 1 << 40  # a number that no thread has


def exchange(options: api.Options, *, grid: int, block: int, times: int, rounds: int) -> tuple:
    """How many values the host pushed, what it popped, what is left, the programs' results."""
    popped = []
    with tempfile.TemporaryDirectory(prefix="egpu-check-") as folder:
        stepper = Stepper(Path(folder))
        with api.run(stepper.argv, programs=PROGRAM, options=options) as session:
            queue = session.maps["waiting"]
            queue.push((FAR, 3 * FAR))
            stepper.do(f"start first {grid} {block} {times}")
            for number in range(1, rounds):
                queue.push((FAR + number, 3 * (FAR + number)))
                popped.append(queue.pop())
            stepper.do("wait")
            session.snapshot()
            left, counts = list(queue), dict(session.maps["results"])
            stepper.end(session)
    return rounds, popped, left, counts
