"""Helpers that call a function of the program back: bpf_loop and bpf_for_each_map_elem.

The function is known from the facts and inlined: there are no calls through pointers.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from egpu.bpf.budget import LINUX_TURNS
from egpu.bpf.helpers import HELPERS
from egpu.bpf.maptypes import traits
from egpu.codegen import budgets
from egpu.codegen.arena import HASH_FULL, HASH_STATE
from egpu.codegen.arrays import entry
from egpu.codegen.hash_memory import hash_memory
from egpu.codegen.helper_call import Call
from egpu.codegen.library_hash import SETTLED
from egpu.codegen.scope import Scope
from egpu.errors import InternalError

Callback = Callable[[list[str]], str]  # writes one call with r1 to r5; gives its r0


def lower_calling_back(scope: Scope, pc: int, number: int, callback: Callback) -> None:
    """Helper ``number``: call back until that gives 1 or there is nothing more; r0 is how often."""
    body = HELPERS[number].body
    if body not in CALLING_BACK:
        raise InternalError(f"instruction {pc}: no code for {HELPERS[number].name}")
    CALLING_BACK[body](Call(scope, pc, HELPERS[number]), callback)


class _Turns:
    """A loop over 0, 1, ... up to ``end``; ``index`` is the number of the turn."""

    def __init__(self, call: Call, end: str) -> None:
        self.body = body = call.scope.body
        self._counter = body.variable(body.fresh("turns"), "i64")
        self.again, self.done = body.fresh("again"), body.fresh("done")
        test, turn = body.fresh("test"), body.fresh("turn")
        body.store("i64", "0", "ptr", self._counter, 8)
        body.branch(test)
        body.label(self.again)
        number = body.load("i64", "ptr", self._counter, 8)
        body.store("i64", body.add(number, 1), "ptr", self._counter, 8)
        body.branch(test)
        body.label(test)
        self.index = body.load("i64", "ptr", self._counter, 8)
        body.branch_if(body.compare("ult", "i64", self.index, end), turn, self.done)
        body.label(turn)


class _Count:
    """How often the callback ended: the helper's r0."""

    def __init__(self, call: Call) -> None:
        self.body = body = call.scope.body
        self._called = body.variable(body.fresh("called"), "i64")
        body.store("i64", "0", "ptr", self._called, 8)

    def get(self) -> str:
        return self.body.load("i64", "ptr", self._called, 8)

    def ended(self, result: str, turns: _Turns) -> None:
        """One call gave ``result``: go on with the next turn, or end."""
        body = self.body
        body.store("i64", body.add(self.get(), 1), "ptr", self._called, 8)
        body.branch_if(body.compare("eq", "i64", result, "0"), turns.again, turns.done)


def _loop(call: Call, callback: Callback) -> None:
    scope, body = call.scope, call.scope.body
    end = body.binary("and", "i64", scope.get(1), str(0xFFFFFFFF))
    context, count = scope.get(3), _Count(call)
    budget = scope.unit.verified.facts.budget
    paid = budget is not None and call.pc in budget.calls
    many = body.compare("ugt", "i64", end, str(LINUX_TURNS))
    turns = _Turns(call, body.select(many, "i64", "0", end) if paid else end)
    if paid:
        called = body.fresh("called")
        budgets.take(scope, called, turns.done)
        body.label(called)
    count.ended(callback([turns.index, context, "0", "0", "0"]), turns)
    body.label(turns.done)
    result = count.get()
    scope.set(0, body.select(many, "i64", str(-errno.E2BIG), result) if paid else result)


def _for_each(call: Call, callback: Callback) -> None:
    _, spec = call.scope.map_at(call.pc, 1)
    kind = traits(spec.type)
    if kind.hashed:
        _each_entry(call, callback)
    elif kind.indexed and not kind.per_thread:
        _each_value(call, callback)
    else:
        raise InternalError(f"{call.helper.name} on map {spec.name} ({spec.type.name})")


def _each_value(call: Call, callback: Callback) -> None:
    """The elements of an array, in order."""
    scope, body = call.scope, call.scope.body
    handle, context, count = scope.get(1), scope.get(3), _Count(call)
    key = body.variable(body.fresh("key"), "i64")
    address = body.value(f"ptrtoint ptr {key} to i64")
    _, spec = scope.map_at(call.pc, 1)
    turns = _Turns(call, str(spec.max_entries))
    body.store("i64", turns.index, "ptr", key, 8)
    _, value = entry(call, turns.index)
    count.ended(callback([handle, address, value, context, "0"]), turns)
    body.label(turns.done)
    scope.set(0, count.get())


def _each_entry(call: Call, callback: Callback) -> None:
    """The entries of a table that are there when their slot is looked at.

    Entries that others delete and insert meanwhile may move to slots still to come: the calls end
    at max_entries, which the cost counts with.
    """
    scope, body = call.scope, call.scope.body
    handle, context, count = scope.get(1), scope.get(3), _Count(call)
    table = hash_memory(call)
    words = body.variable(body.fresh("key"), f"[{table.key_words} x i64]")
    address = body.value(f"ptrtoint ptr {words} to i64")
    turns = _Turns(call, str(table.shape.slots))
    slot = table.slot(turns.index)
    state = body.call("i64", "egpu.acquire_gpu", f"i64 {slot}")
    full = body.compare("eq", "i64", body.binary("and", "i64", state, str(HASH_STATE)), _FULL)
    room = body.compare("ult", "i64", count.get(), str(table.spec.max_entries))
    present, copied = body.fresh("present"), body.fresh("copied")
    body.branch_if(body.binary("and", "i1", full, room), present, turns.again)
    body.label(present)
    for number in range(table.key_words):
        word = body.call("i64", "egpu.acquire_gpu", f"i64 {table.key_word(slot, number)}")
        target = body.value(f"getelementptr i8, ptr {words}, i64 {8 * number}")
        body.store("i64", word, "ptr", target, 8)
    # As when looking a key up: it is the entry's only if the slot was not given away meanwhile.
    now = body.call("i64", "egpu.load_gpu", f"i64 {slot}")
    moved = body.binary("and", "i64", body.binary("xor", "i64", now, state), str(SETTLED))
    body.branch_if(body.compare("eq", "i64", moved, "0"), copied, turns.again)
    body.label(copied)
    result = callback([handle, address, table.value(slot), context, "0"])
    count.ended(result, turns)
    body.label(turns.done)
    scope.set(0, count.get())


_FULL = str(HASH_FULL)

CALLING_BACK: dict[str, Callable[[Call, Callback], None]] = {
    "loop": _loop,
    "for_each": _for_each,
}
