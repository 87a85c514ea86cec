"""P4: the worst-case cost, as the longest path through the graph of explored states.

A node is a state at which exploration compared or split.  Exploration is depth-first, so a node is
finished when all its ways are, and its worst cost is then final: a way that ends at a finished node
adds that node's worst.  The graph has no cycles, since meeting an unfinished equal state is an
error.
"""

from __future__ import annotations

from typing import NamedTuple

from egpu.bpf.helpers import HELPERS
from egpu.bpf.isa import CallSrc, Kind
from egpu.verifier.state import State
from egpu.verifier.structure import Step
from egpu.verifier.verified import Cost


class Spent(NamedTuple):
    """Cost of a way, field by field as in Cost."""

    instructions: int = 0
    memory: int = 0
    atomics: int = 0
    helper_calls: int = 0
    helpers: int = 0
    ring_bytes: int = 0

    def plus(self, other: Spent) -> Spent:
        # Written out: this runs for every access of every way.
        return Spent(
            self[0] + other[0],
            self[1] + other[1],
            self[2] + other[2],
            self[3] + other[3],
            self[4] + other[4],
            self[5] + other[5],
        )

    def worst(self, other: Spent) -> Spent:
        return Spent(*[max(a, b) for a, b in zip(self, other, strict=True)])

    @property
    def weight(self) -> int:
        """What Limits.cost limits: instructions, helper bodies included."""
        return self.instructions + self.helpers

    def public(self) -> Cost:
        return Cost(*self)


NOTHING = Spent()
_ACCESSES = frozenset({Kind.LOAD, Kind.LOAD_SIGNED, Kind.STORE_IMM, Kind.STORE_REG})


def extra(step: Step) -> Spent | None:
    """What an instruction costs besides being one, None for most (ring bytes are added later)."""
    if step.kind in _ACCESSES:
        return Spent(memory=1)
    if step.kind is Kind.ATOMIC:
        return Spent(memory=1, atomics=1)
    if step.kind is Kind.CALL and step.src == CallSrc.HELPER and step.imm in HELPERS:
        helper = HELPERS[step.imm]
        return Spent(0, helper.memory, helper.atomics, 1, helper.cost)
    return None


class Node:
    """A state at which ways part or were compared.

    ``spent`` is the cost from ``parent`` to here, ``total`` from the start; ``open`` counts the
    ways from here that are not finished; ``jumped`` says which way of the parent led here (None if
    it has one).  ``state`` is kept where later states are compared with this one.
    """

    __slots__ = ("jumped", "open", "parent", "pc", "spent", "state", "total", "worst")

    def __init__(
        self,
        parent: Node | None,
        pc: int,
        spent: Spent,
        *,
        ways: int,
        jumped: bool | None,
        state: State | None = None,
    ) -> None:
        self.parent = parent
        self.pc = pc
        self.spent = spent
        self.total: Spent = spent if parent is None else parent.total.plus(spent)
        self.open = ways
        self.jumped = jumped
        self.worst = NOTHING
        self.state = state

    def finish_way(self, spent: Spent) -> list[Node]:
        """One way from here ended after ``spent``. Gives the nodes that this finished."""
        finished = []
        node: Node | None = self
        while node is not None:
            node.worst = node.worst.worst(spent)
            node.open -= 1
            if node.open:
                break
            finished.append(node)
            spent = node.spent.plus(node.worst)
            node = node.parent
        return finished

    def decisions(self) -> list[bool]:
        """Which way was taken at each branch from the start to here."""
        taken: list[bool] = []
        node: Node | None = self
        while node is not None:
            if node.jumped is not None:
                taken.append(node.jumped)
            node = node.parent
        return taken[::-1]
