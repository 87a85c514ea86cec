"""Rounds of trying: each begins and ends holding nothing.

So a lane never waits for one that cannot go on, in its own warp or elsewhere: what another thread
has under way, it finishes without waiting for anybody.  Nothing here asks that lanes which begin a
round together end it together: on an H200 (CUDA 13.0) a ``bar.warp.sync`` at the end of each round,
on the lanes that ran its beginning, kept a warp waiting for ever once some lanes were done.  Where
lanes work together, they find out in each round who is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from egpu.codegen.ir import Body

ROUNDS = 1 << 20  # after which others are thought to be at it for ever
_PENDING = 1  # no helper gives it


@dataclass(frozen=True, slots=True)
class Rounds:
    """A round that does not give a result is followed by another."""

    body: Body
    result: str  # a variable
    tries: str  # a variable: the number of the round
    latch: str

    def give(self, value: str) -> None:
        """End the helper with ``value``."""
        self.body.store("i64", value, "ptr", self.result, 8)
        self.body.branch(self.latch)

    def give_if(self, condition: str, value: int) -> None:
        """End the helper with ``value`` if ``condition`` holds."""
        body = self.body
        then, other = body.fresh("give"), body.fresh("go")
        body.branch_if(condition, then, other)
        body.label(then)
        self.give(str(value))
        body.label(other)

    def again(self) -> None:
        """Go to the next round."""
        self.body.branch(self.latch)

    def restart(self) -> None:
        """Go to the next round, which is number 0 again."""
        self.body.store("i64", "-1", "ptr", self.tries, 8)
        self.body.branch(self.latch)

    def again_unless(self, condition: str) -> None:
        """Go to the next round unless ``condition`` holds."""
        body = self.body
        other = body.fresh("go")
        body.branch_if(condition, other, self.latch)
        body.label(other)

    def number(self) -> str:
        """How many rounds were before this."""
        return self.body.load("i64", "ptr", self.tries, 8)

    def given(self) -> str:
        """The result, after the rounds."""
        return self.body.load("i64", "ptr", self.result, 8)


@contextmanager
def rounds(body: Body, give_up: Callable[[], str]) -> Iterator[Rounds]:
    """The block in it is a round; ``give_up`` writes what gives the result after the last."""
    tries = body.variable(body.fresh("tries"), "i64")
    made = Rounds(body, body.variable(body.fresh("result"), "i64"), tries, body.fresh("latch"))
    start, given_up, done = body.fresh("round"), body.fresh("given_up"), body.fresh("done")
    body.store("i64", str(_PENDING), "ptr", made.result, 8)
    body.store("i64", "0", "ptr", tries, 8)
    body.branch(start)
    body.label(start)
    yield made
    body.label(made.latch)
    number = body.add(made.number(), 1)
    body.store("i64", number, "ptr", tries, 8)
    pending = body.compare("eq", "i64", made.given(), str(_PENDING))
    more = body.compare("ult", "i64", number, str(ROUNDS))
    ask = body.fresh("ask")
    body.branch_if(pending, ask, done)
    body.label(ask)
    body.branch_if(more, start, given_up)
    body.label(given_up)
    body.store("i64", give_up(), "ptr", made.result, 8)
    body.branch(done)
    body.label(done)
