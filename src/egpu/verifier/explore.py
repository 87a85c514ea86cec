"""The walk over every way through a program.

Depth-first with an explicit list of pending ways.  At jump targets and function entries the state
is compared: with finished states (one that covers it ends the way) and with the states of the way
itself (an equal one would repeat for ever).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from egpu.bpf.helpers import calls_back
from egpu.bpf.isa import CallSrc, Kind
from egpu.verifier import arithmetic, branch, calls, one_call, one_turn
from egpu.verifier.budgets import Budgets
from egpu.verifier.cost import NOTHING, Node, Spent, instructions, metered, weight
from egpu.verifier.counters import Counting
from egpu.verifier.execute import ACCESSES, apply, first_state
from egpu.verifier.liveness import Liveness
from egpu.verifier.parts import Part, Stopped
from egpu.verifier.remembered import Remembered, live_at
from egpu.verifier.replay import Way, replay
from egpu.verifier.report import Refusal
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import State
from egpu.verifier.structure import Step
from egpu.verifier.subsume import state_key

__all__ = ["Exploration", "Explored", "Stopped", "replay"]

_ALU = Kind.ALU
_JUMP, _CALL, _EXIT, _HELPER = Kind.JUMP, Kind.CALL, Kind.EXIT, int(CallSrc.HELPER)

_SHORTER = "make loops shorter, or limit what bounds them, as in if (n > 100) n = 100"
Observer = Callable[[int, State], None]


class Explored(NamedTuple):
    """The worst cost and how many instructions were walked; the cost is that of a run that takes
    no token of ``budgets``."""

    worst: Spent
    processed: int
    counting: Counting
    budgets: Budgets


class Exploration:
    """One walk. ``run`` gives its result or raises Stopped.

    With a ``part`` it is the walk through one turn of a loop or one call of a callback: ways end
    where the turn does, ``returned`` are the states there, ``left`` the places and states where a
    loop is left.
    """

    def __init__(
        self,
        setting: Setting,
        liveness: Liveness,
        recorder: Recorder,
        observer: Observer | None = None,
        outer: Exploration | None = None,
    ) -> None:
        self.setting = setting
        self.liveness = liveness
        self.recorder = recorder
        self.observer = observer
        self.counting: Counting = outer.counting if outer else Counting(setting.structure)
        self.budgets: Budgets = (
            outer.budgets
            if outer
            else Budgets(setting.structure, self.counting.loops, setting.limits)
        )
        self.spends: list[int] = outer.spends if outer else self._spends()
        self.part: Part | None = None
        self.references = 0  # records held where the part begins
        self.returned: list[State] = []
        self.left: list[tuple[int, State]] = []
        self.remembered = Remembered(liveness)
        self.pending: list[tuple[State, int, Node, bool | None]] = []
        self.processed = 0
        self.entered = -1  # instructions processed before this walk, of a part
        self.spent = NOTHING  # since the last node
        self.pc = 0
        self.root = self.node = Node(None, 0, NOTHING, ways=1, jumped=None)
        self.jumped: bool | None = None

    def run(self) -> Explored:
        """Walk the whole program."""
        self.follow(first_state(self.setting))
        return Explored(Spent(self.root.worst), self.processed, self.counting, self.budgets)

    def _spends(self) -> list[int]:
        """What each instruction costs, and one at the meters that stand there."""
        made = self.counting.spends.copy()
        for pc, meter in self.counting.meters.items():
            made[pc] += metered(meter.number)
        return made

    def follow(self, first: State) -> None:
        """Walk every way that begins with ``first``. Raises Stopped."""
        state: State | None = first
        try:
            while state is not None:
                self._walk(state)
                state = self._resume()
        except Refusal as refusal:
            start, decisions = self.node.way()
            if self.jumped is not None:
                decisions.append(self.jumped)
            length = instructions(self.node.total + self.spent) - instructions(start.total)
            raise Stopped(refusal, self.pc, Way(start.start, tuple(decisions)), length) from None

    def _resume(self) -> State | None:
        """Take up the pending way that was left last."""
        if not self.pending:
            return None
        state, self.pc, self.node, self.jumped = self.pending.pop()
        return state

    def _walk(self, state: State) -> None:
        """Follow one way to its end."""
        setting, part = self.setting, self.part
        steps, observer, spends = setting.structure.steps, self.observer, self.spends
        limit, stops = setting.limits.processed, setting.structure.checkpoints
        if part is not None:
            stops = stops | part.stops
        self.spent = NOTHING
        came = self.node.pc
        while True:
            pc = self.pc
            if pc in stops and self._stops(state, came):
                return
            if observer is not None:
                observer(pc, state)
            step = steps[pc]
            assert step is not None, "targets are checked to be instructions"
            came = pc
            self.processed += 1
            if self.processed > limit:
                raise _endless(limit)
            self.spent += spends[pc]
            kind = step.kind
            if kind is _ALU:  # as most are
                arithmetic.execute(setting, state, step)
                self.pc = step.following
                continue
            if kind is _JUMP:
                state = self._jump(state, step)
                continue
            if kind is _CALL and step.src == _HELPER:
                if calls_back(step.imm):
                    state = one_call.called_back(self, state, step)
                    continue
                self.spent += calls.call(setting, self.recorder, state, step)
                self.pc = step.following
                continue
            access = ACCESSES.get(kind)
            if access is not None:
                access(setting, self.recorder, state, step)
                self.pc = step.following
                continue
            if part is not None and kind is _EXIT and part.returns(state):
                one_call.returned(self, state)
                return
            target = apply(setting, self.recorder, state, step)
            if target is None:
                self.end(self.spent)
                return
            self.pc = target

    def _stops(self, state: State, came: int) -> bool:
        """At a place where states are compared, or where a part ends: whether the way ends."""
        pc, part, heads = self.pc, self.part, self.counting.loops
        if part is not None and part.ended(pc, state, self.processed != self.entered):
            self._leave_part(state)
            return True
        if pc not in self.setting.structure.checkpoints:
            return False
        if self._compare(state, self.spent):
            return True
        self.spent = NOTHING
        return pc in heads and one_turn.turned(self, state, heads[pc], came)

    def _jump(self, state: State, step: Step) -> State:
        """Follow the one way that is possible; of two the one that falls through, first."""
        fallen, jumping = branch.decide(self.setting, state, step)
        if fallen is None:
            assert jumping is not None, "one way of a jump is possible"
            self.pc = step.target
            return jumping
        if jumping is not None:
            self._split(step, self.spent, jumping)
            self.spent = NOTHING
        self.pc = step.following
        return fallen

    def _leave_part(self, state: State) -> None:
        """The turn of a loop is over: at the head again, or outside."""
        if self.part is not None and self.pc == self.part.head:
            self.returned.append(state)
        else:
            self.left.append((self.pc, state))
        self.end(self.spent)

    def inner(self, part: Part, first: State) -> Exploration:
        """A walk through ``part`` that begins with ``first``; the caller follows it."""
        inner = Exploration(self.setting, self.liveness, self.recorder.copy(), self.observer, self)
        inner.part = part
        inner.references = len(first.references)
        inner.pc = part.head
        inner.processed = inner.entered = self.processed
        inner.root.start = first.copy(), part.head
        return inner

    def continue_after(self, inner: Exploration, head: int, spent: int) -> None:
        """Go on wherever a loop is left."""
        ways = {}
        for pc, state in inner.left:
            self.pc = pc
            ways[pc, state_key(state, live_at(self.liveness, self.pc, state))] = state
        node = Node(self.node, head, spent, ways=len(ways), jumped=self.jumped)
        self.check_cost(node.total)
        for (pc, _), state in ways.items():
            way = Node(node, head, NOTHING, ways=1, jumped=None)
            way.start = state.copy(), pc
            self.pending.append((state, pc, way, None))

    def _split(self, step: Step, spent: int, jumping: State) -> None:
        node = Node(self.node, step.pc, spent, ways=2, jumped=self.jumped)
        self.check_cost(node.total)
        self.pending.append((jumping, step.target, node, True))
        self.node, self.jumped = node, False

    def _compare(self, state: State, spent: int) -> bool:
        """Compare at a checkpoint; whether the way ends here."""
        known, key = self.remembered.find(self.pc, state)
        if known is not None:
            if known.open:
                raise Refusal(
                    "P4",
                    "infinite loop: this instruction is reached again in the same state",
                    hint="count the turns in a register and leave the loop at a constant limit",
                )
            total = spent + known.worst
            self.check_cost(self.node.total + total)
            self.end(total)
            return True
        node = Node(self.node, self.pc, spent, ways=1, jumped=self.jumped, state=state.copy())
        self.check_cost(node.total)
        self.remembered.keep(node, key)
        self.node, self.jumped = node, None
        return False

    def end(self, spent: int) -> None:
        """A way ends here."""
        for node in self.node.finish_way(spent):
            if node.state is not None:
                self.remembered.finish(node)

    def check_cost(self, total: int) -> None:
        """Refuse a worst case over the limit."""
        limit = self.setting.limits.cost
        if weight(total) > limit:
            raise Refusal(
                "P4",
                f"the worst case is over {limit} instructions a thread, helper bodies included",
                hint=f"{_SHORTER}, or allow more (--cost-limit, Limits.cost)",
            )


def _endless(limit: int) -> Refusal:
    return Refusal(
        "P4",
        f"more than {limit} instructions processed without coming to an end",
        hint=f"{_SHORTER} (Limits.processed)",
    )
