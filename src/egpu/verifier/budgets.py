"""P4 for loops whose number of turns is not known: what the tokens of a run pay for.

A run has ``Budget.turns`` tokens (``egpu.bpf.budget``), and code generation sees to it that each of
the following takes one, or does not happen:

- another turn of a *paying* loop: one in which every way from its head back to its head falls
  through a may_goto;
- another turn of a *budgeted* loop: one that counts towards a number that is not known, such as one
  from a map or a parameter;
- a call of a callback by a bpf_loop whose first argument is not known.

Why the cost is right: let W be the dearest of these turns and calls, each from its head to its head
(or out), loops inside it that are of the same kind counted with one turn.  The walk adds one turn
wherever such a loop is entered, so what it finds is the cost of a run that takes no token.  Every
further turn or call took a token and costs at most W, which counts the first turns of what is
inside; the further ones of those took tokens of their own.  So a run costs at most what the walk
found plus ``turns`` times W, and ``turns`` is chosen so that this is within ``Limits.cost``.

Why the states are right: a turn is walked from a state that covers every state in which the head is
reached (``widen``, to a fixed point).  What a loop adds to a place in each turn is bounded by the
greatest number of turns that any budget may have.  A budgeted loop may end the program at its head,
on ways too on which its turns are known; no way leads there with a ring-buffer record.
"""

from __future__ import annotations

from egpu.bpf.budget import LINUX_TURNS, Budget
from egpu.bpf.isa import JmpOp, Kind
from egpu.verifier.cost import NOTHING, Spent, weight, worst
from egpu.verifier.loops import Loop
from egpu.verifier.report import Refusal
from egpu.verifier.setting import Limits
from egpu.verifier.structure import Structure


class Budgets:
    """What tokens are taken for, as far as a walk has come.

    ``paying``: heads of the loops that may_goto bounds.  ``held``: heads that are reached with a
    ring-buffer record, on whatever way.
    """

    def __init__(self, structure: Structure, loops: dict[int, Loop], limits: Limits) -> None:
        self.most = min(limits.cost, LINUX_TURNS)  # tokens that a run can have
        self._limit = limits.cost
        jumps = [step for step in structure.of_kind(Kind.JUMP) if step.op is JmpOp.JCOND]
        self._wanted = bool(jumps)
        places = {step.pc for step in jumps if step.target != step.following}
        self.paying = frozenset(
            loop.head
            for loop in loops.values()
            if places & loop.body and _pays(structure, loop, places)
        )
        self.held: set[int] = set()
        self._loops: dict[int, frozenset[int]] = {}
        self._calls: set[int] = set()
        self._turn = NOTHING
        self._dearest = 0  # pc of the loop or call with the turn of most instructions

    def loop(self, loop: Loop, turn: int) -> None:
        """Another turn of ``loop`` costs up to ``turn``."""
        if loop.head not in self.paying:
            self._loops[loop.head] = loop.body
        self._took(loop.head, turn)

    def call(self, pc: int, turn: int) -> None:
        """The bpf_loop at ``pc`` makes calls that cost up to ``turn`` each."""
        self._calls.add(pc)
        self._took(pc, turn)

    def _took(self, pc: int, turn: int) -> None:
        self._wanted = True
        if weight(turn) >= weight(self._turn):
            self._dearest = pc
        self._turn = worst(self._turn, turn)

    def chosen(self, walked: Spent) -> tuple[Budget | None, Spent]:
        """The budget, None if nothing takes tokens, and the worst case of a run.

        ``walked`` is that of a run that takes none.  Raises Refusal if there is no room for one.
        """
        if not self._wanted:
            return None, walked
        leaving = sorted(self.held & self._loops.keys())
        if leaving:
            raise Refusal(
                "P10",
                "the budget of a run may end the program at this loop, whose number of turns is "
                "not known, while it holds a ring-buffer record",
                leaving[0],
                "submit the record before the loop, or limit it, as in if (n > 100) n = 100",
            )
        turns, each = self.most, weight(self._turn)
        if each:
            turns = min(turns, (self._limit - weight(walked)) // each)
        if turns < 1:
            raise Refusal(
                "P4",
                f"one turn costs up to {each} instructions, and {weight(walked)} of "
                f"{self._limit} are spent apart from it: no room for a budget",
                self._dearest,
                "do less in it, or allow more (--cost-limit, Limits.cost)",
            )
        total = Spent(walked + self._turn * turns)
        return Budget(turns, dict(self._loops), frozenset(self._calls)), total


def _pays(structure: Structure, loop: Loop, places: set[int]) -> bool:
    """Whether no way from the head to the head avoids falling through one of ``places``."""
    seen, work = set[int](), [loop.head]
    while work:
        pc = work.pop()
        if pc in seen or pc not in loop.body:
            continue
        seen.add(pc)
        step = structure.step(pc)
        following = (step.target,) if pc in places else structure.successors(step)
        if loop.head in following:
            return False
        work.extend(following)
    return True
