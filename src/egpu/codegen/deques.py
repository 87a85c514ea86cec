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

from egpu.bpf.maptypes import MapType
from egpu.codegen.arena import (
    DEQUE_CELL,
    DEQUE_EMPTY,
    DEQUE_FILLING,
    DEQUE_FULL,
    DEQUE_STATE,
    DEQUE_TAKING,
)
from egpu.codegen.deque_lanes import Deque, Lanes, deque_of, lanes_of
from egpu.codegen.helper_call import Call, argument_place, copy, copy_out
from egpu.codegen.memory import Place
from egpu.codegen.rounds import Rounds, rounds

# Linux's errno values as helpers give them (uapi/asm-generic/errno-base.h).
_ENOENT, _E2BIG, _EINVAL = -2, -7, -22
_BPF_EXIST = 2


def deque_push(call: Call) -> str:
    """As Linux's queue_stack_map_push_elem: with BPF_EXIST a full map gives up its oldest value."""
    deque = deque_of(call)
    body, flags = deque.body, call.scope.get(3)
    source = argument_place(call, 2, deque.spec.value_size)
    with rounds(body, deque.give_up) as tried:
        replaces = body.compare("eq", "i64", flags, str(_BPF_EXIST))
        known = body.binary("or", "i1", replaces, body.compare("eq", "i64", flags, "0"))
        tried.give_if(body.binary("xor", "i1", known, "true"), _EINVAL)
        lanes = lanes_of(deque)
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


def _give_up_oldest(deque: Deque, tried: Rounds, replaces: str) -> None:
    """-E2BIG, or make room for the next round."""
    body = deque.body
    oldest, refuse = body.fresh("oldest"), body.fresh("refuse")
    body.branch_if(replaces, oldest, refuse)
    body.label(refuse)
    deque.count("full")
    tried.give(str(_E2BIG))
    body.label(oldest)
    lanes = lanes_of(deque)
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


def _without(lanes: Lanes, many: str) -> str:
    """The word without the ``many`` oldest values."""
    body, deque = lanes.body, lanes.deque
    first = deque.wrapped(body.binary("add", "i64", lanes.first, many))
    return deque.words(first, body.binary("sub", "i64", lanes.count, many))


def _unless_empty(deque: Deque, tried: Rounds, count: str, target: Place) -> None:
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
    deque = deque_of(call)
    body, size = deque.body, deque.spec.value_size
    target = argument_place(call, 2, size)
    stack = deque.spec.type is MapType.STACK
    with rounds(body, deque.give_up) as tried:
        lanes = lanes_of(deque)
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
    deque = deque_of(call)
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
