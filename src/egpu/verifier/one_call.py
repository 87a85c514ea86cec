"""Calls of a callback walked as one: from a state that covers what any number of them leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egpu.bpf import isa
from egpu.verifier import calls, checks
from egpu.verifier.callbacks import Calls, calls_of
from egpu.verifier.cost import NOTHING, Node, weight
from egpu.verifier.execute import forget_frame
from egpu.verifier.parts import Part
from egpu.verifier.remembered import live_at
from egpu.verifier.report import Refusal, describe
from egpu.verifier.state import Frame, State
from egpu.verifier.structure import Step
from egpu.verifier.widen import ROUNDS, widen

if TYPE_CHECKING:
    from egpu.verifier.explore import Exploration


def called_back(walk: Exploration, state: State, step: Step) -> State:
    """Walk one call of a helper's callback that stands for all. Gives the state after."""
    made = calls_of(walk.setting, state, step)
    walk.spent += calls.call(walk.setting, walk.recorder, state, step)
    if len(state.frames) >= isa.MAX_CALL_DEPTH:
        raise Refusal(
            "P1", f"calls nest more than {isa.MAX_CALL_DEPTH} deep", hint="nest fewer functions"
        )
    walk.pc = step.following
    total = walk.spent
    if made.most:
        state, worst = _walk_callback(walk, state, step, made)
        if made.open:
            walk.budgets.call(step.pc, worst)
        else:
            _check_calls(walk, step, walk.node.total + total, made, worst)
            total += worst * made.most
    state.frame.registers[0] = made.result
    # What is before cannot be walked again, so ways are shown from here.
    node = Node(walk.node, step.pc, total, ways=1, jumped=walk.jumped)
    walk.check_cost(node.total)
    node.start = state.copy(), walk.pc
    walk.node, walk.jumped, walk.spent = node, None, NOTHING
    return state


def _check_calls(walk: Exploration, step: Step, before: int, made: Calls, worst: int) -> None:
    """Refuse calls that alone bring the cost over its limit, naming them."""
    limit = walk.setting.limits.cost
    if weight(before) + made.most * weight(worst) > limit:
        raise Refusal(
            "P4",
            f"{made.helper} calls its callback up to {made.most} times, each up to "
            f"{weight(worst)} instructions: the worst case is over {limit} a thread",
            step.pc,
            hint=f"{made.fewer}, or allow more (--cost-limit, Limits.cost)",
        )


def _walk_callback(walk: Exploration, state: State, step: Step, made: Calls) -> tuple[State, int]:
    """The state that covers any number of calls, and what one costs at most."""
    part = Part(len(state.frames) + 1, made.start, None)
    live = live_at(walk.liveness, walk.pc, state)
    wide = state.copy()
    for attempt in range(ROUNDS):
        first = wide.copy()
        arguments = list(made.arguments)
        first.frames.append(Frame.entered(len(wide.frames), arguments, step.pc, made.start))
        inner = walk.inner(part, first)
        inner.follow(first)
        walk.processed = inner.processed
        for back in inner.returned:
            back.frame.registers[0:6] = wide.frame.registers[0:6]
        changed = widen(wide, inner.returned, live, attempt)
        if changed is None:
            break
        if not changed:
            walk.recorder.become(inner.recorder)
            return wide, inner.root.worst
    raise Refusal(
        "P4",
        "what the callback leaves on the stack differs from call to call beyond numbers",
        step.pc,
        "let it change numbers only, not where pointers are",
    )


def returned(walk: Exploration, state: State) -> None:
    """The callback returns: 0 to go on, 1 to end."""
    result = checks.scalar(walk.setting, state.frame.registers[0], 0, "a callback's result")
    if result.umax > 1:
        raise Refusal(
            "P2",
            f"a callback returns {describe(result, walk.setting.program)}, must be 0 or 1",
            hint="0 goes on, 1 ends the loop",
        )
    if len(state.references) != walk.references:
        raise Refusal(
            "P10",
            "a callback returns with a ring-buffer record that it neither submits nor discards",
            hint="reserve and submit in the same function",
        )
    state.frames.pop()
    forget_frame(state)
    walk.returned.append(state)
    walk.end(walk.spent)
