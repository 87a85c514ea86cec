"""Making a state general enough to stand for what comes back to it.

A loop or a callback is walked once from a state that must cover every state at its beginning.
``widen`` takes what came back, and where it is not covered makes the state hold it too; the walk is
repeated until all is covered.  Nothing is assumed: a state that needs no widening is its own proof.
"""

from __future__ import annotations

from egpu.verifier.scalar import S64, Scalar, covers
from egpu.verifier.state import EMPTY_SLOT, INVALID, MISC, ZERO, Frame, Pointer, Slot, State, Value
from egpu.verifier.subsume import Live, state_covers

ROUNDS = 8
_JOINED = 2  # rounds in which ranges are joined; later they are given up


def widen(wide: State, back: list[State], live: list[Live], turn: int) -> bool | None:
    """Make ``wide`` cover every state of ``back``: whether it changed, None if it cannot."""
    changed = False
    for state in back:
        if state_covers(wide, state, live):
            continue
        changed = True
        if len(wide.frames) != len(state.frames) or wide.references != state.references:
            return None
        for mine, theirs, alive in zip(wide.frames, state.frames, live, strict=True):
            if not _widen_frame(mine, theirs, alive, turn):
                return None
        if not state_covers(wide, state, live):
            _unlink(wide)
        if not state_covers(wide, state, live):
            return None
    return changed


def _widen_frame(mine: Frame, theirs: Frame, live: Live, turn: int) -> bool:
    for index in range(11):
        if live.registers >> index & 1:
            made = _both(mine.registers[index], theirs.registers[index], turn)
            if made is _NEITHER:
                return False
            assert not isinstance(made, str), "the one text is _NEITHER"
            mine.registers[index] = made
    for number in list(mine.slots):
        if live.slots >> 2 * (-1 - number) & 3:
            slot = _slot(mine.slots[number], theirs.slots.get(number, EMPTY_SLOT), turn)
            if slot is None:
                return False
            mine.slots[number] = slot
    return True


_NEITHER = "neither"


def _both(mine: Value, theirs: Value, turn: int) -> Value | str:
    """A value that holds both."""
    if mine is None or theirs is None:
        return None
    if isinstance(mine, Scalar) and isinstance(theirs, Scalar):
        if covers(mine, theirs):
            return mine
        return S64.join(mine, theirs) if turn < _JOINED else S64.unknown
    if isinstance(mine, Pointer) and isinstance(theirs, Pointer) and mine[:3] == theirs[:3]:
        if mine.variable is None or theirs.variable is None:
            same = mine.variable is theirs.variable
            return mine if same else _NEITHER
        if covers(mine.variable, theirs.variable):
            return mine
        return mine._replace(variable=S64.join(mine.variable, theirs.variable))
    return _NEITHER


def _slot(mine: Slot, theirs: Slot, turn: int) -> Slot | None:
    """A slot that holds both, None where a pointer would be lost."""
    if mine.kinds == theirs.kinds and [s[:2] for s in mine.spills] == [
        s[:2] for s in theirs.spills
    ]:
        spills = []
        for one, other in zip(mine.spills, theirs.spills, strict=True):
            made = _both(one.value, other.value, turn)
            if not isinstance(made, Scalar | Pointer):
                return None
            spills.append(one._replace(value=made))
        return Slot(mine.kinds, tuple(spills))
    if mine.has_pointer() or theirs.has_pointer():
        return None
    pairs = zip(mine.kinds, theirs.kinds, strict=True)
    return Slot(
        bytes(INVALID if INVALID in (a, b) else ZERO if a == b == ZERO else MISC for a, b in pairs)
    )


def _unlink(state: State) -> None:
    """Numbers are no longer known to be equal."""
    state.rewrite(lambda value: value.linked(0) if isinstance(value, Scalar) else value)
