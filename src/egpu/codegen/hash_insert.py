"""Inserting a key into a hash map: the steps of ``egpu.codegen.hashes``'s protocol."""

from __future__ import annotations

from egpu.codegen.arena import HASH_CLAIMED, HASH_ENTERING, HASH_FULL
from egpu.codegen.hash_key import HashKey, memory_words
from egpu.codegen.helper_call import copy
from egpu.codegen.ir import GLOBAL
from egpu.codegen.memory import Place
from egpu.codegen.rounds import Rounds

_E2BIG = -7
_ENTERING = 1 << 32  # one more, in the word of ``count`` and ``entering``


def replace_value(key: HashKey, slot: str, source: Place) -> None:
    """Copy a value over that of an entry that others read and replace at the same time.

    One of up to 8 bytes by an exchange: on an H200, stores and loads of many SMs to one sector hold
    each other up, three times as long as an exchange does.
    """
    if key.spec.value_size > 8:
        store_value(key, slot, source)
        return
    (word,) = memory_words(key.call, source, key.spec.value_size)
    key.body.call("i64", "egpu.exchange_gpu", f"i64 {key.value(slot)}", f"i64 {word}")


def store_value(key: HashKey, slot: str, source: Place) -> None:
    """Copy a value into the entry in ``slot``; one of up to 8 bytes with a single store."""
    size = key.spec.value_size
    if size > 8:
        copy(key.call, key.value(slot), source, size)
        return
    (word,) = memory_words(key.call, source, size)
    key.body.store("i64", word, GLOBAL, key.body.pointer(key.value(slot)), 8)


def new_debt(key: HashKey) -> str:
    """A variable for the slot of an entry that made an LRU map one too large, 0 so far."""
    owing = key.body.variable(key.body.fresh("owing"), "i64")
    key.body.store("i64", "0", "ptr", owing, 8)
    return owing


def pay(key: HashKey, rounds: Rounds, owing: str) -> None:
    """If an entry is owed, free another one and give 0, or go to the next round."""
    body = key.body
    own = body.load("i64", "ptr", owing, 8)
    owes, nothing, freed = body.fresh("owes"), body.fresh("nothing"), body.fresh("freed")
    body.branch_if(body.compare("ne", "i64", own, "0"), owes, nothing)
    body.label(owes)
    body.branch_if(key.evict(rounds.number(), own), freed, rounds.latch)
    body.label(freed)
    key.count("count", -1)
    key.count("evicted", 1)
    _end(key)
    rounds.give("0")
    body.label(nothing)


def abandoned(key: HashKey, owing: str, busy: str) -> str:
    """After the last round of an LRU map: 0 if the key was inserted and only an entry is owed,
    which stays; else ``busy``."""
    body = key.body
    owes = body.compare("ne", "i64", body.load("i64", "ptr", owing, 8), "0")
    ended = body.select(owes, "i64", "-1", "0")
    body.call_void("egpu.add_gpu", f"i64 {key.counter('claiming')}", f"i64 {ended}")
    return body.select(owes, "i64", "0", busy)


def insert(key: HashKey, rounds: Rounds, source: Place, owing: str) -> None:
    """The part of a round in which the key is not there: give 0 or -E2BIG, or go on.  ``owing`` is
    the variable of ``pay``."""
    body = key.body
    no_room, withdraw = body.fresh("no_room"), body.fresh("withdraw")
    if key.evicts:
        _make_slot(key, rounds, no_room)
    else:
        _check_room(key, rounds, no_room)
    _begin(key, rounds)
    slot, distance, claimed = key.claim()
    got, none = body.fresh("got"), body.fresh("none")
    body.branch_if(body.compare("ne", "i64", slot, "0"), got, none)
    body.label(none)
    _end(key)
    rounds.again_unless(body.compare("eq", "i64", distance, "0"))
    body.branch(no_room)
    body.label(got)
    if not key.evicts:
        _reserve(key, withdraw)
    _write(key, slot, distance, source)
    step = body.add(claimed, HASH_ENTERING - HASH_CLAIMED)
    body.call_void("egpu.release_gpu", f"i64 {slot}", f"i64 {step}")
    body.call_void("egpu.fence_gpu")
    _enter(key, rounds, (slot, step), (withdraw, owing))
    body.label(withdraw)
    body.call_void("egpu.release_gpu", f"i64 {slot}", f"i64 {key.freed(claimed)}")
    _end(key)
    rounds.again()


def _begin(key: HashKey, rounds: Rounds) -> None:
    """Of an LRU map, let no more insertions claim slots than there are entries: most would find
    nothing to evict, and claimed slots make ways long."""
    if not key.evicts:
        return
    body, most = key.body, str(key.spec.max_entries)
    claiming = key.counter("claiming")
    seen = body.call("i64", "egpu.load_gpu", f"i64 {claiming}")
    rounds.again_unless(body.compare("ult", "i64", seen, most))
    old = body.call("i64", "egpu.take_gpu", f"i64 {claiming}", "i64 1")
    go, stop = body.fresh("go"), body.fresh("stop")
    body.branch_if(body.compare("ult", "i64", old, most), go, stop)
    body.label(stop)
    key.count("claiming", -1)
    rounds.again()
    body.label(go)


def _end(key: HashKey) -> None:
    if key.evicts:
        key.count("claiming", -1)


def _room(key: HashKey, word: str) -> tuple[str, str]:
    """(whether the map is full, whether it would be if all that are entering succeed), given the
    word of ``count`` and ``entering``."""
    body, room = key.body, str(key.spec.max_entries)
    # An entry can be deleted before who inserted it counts it: fewer than none, for a moment.
    entries = body.binary("ashr", "i64", body.binary("shl", "i64", word, "32"), "32")
    entering = body.binary("lshr", "i64", body.binary("sub", "i64", word, entries), "32")
    together = body.binary("add", "i64", entries, entering)
    return body.compare("sge", "i64", entries, room), body.compare("sge", "i64", together, room)


def _check_room(key: HashKey, rounds: Rounds, no_room: str) -> None:
    """Go to ``no_room`` if the map is full, and to the next round if those that are entering may
    fill it.  ``no_room`` gives -E2BIG if the key is still not there."""
    body = key.body
    word = body.call("i64", "egpu.acquire_gpu", f"i64 {key.counter('count')}")
    full, crowded = _room(key, word)
    room = body.fresh("room")
    ask = body.fresh("ask")
    body.branch_if(full, no_room, ask)
    body.label(no_room)
    # Whatever filled the map is seen now, this key included.
    slot, _ = key.find()
    rounds.again_unless(body.compare("eq", "i64", slot, "0"))
    key.count("full", 1)
    rounds.give(str(_E2BIG))
    body.label(ask)
    body.branch_if(crowded, rounds.latch, room)
    body.label(room)


def _make_slot(key: HashKey, rounds: Rounds, no_room: str) -> None:
    """Where no slot of the window is free, which is very rare: free the least recently used."""
    body = key.body
    room, freed = body.fresh("room"), body.fresh("freed")
    body.branch(room)
    body.label(no_room)
    body.branch_if(key.evict("0", "0"), freed, rounds.latch)
    body.label(freed)
    key.count("count", -1)
    key.count("evicted", 1)
    rounds.again()
    body.label(room)


def _reserve(key: HashKey, withdraw: str) -> None:
    """Take a place in the map, or go to ``withdraw``."""
    body = key.body
    count = key.counter("count")
    word = body.call("i64", "egpu.take_gpu", f"i64 {count}", f"i64 {_ENTERING}")
    _, crowded = _room(key, word)
    undo, ready = body.fresh("undo"), body.fresh("ready")
    body.branch_if(crowded, undo, ready)
    body.label(undo)
    key.count("count", -_ENTERING)
    body.branch(withdraw)
    body.label(ready)


def _write(key: HashKey, slot: str, distance: str, source: Place) -> None:
    """Write key and value, and let all who look for the key look as far as this slot."""
    body = key.body
    farther, write = body.fresh("farther"), body.fresh("write")
    near = body.compare("ule", "i64", distance, key.reach())
    body.branch_if(near, write, farther)
    body.label(farther)
    body.call_void("egpu.max_gpu", f"i64 {key.home}", f"i64 {distance}")
    body.branch(write)
    body.label(write)
    for number, word in enumerate(key.words):
        target = body.pointer(key.memory.key_word(slot, number))
        body.store("i64", word, GLOBAL, target, 8)
    key.clear(slot)
    key.touch(slot)
    store_value(key, slot, source)


def _enter(key: HashKey, rounds: Rounds, held: tuple[str, str], where: tuple[str, str]) -> None:
    """Make a slot, given with its word, an entry and give 0; or give its place in the map back and
    go to the first of ``where``; the second is the variable for what an LRU map owes then."""
    body = key.body
    slot, entering = held
    withdraw, owing = where
    count = f"i64 {key.counter('count')}"
    alone, won, lost = body.fresh("alone"), body.fresh("won"), body.fresh("lost")
    body.branch_if(key.settle(slot), alone, lost)
    body.label(alone)
    entry = body.add(entering, HASH_FULL - HASH_ENTERING)
    old = body.call("i64", "egpu.cas_gpu", f"i64 {slot}", f"i64 {entering}", f"i64 {entry}")
    body.branch_if(body.compare("eq", "i64", old, entering), won, lost)
    body.label(won)
    if key.evicts:
        _count_entry(key, rounds, slot, owing)
        body.label(lost)
        body.branch(withdraw)
        return
    body.call_void("egpu.add_release_gpu", count, f"i64 {1 - _ENTERING}")
    rounds.give("0")
    body.label(lost)
    body.call_void("egpu.add_gpu", count, f"i64 {-_ENTERING}")
    body.branch(withdraw)


def _count_entry(key: HashKey, rounds: Rounds, slot: str, owing: str) -> None:
    """Count a new entry of an LRU map: give 0, or owe one from the next round on."""
    body = key.body
    word = body.call("i64", "egpu.take_gpu", f"i64 {key.counter('count')}", "i64 1")
    full, _ = _room(key, word)
    owe, done = body.fresh("owe"), body.fresh("done")
    body.branch_if(full, owe, done)
    body.label(owe)
    body.store("i64", slot, "ptr", owing, 8)
    rounds.restart()
    body.label(done)
    _end(key)
    rounds.give("0")
