"""P1: the shape of a program, checked before anything is executed abstractly.

Every instruction is well formed, jumps stay inside their function and land on instructions, no
function falls off its end, every instruction can be reached, calls do not recurse and nest at most
eight deep.
"""

from __future__ import annotations

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
_STRAIGHT = frozenset(Kind) - {_CALL, _EXIT, _JUMP, _JUMP_ALWAYS, Kind.LOAD_IMM64}
_LOAD_IMM64, _LOCAL = Kind.LOAD_IMM64, int(CallSrc.LOCAL)


@dataclass(frozen=True, slots=True)
class Structure:
    """The decoded program.

    ``steps`` by pc (None in the second slot of LD_IMM64); ``functions`` as (first pc, end pc) in
    order; ``function_of`` the index of the function of each pc; ``callees`` per function;
    ``order`` the functions with every callee before its callers; ``checkpoints`` the pcs at which
    exploration compares states; ``by_kind`` the instructions of each kind.
    """

    steps: tuple[Step | None, ...]
    functions: tuple[tuple[int, int], ...]
    function_of: tuple[int, ...]
    callees: tuple[frozenset[int], ...]
    order: tuple[int, ...]
    checkpoints: frozenset[int]
    by_kind: Mapping[Kind, list[Step]]

    def of_kind(self, *kinds: Kind) -> list[Step]:
        """The instructions of some kinds, in order."""
        if len(kinds) == 1:
            return self.by_kind.get(kinds[0], [])
        return sorted(step for kind in kinds for step in self.by_kind.get(kind, ()))

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
    steps = decode(program.code, policy)
    function_of = tuple(
        index for index, (start, end) in enumerate(functions) for _ in range(start, end)
    )
    starts = {start: index for index, (start, _) in enumerate(functions)}
    callees: list[set[int]] = [set() for _ in functions]
    checkpoints: set[int] = set()
    by_kind: dict[Kind, list[Step]] = {kind: [] for kind in Kind}
    end = 0
    for pc, step in enumerate(steps):
        if step is None:
            continue
        kind = step.kind
        by_kind[kind].append(step)
        if pc >= end:
            end = functions[function_of[pc]][1]
        if kind in _STRAIGHT and step.following < end:
            continue
        if kind is _CALL and step.src == _LOCAL:
            if step.target not in starts:
                raise Refusal(
                    "P1",
                    f"local call to slot {step.target}, where no function starts",
                    pc,
                    "call the first instruction of a function",
                )
            callees[function_of[pc]].add(starts[step.target])
            checkpoints.update((step.target, step.following))
        elif kind is _LOAD_IMM64 and (callback := code_reference(step)) is not None:
            if callback not in starts:
                raise Refusal(
                    "P1",
                    f"address of slot {callback}, where no function starts",
                    pc,
                    "name the first instruction of a function",
                )
            callees[function_of[pc]].add(starts[callback])
            checkpoints.add(callback)
        elif kind is _JUMP or kind is _JUMP_ALWAYS:
            _check_target(steps, step, functions[function_of[pc]][0], end)
            checkpoints.add(step.target)
        if step.following >= end and kind is not _EXIT and kind is not _JUMP_ALWAYS:
            raise Refusal(
                "P1",
                "the function can run past its last instruction",
                pc,
                "end every way with exit or an unconditional jump",
            )
    structure = Structure(
        steps,
        functions,
        function_of,
        tuple(frozenset(called) for called in callees),
        _order(functions, callees),
        frozenset(checkpoints),
        by_kind,
    )
    if policy is not Policy.EXECUTOR:
        _check_reachable(structure)
    return structure


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


def _check_reachable(structure: Structure) -> None:
    seen: set[int] = set()
    work = [0]
    while work:
        pc = work.pop()
        while pc not in seen:
            seen.add(pc)
            step = structure.steps[pc]
            assert step is not None, "targets are checked to be instructions"
            kind, pc = step.kind, step.following
            if kind is _JUMP or (kind is _CALL and step.src == _LOCAL):
                work.append(step.target)
            elif kind is _JUMP_ALWAYS:
                pc = step.target
            elif kind is _EXIT:
                break
            elif kind is _LOAD_IMM64 and (callback := code_reference(step)) is not None:
                work.append(callback)
    if len(seen) == len(structure.steps):
        return
    for pc, candidate in enumerate(structure.steps):
        if candidate is not None and pc not in seen:
            raise Refusal(
                "P1", "the instruction can never be reached", pc, "remove it or jump to it"
            )
