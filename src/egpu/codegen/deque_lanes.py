"""Cells of a queue or stack, and the lanes of a warp that move them together: the steps of the
protocol of ``egpu.codegen.deques``."""

from __future__ import annotations

from dataclasses import dataclass

from egpu.bpf.program import MapSpec
from egpu.codegen.arena import (
    DEQUE_CELL,
    DEQUE_CONTROL,
    DEQUE_CONTROL_SIZE,
    DEQUE_EMPTY,
    DEQUE_FULL,
    DEQUE_INCARNATION,
    DEQUE_STATE,
    round_up,
)
from egpu.codegen.helper_call import Call, is_straight
from egpu.codegen.ir import Body
from egpu.codegen.rounds import Rounds

_EBUSY = -16  # Linux's errno value as helpers give it (uapi/asm-generic/errno-base.h)
_LOW = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Deque:
    """A queue or stack: 64-bit values."""

    call: Call
    spec: MapSpec
    control: str

    @property
    def body(self) -> Body:
        return self.call.scope.body

    @property
    def place(self) -> str:
        return self.body.add(self.control, DEQUE_CONTROL["place"][0])

    def count(self, name: str) -> None:
        at = self.body.add(self.control, DEQUE_CONTROL[name][0])
        self.body.call_void("egpu.add_gpu", f"i64 {at}", "i64 1")

    def look(self) -> tuple[str, str, str]:
        """(the word, number of the oldest value's cell, how many values)."""
        body = self.body
        word = body.call("i64", "egpu.acquire_gpu", f"i64 {self.place}")
        first = body.binary("and", "i64", word, str(_LOW))
        return word, first, body.binary("lshr", "i64", word, "32")

    def wrapped(self, number: str) -> str:
        """``number``, below twice the entries, as the number of a cell."""
        body, entries = self.body, str(self.spec.max_entries)
        inside = body.compare("ult", "i64", number, entries)
        return body.select(inside, "i64", number, body.binary("sub", "i64", number, entries))

    def cell(self, number: str) -> str:
        """The address of a cell."""
        body = self.body
        stride = DEQUE_CELL + round_up(self.spec.value_size, 8)
        skip = body.binary("mul", "i64", number, str(stride))
        return body.binary("add", "i64", body.add(self.control, DEQUE_CONTROL_SIZE), skip)

    def release(self, cell: str, word: str) -> None:
        self.body.call_void("egpu.release_gpu", f"i64 {cell}", f"i64 {word}")

    def emptied(self, word: str) -> str:
        """The word of a FULL cell once its value has been taken."""
        return self.body.add(word, DEQUE_INCARNATION + DEQUE_EMPTY - DEQUE_FULL)

    def words(self, first: str, count: str) -> str:
        return self.body.binary("or", "i64", self.body.binary("shl", "i64", count, "32"), first)

    def give_up(self) -> str:
        self.count("busy")
        return str(_EBUSY)


def deque_of(call: Call) -> Deque:
    """The map of r1."""
    index, spec = call.scope.map_at(call.pc, 1)
    return Deque(call, spec, call.scope.map_start(index))


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes that run the following together; all see the same ``word``.  Not ``together``: the
    lane is one by itself, and meets no other."""

    deque: Deque
    together: bool
    mask: str
    leader: str
    rank: str  # 64 bits
    word: str
    first: str
    count: str

    @property
    def body(self) -> Body:
        return self.deque.body

    def moved(self, number: str, states: tuple[int, int], limit: str) -> Moved:
        """Move cell ``number`` of each lane to another state, for up to ``limit`` lanes."""
        body = self.body
        got = body.variable(body.fresh("got"), "i64")
        before = body.variable(body.fresh("before"), "i64")
        attempt, swap, held, done = (
            body.fresh(name) for name in ("attempt", "swap", "held", "done")
        )
        cell = self.deque.cell(number)
        body.store("i64", "0", "ptr", got, 8)
        body.store("i64", "0", "ptr", before, 8)
        body.branch_if(body.compare("ult", "i64", self.rank, limit), attempt, done)
        body.label(attempt)
        word = body.call("i64", "egpu.load_gpu", f"i64 {cell}")
        state = body.binary("and", "i64", word, str(DEQUE_STATE))
        body.branch_if(body.compare("eq", "i64", state, str(states[0])), swap, done)
        body.label(swap)
        after = body.add(word, states[1] - states[0])
        old = body.call("i64", "egpu.swap_gpu", f"i64 {cell}", f"i64 {word}", f"i64 {after}")
        body.branch_if(body.compare("eq", "i64", old, word), held, done)
        body.label(held)
        body.store("i64", "1", "ptr", got, 8)
        body.store("i64", word, "ptr", before, 8)
        body.branch(done)
        body.label(done)
        own = body.load("i64", "ptr", got, 8)
        return self._agreed(cell, own, body.load("i64", "ptr", before, 8))

    def _agreed(self, cell: str, own: str, before: str) -> Moved:
        """Which lanes before the first that failed have their cells."""
        body = self.body
        alike = self.mask
        if self.together:
            alike = body.call("i32", "egpu.match", f"i64 {own}", f"i32 {self.mask}")
        got = body.compare("ne", "i64", own, "0")
        others = body.binary("xor", "i32", self.mask, alike)
        have = body.select(got, "i32", alike, others)
        lack = body.binary("xor", "i32", self.mask, have)
        below = body.binary("xor", "i32", lack, "-1")
        below = body.binary("and", "i32", below, body.binary("sub", "i32", lack, "1"))
        row = body.binary("and", "i32", have, below)
        own_lane = body.call("i32", "egpu.own_lane")
        mine = body.compare("ne", "i32", body.binary("and", "i32", row, own_lane), "0")
        many = body.resize(body.call("i32", "llvm.ctpop.i32", f"i32 {row}"), 32, 64)
        return Moved(self, cell, before, got, mine, many)


@dataclass(frozen=True, slots=True)
class Moved:
    """A cell that a lane may hold.  ``mine``: it is one of ``many`` in a row from the end on."""

    lanes: Lanes
    cell: str
    before: str
    got: str
    mine: str
    many: str

    def step(self, tried: Rounds, following: str) -> None:
        """Swap the word for ``following`` for all lanes in the row.  Go on with those if that
        succeeds; else give the cell back and go to the next round."""
        lanes = self.lanes
        body = lanes.body
        if lanes.together:
            body.call_void("egpu.sync", f"i32 {lanes.mask}")
        won = body.variable(body.fresh("won"), "i32")
        body.store("i32", "0", "ptr", won, 4)
        swap, tell = body.fresh("swap"), body.fresh("tell")
        leads = body.compare("eq", "i64", lanes.rank, "0")
        body.branch_if(body.binary("and", "i1", leads, self.mine), swap, tell)
        body.label(swap)
        old = body.call(
            "i64",
            "egpu.swap_gpu",
            f"i64 {lanes.deque.place}",
            f"i64 {lanes.word}",
            f"i64 {following}",
        )
        same = body.compare("eq", "i64", old, lanes.word)
        body.store("i32", body.resize(same, 1, 32), "ptr", won, 4)
        body.branch(tell)
        body.label(tell)
        told = body.load("i32", "ptr", won, 4)
        if lanes.together:
            arguments = (f"i32 {told}", f"i32 {lanes.leader}", f"i32 {lanes.mask}")
            told = body.call("i32", "egpu.shuffle32", *arguments)
        success = body.binary("and", "i1", self.mine, body.compare("ne", "i32", told, "0"))
        on, lost, back = body.fresh("on"), body.fresh("lost"), body.fresh("back")
        body.branch_if(success, on, lost)
        body.label(lost)
        body.branch_if(self.got, back, tried.latch)
        body.label(back)
        lanes.deque.release(self.cell, self.before)
        tried.again()
        body.label(on)


def lanes_of(deque: Deque) -> Lanes:
    """The lanes that run this together; each by itself if a loop copies a value, since lanes are
    not held together over loops (``egpu.codegen.rounds``)."""
    body = deque.body
    together = is_straight(deque.spec.value_size)
    mask = body.call("i32", "egpu.active" if together else "egpu.own_lane")
    leader = body.call("i32", "llvm.cttz.i32", f"i32 {mask}", "i1 true")
    below = body.binary("and", "i32", mask, body.call("i32", "egpu.lanes_below"))
    rank = body.resize(body.call("i32", "llvm.ctpop.i32", f"i32 {below}"), 32, 64)
    seen, _, _ = deque.look()
    word = seen
    if together:
        word = body.call("i64", "egpu.shuffle", f"i64 {seen}", f"i32 {leader}", f"i32 {mask}")
    first = body.binary("and", "i64", word, str(_LOW))
    return Lanes(
        deque, together, mask, leader, rank, word, first, body.binary("lshr", "i64", word, "32")
    )
