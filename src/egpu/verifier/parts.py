"""What is walked once and stands for many, turns of loops and calls of callbacks; how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from egpu.verifier.loops import Loop
from egpu.verifier.replay import Way
from egpu.verifier.report import Refusal
from egpu.verifier.state import State


@dataclass(frozen=True, slots=True)
class Part:
    """One turn of a loop, or one call of a callback (``loop`` None), in the ``depth``-th frame."""

    depth: int
    head: int
    loop: Loop | None

    @property
    def stops(self) -> frozenset[int]:
        return frozenset() if self.loop is None else self.loop.exits

    def ended(self, pc: int, state: State, begun: bool) -> bool:
        """Whether the turn is over at ``pc``."""
        if self.loop is None or len(state.frames) != self.depth:
            return False
        return begun if pc == self.head else pc not in self.loop.body

    def returns(self, state: State) -> bool:
        """Whether an EXIT here is the callback's."""
        return self.loop is None and len(state.frames) == self.depth


class TooDearError(Exception):
    """The turns of a loop are known, and cost more than a thread may spend."""


class Stopped(Exception):
    """A refusal with the place and the way that led there.

    ``decisions`` are the branches taken, ``length`` the instructions executed on that way.
    """

    def __init__(self, refusal: Refusal, pc: int, decisions: Way, length: int) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.pc = pc
        self.decisions = decisions
        self.length = length
