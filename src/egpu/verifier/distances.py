"""Where pointers may be, by dataflow over the control-flow graph: which registers may hold one, and
how far those are from r10 that point into the running frame.

A function that stores such a pointer, or gives it to a function, has lost sight of its frame: the
frame has then ``escaped``.
"""

from __future__ import annotations

from typing import NamedTuple

from egpu.bpf.helpers import HELPERS, Ret, calls_back
from egpu.bpf.isa import AluOp, CallSrc, Kind
from egpu.bpf.program import PseudoSrc
from egpu.verifier.structure import Step, Structure

# Where a register points in the running frame: not at all, at a constant distance from r10, or
# somewhere.
Distance = int | None
SOMEWHERE = 1 << 32
Distances = tuple[Distance, ...]

_ALU, _CALL, _LOAD, _LOAD_IMM64 = Kind.ALU, Kind.CALL, Kind.LOAD, Kind.LOAD_IMM64
_ENDS = frozenset({Kind.JUMP, Kind.JUMP_ALWAYS, Kind.EXIT})
_STORES = frozenset({Kind.STORE_REG, Kind.ATOMIC})
_ADD, _SUB, _MOV = AluOp.ADD, AluOp.SUB, AluOp.MOV
_FIRST: Distances = (None,) * 10 + (0,)
_ARGUMENTS = 0b111110  # r1 to r5
_FRAME = 1 << 10
_POINTER_RESULTS = frozenset({Ret.MAP_VALUE_OR_NULL, Ret.RECORD_OR_NULL})


class Pointers(NamedTuple):
    """What is known of the pointers of one function.

    ``distances``: before each access and call that can be reached, how far each register is from
    r10.  ``reached``: first pcs of the runs that can be.  ``offsets``: arithmetic that may move a
    pointer by the numbers it reads.
    """

    distances: dict[int, Distances]
    reached: frozenset[int]
    offsets: frozenset[int]
    escaped: bool


def pointers_of(structure: Structure, function: int) -> Pointers:
    """The pointers of ``function``."""
    # In a called function any pointer may be into a caller's stack, where pointers are kept.
    found = _Flow(structure, function, shared=function > 0).run()
    if found.escaped and not function:
        found = _Flow(structure, function, shared=True).run()
    return found


class _Flow:
    """The forward fixpoint of one function; any load is from a stack if that is ``shared``."""

    def __init__(self, structure: Structure, function: int, *, shared: bool) -> None:
        self.structure = structure
        start, end = structure.functions[function]
        self.runs = structure.runs
        if len(structure.functions) > 1:
            self.runs = tuple(run for run in structure.runs if start <= run[0].pc < end)
        self.shared = shared
        # Distances, and the registers that may hold a pointer as a bit set, where a run begins.
        first = _FRAME | (_ARGUMENTS if function else 1 << 1)
        self.entry: dict[int, tuple[Distances, int]] = {start: (_FIRST, first)}
        self.changed = {start}
        self.distances: dict[int, Distances] = {}
        self.offsets: set[int] = set()
        self.escaped = False

    def run(self) -> Pointers:
        """In the order of the program, until nothing changes."""
        while self.changed:
            for run in self.runs:
                first = run[0].pc
                if first in self.changed:
                    self.changed.discard(first)
                    self._run(run, *self.entry[first])
        reached = frozenset(self.entry)
        return Pointers(self.distances, reached, frozenset(self.offsets), self.escaped)

    def _run(self, run: tuple[Step, ...], state: Distances, pointers: int) -> None:
        tracked = _tracked(state)
        held = pointers | tracked
        for step in run:
            kind, writes = step.kind, step.writes
            touched = step.reads | writes
            if kind is _ALU:
                if not held & touched:
                    continue  # as most do
                gained = writes if pointers & step.reads and self._moves(step) else 0
            elif kind in _ENDS:
                break
            else:
                self.distances[step.pc] = state
                gained = self._gained(step, tracked)
                touched = writes
            if tracked & touched:
                state = _moved(step, state)
                tracked = _tracked(state)
            pointers = pointers & ~writes | gained
            held = pointers | tracked
        for successor in self.structure.successors(run[-1]):
            self._merge(successor, state, pointers)

    def _merge(self, pc: int, state: Distances, pointers: int) -> None:
        known = self.entry.get(pc)
        if known is not None:
            before, pointers = known[0], known[1] | pointers
            if before is not state:
                state = tuple(
                    x if x == y else SOMEWHERE for x, y in zip(before, state, strict=True)
                )
            if pointers == known[1] and state == before:
                return
        self.entry[pc] = state, pointers
        self.changed.add(pc)

    def _moves(self, step: Step) -> bool:
        """Whether arithmetic that reads a pointer gives one; notes what moves it."""
        op = step.op
        if op is _ADD or op is _SUB:
            self.offsets.add(step.pc)
            return step.width == 64
        return op is _MOV and step.width == 64

    def _gained(self, step: Step, tracked: int) -> int:
        """The registers that hold a pointer after what is no arithmetic; notes what escapes."""
        kind = step.kind
        if kind is _LOAD:
            from_stack = self.shared or tracked >> step.src & 1
            return step.writes if from_stack and step.width == 64 else 0
        if kind is _CALL:
            helper = HELPERS.get(step.imm) if step.src == CallSrc.HELPER else None
            if tracked & _ARGUMENTS and (step.src == CallSrc.LOCAL or calls_back(step.imm)):
                self.escaped = True
            return helper is None or helper.ret in _POINTER_RESULTS
        if kind is _LOAD_IMM64:
            return step.writes if step.src != PseudoSrc.CONST else 0
        if kind in _STORES and tracked >> step.src & 1:
            self.escaped = True
        return 0


def _tracked(state: Distances) -> int:
    """The registers that may point into the frame, as a bit set."""
    if state is _FIRST:
        return _FRAME
    tracked = 0
    for index, distance in enumerate(state):
        if distance is not None:
            tracked |= 1 << index
    return tracked


def _moved(step: Step, before: Distances) -> Distances:
    """The distances after ``step``."""
    after = list(before)
    if step.kind is _ALU:
        after[step.dst] = _computed(step, before)
    else:
        for index in range(10):
            if step.writes >> index & 1:
                after[index] = None
    return tuple(after)


def _computed(step: Step, before: Distances) -> Distance:
    own = before[step.dst]
    other = before[step.src] if step.register else None
    if step.op is _MOV:
        return other
    if own is None and other is None:
        return None
    if step.op is _ADD and not step.register and own is not None and own != SOMEWHERE:
        return own + step.imm
    return SOMEWHERE
