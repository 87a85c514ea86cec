"""Queues and stacks: a circle of cells (``egpu.maps.layout``), lock-free.

The word ``place`` says where the oldest value is and how many there are.  Who pushes makes the cell
after the last value FILLING and writes it; who takes makes the first (a queue's) or last (a
stack's) cell TAKING.  Then the word is swapped for its successor, and whoever fails makes the cell
what it was and tries again.  The lanes of a warp do this together, for as many cells in a row as
they get hold of, with one swap.

Why this is right: the cell that an operation holds is next to the values or at their end, as the
word said.  Nobody can bring it in or take it out but by holding it, so if the swap finds the same
word again, the cell is still where it was, whatever happened between.  A swap fails only because
another's succeeded.  A value is complete before the word counts it, and its cell is EMPTY again
only when it has been read.  Nothing is held from one try to the next, and no try waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.codegen.arena import (
    DEQUE_CELL,
    DEQUE_CONTROL,
    DEQUE_CONTROL_SIZE,
    DEQUE_EMPTY,
    DEQUE_FILLING,
    DEQUE_FULL,
    DEQUE_INCARNATION,
    DEQUE_STATE,
    DEQUE_TAKING,
    round_up,
)
from egpu.codegen.device_code import RelocKind
from egpu.codegen.helper_call import Call, argument_place, copy, copy_out
from egpu.codegen.ir import Body
from egpu.codegen.memory import Place
from egpu.codegen.rounds import Rounds, rounds

# Linux's errno values as helpers give them (uapi/asm-generic/errno-base.h).
_ENOENT, _E2BIG, _EBUSY, _EINVAL = -2, -7, -16, -22
_BPF_EXIST = 2
_LOW = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class _Deque:
    """The map of r1: 64-bit values."""

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


def _deque(call: Call) -> _Deque:
    scope = call.scope
    index, spec = scope.map_at(call.pc, 1)
    control = scope.body.binary(
        "add", "i64", scope.launch("device_arena"), scope.symbol(RelocKind.MAP, index)
    )
    return _Deque(call, spec, control)


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The lanes that run the following together; all see the same ``word``."""

    deque: _Deque
    mask: str
    leader: str
    rank: str  # 64 bits
    word: str
    first: str
    count: str

    @property
    def body(self) -> Body:
        return self.deque.body

    def moved(self, number: str, states: tuple[int, int], limit: str) -> _Moved:
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

    def _agreed(self, cell: str, own: str, before: str) -> _Moved:
        """Which lanes before the first that failed have their cells."""
        body = self.body
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
        return _Moved(self, cell, before, got, mine, many)


@dataclass(frozen=True, slots=True)
class _Moved:
    """A cell that a lane may hold.  ``mine``: it is one of ``many`` in a row from the end on."""

    lanes: _Lanes
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
        told = body.call(
            "i32",
            "egpu.shuffle32",
            f"i32 {body.load('i32', 'ptr', won, 4)}",
            f"i32 {lanes.leader}",
            f"i32 {lanes.mask}",
        )
        success = body.binary("and", "i1", self.mine, body.compare("ne", "i32", told, "0"))
        on, lost, back = body.fresh("on"), body.fresh("lost"), body.fresh("back")
        body.branch_if(success, on, lost)
        body.label(lost)
        body.branch_if(self.got, back, tried.latch)
        body.label(back)
        lanes.deque.release(self.cell, self.before)
        tried.again()
        body.label(on)


def _lanes(deque: _Deque) -> _Lanes:
    body = deque.body
    mask = body.call("i32", "egpu.active")
    leader = body.call("i32", "llvm.cttz.i32", f"i32 {mask}", "i1 true")
    below = body.binary("and", "i32", mask, body.call("i32", "egpu.lanes_below"))
    rank = body.resize(body.call("i32", "llvm.ctpop.i32", f"i32 {below}"), 32, 64)
    seen, _, _ = deque.look()
    word = body.call("i64", "egpu.shuffle", f"i64 {seen}", f"i32 {leader}", f"i32 {mask}")
    first = body.binary("and", "i64", word, str(_LOW))
    return _Lanes(deque, mask, leader, rank, word, first, body.binary("lshr", "i64", word, "32"))


def deque_push(call: Call) -> str:
    """As Linux's queue_stack_map_push_elem: with BPF_EXIST a full map gives up its oldest value."""
    deque = _deque(call)
    body, flags = deque.body, call.scope.get(3)
    source = argument_place(call, 2, deque.spec.value_size)
    with rounds(body, deque.give_up) as tried:
        replaces = body.compare("eq", "i64", flags, str(_BPF_EXIST))
        known = body.binary("or", "i1", replaces, body.compare("eq", "i64", flags, "0"))
        tried.give_if(body.binary("xor", "i1", known, "true"), _EINVAL)
        lanes = _lanes(deque)
        room, full = body.fresh("room"), body.fresh("full")
        entries = str(deque.spec.max_entries)
        body.branch_if(body.compare("ult", "i64", lanes.count, entries), room, full)
        body.label(full)
        _give_up_oldest(deque, tried, replaces)
        body.label(room)
        left = body.binary("sub", "i64", entries, lanes.count)
        place = body.binary("urem", "i64", lanes.rank, entries)
        number = deque.wrapped(body.binary("add", "i64", lanes.first, lanes.count))
        number = deque.wrapped(body.binary("add", "i64", number, place))
        moved = lanes.moved(number, (DEQUE_EMPTY, DEQUE_FILLING), left)
        write, written = body.fresh("write"), body.fresh("written")
        body.branch_if(moved.mine, write, written)
        body.label(write)
        copy(call, body.add(moved.cell, DEQUE_CELL), source, deque.spec.value_size)
        body.branch(written)
        body.label(written)
        more = body.binary("add", "i64", lanes.count, moved.many)
        moved.step(tried, deque.words(lanes.first, more))
        deque.release(moved.cell, body.add(moved.before, DEQUE_FULL - DEQUE_EMPTY))
        tried.give("0")
    return tried.given()


def _give_up_oldest(deque: _Deque, tried: Rounds, replaces: str) -> None:
    """-E2BIG, or make room for the next round."""
    body = deque.body
    oldest, refuse = body.fresh("oldest"), body.fresh("refuse")
    body.branch_if(replaces, oldest, refuse)
    body.label(refuse)
    deque.count("full")
    tried.give(str(_E2BIG))
    body.label(oldest)
    lanes = _lanes(deque)
    # Others may have taken something since: then there is room already.
    entries = str(deque.spec.max_entries)
    full = body.compare("uge", "i64", lanes.count, entries)
    limit = body.select(full, "i64", entries, "0")
    place = body.binary("urem", "i64", lanes.rank, entries)
    number = deque.wrapped(body.binary("add", "i64", lanes.first, place))
    moved = lanes.moved(number, (DEQUE_FULL, DEQUE_TAKING), limit)
    moved.step(tried, _without(lanes, moved.many))
    deque.release(moved.cell, deque.emptied(moved.before))
    deque.count("dropped")
    tried.again()


def _without(lanes: _Lanes, many: str) -> str:
    """The word without the ``many`` oldest values."""
    body, deque = lanes.body, lanes.deque
    first = deque.wrapped(body.binary("add", "i64", lanes.first, many))
    return deque.words(first, body.binary("sub", "i64", lanes.count, many))


def _unless_empty(deque: _Deque, tried: Rounds, count: str, target: Place) -> None:
    """-ENOENT and a value of zeros, as on Linux, if there is no value."""
    body = deque.body
    none, some = body.fresh("none"), body.fresh("some")
    body.branch_if(body.compare("eq", "i64", count, "0"), none, some)
    body.label(none)
    copy_out(deque.call, target, None, deque.spec.value_size)
    tried.give(str(_ENOENT))
    body.label(some)


def deque_pop(call: Call) -> str:
    """As Linux's queue_map_pop_elem and stack_map_pop_elem."""
    deque = _deque(call)
    body, size = deque.body, deque.spec.value_size
    target = argument_place(call, 2, size)
    stack = deque.spec.type is MapType.STACK
    with rounds(body, deque.give_up) as tried:
        lanes = _lanes(deque)
        _unless_empty(deque, tried, lanes.count, target)
        place = body.binary("urem", "i64", lanes.rank, lanes.count)
        if stack:
            place = body.binary("sub", "i64", body.add(lanes.count, -1), place)
        number = deque.wrapped(body.binary("add", "i64", lanes.first, place))
        moved = lanes.moved(number, (DEQUE_FULL, DEQUE_TAKING), lanes.count)
        fewer = body.binary("sub", "i64", lanes.count, moved.many)
        following = deque.words(lanes.first, fewer) if stack else _without(lanes, moved.many)
        moved.step(tried, following)
        copy_out(call, target, body.add(moved.cell, DEQUE_CELL), size)
        deque.release(moved.cell, deque.emptied(moved.before))
        tried.give("0")
    return tried.given()


def deque_peek(call: Call) -> str:
    """As Linux's queue_map_peek_elem: the value that a pop would take."""
    deque = _deque(call)
    body, size = deque.body, deque.spec.value_size
    target = argument_place(call, 2, size)
    with rounds(body, deque.give_up) as tried:
        seen = deque.look()
        _, first, count = seen
        _unless_empty(deque, tried, count, target)
        place = body.add(count, -1) if deque.spec.type is MapType.STACK else "0"
        cell = deque.cell(deque.wrapped(body.binary("add", "i64", first, place)))
        before = body.call("i64", "egpu.acquire_gpu", f"i64 {cell}")
        state = body.binary("and", "i64", before, str(DEQUE_STATE))
        tried.again_unless(body.compare("eq", "i64", state, str(DEQUE_FULL)))
        copy_out(call, target, body.add(cell, DEQUE_CELL), size)
        # It was the next one if nothing moved; a later look may not come before the reads.
        body.call_void("egpu.fence_gpu")
        again = body.call("i64", "egpu.acquire_gpu", f"i64 {deque.place}")
        tried.again_unless(body.compare("eq", "i64", again, seen[0]))
        now = body.call("i64", "egpu.load_gpu", f"i64 {cell}")
        tried.again_unless(body.compare("eq", "i64", now, before))
        tried.give("0")
    return tried.given()


DEQUES: dict[str, Callable[[Call], str]] = {
    "map_push": deque_push,
    "map_pop": deque_pop,
    "map_peek": deque_peek,
}
