"""Runs the steps of a kernel for one chunk of blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from egpu.sim.faults import FaultKind, LaneFault, SimulatedFault
from egpu.sim.lanes import WARP, Lanes
from egpu.sim.ops_memory import full
from egpu.sim.scheduler import Threads
from egpu.sim.steps import Action, Barrier, Kernel, Step
from egpu.sim.types import Array

BARRIERS = 16


class Chunk:
    """One execution: ``run`` returns when every thread has exited.

    ``tick`` is called for each step executed; it may raise to end a launch that runs too long.
    """

    def __init__(self, kernel: Kernel, lanes: Lanes, tick: Callable[[], None]) -> None:
        self.kernel = kernel
        self.steps = kernel.steps
        self.lanes = lanes
        self.tick = tick
        self.threads = Threads(lanes)
        # arrivals without waiting (bar.arrive), per block and barrier
        self.arrived: Array = np.zeros((lanes.block_count, BARRIERS), np.int64)
        lanes.registers = [np.zeros(lanes.count, type.raw) for type in kernel.layout.registers]

    def run(self) -> None:
        """SimulatedFault, UnsupportedError as the kernel deserves."""
        while (group := self.threads.next_group()) is not None:
            step, select, limit = group
            self.lanes.select = select
            try:
                self._burst(step, limit)
            except LaneFault as fault:
                raise self._fault(fault) from None
        if not self.threads.exited.all():
            self._deadlock()

    def _burst(self, number: int, limit: int) -> None:
        """Straight-line steps of one group, up to a flow step or the next group."""
        lanes, steps = self.lanes, self.steps
        while number < limit:
            step = steps[number]
            self.now = step
            self.tick()
            lanes.elapsed += 1
            if step.action is not Action.PLAIN:
                self._age()
                self._flow(number, step)
                return
            if step.guard is None:
                if step.run is not None:
                    step.run(lanes)
            else:
                self._guarded(step)
            number += 1
        self._age()
        self.threads.ready[lanes.select] = number

    def _age(self) -> None:
        """The group's burst is over: its warps are that many steps older, each once."""
        self.lanes.age[self.lanes.warp[self.lanes.select]] += self.lanes.elapsed
        self.lanes.elapsed = 0

    def _guard(self, step: Step) -> Array:
        flags: Array = self.lanes.registers[step.guard or 0][self.lanes.select]
        return ~flags if step.guard_negated else flags

    def _guarded(self, step: Step) -> None:
        flags = self._guard(step)
        if not flags.any() or step.run is None:
            return
        before = self.lanes.select
        if not flags.all():
            self.lanes.select = self.lanes.active()[flags]
        step.run(self.lanes)
        self.lanes.select = before

    def _flow(self, number: int, step: Step) -> None:
        """A step that moves its threads; those whose guard is false go on."""
        lanes, threads = self.lanes, self.threads
        if step.guard is not None:
            flags = self._guard(step)
            everyone = lanes.active()
            threads.ready[everyone[~flags]] = number + 1
            if not flags.any():
                return
            if not flags.all():
                lanes.select = everyone[flags]
        match step.action:
            case Action.BRANCH:
                threads.ready[lanes.select] = step.target
            case Action.SWITCH:
                self._switch(step)
            case Action.EXIT:
                threads.exit(lanes.select)
                if threads.waiting_barriers:
                    self._release_barriers()
            case Action.BARRIER:
                assert step.barrier is not None
                self._barrier(number, step.barrier)
            case Action.COLLECTIVE:
                self._collective(number, step)
            case Action.TRAP:
                raise LaneFault(FaultKind.LAUNCH_FAILED, "trap", 0)
            case _:
                assert step.refusal is not None
                raise step.refusal

    def _switch(self, step: Step) -> None:
        assert step.index is not None
        index = full(self.lanes, step.index(self.lanes))
        wrong = np.flatnonzero(index >= len(step.targets))
        if len(wrong):
            message = f"brx.idx of {int(index[wrong[0]])} with {len(step.targets)} targets"
            raise LaneFault(FaultKind.LAUNCH_FAILED, message, int(wrong[0]))
        self.threads.ready[self.lanes.select] = np.array(step.targets, np.int32)[index]

    # Barriers of the block

    def _barrier(self, number: int, barrier: Barrier) -> None:
        lanes, threads = self.lanes, self.threads
        which = full(lanes, barrier.number(lanes)).astype(np.int64)
        wrong = np.flatnonzero(which >= BARRIERS)
        if len(wrong):
            message = f"barrier {int(which[wrong[0]])} does not exist (0 to {BARRIERS - 1})"
            raise LaneFault(FaultKind.LAUNCH_FAILED, message, int(wrong[0]))
        active = lanes.active()
        expected = np.zeros(len(active), np.int64)  # 0: whoever has not exited
        if barrier.count is not None:
            expected[:] = np.minimum(full(lanes, barrier.count(lanes)), lanes.shape.threads)
        if barrier.form == "arrive":
            np.add.at(self.arrived, (lanes.block[active], which), 1)
            threads.ready[active] = number + 1
        else:
            threads.park_at_barrier(active, number, which, expected)
        if threads.waiting_barriers:
            self._release_barriers()

    def _release_barriers(self) -> None:
        """Let go every barrier at which all expected threads have arrived."""
        lanes, threads = self.lanes, self.threads
        waiting = np.flatnonzero(threads.barrier >= 0)
        if not len(waiting):
            return
        alive = np.bincount(lanes.block[~threads.exited], minlength=lanes.block_count)
        key = lanes.block[waiting] * BARRIERS + threads.barrier[waiting]
        size = lanes.block_count * BARRIERS
        arrived = np.bincount(key, minlength=size) + self.arrived.reshape(-1)
        wanted = threads.expected[waiting]
        wanted = np.where(wanted > 0, wanted, alive[lanes.block[waiting]])
        free = waiting[arrived[key] >= wanted]
        if not len(free):
            return
        self._reduce(free)
        group = lanes.block[free] * BARRIERS + threads.barrier[free]
        latest = np.zeros(size, np.int64)  # all go on when the slowest warp is there
        np.maximum.at(latest, group, lanes.age[lanes.warp[free]])
        lanes.age[lanes.warp[free]] = latest[group]
        done = np.unique(group)
        self.arrived.reshape(-1)[done] = 0
        threads.release_barrier(free)

    def _reduce(self, free: Array) -> None:
        """bar.red: each released thread gets its barrier's combined predicate."""
        lanes, threads = self.lanes, self.threads
        for number in np.unique(threads.at[free]).tolist():
            barrier = self.steps[number].barrier
            if barrier is None or barrier.write is None or barrier.predicate is None:
                continue
            members = free[threads.at[free] == number]
            before, lanes.select = lanes.select, members
            flags = full(lanes, barrier.predicate(lanes))
            key = lanes.block[members] * BARRIERS + threads.barrier[members]
            size = lanes.block_count * BARRIERS
            yes = np.bincount(key, flags, size).astype(np.uint32)[key]
            everyone = np.bincount(key, minlength=size)[key]
            if barrier.form == "popc":
                barrier.write(lanes, yes)
            else:
                barrier.write(lanes, yes != 0 if barrier.form == "or" else yes == everyone)
            lanes.select = before

    # Warp-wide instructions

    def _collective(self, number: int, step: Step) -> None:
        """Run for the warps whose named lanes are all here, park the others."""
        lanes, threads, collective = self.lanes, self.threads, step.collective
        assert collective is not None
        active = lanes.active()
        places = np.full(len(active), number, np.int32)
        if threads.waiting_collectives:
            joined = np.flatnonzero(
                threads.collective & self._joinable(number, collective.anywhere)
            )
            threads.unpark_collective(joined)
            active = np.concatenate((active, joined))
            order = np.argsort(active)
            places = np.concatenate((places, threads.at[joined]))[order]
            active = active[order]
            lanes.select = active
        mask = self._masks(active, places, step)
        if not self._complete(active, mask, places):
            complete = self._complete_lanes(active, mask)
            threads.park_at_collective(active[~complete], number)
            threads.at[active[~complete]] = places[~complete]
            active, places = active[complete], places[complete]
            if not len(active):
                return
            lanes.select = active
        if step.run is not None:
            step.run(lanes)
        threads.ready[active] = places + 1

    def _joinable(self, number: int, anywhere: bool) -> Array:
        if not anywhere:
            result: Array = self.threads.at == number
            return result
        alike = [
            i
            for i in np.unique(self.threads.at[self.threads.collective]).tolist()
            if (other := self.steps[i].collective) is not None and other.anywhere
        ]
        return np.isin(self.threads.at, alike)

    def _masks(self, active: Array, places: Array, step: Step) -> Array:
        lanes = self.lanes
        assert step.collective is not None
        if (places == places[0]).all():
            mask = full(lanes, step.collective.mask(lanes))
        else:  # bar.warp.sync at several places, each with its own mask operand
            mask = np.zeros(len(active), np.uint32)
            for place in np.unique(places).tolist():
                chosen = places == place
                lanes.select = active[chosen]
                other = self.steps[place].collective
                assert other is not None
                mask[chosen] = other.mask(lanes)
            lanes.select = active
        own = np.left_shift(np.uint32(1), lanes.lane[active].astype(np.uint32))
        wrong = np.flatnonzero((mask & own) == 0)
        if len(wrong):
            message = f"the member mask {int(mask[wrong[0]]):#x} leaves out the lane that uses it"
            raise LaneFault(FaultKind.LAUNCH_FAILED, message, int(wrong[0]))
        return mask

    def _complete(self, active: Array, mask: Array, places: Array) -> bool:
        whole = len(active) == self.lanes.count
        return whole and bool((mask == np.uint32(0xFFFFFFFF)).all())

    def _complete_lanes(self, active: Array, mask: Array) -> Array:
        """Which active lanes have all lanes of their mask here with the same mask, exited ones
        left out."""
        lanes = self.lanes
        bit = np.left_shift(np.int64(1), lanes.lane)
        living = np.bincount(
            lanes.warp, np.where(self.threads.exited, 0, bit), lanes.warp_count
        ).astype(np.int64)
        warp = lanes.warp[active]
        needed = mask.astype(np.int64) & living[warp]
        key = warp << WARP | mask
        unique, inverse = np.unique(key, return_inverse=True)
        here = np.bincount(inverse, bit[active], len(unique)).astype(np.int64)[inverse]
        result: Array = (needed & ~here) == 0
        return result

    # Ends

    def _fault(self, fault: LaneFault) -> SimulatedFault:
        thread = int(self.lanes.active()[fault.lane])
        text = " ".join(self.now.text.split())
        return self._fault_at(f"{fault.message}, line {self.now.line}: {text}", fault.kind, thread)

    def _fault_at(self, message: str, kind: FaultKind, thread: int) -> SimulatedFault:
        def place(name: str) -> tuple[int, int, int]:
            special = self.lanes.special
            x, y, z = (int(special[f"{name}.{axis}"][thread]) for axis in "xyz")
            return x, y, z

        return SimulatedFault(
            message,
            kind=kind,
            kernel=self.kernel.name,
            block=place("%ctaid"),
            thread=place("%tid"),
        )

    def _deadlock(self) -> None:
        stuck = np.flatnonzero(~self.threads.exited)
        thread = int(stuck[0])
        step = self.steps[int(self.threads.at[thread])]
        text = " ".join(step.text.split())
        raise self._fault_at(
            f"deadlock: {len(stuck)} threads wait for threads that never come, "
            f"line {step.line}: {text}",
            FaultKind.TIMEOUT,
            thread,
        )
