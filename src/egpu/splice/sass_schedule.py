"""Straight probes in an order in which a warp waits least: what takes long to come is asked for
first, and waited for when nothing else is left to do.

``ptxas`` orders a probe as if it were a kernel, among whose many instructions a wait is hidden.  A
probe is a dozen at the very beginning of a kernel, where all warps of a block run them at once.

No instruction makes way for other warps (``YIELD`` is set) as long as its own can go on: where
warps take turns, the kernel's first loads of all of them are as late as those of the last.  That
alone took PyTorch's softmax with a counter at entry from 1.067 to 1.027.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egpu.splice.sass_encoding import (
    CS2R,
    EXIT,
    GUARD,
    NO_SCOREBOARD,
    NOP,
    OPCODE,
    PT,
    READ_SCOREBOARD,
    REUSE,
    SECOND_GUARD,
    STALL,
    WAIT,
    WRITE_SCOREBOARD,
    YIELD,
    instruction,
    loads_stack_pointer,
)
from egpu.splice.sass_operands import Kind, Operands, operands

SCHEDULED_ARCH = 90  # from here on: of others the latencies were not looked at
# Cycles until a result can be used, and of a special register: the assembler leaves 4 or 5, 13, 6
# or less, 13; 4 or 9.
_LATENCY = {
    Kind.REGISTER: 6,
    Kind.PREDICATE: 13,
    Kind.UNIFORM: 7,
    Kind.UNIFORM_PREDICATE: 13,
    Kind.MEMORY: 2,
    Kind.TIME: 2,
}
_LATENCY_OF_SPECIAL = 10
_SCOREBOARDS = 5  # the last one is for stores (sass_rules)
_SEEN_AFTER = 2  # cycles until a scoreboard can be waited for
_MOST_STALL, _LONG_STALL = 15, 12


@dataclass(frozen=True, slots=True)
class _Step:
    """An instruction, what it reads and writes, and the earlier ones that it comes after."""

    word: int
    operands: Operands
    after: tuple[int, ...]


def scheduled(words: Sequence[int]) -> tuple[int, ...]:
    """The same instructions in a better order; unchanged where ``reordered`` gives none."""
    return reordered(words) or tuple(words)


def reordered(words: Sequence[int]) -> tuple[int, ...] | None:
    """The same instructions in a better order, with stalls and waits that are enough for it; None
    unless every one is known, none leads elsewhere but the EXIT at the end, and no register that a
    reduction reads is written again.

    The order of what depends on each other, of reductions, and of readings of the clock stays.
    """
    head = 1 if words and loads_stack_pointer(words[0]) else 0
    inner = [word for word in words[head:-1] if OPCODE.of(word) != NOP]
    steps = _steps(inner)
    if steps is None or not inner or not _ends(words[-1]):
        return None
    emitted = _emitted(steps, _order(steps))
    return (*words[:head], *emitted, WAIT.set(words[-1], 0))


def _ends(word: int) -> bool:
    return OPCODE.of(word) == EXIT and GUARD.of(word) == PT and SECOND_GUARD.of(word) == PT


def _steps(words: Sequence[int]) -> list[_Step] | None:
    steps: list[_Step] = []
    for word in words:
        found = operands(word)
        if found is None:
            return None
        before = [at for at, step in enumerate(steps) if _ordered(step.operands, found)]
        if any(_reads_late(steps[at].operands) & found.writes for at in before):
            return None
        steps.append(_Step(word, found, tuple(before)))
    return steps


def _ordered(first: Operands, then: Operands) -> bool:
    return bool(
        first.writes & then.reads or first.reads & then.writes or first.writes & then.writes
    )


def _reads_late(found: Operands) -> frozenset[tuple[Kind, int]]:
    """What a reduction reads at any time after it was issued."""
    return found.reads if (Kind.MEMORY, 0) in found.writes else frozenset()


def _waiting(steps: Sequence[_Step]) -> set[int]:
    """Steps before which a warp waits for a scoreboard, or that come after such."""
    found: set[int] = set()
    for at, step in enumerate(steps):
        if any(before in found or steps[before].operands.tracked for before in step.after):
            found.add(at)
    return found


def _feeding(steps: Sequence[_Step]) -> set[int]:
    """Steps that come before one whose result takes long."""
    found: set[int] = set()
    for at in reversed(range(len(steps))):
        if at in found or steps[at].operands.tracked:
            found.update(steps[at].after)
    return found


def _order(steps: Sequence[_Step]) -> list[int]:
    """Whatever need not wait by the cycle in which it can begin, then what waits, as it was."""
    waiting, feeding = _waiting(steps), _feeding(steps)
    left = [at for at in range(len(steps)) if at not in waiting]
    begun: dict[int, int] = {}
    now = 0
    while left:
        ready = [at for at in left if all(before in begun for before in steps[at].after)]
        begin, _, chosen = min(
            (max(now, _earliest(steps, at, begun)), _rank(steps[at], at in feeding), at)
            for at in ready
        )
        begun[chosen] = begin
        left.remove(chosen)
        now = begin + 1
    return [*begun, *sorted(waiting)]


def _rank(step: _Step, feeds: bool) -> int:
    if step.operands.tracked:
        return 0
    return 1 if feeds else 2


def _earliest(steps: Sequence[_Step], at: int, begun: dict[int, int]) -> int:
    """The cycle from which on all that ``at`` comes after, and need not wait for, is there."""
    own = steps[at].operands
    cycle = 0
    for before in steps[at].after:
        other = steps[before].operands
        if other.tracked:
            continue
        results = other.writes & (own.reads | own.writes)  # what lands late stays, too
        latency = max((_LATENCY[kind] for kind, _ in results), default=1)
        if results and OPCODE.of(steps[before].word) == CS2R:
            latency = _LATENCY_OF_SPECIAL
        cycle = max(cycle, begun[before] + latency)
    return cycle


def _emitted(steps: Sequence[_Step], order: Sequence[int]) -> list[int]:
    """The words with scoreboards, waits and stalls for this order."""
    out: list[int] = []
    begun: dict[int, int] = {}
    scoreboards: dict[int, int] = {}
    now = 0
    for at in order:
        step = steps[at]
        tracked = [before for before in step.after if before in scoreboards]
        begin = max(now, _earliest(steps, at, begun))
        for before in tracked:
            begin = max(begin, begun[before] + _SEEN_AFTER)
        _stall(out, begin - now)
        word = REUSE.set(WRITE_SCOREBOARD.set(step.word, NO_SCOREBOARD), 0)
        word = READ_SCOREBOARD.set(word, NO_SCOREBOARD)
        word = WAIT.set(word, sum({1 << scoreboards[before] for before in tracked}))
        if step.operands.tracked:
            scoreboards[at] = len(scoreboards) % _SCOREBOARDS
            word = WRITE_SCOREBOARD.set(word, scoreboards[at])
        begun[at] = begin
        out.append(YIELD.set(STALL.set(word, 1), 1))
        now = begin + 1
    _stall(out, _LATENCY[Kind.REGISTER])  # for what follows
    return out


def _stall(words: list[int], cycles: int) -> None:
    """So many cycles more before whatever follows."""
    stall = STALL.of(words[-1]) + cycles if words else cycles
    while stall > _MOST_STALL:
        words[-1] = YIELD.set(STALL.set(words[-1], _LONG_STALL), 0)
        words.append(instruction(NOP, stall=1))
        stall -= _LONG_STALL
    if words and stall:
        words[-1] = YIELD.set(STALL.set(words[-1], stall), int(stall < _LONG_STALL))
