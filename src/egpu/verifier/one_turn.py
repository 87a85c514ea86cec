"""Turns of a loop walked as one: from a state that covers the heads of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egpu.verifier.cost import weight
from egpu.verifier.counters import Counted, count, counts_to_unknown, moving, put
from egpu.verifier.loops import Loop
from egpu.verifier.parts import Part, Stopped, TooDearError
from egpu.verifier.remembered import live_at
from egpu.verifier.report import Refusal
from egpu.verifier.state import State
from egpu.verifier.widen import ROUNDS, widen

if TYPE_CHECKING:
    from egpu.verifier.explore import Exploration

# The turn in which it is asked whether a program's only loop ends at all: most are over by then.
# Where there are more, the turns of one inside another multiply, and it is asked in the first.
_LOOKED_AT = 8


def turned(walk: Exploration, state: State, loop: Loop, came: int) -> bool:
    """A loop's head is reached: whether the rest of its turns was walked as one."""
    frame, counting = state.frame, walk.counting
    turns = frame.turns.get(loop.head, 0) + 1 if came in loop.body else 1
    frame.turns = {**frame.turns, loop.head: turns}
    if state.references:
        walk.budgets.held.add(loop.head)
    if walk.processed == walk.entered:
        return False
    worth_trying = counting.worth_trying(loop, turns, walk.processed)
    pays = loop.head in walk.budgets.paying
    look = 1 if len(counting.loops) > 1 else _LOOKED_AT
    if not worth_trying and not pays and turns != look:
        return False
    turn = counting.turn(loop)
    counted = count(turn, state)
    too_many = counted is not None and counted.turns >= walk.setting.limits.cost
    # Walking the first turns of what nobody knows the end of gains nothing.
    endless = too_many or (counted is None and (pays or worth_trying))
    if endless and (pays or counts_to_unknown(turn, state)):
        _walk_budgeted(walk, state, loop)
        return True
    if not worth_trying:
        return False
    if counted is None or too_many:
        counting.failed(loop)
        return False
    try:
        inner = _walk_part(walk, state, loop, counted)
    except TooDearError:
        if pays or counts_to_unknown(turn, state):
            _walk_budgeted(walk, state, loop)
            return True
        inner = None
    if inner is None or not inner.left:
        counting.failed(loop)
        return False
    counting.done.add(loop.head)
    walk.continue_after(inner, loop.head, inner.root.worst * (counted.turns + 1))
    return True


def _walk_part(walk: Exploration, state: State, loop: Loop, counted: Counted) -> Exploration | None:
    """One turn from a state that covers the heads of all, None if none is found that does.

    Raises TooDearError if all turns together are over the limit of the cost."""
    wide = state.copy()
    put(wide, counted)
    part = Part(len(state.frames), loop.head, loop)
    live = live_at(walk.liveness, walk.pc, state)
    for attempt in range(ROUNDS):
        inner = walk.inner(part, wide)
        try:
            inner.follow(wide.copy())
        except Stopped:
            walk.processed = inner.processed
            return None
        walk.processed = inner.processed
        if weight(inner.root.worst) * (counted.turns + 1) > walk.setting.limits.cost:
            raise TooDearError
        for back in inner.returned:
            put(back, counted)  # what counts is known to be covered
        changed = widen(wide, inner.returned, live, attempt)
        if changed is None:
            return None
        if not changed:
            walk.recorder.become(inner.recorder)
            return inner
    return None


def _walk_budgeted(walk: Exploration, state: State, loop: Loop) -> None:
    """Walk one turn that stands for as many as the budget of a run allows."""
    counted = moving(walk.counting.turn(loop), state, walk.budgets.most)
    wide = state.copy()
    put(wide, counted)
    part, live = (
        Part(len(state.frames), loop.head, loop),
        live_at(walk.liveness, walk.pc, state),
    )
    for attempt in range(ROUNDS):
        inner = walk.inner(part, wide)
        inner.follow(wide.copy())
        walk.processed = inner.processed
        for back in inner.returned:
            put(back, counted)
        changed = widen(wide, inner.returned, live, attempt)
        if changed is None:
            break
        if not changed and inner.left:
            walk.recorder.become(inner.recorder)
            walk.budgets.loop(loop, inner.root.worst)
            walk.continue_after(inner, loop.head, inner.root.worst)
            return
    raise Refusal(
        "P4",
        "what this loop leaves differs from turn to turn beyond numbers, and how often it "
        "turns is not known",
        hint="let it change numbers only, not where pointers are, or limit its turns",
    )
