"""Programs of uprobe sections: interpreted in the session while a launching thread waits."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from egpu.agent.protocol import Feature
from egpu.agent.twin import HostCall
from egpu.bpf import MapState, Place, run
from egpu.bpf.budget import NO_BUDGET
from egpu.bpf.interp_helpers import BODIES
from egpu.bpf.maptypes import MapType, traits
from egpu.bpf.own_maps import PRINT_RING, own_map
from egpu.bpf.program import MapSpec
from egpu.errors import EgpuError
from egpu.maps import Values
from egpu.session.host_checks import STACKS, TIMES, check_host
from egpu.session.host_maps import HostMap
from egpu.session.host_points import HostPoint, host_point
from egpu.session.host_sharing import Sharing, sharing
from egpu.verifier import VerifiedProgram

if TYPE_CHECKING:
    from egpu.bpf.interp import HelperBody, Machine
    from egpu.session.arenas import Arenas


@dataclass(frozen=True, slots=True)
class HostLine:
    """A line that a host program printed: its process and thread, its program, CLOCK_MONOTONIC."""

    pid: int
    thread: int
    program: str
    time: int
    text: str

    def __str__(self) -> str:
        return f"{self.program}[{self.pid}] thread {self.thread}: {self.text}"


@dataclass(frozen=True, slots=True)
class _HostProgram:
    verified: VerifiedProgram
    points: tuple[HostPoint, ...]


class HostPrograms:
    """The host programs of a session, which run one at a time.

    ``enabled`` says whether a program is attached now; ``problems`` are runs that failed.
    Raises UnsupportedError for a place, a helper or a use of a map that there is no way to serve.
    """

    def __init__(
        self,
        host: Sequence[VerifiedProgram],
        device: Sequence[VerifiedProgram],
        arenas: Arenas,
        enabled: Callable[[VerifiedProgram], bool],
    ) -> None:
        self._arenas = arenas
        self._enabled = enabled
        self._lock = threading.Lock()
        self._programs = tuple(
            _HostProgram(each, tuple(host_point(point) for point in each.program.attach))
            for each in host
        )
        for each in host:
            check_host(each)
        self._sharing = sharing(host, device, arenas.maps)
        for index, how in self._sharing.items():
            if how is Sharing.ADDED:
                arenas.additions[index] = MapState(replace(arenas.maps[index], initial=None))
        self._lines: list[HostLine] = []
        self.problems: list[str] = []

    @property
    def features(self) -> Feature:
        """What the agents must do for them."""
        found = Feature(0)
        for each in self._programs:
            if each.verified.facts.helpers & STACKS:
                found |= Feature.STACKS
            for point in each.points:
                found |= Feature.HOST_EXIT if point.leaving else Feature.HOST_ENTRY
        return found

    def taken_lines(self) -> list[HostLine]:
        """The lines that were printed since."""
        with self._lock:
            found, self._lines = self._lines, []
        return found

    def run(self, call: HostCall) -> None:
        """Run what is attached to a call; when this returns, what it did is on the device."""
        for each in self._programs:
            met = any(
                point.meets(call.call, leaving=call.leaving, pid=call.pid) for point in each.points
            )
            if met and self._enabled(each.verified):
                with self._lock, self._arenas.changing:
                    self._run(each.verified, call)

    def _run(self, verified: VerifiedProgram, call: HostCall) -> None:
        program, used = verified.program, verified.facts.maps
        states = [
            self._state(index) if index in used else _NOT_USED for index in range(len(program.maps))
        ]
        before = {index: _held(states[index]) for index in used}
        ring = own_map(program.maps, PRINT_RING)
        if ring is not None:
            states[ring] = MapState(program.maps[ring])
        try:
            run(
                program,
                context=b"",
                maps=states,
                helpers=_helpers(call.time),
                place=_place(call),
                budget=verified.facts.budget or NO_BUDGET,
            )
        except EgpuError as error:
            problem = f"program {program.name} at a launch: {error}"
            if problem not in self.problems:
                self.problems.append(problem)
            return
        for index in sorted(used):
            if self._sharing[index] is Sharing.GIVEN:
                self._give(index, states[index], before[index])
        if ring is not None:
            self._print(program.name, states[ring], call)

    def _state(self, index: int) -> MapState:
        """The map as the program finds it: of what both sides add to, what the host has added."""
        spec = self._arenas.maps[index]
        if self._sharing[index] is Sharing.ADDED:
            return self._arenas.additions[index]
        state = MapState(spec)
        for key, (value, *_) in self._arenas.initial.of(index).items():
            if traits(spec.type).indexed:
                state.value(int.from_bytes(key, "little"))[:] = value
            else:
                state.table[key] = bytearray(value)
        return state

    def _give(self, index: int, state: MapState, before: _Held) -> None:
        values, table = before
        now_values, now_table = _held(state)
        rows: list[tuple[bytes, Values]] = [
            (key, (value,)) for key, value in now_table.items() if table.get(key) != value
        ]
        if values:
            then, now = (np.frombuffer(data, np.uint8) for data in (values, now_values))
            changed = (then != now).reshape(-1, state.stride).any(axis=1)
            for entry in np.flatnonzero(changed).tolist():
                rows.append((entry.to_bytes(4, "little"), (bytes(state.value(entry)),)))
        HostMap(self._arenas, index).give(rows, [key for key in table if key not in now_table])

    def _print(self, program: str, state: MapState, call: HostCall) -> None:
        for record in state.records:
            text = record.decode("utf-8", "replace")
            self._lines.append(HostLine(call.pid, call.thread, program, call.time, text))


_Held = tuple[bytes, dict[bytes, bytes]]
_NOT_USED = MapState(MapSpec("not used", MapType.ARRAY, 4, 8, 1))


def _held(state: MapState) -> _Held:
    """What a map holds: an array's values, a table's entries."""
    return bytes(state.values), {key: bytes(value) for key, value in state.table.items()}


def _helpers(time: int) -> Mapping[int, HelperBody]:
    """The interpreter's bodies with the host's clock: when the thread came, and on from there."""

    def clock(machine: Machine, args: Sequence[int]) -> int:
        return time + machine.steps

    return {**BODIES, **dict.fromkeys(TIMES, clock)}


def _place(call: HostCall) -> Place:
    """Where a run is: the thread that waits."""
    where = Path(f"/proc/{call.pid}/task/{call.thread}")
    comm, owner = b"", 0
    with contextlib.suppress(OSError):  # it was killed while it waits
        comm = (where / "comm").read_bytes().rstrip(b"\n")
        status = where.stat()
        owner = status.st_gid << 32 | status.st_uid
    both = call.pid << 32 | call.thread
    return Place(
        pid_tgid=both,
        uid_gid=owner,
        comm=comm,
        stack=call.stack,
        callers=call.callers,
        seed=secrets.randbits(32),
    )
