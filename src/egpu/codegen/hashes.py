"""Hash helpers: open addressing in which no thread waits for another (``egpu.maps.layout`` has the
bytes).

Looking a key up, updating it and deleting it read from its home slot on, as far as the home word
says, for a FULL slot with this key.  An entry that may go is pinned while a value is copied into
it: who pins a slot looks at its state afterwards, who claims a slot at its pins, and since both are
read-modify-writes of ``pins``, the later of the two sees the other.  In a table without pins (no
program deletes, so only the session can) the slot of a deleted entry is never used again.

Inserting (``egpu.codegen.hash_insert``):

1. If ``count`` says that the map is full, look once more, and give -E2BIG if the key is not there.
   ``count`` never exceeds ``max_entries``: it is raised by insertions that had a place reserved
   (``entering``), and a place is given only if count and entering together are below the maximum.
   Where they are not, but count is, others may yet withdraw: try again.  A deletion counts as an
   entry until it is over, as on Linux.
2. Claim the first FREE slot (FREE to CLAIMED by compare-and-swap).  Threads with the same key meet
   at the same slot as a rule; who finds the bits of its hash in a slot that is being filled tries
   again later.
3. Reserve a place.  LRU maps reserve none: whoever finds, after step 6, that the map was full
   frees another entry then.  So nothing goes for a key that is there, or while there is room; for
   moments there are more entries than the maximum, which is half of the slots.
4. Raise the home word to this slot, write key and value, make the slot ENTERING, fence (fence.sc).
5. Look at all other slots up to the home word.  Withdraw if the key is FULL in one, or ENTERING in
   one nearer to home; undo it (ENTERING to CLAIMED) where it is ENTERING farther from home.
6. ENTERING to FULL by compare-and-swap: this fails if somebody undid it.  Then withdraw.

To withdraw is to make the slot FREE again, with the next incarnation, and to start over.

Why a key is never FULL twice: let two insertions of it, in slots a and b with a nearer to home,
both have passed their fences, b's after a's (the other order is alike).  b's step 5 comes after
a's slot became ENTERING, so it finds there: ENTERING or FULL, and withdraws; or something else, and
then a was undone or withdrew, or became an entry that was deleted.  With b's fence before a's, a's
step 5 finds b's slot ENTERING and undoes it, which cannot succeed once b is FULL, nor can b's step
6 once it did; or FULL, and withdraws.  An undone or withdrawn slot has another word from then on
(the incarnation), so a late compare-and-swap on it fails.

Why somebody gets on: an insertion withdraws in steps 5 and 6 only because the key is an entry, or
because it is ENTERING nearer to home, and of all that are ENTERING the nearest to home is never
undone by another.  No step waits; a thread that tries again has nothing claimed meanwhile.

Orders: a slot is claimed with acquire, so what is written into it comes after; ENTERING is a
release store, and whoever acquires the FULL that follows it sees everything from before it;
``count`` is raised with release after that.  What reserves a place or undoes a rival needs no
order.

Trying is bounded: after ``rounds.ROUNDS`` rounds -EBUSY is given and counted.
"""

from __future__ import annotations

from collections.abc import Callable

from egpu.codegen.arena import HASH_SLOT
from egpu.codegen.hash_insert import abandoned, insert, new_debt, pay, replace_value
from egpu.codegen.hash_key import HashKey, hash_key
from egpu.codegen.helper_call import Call, argument_place
from egpu.codegen.memory import Place
from egpu.codegen.rounds import Rounds, rounds

# Linux's errno values as helpers give them (uapi/asm-generic/errno-base.h).
_ENOENT, _EBUSY, _EEXIST, _EINVAL = -2, -16, -17, -22
_BPF_NOEXIST, _BPF_EXIST = 1, 2  # flags of bpf_map_update_elem


def hash_lookup(call: Call) -> str:
    """As Linux's htab_map_lookup_elem."""
    key = hash_key(call)
    body = key.body
    slot, _ = key.find()
    absent = body.compare("eq", "i64", slot, "0")
    if key.evicts:
        found, done = body.fresh("found"), body.fresh("done")
        body.branch_if(absent, done, found)
        body.label(found)
        key.touch(slot)
        body.branch(done)
        body.label(done)
    return body.select(absent, "i64", "0", key.value(slot))


def hash_update(call: Call) -> str:
    """As Linux's htab_map_update_elem; an entry that is there has the value copied into it."""
    key = hash_key(call)
    body, flags = key.body, call.scope.get(4)
    source = argument_place(call, 3, key.spec.value_size)

    owing = new_debt(key) if key.evicts else ""

    def give_up() -> str:
        key.count("busy", 1)
        return abandoned(key, owing, str(_EBUSY)) if key.evicts else str(_EBUSY)

    with rounds(body, give_up) as tried:
        if key.evicts:
            pay(key, tried, owing)
        tried.give_if(body.compare("ugt", "i64", flags, str(_BPF_EXIST)), _EINVAL)
        slot, state = key.find()
        absent, present = body.fresh("absent"), body.fresh("present")
        body.branch_if(body.compare("eq", "i64", slot, "0"), absent, present)
        body.label(present)
        tried.give_if(body.compare("eq", "i64", flags, str(_BPF_NOEXIST)), _EEXIST)
        _overwrite(key, tried, (slot, state), source)
        body.label(absent)
        tried.give_if(body.compare("eq", "i64", flags, str(_BPF_EXIST)), _ENOENT)
        insert(key, tried, source, owing)
    return tried.given()


def _overwrite(key: HashKey, tried: Rounds, entry: tuple[str, str], source: Place) -> None:
    """Copy the value into the entry, whose slot goes to no other key meanwhile."""
    body = key.body
    slot, state = entry
    if not key.shape.pinned:
        replace_value(key, slot, source)
        tried.give("0")
        return
    pins = body.add(slot, HASH_SLOT["pins"][0])
    body.call("i64", "egpu.pin_gpu", f"i64 {pins}")
    now = body.call("i64", "egpu.load_gpu", f"i64 {slot}")
    write, gone = body.fresh("write"), body.fresh("gone")
    body.branch_if(body.compare("eq", "i64", now, state), write, gone)
    body.label(write)
    replace_value(key, slot, source)
    key.touch(slot)
    body.call_void("egpu.add_release_gpu", f"i64 {pins}", "i64 -1")
    tried.give("0")
    body.label(gone)
    body.call_void("egpu.add_release_gpu", f"i64 {pins}", "i64 -1")
    tried.again()


def hash_delete(call: Call) -> str:
    """As Linux's htab_map_delete_elem; who loses to another deletion finds no such key."""
    key = hash_key(call)
    body = key.body
    slot, state = key.find()
    found, gone, done = body.fresh("found"), body.fresh("gone"), body.fresh("done")
    result = body.variable(body.fresh("deleted"), "i64")
    body.store("i64", str(_ENOENT), "ptr", result, 8)
    body.branch_if(body.compare("eq", "i64", slot, "0"), done, found)
    body.label(found)
    free = key.deleted(state)
    old = body.call("i64", "egpu.swap_gpu", f"i64 {slot}", f"i64 {state}", f"i64 {free}")
    body.branch_if(body.compare("eq", "i64", old, state), gone, done)
    body.label(gone)
    key.count("count", -1)
    body.store("i64", "0", "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)


HASHES: dict[str, Callable[[Call], str]] = {
    "map_lookup": hash_lookup,
    "map_update": hash_update,
    "map_delete": hash_delete,
}
