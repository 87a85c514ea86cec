"""The states that a walk was in where ways meet, and which of them makes another unnecessary."""

from __future__ import annotations

from collections import deque

from egpu.verifier.cost import Node
from egpu.verifier.liveness import Liveness
from egpu.verifier.state import State
from egpu.verifier.subsume import Live, may_equal, state_covers, state_key, telling, told_apart

_KEPT = 8  # finished states compared per instruction; equal ones are found at any number
Key = tuple[object, ...]


def live_at(liveness: Liveness, pc: int, state: State) -> list[Live]:
    """What of each frame is live at ``pc``: all but the running one wait for a call."""
    running = liveness.at(pc)
    if len(state.frames) == 1:
        return [running]
    suspended = liveness.suspended
    return [*[suspended[frame.call_site] for frame in state.frames[1:]], running]


class Remembered:
    """The nodes of one walk at which it was compared."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._seen: dict[int, list[Node]] = {}  # by pc, while there are few
        self._keyed: dict[int, dict[Key, Node]] = {}  # by pc and key, where many
        self._finished: dict[int, deque[Node]] = {}
        self._telling: dict[int, int] = {}  # by pc, the place that told two states apart there last

    def find(self, pc: int, state: State) -> tuple[Node | None, Key | None]:
        """The node whose state is equal, or is finished and covers ``state``; and the key of
        ``state`` where nodes are kept by keys."""
        live = live_at(self._liveness, pc, state)
        here = self._seen.setdefault(pc, [])
        if len(here) == _KEPT and pc not in self._keyed:
            # Until now all of them are remembered: what is equal to a finished one, that covers.
            assert all(node.state is not None for node in here), "as many are kept"
            self._keyed[pc] = {
                self._key(pc, node.state): node for node in here if node.state is not None
            }
        keyed = self._keyed.get(pc)
        if keyed is None:
            return self._repeated(here, pc, state, live) or self._covering(pc, state, live), None
        key = state_key(state, live)
        return keyed.get(key) or self._covering(pc, state, live), key

    def keep(self, node: Node, key: Key | None) -> None:
        """Remember a node, under what ``find`` said of its state."""
        if key is None:
            self._seen[node.pc].append(node)
        else:
            self._keyed[node.pc][key] = node

    def finish(self, node: Node) -> None:
        """Every way from ``node`` is finished: its state covers others from now on."""
        kept = self._finished.setdefault(node.pc, deque())
        kept.appendleft(node)
        if len(kept) > _KEPT:
            kept.pop().state = None

    def _key(self, pc: int, state: State) -> Key:
        return state_key(state, live_at(self._liveness, pc, state))

    def _covering(self, pc: int, state: State, live: list[Live]) -> Node | None:
        """The finished node that covers ``state``."""
        place = self._telling.get(pc)
        for node in self._finished.get(pc, ()):
            if node.state is None or (place is not None and told_apart(node.state, state, place)):
                continue
            if state_covers(node.state, state, live):
                return node
            place = telling(node.state, state, live[-1])
            if place is not None:
                self._telling[pc] = place
        return None

    def _repeated(self, nodes: list[Node], pc: int, state: State, live: list[Live]) -> Node | None:
        """The unfinished node whose state is equal."""
        key, place = None, self._telling.get(pc)
        for node in nodes:
            if not node.open or node.state is None:
                continue
            if place is not None and told_apart(node.state, state, place):
                continue
            if may_equal(node.state, state, live[-1]):
                key = key or state_key(state, live)
                if self._key(pc, node.state) == key:
                    return node
        return None
