"""The walk over every way through a program.

Depth-first with an explicit list of pending ways.  At jump targets and function entries the state
is compared: with finished states (one that covers it ends the way) and with the states of the way
itself (an equal one would repeat for ever).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from egpu.bpf import isa
from egpu.bpf.helpers import calls_back
from egpu.bpf.isa import CallSrc, Kind
from egpu.verifier import arithmetic, branch, calls, checks
from egpu.verifier.budgets import Budgets
from egpu.verifier.callbacks import Calls, calls_of
from egpu.verifier.cost import NOTHING, Node, Spent, instructions, metered, weight
from egpu.verifier.counters import Counted, Counting, count, counts_to_unknown, moving, put
from egpu.verifier.execute import ACCESSES, apply, first_state, forget_frame
from egpu.verifier.liveness import Liveness
from egpu.verifier.loops import Loop
from egpu.verifier.parts import Part, Stopped, TooDearError
from egpu.verifier.remembered import Remembered, live_at
from egpu.verifier.replay import Way, replay
from egpu.verifier.report import Refusal, describe
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import Frame, State
from egpu.verifier.structure import Step
from egpu.verifier.subsume import state_key
from egpu.verifier.widen import ROUNDS, widen

__all__ = ["Exploration", "Explored", "Stopped", "replay"]

_ALU = Kind.ALU
_JUMP, _CALL, _EXIT, _HELPER = Kind.JUMP, Kind.CALL, Kind.EXIT, int(CallSrc.HELPER)
# The turn in which it is asked whether a program's only loop ends at all: most are over by then.
# Where there are more, the turns of one inside another multiply, and it is asked in the first.
_LOOKED_AT = 8

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
        self._run(first_state(self.setting))
        return Explored(Spent(self.root.worst), self.processed, self.counting, self.budgets)

    def _spends(self) -> list[int]:
        """What each instruction costs, and one at the meters that stand there."""
        made = self.counting.spends.copy()
        for pc, meter in self.counting.meters.items():
            made[pc] += metered(meter.number)
        return made

    def _run(self, first: State) -> None:
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
        setting, checkpoints = self.setting, self.setting.structure.checkpoints
        steps, observer, spends = setting.structure.steps, self.observer, self.spends
        limit, part, heads = setting.limits.processed, self.part, self.counting.loops
        stops = checkpoints if part is None else checkpoints | part.stops
        self.spent = NOTHING
        came = self.node.pc
        while True:
            pc = self.pc
            if pc in stops:
                if part is not None and part.ended(pc, state, self.processed != self.entered):
                    self._leave_part(state)
                    return
                if pc in checkpoints:
                    if self._compare(state, self.spent):
                        return
                    self.spent = NOTHING
                    if pc in heads and self._turn(state, heads[pc], came):
                        return
            if observer is not None:
                observer(pc, state)
            step = steps[pc]
            assert step is not None, "targets are checked to be instructions"
            came = pc
            self.processed += 1
            if self.processed > limit:
                raise Refusal(
                    "P4",
                    f"more than {limit} instructions processed without coming to an end",
                    hint=f"{_SHORTER} (Limits.processed)",
                )
            self.spent += spends[pc]
            kind = step.kind
            if kind is _ALU:  # as most are
                arithmetic.execute(setting, state, step)
                self.pc = step.following
                continue
            if kind is _JUMP:
                fallen, jumping = branch.decide(setting, state, step)
                if fallen is not None and jumping is not None:
                    self._split(step, self.spent, jumping)
                    self.spent = NOTHING
                    state, self.pc = fallen, step.following
                elif fallen is not None:
                    state, self.pc = fallen, step.following
                else:
                    assert jumping is not None, "one way of a jump is possible"
                    state, self.pc = jumping, step.target
                continue
            if kind is _CALL and step.src == _HELPER:
                if calls_back(step.imm):
                    state = self._call_back(state, step)
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
                self._return_back(state)
                return
            target = apply(setting, self.recorder, state, step)
            if target is None:
                self._end(self.spent)
                return
            self.pc = target

    def _leave_part(self, state: State) -> None:
        """The turn of a loop is over: at the head again, or outside."""
        if self.part is not None and self.pc == self.part.head:
            self.returned.append(state)
        else:
            self.left.append((self.pc, state))
        self._end(self.spent)

    def _turn(self, state: State, loop: Loop, came: int) -> bool:
        """A loop's head is reached: whether the rest of its turns was walked as one."""
        frame, counting = state.frame, self.counting
        turns = frame.turns.get(loop.head, 0) + 1 if came in loop.body else 1
        frame.turns = {**frame.turns, loop.head: turns}
        if state.references:
            self.budgets.held.add(loop.head)
        if self.processed == self.entered:
            return False
        worth_trying = counting.worth_trying(loop, turns, self.processed)
        pays = loop.head in self.budgets.paying
        look = 1 if len(counting.loops) > 1 else _LOOKED_AT
        if not worth_trying and not pays and turns != look:
            return False
        turn = counting.turn(loop)
        counted = count(turn, state)
        too_many = counted is not None and counted.turns >= self.setting.limits.cost
        # Walking the first turns of what nobody knows the end of gains nothing.
        endless = too_many or (counted is None and (pays or worth_trying))
        if endless and (pays or counts_to_unknown(turn, state)):
            self._walk_budgeted(state, loop)
            return True
        if not worth_trying:
            return False
        if counted is None or too_many:
            counting.failed(loop)
            return False
        try:
            inner = self._walk_part(state, loop, counted)
        except TooDearError:
            if pays or counts_to_unknown(turn, state):
                self._walk_budgeted(state, loop)
                return True
            inner = None
        if inner is None or not inner.left:
            counting.failed(loop)
            return False
        counting.done.add(loop.head)
        self._continue_after(inner, loop.head, inner.root.worst * (counted.turns + 1))
        return True

    def _walk_part(self, state: State, loop: Loop, counted: Counted) -> Exploration | None:
        """One turn from a state that covers the heads of all, None if none is found that does.

        Raises TooDearError if all turns together are over the limit of the cost."""
        wide = state.copy()
        put(wide, counted)
        part = Part(len(state.frames), loop.head, loop)
        live = live_at(self.liveness, self.pc, state)
        for attempt in range(ROUNDS):
            inner = self._inner(part, wide)
            try:
                inner._run(wide.copy())
            except Stopped:
                self.processed = inner.processed
                return None
            self.processed = inner.processed
            if weight(inner.root.worst) * (counted.turns + 1) > self.setting.limits.cost:
                raise TooDearError
            for back in inner.returned:
                put(back, counted)  # what counts is known to be covered
            changed = widen(wide, inner.returned, live, attempt)
            if changed is None:
                return None
            if not changed:
                self.recorder.become(inner.recorder)
                return inner
        return None

    def _walk_budgeted(self, state: State, loop: Loop) -> None:
        """Walk one turn that stands for as many as the budget of a run allows."""
        counted = moving(self.counting.turn(loop), state, self.budgets.most)
        wide = state.copy()
        put(wide, counted)
        part, live = (
            Part(len(state.frames), loop.head, loop),
            live_at(self.liveness, self.pc, state),
        )
        for attempt in range(ROUNDS):
            inner = self._inner(part, wide)
            inner._run(wide.copy())
            self.processed = inner.processed
            for back in inner.returned:
                put(back, counted)
            changed = widen(wide, inner.returned, live, attempt)
            if changed is None:
                break
            if not changed and inner.left:
                self.recorder.become(inner.recorder)
                self.budgets.loop(loop, inner.root.worst)
                self._continue_after(inner, loop.head, inner.root.worst)
                return
        raise Refusal(
            "P4",
            "what this loop leaves differs from turn to turn beyond numbers, and how often it "
            "turns is not known",
            hint="let it change numbers only, not where pointers are, or limit its turns",
        )

    def _call_back(self, state: State, step: Step) -> State:
        """Walk one call of a helper's callback that stands for all. Gives the state after."""
        made = calls_of(self.setting, state, step)
        self.spent += calls.call(self.setting, self.recorder, state, step)
        if len(state.frames) >= isa.MAX_CALL_DEPTH:
            raise Refusal(
                "P1", f"calls nest more than {isa.MAX_CALL_DEPTH} deep", hint="nest fewer functions"
            )
        self.pc = step.following
        total = self.spent
        if made.most:
            state, worst = self._walk_callback(state, step, made)
            if made.open:
                self.budgets.call(step.pc, worst)
            else:
                self._check_calls(step, self.node.total + total, made, worst)
                total += worst * made.most
        state.frame.registers[0] = made.result
        # What is before cannot be walked again, so ways are shown from here.
        node = Node(self.node, step.pc, total, ways=1, jumped=self.jumped)
        self._check_cost(node.total)
        node.start = state.copy(), self.pc
        self.node, self.jumped, self.spent = node, None, NOTHING
        return state

    def _check_calls(self, step: Step, before: int, made: Calls, worst: int) -> None:
        """Refuse calls that alone bring the cost over its limit, naming them."""
        limit = self.setting.limits.cost
        if weight(before) + made.most * weight(worst) > limit:
            raise Refusal(
                "P4",
                f"{made.helper} calls its callback up to {made.most} times, each up to "
                f"{weight(worst)} instructions: the worst case is over {limit} a thread",
                step.pc,
                hint=f"{made.fewer}, or allow more (--cost-limit, Limits.cost)",
            )

    def _walk_callback(self, state: State, step: Step, made: Calls) -> tuple[State, int]:
        """The state that covers any number of calls, and what one costs at most."""
        part = Part(len(state.frames) + 1, made.start, None)
        live = live_at(self.liveness, self.pc, state)
        wide = state.copy()
        for attempt in range(ROUNDS):
            first = wide.copy()
            arguments = list(made.arguments)
            first.frames.append(Frame.entered(len(wide.frames), arguments, step.pc, made.start))
            inner = self._inner(part, first)
            inner._run(first)
            self.processed = inner.processed
            for back in inner.returned:
                back.frame.registers[0:6] = wide.frame.registers[0:6]
            changed = widen(wide, inner.returned, live, attempt)
            if changed is None:
                break
            if not changed:
                self.recorder.become(inner.recorder)
                return wide, inner.root.worst
        raise Refusal(
            "P4",
            "what the callback leaves on the stack differs from call to call beyond numbers",
            step.pc,
            "let it change numbers only, not where pointers are",
        )

    def _return_back(self, state: State) -> None:
        """The callback returns: 0 to go on, 1 to end."""
        result = checks.scalar(self.setting, state.frame.registers[0], 0, "a callback's result")
        if result.umax > 1:
            raise Refusal(
                "P2",
                f"a callback returns {describe(result, self.setting.program)}, must be 0 or 1",
                hint="0 goes on, 1 ends the loop",
            )
        if len(state.references) != self.references:
            raise Refusal(
                "P10",
                "a callback returns with a ring-buffer record that it neither submits nor discards",
                hint="reserve and submit in the same function",
            )
        state.frames.pop()
        forget_frame(state)
        self.returned.append(state)
        self._end(self.spent)

    def _inner(self, part: Part, first: State) -> Exploration:
        inner = Exploration(self.setting, self.liveness, self.recorder.copy(), self.observer, self)
        inner.part = part
        inner.references = len(first.references)
        inner.pc = part.head
        inner.processed = inner.entered = self.processed
        inner.root.start = first.copy(), part.head
        return inner

    def _continue_after(self, inner: Exploration, head: int, spent: int) -> None:
        """Go on wherever a loop is left."""
        ways = {}
        for pc, state in inner.left:
            self.pc = pc
            ways[pc, state_key(state, live_at(self.liveness, self.pc, state))] = state
        node = Node(self.node, head, spent, ways=len(ways), jumped=self.jumped)
        self._check_cost(node.total)
        for (pc, _), state in ways.items():
            way = Node(node, head, NOTHING, ways=1, jumped=None)
            way.start = state.copy(), pc
            self.pending.append((state, pc, way, None))

    def _split(self, step: Step, spent: int, jumping: State) -> None:
        node = Node(self.node, step.pc, spent, ways=2, jumped=self.jumped)
        self._check_cost(node.total)
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
            self._check_cost(self.node.total + total)
            self._end(total)
            return True
        node = Node(self.node, self.pc, spent, ways=1, jumped=self.jumped, state=state.copy())
        self._check_cost(node.total)
        self.remembered.keep(node, key)
        self.node, self.jumped = node, None
        return False

    def _end(self, spent: int) -> None:
        for node in self.node.finish_way(spent):
            if node.state is not None:
                self.remembered.finish(node)

    def _check_cost(self, total: int) -> None:
        limit = self.setting.limits.cost
        if weight(total) > limit:
            raise Refusal(
                "P4",
                f"the worst case is over {limit} instructions a thread, helper bodies included",
                hint=f"{_SHORTER}, or allow more (--cost-limit, Limits.cost)",
            )
