"""How often a loop can turn: a counter that each turn moves by at least one towards a bound.

The counter is a register or a stack variable; the bound a constant or a place that no turn changes,
with a known greatest (or least) value.  Every turn must pass the comparison that lets it go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from egpu.bpf.isa import JmpOp, Kind
from egpu.verifier.checks import span
from egpu.verifier.cost import spends_of
from egpu.verifier.loops import Loop, Place, Shifted, Stack, Turn, find, held, stack_of
from egpu.verifier.refine import INVERSE
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.state import Pointer, State, Value, read_stack, write_stack
from egpu.verifier.structure import Step, Structure

_WALKED = 64  # turns that are walked one by one: exact costs, and bounds of any form
_LONG = 2_000  # instructions after which a walk is long, and fewer turns are
_WALKED_IN_LONG = 4
_ATTEMPTS = 3
_FARTHEST = 1 << 29  # as for pointer arithmetic
# How an operation reads with its operands exchanged.
_EXCHANGED = {
    JmpOp.JEQ: JmpOp.JEQ,
    JmpOp.JNE: JmpOp.JNE,
    JmpOp.JGT: JmpOp.JLT,
    JmpOp.JGE: JmpOp.JLE,
    JmpOp.JLT: JmpOp.JGT,
    JmpOp.JLE: JmpOp.JGE,
    JmpOp.JSGT: JmpOp.JSLT,
    JmpOp.JSGE: JmpOp.JSLE,
    JmpOp.JSLT: JmpOp.JSGT,
    JmpOp.JSLE: JmpOp.JSGE,
}
_SIGNED = frozenset({JmpOp.JSGT, JmpOp.JSGE, JmpOp.JSLT, JmpOp.JSLE})
_BELOW = {JmpOp.JLT: 1, JmpOp.JSLT: 1, JmpOp.JLE: 0, JmpOp.JSLE: 0}
_ABOVE = {JmpOp.JGT: 1, JmpOp.JSGT: 1, JmpOp.JGE: 0, JmpOp.JSGE: 0}


@dataclass(frozen=True, slots=True)
class Counted:
    """``turns``: how often the head is reached again at most. ``values``: what the places that
    count may hold at the head in any turn."""

    turns: int
    values: dict[Place, Scalar | Pointer]


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``, as the integers that a comparison sees."""

    low: int
    high: int


def count(turn: Turn, state: State) -> Counted | None:
    """The turns of a loop that is entered, or entered again, in ``state``; None if unknown."""
    best: tuple[int, Place, Range] | None = None
    for pc in sorted(turn.before):
        step = turn.structure.step(pc)
        if step.kind is not Kind.JUMP or not turn.always_passes(pc):
            continue
        for found in _tests(turn, state, step):
            if best is None or found[0] < best[0]:
                best = found
    if best is None:
        return None
    turns, counter, heads = best
    values = _values(turn, state, turns)
    values[counter] = _between(heads, values.get(counter))
    return Counted(turns, values)


def moving(turn: Turn, state: State, turns: int) -> Counted:
    """What counts in a loop that turns at most ``turns`` times, for whatever reason."""
    return Counted(turns, _values(turn, state, turns))


def _values(turn: Turn, state: State, turns: int) -> dict[Place, Scalar | Pointer]:
    """What the places that move by numbers may hold at the head."""
    values: dict[Place, Scalar | Pointer] = {}
    for place, end in (turn.after or {}).items():
        value = value_at(state, place)
        if end is None or end.place != place or end[1:3] == (0, 0):
            continue
        if value is None or end.narrow:
            continue
        moved = _moved(value, end, turns)
        if moved is not None:
            values[place] = moved
    return values


def counts_to_unknown(turn: Turn, state: State) -> bool:
    """Whether the loop counts, but nobody knows how far: every turn compares a place that moves
    one way with a number that is no constant, or with a constant from a number that is none."""
    for pc in sorted(turn.before):
        step = turn.structure.step(pc)
        if step.kind is not Kind.JUMP or not turn.always_passes(pc):
            continue
        if (step.following in turn.loop.body) == (step.target in turn.loop.body):
            continue
        if step.op not in _EXCHANGED or step.op is JmpOp.JCOND:
            continue
        places = turn.before[pc]
        left = held(places, step.dst)
        right = held(places, step.src) if step.register else None
        if step.register:
            pairs = ((left, right), (right, left))
            if any(_one_way(turn, a) and not _constant(state, b) for a, b in pairs):
                return True
        if _one_way(turn, left) and not _constant(state, left):
            return True
    return False


def _one_way(turn: Turn, value: Shifted | None) -> bool:
    """Whether every turn moves the place that a value came from in one direction."""
    if value is None:
        return False
    end = held(turn.after or {}, value.place)
    return end is not None and end.place == value.place and (end.low > 0 or end.high < 0)


def _constant(state: State, value: Shifted | None) -> bool:
    """Whether what a comparison sees comes from a constant at the head; what a turn loads anew
    does not."""
    scalar = None if value is None else value_at(state, value.place)
    return isinstance(scalar, Scalar) and scalar.constant() is not None


def value_at(state: State, place: Place) -> Value:
    """What a place of the running function holds."""
    frame = state.frame
    if isinstance(place, int):
        return frame.registers[place]
    offset, size = place
    if offset % size or not -512 <= offset <= -size:
        return None
    return read_stack(frame, offset, size)


def _tests(turn: Turn, state: State, step: Step) -> list[tuple[int, Place, Range]]:
    """What a conditional jump says of how often the loop turns."""
    inside = [pc in turn.loop.body for pc in (step.following, step.target)]
    if inside[0] == inside[1] or not isinstance(step.op, JmpOp):
        return []
    op = step.op if inside[1] else INVERSE.get(step.op)
    if op not in _EXCHANGED:
        return []
    places = turn.before[step.pc]
    left = held(places, step.dst)
    right = held(places, step.src) if step.register else None
    found = []
    if left is not None:
        bound = step.constant if not step.register else _invariant(turn, state, right)
        found.append(_turns(turn, state, left, bound, op, low_half=step.width == 32))
    if right is not None:
        bound = _invariant(turn, state, left)
        found.append(_turns(turn, state, right, bound, _EXCHANGED[op], low_half=step.width == 32))
    return [each for each in found if each is not None]


def _invariant(turn: Turn, state: State, value: Shifted | None) -> Scalar | None:
    """The value of a place that no turn changes."""
    if value is None or value.low or value.high:
        return None
    end = held(turn.after or {}, value.place)
    if end is None or end[:3] != (value.place, 0, 0):
        return None
    scalar = value_at(state, value.place)
    if not isinstance(scalar, Scalar) or ((value.narrow or end.narrow) and scalar.umax >> 32):
        return None
    return scalar


def _turns(
    turn: Turn, state: State, value: Shifted, bound: Scalar | None, op: JmpOp, *, low_half: bool
) -> tuple[int, Place, Range] | None:
    """Turns if each goes on only where ``value op bound``, and the counter's range at the head."""
    end = held(turn.after or {}, value.place)
    start = value_at(state, value.place)
    if bound is None or end is None or end.place != value.place or not isinstance(start, Scalar):
        return None
    signed = op in _SIGNED
    narrow = value.narrow or end.narrow or low_half
    if narrow:
        limits = Range(0, (1 << 31 if low_half and signed else 1 << 32) - 1)
    elif signed:
        limits = Range(-1 << 63, (1 << 63) - 1)
    else:
        limits = Range(0, (1 << 64) - 1)
    first = Range(start.umin, start.umax)
    if signed and not narrow:
        first = Range(start.smin, start.smax)
    against = _bound(bound, signed, low_half)
    if end.low > 0:
        return _upwards(value, end, first, against, op, limits=limits)
    if end.high < 0:
        return _downwards(value, end, first, against, op, limits=limits)
    return None


def _bound(bound: Scalar, signed: bool, low_half: bool) -> Range:
    if low_half:
        return Range(*(bound[8:10] if signed else bound[6:8]))
    return Range(bound.smin, bound.smax) if signed else Range(bound.umin, bound.umax)


def _upwards(
    value: Shifted, end: Shifted, first: Range, bound: Range, op: JmpOp, *, limits: Range
) -> tuple[int, Place, Range] | None:
    if op in _BELOW:
        last = bound.high - _BELOW[op]
    elif op is JmpOp.JNE and _hits(value, end, first, bound, up=True):
        last = bound.high - end.low
    else:
        return None
    # ``last`` is the greatest value that goes on; nothing on the way there leaves the limits.
    farthest = last - value.low + end.high
    if (
        first.low < limits.low
        or first.low + value.low < limits.low
        or max(first.high, farthest) + max(value.high, 0) > limits.high
    ):
        return None
    turns = max(0, (last - first.low - value.low) // end.low + 1)
    return turns, value.place, Range(first.low, max(first.high, farthest))


def _downwards(
    value: Shifted, end: Shifted, first: Range, bound: Range, op: JmpOp, *, limits: Range
) -> tuple[int, Place, Range] | None:
    if op in _ABOVE:
        last = bound.low + _ABOVE[op]
    elif op is JmpOp.JNE and _hits(value, end, first, bound, up=False):
        last = bound.low - end.high
    else:
        return None
    farthest = last - value.high + end.low
    if (
        first.high > limits.high
        or first.high + value.high > limits.high
        or min(first.low, farthest) + min(value.low, 0) < limits.low
    ):
        return None
    turns = max(0, (first.high + value.high - last) // -end.high + 1)
    return turns, value.place, Range(min(first.low, farthest), first.high)


def _hits(value: Shifted, end: Shifted, first: Range, bound: Range, *, up: bool) -> bool:
    """Whether a counter that goes on until it equals the bound meets it exactly."""
    if end.low != end.high or value.low != value.high:
        return False
    before = first.high + value.high <= bound.low if up else first.low + value.low >= bound.high
    step = abs(end.low)
    exact = first.low == first.high and bound.low == bound.high
    distance = bound.low - first.low - value.low
    return before and (step == 1 or (exact and distance % step == 0))


def _moved(value: Scalar | Pointer, end: Shifted, turns: int) -> Scalar | Pointer | None:
    """``value`` after any number of turns that each add what ``end`` says."""
    if end.low == end.high:
        way = S64.multiplied(turns, end.low)
    else:
        low, high = min(0, end.low * turns), max(0, end.high * turns)
        if low < S64.full.smin or high > S64.full.smax:
            return None if isinstance(value, Pointer) else S64.unknown
        way = S64.from_signed(low, high)
    if isinstance(value, Scalar):
        return S64.sum(value, way)
    moved = value._replace(variable=S64.sum(value.variable or S64.zero, way))
    low, high = span(moved)
    return moved if low > -_FARTHEST and high < _FARTHEST and not value.null else None


def _between(heads: Range, known: Scalar | Pointer | None) -> Scalar:
    """A counter's value at the head: in its range, and as its step leaves it."""
    if heads.low < 0:
        scalar = S64.from_signed(heads.low, heads.high)
    else:
        scalar = S64.from_range(heads.low, heads.high)
    if isinstance(known, Scalar):
        both = S64.full.intersect(scalar.word, known.word)
        if both is not None:
            return S64.made(both)
    return scalar


def put(state: State, counted: Counted) -> None:
    """Give the places that count, in the running function, what they may hold at the head."""
    for place, value in counted.values.items():
        if isinstance(place, int):
            state.frame.registers[place] = value
        else:
            write_stack(state.frame, *place, value)


def _size(loop: Loop) -> int:
    return len(loop.body)


class Meter(NamedTuple):
    """Counts how often the loop head or the function's start at ``pc`` is reached; ``nested`` if
    that is inside a loop, or in a function that is called."""

    number: int
    pc: int
    nested: bool


class Counting:
    """The loops of a program, and how it went with them so far.

    ``reducible``: whether every way round is one of ``loops``.  ``spends``: what each instruction
    costs.
    """

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.loops, self.reducible = find(structure)
        self.spends = spends_of(structure)
        starts = [start for start, _ in structure.functions]
        # Of places that are both, the loop's meter counts.
        self.meters = {
            pc: Meter(number, pc, self._nested(pc))
            for number, pc in enumerate(dict.fromkeys([*starts, *self.loops]))
        }
        self._inner: dict[int, Meter] = {}  # of instructions in loops
        ordered = sorted(self.loops.values(), key=_size)
        for loop in reversed(ordered):  # inner ones last
            self._inner.update(dict.fromkeys(loop.body, self.meters[loop.head]))
        self.done: set[int] = set()  # heads of loops that were walked as one
        self._turns: dict[int, Turn] = {}
        self._stacks: dict[int, Stack] = {}
        self._failures: dict[int, int] = {}

    def _nested(self, pc: int) -> bool:
        if self.structure.function_of[pc]:
            return True
        return any(pc in loop.body and loop.head != pc for loop in self.loops.values())

    def meter(self, pc: int) -> Meter:
        """The meter of the innermost loop around ``pc``, or of its function."""
        inner = self._inner.get(pc)
        if inner is not None:
            return inner
        return self.meters[self.structure.functions[self.structure.function_of[pc]][0]]

    def spent(self, pcs: Iterable[int]) -> dict[Meter, int]:
        """What instructions cost together, by meter."""
        structure, spends, inner = self.structure, self.spends, self._inner
        outer = [self.meters[start] for start, _ in structure.functions]
        made: dict[Meter, int] = {}
        for pc in pcs:
            meter = inner.get(pc) or outer[structure.function_of[pc]]
            made[meter] = made.get(meter, 0) + spends[pc]
        return made

    def worth_trying(self, loop: Loop, turns: int, processed: int) -> bool:
        """Whether the rest of the turns should be walked as one."""
        walked = _WALKED if processed < _LONG else min(_WALKED, _WALKED_IN_LONG)
        if turns <= (1 if loop.head in self.done else walked):
            return False
        return self._failures.get(loop.head, 0) < _ATTEMPTS

    def failed(self, loop: Loop) -> None:
        self._failures[loop.head] = self._failures.get(loop.head, 0) + 1

    def turn(self, loop: Loop) -> Turn:
        """What a turn of ``loop`` adds, computed once."""
        found = self._turns.get(loop.head)
        if found is None:
            function = self.structure.function_of[loop.head]
            stack = self._stacks.get(function)
            if stack is None:
                stack = self._stacks[function] = stack_of(self.structure, function)
            found = self._turns[loop.head] = Turn(self.structure, loop, stack)
        return found
