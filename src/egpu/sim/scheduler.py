"""Which threads run next: the group at the lowest step, until it branches or meets another.

Threads of one step run together.  Lowest first brings diverged threads together again where their
ways meet, as compilers lay code out; correctness does not depend on it, since a waiting thread is
parked and a starved group gets its turn (a spinning group would else keep its lock's holder from
running).
"""

from __future__ import annotations

import numpy as np

from egpu.sim.lanes import Lanes
from egpu.sim.types import Array

NEVER = np.iinfo(np.int32).max
# Runs of the lowest group while others wait, before the others get turns.  Spinning kernels pay the
# first number once, the second from then on.
PATIENCE = 2048
SPINNING_PATIENCE = 64


class Threads:
    """Where each thread of a chunk stands.

    ``ready`` is the step a runnable thread is at, NEVER for parked and exited ones; ``at`` the step
    of a parked thread; ``barrier`` the number of the barrier it waits at, -1 if none;
    ``collective`` whether it waits for lanes of its warp.
    """

    def __init__(self, lanes: Lanes) -> None:
        count = lanes.count
        self.ready: Array = np.zeros(count, np.int32)
        self.at: Array = np.zeros(count, np.int32)
        self.exited: Array = np.zeros(count, np.bool_)
        self.barrier: Array = np.full(count, -1, np.int8)
        self.expected: Array = np.zeros(count, np.int64)
        self.collective: Array = np.zeros(count, np.bool_)
        self.waiting_collectives = 0
        self.waiting_barriers = 0
        self._patience = PATIENCE
        self._runs = 0
        self._turn = 0

    def next_group(self) -> tuple[int, slice | Array, int] | None:
        """Step, threads and the step of the next group above (NEVER if none); None when nobody can
        run."""
        step = int(self.ready.min())
        if step == NEVER:
            return None
        members = np.flatnonzero(self.ready == step)
        if len(members) == len(self.ready):
            self._runs = 0
            return step, slice(None), int(NEVER)
        above = self._above(step)
        if above == NEVER:
            self._runs = 0
            return step, members, above
        self._runs += 1
        if self._runs > self._patience:
            return self._other_group()
        return step, members, above

    def _above(self, step: int) -> int:
        """The lowest step above the lowest one, where each distance that is less wraps around."""
        distances = (self.ready - np.int32(step + 1)).view(np.uint32)
        return min(int(distances.min()) + step + 1, int(NEVER))

    def _other_group(self) -> tuple[int, slice | Array, int]:
        """The groups take turns for a while; then the lowest has its patience anew."""
        self._patience = SPINNING_PATIENCE
        steps = np.unique(self.ready[np.flatnonzero(self.ready != NEVER)])
        self._turn += 1
        place = self._turn % len(steps)
        if self._runs > self._patience + 4 * len(steps):
            self._runs = 0
        above = int(steps[place + 1]) if place + 1 < len(steps) else int(NEVER)
        return int(steps[place]), np.flatnonzero(self.ready == steps[place]), above

    def park_at_barrier(self, threads: Array, step: int, number: Array, expected: Array) -> None:
        self.ready[threads] = NEVER
        self.at[threads] = step
        self.barrier[threads] = number
        self.expected[threads] = expected
        self.waiting_barriers += len(threads)

    def park_at_collective(self, threads: Array, step: int) -> None:
        self.ready[threads] = NEVER
        self.at[threads] = step
        self.collective[threads] = True
        self.waiting_collectives += len(threads)

    def unpark_collective(self, threads: Array) -> None:
        """They are part of the running group again; ``ready`` is set by whoever moves them."""
        self.collective[threads] = False
        self.waiting_collectives -= len(threads)

    def release_barrier(self, threads: Array) -> None:
        self.barrier[threads] = -1
        self.ready[threads] = self.at[threads] + 1
        self.waiting_barriers -= len(threads)

    def exit(self, threads: slice | Array) -> None:
        self.exited[threads] = True
        self.ready[threads] = NEVER
        if self.waiting_collectives:  # a lane less to wait for: let the waiting ones look again
            waiting = np.flatnonzero(self.collective)
            self.ready[waiting] = self.at[waiting]
            self.collective[:] = False
            self.waiting_collectives = 0
