"""Hash helpers, by the protocol of ``egpu.maps.layout``.

Whoever waits does so in rounds in which every lane that runs them gets to the end, holding nothing:
a lane that has a lock never waits for one that spins on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from egpu.bpf.maptypes import traits
from egpu.bpf.program import MapSpec
from egpu.codegen.arena import (
    HASH_BUSY,
    HASH_CONTROL,
    HASH_FULL,
    HASH_INCARNATION,
    HASH_LOCK,
    HASH_PIN,
    HASH_SLOT,
    HashTable,
    hash_table,
)
from egpu.codegen.device_code import RelocKind
from egpu.codegen.helper_call import Call, argument_place, copy
from egpu.codegen.ir import GLOBAL, Body
from egpu.codegen.library_hash import (
    CLAIMED,
    FOUND,
    LOW,
    SETTLED,
    claim_function,
    clear_function,
    evict_function,
    find_function,
)
from egpu.codegen.memory import Place, load_from

# Linux's errno values as helpers give them (uapi/asm-generic/errno-base.h).
_ENOENT, _E2BIG, _EBUSY, _EEXIST, _EINVAL = -2, -7, -16, -17, -22
_BPF_NOEXIST, _BPF_EXIST = 1, 2  # flags of bpf_map_update_elem
_ROUNDS = 1024  # of waiting for others that insert into the same chain
_PENDING = 1  # no helper gives it
# The multipliers of splitmix64's finaliser, and an arbitrary odd start.
_START, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> str:
    return str(value - (1 << 64) if value >> 63 else value)


@dataclass(frozen=True, slots=True)
class _Table:
    """The table of the map of r1, and the key behind r2; 64-bit values."""

    call: Call
    spec: MapSpec
    shape: HashTable
    control: str
    table: str
    hash: str
    words: tuple[str, ...]
    home: str  # address of the home word
    names: tuple[str, str]  # of the functions that find and claim
    index: int

    @property
    def body(self) -> Body:
        return self.call.scope.body

    def find(self, home: str) -> tuple[str, str]:
        """(slot or 0, state word) of the key, given the home word."""
        body = self.body
        reach = body.binary("and", "i64", home, str(HASH_LOCK - 1))
        keys = [f"i64 {word}" for word in self.words]
        found = body.call(
            FOUND, self.names[0], f"i64 {self.table}", f"i64 {self.hash}", f"i64 {reach}", *keys
        )
        return (
            body.value(f"extractvalue {FOUND} {found}, 0"),
            body.value(f"extractvalue {FOUND} {found}, 1"),
        )

    def claim(self) -> tuple[str, str]:
        """(slot or 0, distance from home)."""
        body = self.body
        found = body.call(CLAIMED, self.names[1], f"i64 {self.table}", f"i64 {self.hash}")
        return (
            body.value(f"extractvalue {CLAIMED} {found}, 0"),
            body.value(f"extractvalue {CLAIMED} {found}, 1"),
        )

    def value(self, slot: str) -> str:
        """The address of the value of the entry in ``slot``; of this SM's for per-SM maps."""
        if not traits(self.spec.type).per_sm:
            return self.body.add(slot, self.shape.value)
        return self.call.scope.of_slot(self._first_value(slot), self.index)

    def _first_value(self, slot: str) -> str:
        """The address of SM slot 0's value of the entry in ``slot``."""
        body = self.body
        distance = body.binary("sub", "i64", slot, self.table)
        number = body.binary("udiv", "i64", distance, str(self.shape.stride))
        skip = body.binary("mul", "i64", number, str(self.shape.value_stride))
        return body.binary("add", "i64", body.add(self.control, self.shape.values), skip)

    def touch(self, slot: str) -> None:
        """Note that the entry in ``slot`` was used, where that matters."""
        if traits(self.spec.type).evicts:
            body = self.body
            now = body.call("i64", "egpu.globaltimer")
            target = body.pointer(body.add(slot, HASH_SLOT["used"][0]))
            body.store("i64", now, GLOBAL, target, 8)

    def evict(self) -> str:
        """Whether the least recently used entry near the key's place was freed (i1)."""
        name = f"egpu.hash_evict_{self.index}"
        self.call.scope.unit.functions[name] = evict_function(name, self.shape)
        return self.body.call("i1", name, f"i64 {self.table}", f"i64 {self.hash}")

    def clear(self, slot: str) -> None:
        """Set the values of a new entry on all SMs to zero, where there are several."""
        if not traits(self.spec.type).per_sm:
            return
        scope = self.call.scope
        name = f"egpu.hash_clear_{self.index}"
        scope.unit.functions[name] = clear_function(name, self.shape.value_stride // 8)
        self.body.call_void(
            name,
            f"i64 {self._first_value(slot)}",
            f"i64 {scope.symbol(RelocKind.SM_SLOTS)}",
            f"i64 {scope.symbol(RelocKind.MAP_STRIDE, self.index)}",
        )

    def count(self, name: str, value: int) -> None:
        """Add to a counter of the control block."""
        at = self.body.add(self.control, HASH_CONTROL[name][0])
        self.body.call_void("egpu.add_gpu", f"i64 {at}", f"i64 {value}")


def _table(call: Call) -> _Table:
    scope, body = call.scope, call.scope.body
    index, spec = scope.map_at(call.pc, 1)
    shape = hash_table(spec)
    words = tuple(_key_words(call, argument_place(call, 2, spec.key_size), spec.key_size))
    names = (f"egpu.hash_find_{index}", f"egpu.hash_claim_{index}")
    functions = scope.unit.functions
    functions[names[0]] = find_function(names[0], shape, len(words))
    functions[names[1]] = claim_function(names[1], shape)
    control = body.binary(
        "add", "i64", scope.launch("device_arena"), scope.symbol(RelocKind.MAP, index)
    )
    table = body.add(control, shape.table)
    hashed = _hash(body, words)
    number = body.binary("and", "i64", hashed, str(shape.slots - 1))
    slot = body.binary("add", "i64", table, body.binary("mul", "i64", number, str(shape.stride)))
    home = body.add(slot, HASH_SLOT["home"][0])
    return _Table(call, spec, shape, control, table, hashed, words, home, names, index)


def _key_words(call: Call, place: Place, size: int) -> Iterator[str]:
    """The key as 64-bit words, the last filled up with zeros."""
    body = call.scope.body
    for start in range(0, size, 8):
        word, offset = "0", start
        while offset < min(size, start + 8):
            left = min(size, start + 8) - offset
            step = next(width for width in (8, 4, 2, 1) if width <= left)
            pointer = body.value(f"getelementptr i8, {place.space} {place.pointer}, i64 {offset}")
            align = math.gcd(place.align, offset) if offset else place.align
            piece = Place(pointer, place.space, min(align, 8), place.shared)
            value = body.resize(load_from(call.scope, piece, 8 * step), 8 * step, 64)
            if offset > start:
                value = body.binary("shl", "i64", value, str(8 * (offset - start)))
                value = body.binary("or", "i64", word, value)
            word = value
            offset += step
        yield word


def _hash(body: Body, words: tuple[str, ...]) -> str:
    value = _signed(_START)
    for word in words:
        value = _mixed(body, body.binary("xor", "i64", value, word), 30, _FIRST)
    return _mixed(body, _mixed(body, value, 27, _SECOND), 31, None)


def _mixed(body: Body, value: str, shift: int, factor: int | None) -> str:
    high = body.binary("lshr", "i64", value, str(shift))
    value = body.binary("xor", "i64", value, high)
    return value if factor is None else body.binary("mul", "i64", value, _signed(factor))


def hash_lookup(call: Call) -> str:
    table = _table(call)
    body = table.body
    slot, _ = table.find(body.call("i64", "egpu.acquire_gpu", f"i64 {table.home}"))
    absent = body.compare("eq", "i64", slot, "0")
    if traits(table.spec.type).evicts:
        found, done = body.fresh("found"), body.fresh("done")
        body.branch_if(absent, done, found)
        body.label(found)
        table.touch(slot)
        body.branch(done)
        body.label(done)
    return body.select(absent, "i64", "0", table.value(slot))


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Rounds of waiting: a round that leaves ``result`` at _PENDING is followed by another."""

    table: _Table
    result: str
    latch: str

    def give(self, value: str) -> None:
        """End the helper with ``value``."""
        body = self.table.body
        body.store("i64", value, "ptr", self.result, 8)
        body.branch(self.latch)

    def give_if(self, condition: str, value: int) -> None:
        """End the helper with ``value`` if ``condition`` holds."""
        body = self.table.body
        then, other = body.fresh("give"), body.fresh("go")
        body.branch_if(condition, then, other)
        body.label(then)
        self.give(str(value))
        body.label(other)

    def again_unless(self, condition: str) -> None:
        """Go to the next round unless ``condition`` holds."""
        body = self.table.body
        other = body.fresh("go")
        body.branch_if(condition, other, self.latch)
        body.label(other)


@contextmanager
def _rounds(table: _Table) -> Iterator[_Rounds]:
    """The block in it is a round; it ends in the latch, where its lanes meet before the next."""
    body = table.body
    rounds = _Rounds(table, body.variable(body.fresh("result"), "i64"), body.fresh("latch"))
    tries = body.variable(body.fresh("tries"), "i64")
    start, given_up, done = body.fresh("round"), body.fresh("given_up"), body.fresh("done")
    body.store("i64", str(_PENDING), "ptr", rounds.result, 8)
    body.store("i64", "0", "ptr", tries, 8)
    body.branch(start)
    body.label(start)
    mask = body.call("i32", "egpu.active")
    yield rounds
    body.label(rounds.latch)
    body.call_void("egpu.sync", f"i32 {mask}")
    number = body.add(body.load("i64", "ptr", tries, 8), 1)
    body.store("i64", number, "ptr", tries, 8)
    result = body.load("i64", "ptr", rounds.result, 8)
    pending = body.compare("eq", "i64", result, str(_PENDING))
    more = body.compare("ult", "i64", number, str(_ROUNDS))
    ask = body.fresh("ask")
    body.branch_if(pending, ask, done)
    body.label(ask)
    body.branch_if(more, start, given_up)
    body.label(given_up)
    table.count("busy", 1)
    body.store("i64", str(_EBUSY), "ptr", rounds.result, 8)
    body.branch(done)
    body.label(done)


def hash_update(call: Call) -> str:
    """As Linux's htab_map_update_elem; an entry that is there has the value copied into it."""
    table = _table(call)
    body, flags = table.body, call.scope.get(4)
    source = argument_place(call, 3, table.spec.value_size)
    with _rounds(table) as rounds:
        rounds.give_if(body.compare("ugt", "i64", flags, str(_BPF_EXIST)), _EINVAL)
        home = body.call("i64", "egpu.acquire_gpu", f"i64 {table.home}")
        slot, state = table.find(home)
        absent, present = body.fresh("absent"), body.fresh("present")
        body.branch_if(body.compare("eq", "i64", slot, "0"), absent, present)
        body.label(present)
        rounds.give_if(body.compare("eq", "i64", flags, str(_BPF_NOEXIST)), _EEXIST)
        _overwrite(rounds, slot, state, source)
        body.label(absent)
        rounds.give_if(body.compare("eq", "i64", flags, str(_BPF_EXIST)), _ENOENT)
        _insert(rounds, home, source)
    return body.load("i64", "ptr", rounds.result, 8)


def _overwrite(rounds: _Rounds, slot: str, state: str, source: Place) -> None:
    """Copy the value into the entry, pinned so that its slot goes to no other key meanwhile."""
    table = rounds.table
    body, spec = table.body, table.spec
    old = body.call("i64", "egpu.fetch_add_gpu", f"i64 {slot}", f"i64 {HASH_PIN}")
    change = body.binary("and", "i64", body.binary("xor", "i64", old, state), str(SETTLED))
    write, gone = body.fresh("write"), body.fresh("gone")
    body.branch_if(body.compare("eq", "i64", change, "0"), write, gone)
    body.label(write)
    copy(table.call, table.value(slot), source, spec.value_size)
    table.touch(slot)
    body.call_void("egpu.add_release_gpu", f"i64 {slot}", f"i64 {-HASH_PIN}")
    rounds.give("0")
    body.label(gone)
    body.call_void("egpu.add_release_gpu", f"i64 {slot}", f"i64 {-HASH_PIN}")
    body.branch(rounds.latch)


def _insert(rounds: _Rounds, home: str, source: Place) -> None:
    """Insert the key, which was not there when the home word was ``home``."""
    table = rounds.table
    body, spec, shape = table.body, table.spec, table.shape
    locked = body.binary("and", "i64", home, str(HASH_LOCK))
    rounds.again_unless(body.compare("eq", "i64", locked, "0"))
    mine = body.binary("or", "i64", home, str(HASH_LOCK))
    old = body.call("i64", "egpu.swap_gpu", f"i64 {table.home}", f"i64 {home}", f"i64 {mine}")
    rounds.again_unless(body.compare("eq", "i64", old, home))
    count = body.add(table.control, HASH_CONTROL["count"][0])
    taken = body.call("i64", "egpu.fetch_add_gpu", f"i64 {count}", "i64 1")
    room, full, claimed = body.fresh("room"), body.fresh("full"), body.fresh("claimed")
    body.branch_if(body.compare("ult", "i64", taken, str(spec.max_entries)), room, full)
    body.label(room)
    slot, distance = table.claim()
    body.branch_if(body.compare("ne", "i64", slot, "0"), claimed, full)
    body.label(full)
    if traits(spec.type).evicts:
        _evict(rounds, home, room)
    else:
        table.count("count", -1)
        table.count("full", 1)
        body.call_void("egpu.release_gpu", f"i64 {table.home}", f"i64 {home}")
        rounds.give(str(_E2BIG))
    body.label(claimed)
    for number, word in enumerate(table.words):
        target = body.pointer(body.add(slot, shape.key + 8 * number))
        body.store("i64", word, GLOBAL, target, 8)
    table.clear(slot)
    table.touch(slot)
    copy(table.call, table.value(slot), source, spec.value_size)
    body.call_void("egpu.add_release_gpu", f"i64 {slot}", f"i64 {HASH_FULL - HASH_BUSY}")
    after = _home_after(body, home, distance)
    body.call_void("egpu.release_gpu", f"i64 {table.home}", f"i64 {after}")
    rounds.give("0")


def _evict(rounds: _Rounds, home: str, room: str) -> None:
    """Free an entry and go on in block ``room``, or give LOCK back and go to the next round."""
    table = rounds.table
    body = table.body
    freed, lost = body.fresh("freed"), body.fresh("lost")
    body.branch_if(table.evict(), freed, lost)
    body.label(freed)
    table.count("count", -1)
    table.count("evicted", 1)
    body.branch(room)
    body.label(lost)
    table.count("count", -1)
    body.call_void("egpu.release_gpu", f"i64 {table.home}", f"i64 {home}")
    body.branch(rounds.latch)


def _home_after(body: Body, home: str, distance: str) -> str:
    """The home word after an insertion ``distance`` slots from it: counted, not locked."""
    reach = body.binary("and", "i64", home, str(HASH_LOCK - 1))
    farther = body.compare("ugt", "i64", distance, reach)
    reach = body.select(farther, "i64", distance, reach)
    count = body.add(body.binary("and", "i64", home, str(-2 * HASH_LOCK)), 2 * HASH_LOCK)
    return body.binary("or", "i64", count, reach)


def hash_delete(call: Call) -> str:
    """As Linux's htab_map_delete_elem."""
    table = _table(call)
    body = table.body
    with _rounds(table) as rounds:
        slot, state = table.find(body.call("i64", "egpu.acquire_gpu", f"i64 {table.home}"))
        rounds.give_if(body.compare("eq", "i64", slot, "0"), _ENOENT)
        before = body.binary("and", "i64", state, str(SETTLED))
        free = body.add(body.binary("and", "i64", before, str(~LOW)), HASH_INCARNATION)
        old = body.call("i64", "egpu.swap_gpu", f"i64 {slot}", f"i64 {before}", f"i64 {free}")
        rounds.again_unless(body.compare("eq", "i64", old, before))
        table.count("count", -1)
        rounds.give("0")
    return body.load("i64", "ptr", rounds.result, 8)


HASHES: dict[str, Callable[[Call], str]] = {
    "map_lookup": hash_lookup,
    "map_update": hash_update,
    "map_delete": hash_delete,
}
