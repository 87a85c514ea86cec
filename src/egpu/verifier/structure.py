"""P1: the shape of a program, checked before anything is executed abstractly.

Every instruction is well formed, jumps stay inside their function and land on instructions, no
function falls off its end, every instruction can be reached, calls do not recurse and nest at most
eight deep.
"""

from __future__ import annotations

import bisect
import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from egpu.bpf import isa
from egpu.bpf.isa import CallSrc, Kind
from egpu.bpf.program import Program
from egpu.verifier.decode import Step, code_reference, decode, map_reference
from egpu.verifier.report import Refusal
from egpu.verifier.verified import Policy

__all__ = ["Step", "Structure", "analyse", "code_reference", "map_reference"]

# Looking a member up in its class takes longer than comparing with it.
_CALL, _EXIT, _JUMP, _JUMP_ALWAYS = Kind.CALL, Kind.EXIT, Kind.JUMP, Kind.JUMP_ALWAYS
_ALU, _LOAD_IMM64, _LOCAL = Kind.ALU, Kind.LOAD_IMM64, int(CallSrc.LOCAL)
_ENDS = frozenset({_EXIT, _JUMP, _JUMP_ALWAYS})
_STRAIGHT = frozenset(Kind) - _ENDS - {_CALL, _LOAD_IMM64}


@dataclass(slots=True, eq=False)  # never changed; frozen ones take three times as long to make
class Structure:
    """The decoded program.

    ``steps`` by pc (None in the second slot of LD_IMM64); ``functions`` as (first pc, end pc) in
    order; ``function_of`` the index of the function of each pc; ``callees`` per function;
    ``order`` the functions with every callee before its callers; ``checkpoints`` the pcs where
    control may come from elsewhere than the instruction before; ``by_kind`` the instructions of
    each kind but arithmetic; ``runs`` all of them, cut where control comes or goes.
    """

    steps: tuple[Step | None, ...]
    functions: tuple[tuple[int, int], ...]
    function_of: tuple[int, ...]
    callees: tuple[frozenset[int], ...]
    order: tuple[int, ...]
    checkpoints: frozenset[int]
    by_kind: Mapping[Kind, list[Step]]
    runs: tuple[tuple[Step, ...], ...]

    def of_kind(self, *kinds: Kind) -> list[Step]:
        """The instructions of some kinds, in order; none are of arithmetic."""
        if len(kinds) == 1:
            return self.by_kind.get(kinds[0], [])
        found = [steps for kind in kinds if (steps := self.by_kind.get(kind))]
        if len(found) <= 1:
            return found[0] if found else []
        return sorted((step for steps in found for step in steps), key=_pc)

    def step(self, pc: int) -> Step:
        step = self.steps[pc]
        assert step is not None, "targets are checked to be instructions"
        return step

    def successors(self, step: Step) -> tuple[int, ...]:
        """Where control goes inside the function; a call goes to the instruction after it."""
        kind = step.kind
        if kind is _JUMP:
            return step.following, step.target
        if kind is _EXIT:
            return ()
        return (step.target,) if kind is _JUMP_ALWAYS else (step.following,)

    def walk(self, function: int) -> Iterator[Step]:
        """The instructions of a function in order."""
        for pc in range(*self.functions[function]):
            step = self.steps[pc]
            if step is not None:
                yield step


def analyse(program: Program, policy: Policy) -> Structure:
    """The structure of ``program``. Raises Refusal (rule P1)."""
    functions = _functions(program)
    scan = _Scan(functions, decode(program.code, policy))
    for function in range(len(functions)):
        scan.function(function)
    cuts = sorted(scan.cuts - {len(scan.steps)})
    runs = tuple(
        tuple(filter(None, scan.steps[first:end]))
        for first, end in zip(cuts, [*cuts[1:], len(scan.steps)], strict=True)
    )
    structure = Structure(
        scan.steps,
        functions,
        tuple(scan.function_of),
        tuple(frozenset(called) for called in scan.callees),
        _order(functions, scan.callees),
        frozenset(scan.checkpoints),
        scan.by_kind,
        runs,
    )
    if policy is not Policy.EXECUTOR:
        _check_reachable(structure, cuts, scan.entered)
    return structure


class _Scan:
    """One look at every instruction, function by function."""

    def __init__(
        self, functions: tuple[tuple[int, int], ...], steps: tuple[Step | None, ...]
    ) -> None:
        self.functions = functions
        self.steps = steps
        self.starts = {start: index for index, (start, _) in enumerate(functions)}
        self.cuts = set(self.starts)
        self.function_of: list[int] = []
        self.callees: list[set[int]] = [set() for _ in functions]
        self.checkpoints: set[int] = set()
        self.by_kind: defaultdict[Kind, list[Step]] = defaultdict(list)
        self.entered: list[tuple[int, int]] = []  # pc, and the function whose address it has

    def function(self, function: int) -> None:
        """Check the jumps and calls of a function, and that it does not run past its end."""
        start, end = self.functions[function]
        self.function_of += [function] * (end - start)
        by_kind, step = self.by_kind, None
        for step in filter(None, self.steps[start:end]):
            kind = step.kind
            if kind is _ALU:  # as most are
                continue
            by_kind[kind].append(step)
            if kind not in _STRAIGHT:
                self._special(step, function)
        assert step is not None, "functions have instructions"
        if step.following >= end and step.kind is not _EXIT and step.kind is not _JUMP_ALWAYS:
            raise Refusal(
                "P1",
                "the function can run past its last instruction",
                step.pc,
                "end every way with exit or an unconditional jump",
            )

    def _special(self, step: Step, function: int) -> None:
        """Where an instruction leads."""
        kind, pc = step.kind, step.pc
        if kind in _ENDS:
            self.cuts.add(step.following)
            if kind is not _EXIT:
                _check_target(self.steps, step, *self.functions[function])
                self.checkpoints.add(step.target)
                self.cuts.add(step.target)
        elif kind is _CALL and step.src == _LOCAL:
            if step.target not in self.starts:
                raise Refusal(
                    "P1",
                    f"local call to slot {step.target}, where no function starts",
                    pc,
                    "call the first instruction of a function",
                )
            self._enters(step, function, step.target)
            self.checkpoints.add(step.following)
        elif kind is _LOAD_IMM64 and (callback := code_reference(step)) is not None:
            if callback not in self.starts:
                raise Refusal(
                    "P1",
                    f"address of slot {callback}, where no function starts",
                    pc,
                    "name the first instruction of a function",
                )
            self._enters(step, function, callback)

    def _enters(self, step: Step, function: int, target: int) -> None:
        self.callees[function].add(self.starts[target])
        self.checkpoints.add(target)
        self.entered.append((step.pc, target))


_pc = operator.attrgetter("pc")

_REBUILD = "compile the object again"


def _functions(program: Program) -> tuple[tuple[int, int], ...]:
    """The functions as ranges, checked to tile the code."""
    if not program.code:
        raise Refusal("P1", "the program has no instructions", 0, "return 0 at least")
    expected, ranges = 0, []
    for function in sorted(program.functions, key=lambda f: f.start):
        if function.start != expected or function.length < 1:
            raise Refusal(
                "P1",
                f"function {function.name} starts at slot {function.start}, expected {expected}",
                min(function.start, len(program.code) - 1),
                _REBUILD,
            )
        expected = function.start + function.length
        ranges.append((function.start, expected))
    if expected != len(program.code):
        raise Refusal(
            "P1",
            f"functions cover {expected} of {len(program.code)} slots",
            len(program.code) - 1,
            _REBUILD,
        )
    return tuple(ranges)


def _check_target(steps: tuple[Step | None, ...], step: Step, start: int, end: int) -> None:
    if not start <= step.target < end:
        raise Refusal(
            "P1",
            f"jump to slot {step.target} leaves its function",
            step.pc,
            "jump inside it, or call the other function",
        )
    if steps[step.target] is None:
        raise Refusal(
            "P1",
            f"jump into the second half of the 64-bit immediate at {step.target - 1}",
            step.pc,
            "jump to its first half",
        )


def _order(functions: tuple[tuple[int, int], ...], callees: list[set[int]]) -> tuple[int, ...]:
    """Functions with callees first. Refuses recursion and chains of more than eight frames."""
    if not any(callees):
        return tuple(range(len(functions)))
    depth: dict[int, int] = {}
    order: list[int] = []
    for root in range(len(functions)):
        work, path = [(root, False)], set()
        while work:
            function, done = work.pop()
            if done:
                path.discard(function)
                if function not in depth:
                    depth[function] = 1 + max((depth[c] for c in callees[function]), default=0)
                    order.append(function)
            elif function in path:
                start = functions[function][0]
                raise Refusal(
                    "P1",
                    "the function calls itself, directly or through others",
                    start,
                    "write it as a loop with a constant limit",
                )
            elif function not in depth:
                path.add(function)
                work.append((function, True))
                work.extend((callee, False) for callee in sorted(callees[function]))
    if depth[0] > isa.MAX_CALL_DEPTH:
        raise Refusal(
            "P1",
            f"calls nest {depth[0]} deep, limit {isa.MAX_CALL_DEPTH}",
            0,
            "nest fewer functions",
        )
    return tuple(order)


def _check_reachable(
    structure: Structure, starts: list[int], entered: list[tuple[int, int]]
) -> None:
    """Refuse what no way leads to; ``starts`` are the first pcs of the runs, ``entered`` the
    functions that instructions name."""
    named: dict[int, list[int]] = {}  # by run
    for pc, function in entered:
        named.setdefault(starts[bisect.bisect(starts, pc) - 1], []).append(function)
    ends = {run[0].pc: run[-1] for run in structure.runs}
    seen: set[int] = set()
    work = [0]
    while work:
        start = work.pop()
        if start not in seen:
            seen.add(start)
            work += structure.successors(ends[start])
            work += named.get(start, ())
    for start in starts:
        if start not in seen:
            raise Refusal(
                "P1", "the instruction can never be reached", start, "remove it or jump to it"
            )
