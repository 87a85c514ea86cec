"""Loops of the control-flow graph, and what one turn adds to each register and stack slot.

A loop is a natural one: it is entered at its head only.  ``Turn`` follows, through one turn, where
each place holds its value at the head plus a number; what comes back to the head as itself plus a
number counts.  Nothing here knows values: ``counters`` puts them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from egpu.bpf.helpers import HELPERS, Arg
from egpu.bpf.isa import AluOp, CallSrc, Kind
from egpu.verifier.distances import SOMEWHERE, Distances, pointers_of
from egpu.verifier.frames import OUTPUTS
from egpu.verifier.structure import Step, Structure

_PATIENCE = 24  # changes at an instruction after which a place counts as unknown

Place = int | tuple[int, int]  # a register, or (offset from r10, size) of a stack variable


class Shifted(NamedTuple):
    """The value that ``place`` had at the head, plus ``low`` to ``high``.

    ``narrow``: if neither that value nor this one is outside of 32 bits.
    """

    place: Place
    low: int = 0
    high: int = 0
    narrow: bool = False

    def by(self, number: int, narrow: bool) -> Shifted | None:
        narrow = narrow or self.narrow
        # In 32 bits a sum that leaves them and comes back is another number.
        if narrow and not (self.low >= 0 <= number or self.high <= 0 >= number):
            return None
        return Shifted(self.place, self.low + number, self.high + number, narrow)


@dataclass(frozen=True, slots=True)
class Loop:
    """``body`` are the instructions of the loop, those of loops inside it included."""

    head: int
    body: frozenset[int]
    exits: frozenset[int]  # where control goes when it leaves


def find(structure: Structure) -> tuple[dict[int, Loop], bool]:
    """The natural loops by their heads, and whether every way round passes the head of one that it
    lies in."""
    found: dict[int, set[int]] = {}
    edges: list[tuple[int, int]] = []
    runs: dict[int, _Run] = {}
    by_kind = structure.by_kind
    back = [s.pc for kind in _JUMPS for s in by_kind.get(kind, ()) if s.target <= s.pc]
    for start in {structure.functions[structure.function_of[pc]][0] for pc in back}:
        runs = runs or {run[0].pc: run for run in structure.runs}
        before, ends = _walk(structure, runs, start)
        for last, head in ends:
            edges.append((last, head))
            body = _body(before, last, head, start)
            if body is not None:
                found.setdefault(head, set()).update(body)
    loops = {head: _loop(structure, head, body, runs) for head, body in sorted(found.items())}
    return loops, all(head in found and last in found[head] for last, head in edges)


_Run = tuple[Step, ...]  # instructions that are executed one after the other
_JUMPS = Kind.JUMP, Kind.JUMP_ALWAYS


def _walk(
    structure: Structure, runs: dict[int, _Run], start: int
) -> tuple[dict[int, list[int]], list[tuple[int, int]]]:
    """A depth-first walk of a function: the runs before each, and the edges to a run that the walk
    is still under.  Runs are named by their first pc."""
    before: dict[int, list[int]] = {start: []}
    found = []
    under = {start}
    work = [(start, iter(structure.successors(runs[start][-1])))]
    while work:
        first, successors = work[-1]
        successor = next(successors, None)
        if successor is None:
            under.discard(first)
            work.pop()
            continue
        if successor in under:
            found.append((first, successor))
        if successor in before:
            before[successor].append(first)
        else:
            before[successor] = [first]
            under.add(successor)
            work.append((successor, iter(structure.successors(runs[successor][-1]))))
    return before, found


def _body(before: dict[int, list[int]], last: int, head: int, start: int) -> set[int] | None:
    """The runs that reach ``last`` without passing ``head``, None if the function's start does."""
    body, work = {head}, [last]
    while work:
        run = work.pop()
        if run not in body:
            body.add(run)
            work.extend(before.get(run, ()))
    return None if start in body and start != head else body


def _loop(structure: Structure, head: int, body: set[int], runs: dict[int, _Run]) -> Loop:
    reached = {after for first in body for after in structure.successors(runs[first][-1])}
    pcs = frozenset(step.pc for first in body for step in runs[first])
    return Loop(head, pcs, frozenset(reached - body))


Places = dict[Place, Shifted | None]  # what is not in it is as it was at the head; None: unknown


def held(places: Places, place: Place) -> Shifted | None:
    return places.get(place, Shifted(place))


Stack = tuple[dict[int, Distances], bool]


def stack_of(structure: Structure, function: int) -> Stack:
    """How far registers are from r10, and whether a pointer to the frame is given away."""
    found = pointers_of(structure, function)
    return found.distances, found.escaped


class Turn:
    """One turn of a loop: ``before`` each instruction, and ``after`` it at the head again."""

    def __init__(self, structure: Structure, loop: Loop, stack: Stack) -> None:
        self.structure = structure
        self.loop = loop
        self.distances, self.escaped = stack
        self.slots = self._stack_variables()
        self.before: dict[int, Places] = {loop.head: {}}
        self.after: Places | None = None
        self._solve()

    def _stack_variables(self) -> frozenset[tuple[int, int]]:
        """The (offset, size) of accesses at constant places of the stack."""
        found = set()
        for pc in self.loop.body:
            step = self.structure.step(pc)
            base = step.src if step.kind is Kind.LOAD else step.dst
            if step.kind in (Kind.LOAD, Kind.STORE_REG, Kind.STORE_IMM):
                distance = self.distances[pc][base]
                if distance is not None and distance < SOMEWHERE // 2:
                    found.add((distance + step.off, step.width // 8))
        return frozenset(found)

    def _solve(self) -> None:
        changes: dict[int, int] = {}
        work = [self.loop.head]
        while work:
            step = self.structure.step(work.pop())
            after = self._apply(step, dict(self.before[step.pc]))
            for successor in self.structure.successors(step):
                if successor == self.loop.head:
                    self.after = after if self.after is None else _join(self.after, after)
                elif successor in self.loop.body:
                    known = self.before.get(successor)
                    merged = after if known is None else _join(known, after)
                    if merged != known:
                        count = changes[successor] = changes.get(successor, 0) + 1
                        if known is not None and count > _PATIENCE:
                            merged = _give_up(known, merged)
                        self.before[successor] = merged
                        work.append(successor)

    def _apply(self, step: Step, places: Places) -> Places:
        made = self._made(step, places)
        for register in range(10):
            if step.writes >> register & 1:
                places[register] = None
        if step.kind in (Kind.ALU, Kind.LOAD):
            places[step.dst] = made
        elif step.kind in (Kind.STORE_REG, Kind.STORE_IMM, Kind.ATOMIC):
            self._store(step, places, made)
        elif step.kind is Kind.CALL and _writes_stack(step, self.distances[step.pc]):
            self._forget(places)
        return places

    def _made(self, step: Step, places: Places) -> Shifted | None:
        """The value that an instruction puts somewhere."""
        narrow = step.width == 32
        match step.kind:
            case Kind.ALU if step.op is AluOp.MOV and step.register and not step.off:
                value = held(places, step.src)
                return value and value.by(0, narrow)
            case Kind.ALU if step.op in (AluOp.ADD, AluOp.SUB) and not step.register:
                value = held(places, step.dst)
                return value and value.by(step.imm if step.op is AluOp.ADD else -step.imm, narrow)
            case Kind.LOAD:
                variable = self._variable(step, step.src)
                if self.escaped or variable is None or step.width < 32:
                    return None
                value = held(places, variable)
                return value and value.by(0, narrow)
            case Kind.STORE_REG if step.width >= 32:
                value = held(places, step.src)
                return value and value.by(0, narrow)
        return None

    def _variable(self, step: Step, base: int) -> tuple[int, int] | None:
        distance = self.distances[step.pc][base]
        if distance is None or distance >= SOMEWHERE // 2:
            return None
        return distance + step.off, step.width // 8

    def _store(self, step: Step, places: Places, made: Shifted | None) -> None:
        distance = self.distances[step.pc][step.dst]
        if distance is None:
            return  # not into this frame, unless a pointer to it was given away: see ``escaped``
        variable = self._variable(step, step.dst)
        if variable is None:
            self._forget(places)
            return
        start, size = variable
        for other in self.slots:
            if other[0] < start + size and start < other[0] + other[1]:
                places[other] = None
        places[variable] = made

    def _forget(self, places: Places) -> None:
        for variable in self.slots:
            places[variable] = None

    def always_passes(self, pc: int) -> bool:
        """Whether every turn executes the instruction at ``pc``."""
        if pc == self.loop.head:
            return True
        seen, work = {pc}, [self.loop.head]
        while work:
            at = work.pop()
            if at in seen or at not in self.loop.body:
                continue
            seen.add(at)
            following = self.structure.successors(self.structure.step(at))
            if self.loop.head in following:
                return False
            work.extend(following)
        return True


def _writes_stack(step: Step, distances: Distances) -> bool:
    """Whether a call may write to this frame (a local one gets no pointer to it)."""
    if step.src != CallSrc.HELPER or not any(d is not None for d in distances[1:6]):
        return False
    helper = HELPERS.get(step.imm)
    return helper is None or any(argument in _WRITTEN for argument in helper.args)


_WRITTEN = OUTPUTS | {Arg.CALLBACK_CONTEXT}


def _join(a: Places, b: Places) -> Places:
    made: Places = {}
    for place in a.keys() | b.keys():
        one, other = held(a, place), held(b, place)
        if one is None or other is None or one.place != other.place:
            made[place] = None
        else:
            made[place] = Shifted(
                one.place,
                min(one.low, other.low),
                max(one.high, other.high),
                one.narrow or other.narrow,
            )
    return made


def _give_up(known: Places, merged: Places) -> Places:
    return {
        place: value if held(known, place) == value else None for place, value in merged.items()
    }
