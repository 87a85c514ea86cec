"""The way that led to a refusal, walked again to show it."""

from __future__ import annotations

from dataclasses import dataclass

from egpu.bpf.isa import CallSrc, Kind
from egpu.verifier import branch, calls
from egpu.verifier.execute import apply, first_state
from egpu.verifier.report import path_entry
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import State


@dataclass(frozen=True, slots=True)
class Way:
    """The branches taken since ``start`` (a state and where it was), None: the program's begin."""

    start: tuple[State, int] | None
    decisions: tuple[bool, ...]


def replay(setting: Setting, way: Way, length: int) -> tuple[str, ...]:
    """The last of the first ``length`` instructions of a way, with the registers before each."""
    state, pc = (first_state(setting), 0) if way.start is None else way.start
    state, ways = state.copy(), iter(way.decisions)
    lines: list[str] = []
    recorder = Recorder()
    for remaining in range(length, 0, -1):
        step = setting.structure.step(pc)
        if remaining <= setting.limits.path:
            lines.append(path_entry(setting.program, pc, state.frame))
        if remaining == 1:
            break  # the refused one
        if step.kind is Kind.JUMP:
            fallen, jumping = branch.decide(setting, state, step)
            jumps = fallen is None or (jumping is not None and next(ways))
            chosen = jumping if jumps else fallen
            assert chosen is not None, "the way was walked before"
            state, pc = chosen, step.target if jumps else step.following
        elif step.kind is Kind.CALL and step.src == CallSrc.HELPER:
            calls.call(setting, recorder, state, step)
            pc = step.following
        else:
            target = apply(setting, recorder, state, step)
            assert target is not None, "the way was walked further"
            pc = target
    return tuple(lines)
