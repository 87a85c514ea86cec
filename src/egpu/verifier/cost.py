"""P4: the worst-case cost, as the longest path through the graph of explored states.

A node is a state at which exploration compared or split.  Exploration is depth-first, so a node is
finished when all its ways are, and its worst cost is then final: a way that ends at a finished node
adds that node's worst.  The graph has no cycles, since meeting an unfinished equal state is an
error.
"""

from __future__ import annotations

import functools

from egpu.bpf.helpers import HELPERS
from egpu.bpf.isa import CallSrc, Kind
from egpu.verifier.state import State
from egpu.verifier.structure import Step, Structure
from egpu.verifier.verified import Cost


class Spent(int):
    """What a way costs: an integer with a field of 64 bits for each field of Cost, in its order.

    Adding two is one addition, and exploration does that for every instruction; sums are plain
    integers.  Above these fields are meters, which count how often a way comes to certain places.
    """

    def public(self) -> Cost:
        return Cost(*[self >> index * _BITS & _FIELD for index in range(_FIELDS)])


NOTHING = 0
_BITS = 64
_FIELD = (1 << _BITS) - 1
_FIELDS = 6
_PROBE = 8  # instructions for each slot that is looked at
COST_FIELDS = (1 << _FIELDS * _BITS) - 1
_HELPERS, _RING = 4 * _BITS, 5 * _BITS
RING_BYTES = _FIELD << _RING
_LOWER_HALVES = sum((_FIELD >> _BITS // 2) << index * _BITS for index in range(_FIELDS))
_ACCESSES = frozenset({Kind.LOAD, Kind.LOAD_SIGNED, Kind.STORE_IMM, Kind.STORE_REG})


def pack(cost: Cost) -> int:
    """``cost`` as one integer."""
    fields = (
        cost.instructions,
        cost.memory,
        cost.atomics,
        cost.helper_calls,
        cost.helpers,
        cost.ring_bytes,
    )
    return sum(value << index * _BITS for index, value in enumerate(fields))


def ring(count: int) -> int:
    """``count`` bytes written to a ring."""
    return count << _RING


def probes(count: int) -> int:
    """Slots of a table that a helper may have to look at."""
    return count * _PROBE << _HELPERS


def instructions(spent: int) -> int:
    """The instructions in a sum."""
    return spent & _FIELD


def weight(spent: int) -> int:
    """What Limits.cost limits: instructions, helper bodies included."""
    return (spent & _FIELD) + (spent >> _HELPERS & _FIELD)


def worst(a: int, b: int) -> int:
    """The greater of each field; none has more than 63 bits."""
    if a == b or not b:
        return a
    if not a:
        return b
    most = a if a > b else b
    tops = _tops((most.bit_length() + _BITS - 1) // _BITS)
    # The top bit of a field stays where a's is no less than b's; then all of its bits are set.
    kept = ((a | tops) - b) & tops
    kept = (kept << 1) - (kept >> _BITS - 1)
    return b ^ (a ^ b) & kept


@functools.cache
def _tops(fields: int) -> int:
    """The top bit of each of so many fields."""
    return sum(1 << (index + 1) * _BITS - 1 for index in range(fields))


def metered(number: int) -> int:
    """One more at meter ``number``."""
    return 1 << (_FIELDS + number) * _BITS


def meter_of(spent: int, number: int) -> int:
    """What meter ``number`` shows."""
    return spent >> (_FIELDS + number) * _BITS & _FIELD


def times(spent: int, number: int) -> int:
    """Every cost ``number`` times, each at most what its field holds."""
    if spent & _LOWER_HALVES == spent and number < 1 << _BITS // 2 - 1:
        return spent * number  # no field can overflow
    shifts = range(0, _FIELDS * _BITS, _BITS)
    return sum(min((spent >> shift & _FIELD) * number, _FIELD >> 1) << shift for shift in shifts)


_CALL, _ATOMIC = Kind.CALL, Kind.ATOMIC
_COSTLY = _ACCESSES | {_CALL, _ATOMIC}
_ACCESS = pack(Cost(1, memory=1))
_ATOMIC_ACCESS = pack(Cost(1, memory=1, atomics=1))


def spends_of(structure: Structure) -> list[int]:
    """What each instruction of a program costs, by pc."""
    made = [1] * len(structure.steps)
    for kind, steps in structure.by_kind.items():
        if kind in _COSTLY:
            for step in steps:
                made[step.pc] = spends(step)
    return made


def spends(step: Step) -> int:
    """What an instruction costs (what it writes to rings is added when it is executed)."""
    kind = step.kind
    if kind in _ACCESSES:
        return _ACCESS
    if kind is _ATOMIC:
        return _ATOMIC_ACCESS
    if kind is _CALL and step.src == CallSrc.HELPER and step.imm in HELPERS:
        helper = HELPERS[step.imm]
        return _call(helper.memory, helper.atomics, helper.cost)
    return 1


@functools.cache
def _call(memory: int, atomics: int, body: int) -> int:
    return pack(Cost(1, memory, atomics, 1, body))


class Node:
    """A state at which ways part or were compared.

    ``spent`` is the cost from ``parent`` to here, ``total`` from the start; ``open`` counts the
    ways from here that are not finished; ``jumped`` says which way of the parent led here (None if
    it has one).  ``state`` is kept where later states are compared with this one.
    """

    __slots__ = ("jumped", "open", "parent", "pc", "spent", "start", "state", "total", "worst")

    def __init__(
        self,
        parent: Node | None,
        pc: int,
        spent: int,
        *,
        ways: int,
        jumped: bool | None,
        state: State | None = None,
    ) -> None:
        self.parent = parent
        self.pc = pc
        self.spent = spent
        self.total: int = spent if parent is None else parent.total + spent
        self.open = ways
        self.jumped = jumped
        self.worst = NOTHING
        self.state = state
        # Where the way is shown from, if what is before cannot be walked again.
        self.start: tuple[State, int] | None = None

    def finish_way(self, spent: int) -> list[Node]:
        """One way from here ended after ``spent``. Gives the nodes that this finished."""
        finished = []
        node: Node | None = self
        while node is not None:
            node.worst = worst(node.worst, spent)
            node.open -= 1
            if node.open:
                break
            finished.append(node)
            spent = node.spent + node.worst
            node = node.parent
        return finished

    def way(self) -> tuple[Node, list[bool]]:
        """The node that the way is shown from, and which way was taken at each branch since."""
        taken: list[bool] = []
        node: Node = self
        while True:
            if node.start is not None or node.parent is None:
                return node, taken[::-1]
            if node.jumped is not None:
                taken.append(node.jumped)
            node = node.parent
