"""Hash tables of the device library, as LLVM IR: looking for a key, claiming a slot, and settling
who of several threads inserts a key.

The protocol is that of ``egpu.codegen.hashes``.  Each map has functions of its own, since sizes and
places in a slot are constants.
"""

from __future__ import annotations

from egpu.bpf.maptypes import HASH_WINDOW
from egpu.codegen.arena import (
    HASH_CLAIMED,
    HASH_ENTERING,
    HASH_FULL,
    HASH_INCARNATION,
    HASH_SLOT,
    HASH_STATE,
    HASH_TAG_BITS,
    HashTable,
)
from egpu.codegen.primitives import ATTRIBUTES

LOW = (1 << 2 + HASH_TAG_BITS) - 1  # state and part of the hash
TAG = LOW & ~HASH_STATE
DEAD = 1 << 2  # these bits of a slot that is never used again
SETTLED = -1  # all of a state word, which is an entry's as long as it stays the same
FOUND = "{ i64, i64 }"  # slot or 0, its state word
CLAIMED = "{ i64, i64, i64 }"  # slot or 0, how many slots from home (counted from 1), its word
OTHERS = 1  # the distance where no slot was claimed because of insertions under way
_LOOKS = 2 * HASH_WINDOW  # of settling, looks at slots that change meanwhile included


def _want(state: int) -> str:
    """The low bits of the state word of a key's slot in ``state``, in ``%want``."""
    return f"""\
  %top = lshr i64 %hash, {64 - HASH_TAG_BITS}
  %tag = shl i64 %top, 2
  %want = or i64 %tag, {state}"""


def _slot(table: HashTable) -> str:
    return f"""\
  %place = add i64 %hash, %d
  %number = and i64 %place, {table.slots - 1}
  %skip = mul i64 %number, {table.stride}
  %slot = add i64 %table, %skip"""


def _limit(reach: str) -> str:
    return f"""\
  %far = icmp ugt i64 {reach}, {HASH_WINDOW}
  %limit = select i1 %far, i64 {HASH_WINDOW}, i64 {reach}"""


def _compare(table: HashTable, words: int, load: str) -> str:
    """The bits in which the key in ``%slot`` differs, in ``%differs``."""
    lines = ["  %differs0 = and i64 0, 0"]
    for n in range(words):
        lines += [
            f"  %at{n} = add i64 %slot, {table.key + 8 * n}",
            f"  %word{n} = call i64 @egpu.{load}(i64 %at{n})",
            f"  %x{n} = xor i64 %word{n}, %k{n}",
            f"  %differs{n + 1} = or i64 %differs{n}, %x{n}",
        ]
    return "\n".join([*lines, f"  %differs = or i64 %differs{words}, 0"])


def _keys(words: int) -> str:
    return ", ".join(f"i64 %k{n}" for n in range(words))


def find_function(name: str, table: HashTable, words: int) -> str:
    """``name(table, hash, key words...)`` gives FOUND: where the key is an entry.

    The home slot's state and how far to look come with one load.
    In a table whose entries can go, a word of the key is compared between two looks at the state,
    so that an entry that goes and another that comes meanwhile are never taken for one.  Otherwise
    what is FULL stays as it is.
    """
    if table.pinned:
        comparing = f"""\
{_compare(table, words, "acquire_gpu")}
  %again = call i64 @egpu.load_gpu(i64 %slot)
  %change = xor i64 %again, %state
  %different = or i64 %differs, %change"""
    else:
        comparing = f"""\
{_compare(table, words, "load_gpu")}
  %different = or i64 %differs, 0"""
    return f"""\
define internal {FOUND} @{name}(i64 %table, i64 %hash, {_keys(words)}) {ATTRIBUTES} {{
entry:
{_want(HASH_FULL)}
  %home = and i64 %hash, {table.slots - 1}
  %to_home = mul i64 %home, {table.stride}
  %home_slot = add i64 %table, %to_home
  %both = call {{ i64, i64 }} @egpu.acquire_pair_gpu(i64 %home_slot)
  %first = extractvalue {{ i64, i64 }} %both, 0
  %reach = extractvalue {{ i64, i64 }} %both, 1
{_limit("%reach")}
  %any = icmp ne i64 %limit, 0
  br i1 %any, label %judge, label %none
judge:
  %slot = phi i64 [ %home_slot, %entry ], [ %other, %look ]
  %state = phi i64 [ %first, %entry ], [ %word, %look ]
  %tried = phi i64 [ 1, %entry ], [ %next, %look ]
  %low = and i64 %state, {LOW}
  %hit = icmp eq i64 %low, %want
  br i1 %hit, label %compare, label %on
compare:
{comparing}
  %same = icmp eq i64 %different, 0
  br i1 %same, label %found, label %on
on:
  %more = icmp ult i64 %tried, %limit
  br i1 %more, label %look, label %none
look:
  %place = add i64 %hash, %tried
  %number = and i64 %place, {table.slots - 1}
  %skip = mul i64 %number, {table.stride}
  %other = add i64 %table, %skip
  %word = call i64 @egpu.acquire_gpu(i64 %other)
  %next = add i64 %tried, 1
  br label %judge, !llvm.loop !0
found:
  %f0 = insertvalue {FOUND} zeroinitializer, i64 %slot, 0
  %f1 = insertvalue {FOUND} %f0, i64 %state, 1
  ret {FOUND} %f1
none:
  ret {FOUND} zeroinitializer
}}
"""


def claim_function(name: str, table: HashTable) -> str:
    """``name(table, hash)`` makes the first free slot of a key's window CLAIMED; gives CLAIMED.

    It gives none, with distance OTHERS, if a key with the same bits of the hash is being inserted:
    probably this one.  It does so too if no slot is free, but some are taken by insertions that may
    not become entries.
    """
    unpinned = ""
    if table.pinned:
        # Of whoever pins the slot and whoever claims it, one comes second at ``pins`` and sees what
        # the other did: a pin, or a state that is no longer the entry's.
        unpinned = f"""\
  %pins_at = add i64 %slot, {HASH_SLOT["pins"][0]}
  %pins = call i64 @egpu.fetch_add_gpu(i64 %pins_at, i64 0)
  %pinned = icmp ne i64 %pins, 0
  br i1 %pinned, label %give_back, label %mine
give_back:
  %later = add i64 %state, {HASH_INCARNATION}
  call void @egpu.release_gpu(i64 %slot, i64 %later)
  br label %on
"""
    else:
        unpinned = "  br label %mine\n"
    back = ", [ true, %give_back ]" if table.pinned else ""
    return f"""\
define internal {CLAIMED} @{name}(i64 %table, i64 %hash) {ATTRIBUTES} {{
entry:
{_want(HASH_CLAIMED)}
  br label %look
look:
  %d = phi i64 [ 0, %entry ], [ %next, %on ]
  %others = phi i1 [ false, %entry ], [ %seen, %on ]
{_slot(table)}
  %state = call i64 @egpu.load_gpu(i64 %slot)
  %low = and i64 %state, {LOW}
  %free = icmp eq i64 %low, 0
  br i1 %free, label %try, label %taken
try:
  %busy = or i64 %state, %want
  %old = call i64 @egpu.claim_gpu(i64 %slot, i64 %state, i64 %busy)
  %won = icmp eq i64 %old, %state
  br i1 %won, label %claimed, label %taken
claimed:
{unpinned}mine:
  %distance = add i64 %d, 1
  %c0 = insertvalue {CLAIMED} zeroinitializer, i64 %slot, 0
  %c1 = insertvalue {CLAIMED} %c0, i64 %distance, 1
  %c2 = insertvalue {CLAIMED} %c1, i64 %busy, 2
  ret {CLAIMED} %c2
taken:
  %word = phi i64 [ %state, %look ], [ %old, %try ]
  %is = and i64 %word, {HASH_STATE}
  %low_word = and i64 %word, {LOW}
  %entry_there = icmp eq i64 %is, {HASH_FULL}
  %dead = icmp eq i64 %low_word, {DEAD}
  %staying = or i1 %entry_there, %dead
  %passing = xor i1 %staying, true
  %distinct = xor i64 %word, %want
  %tags = and i64 %distinct, {TAG}
  %same = icmp eq i64 %tags, 0
  %twin = and i1 %passing, %same
  br i1 %twin, label %wait, label %on
on:
  %new = phi i1 [ %passing, %taken ]{back}
  %seen = or i1 %others, %new
  %next = add i64 %d, 1
  %more = icmp ult i64 %next, {HASH_WINDOW}
  br i1 %more, label %look, label %none, !llvm.loop !0
none:
  br i1 %seen, label %wait, label %room
wait:
  %w = insertvalue {CLAIMED} zeroinitializer, i64 {OTHERS}, 1
  ret {CLAIMED} %w
room:
  ret {CLAIMED} zeroinitializer
}}
"""


def settle_function(name: str, table: HashTable, words: int) -> str:
    """``name(table, hash, reach, own slot, key words...)``, after the own slot became ENTERING and
    a fence: whether the key can become an entry there (i1).

    Not if it is one elsewhere, or is ENTERING nearer to home; where it is ENTERING farther from
    home, that insertion is undone.  Looks again at a slot that changed, but not for ever.
    """
    return f"""\
define internal i1 @{name}(
    i64 %table, i64 %hash, i64 %reach, i64 %own, {_keys(words)}) {ATTRIBUTES} {{
entry:
{_want(HASH_ENTERING)}
{_limit("%reach")}
  br label %look
look:
  %d = phi i64 [ 0, %entry ], [ %d, %again ], [ %next, %on ]
  %passed = phi i1 [ false, %entry ], [ %passed, %again ], [ %beyond, %on ]
  %looks = phi i64 [ 1, %entry ], [ %more_looks, %again ], [ %more_looks_on, %on ]
{_slot(table)}
  %is_own = icmp eq i64 %slot, %own
  br i1 %is_own, label %on, label %other
other:
  %state = call i64 @egpu.acquire_gpu(i64 %slot)
  %likely = and i64 %state, {TAG | HASH_ENTERING}
  %hit = icmp eq i64 %likely, %want
  br i1 %hit, label %compare, label %on
compare:
{_compare(table, words, "acquire_gpu")}
  %now = call i64 @egpu.load_gpu(i64 %slot)
  %steady = icmp eq i64 %now, %state
  br i1 %steady, label %judge, label %again
judge:
  %same = icmp eq i64 %differs, 0
  br i1 %same, label %rival, label %on
rival:
  %kind = and i64 %state, {HASH_STATE}
  %entering = icmp eq i64 %kind, {HASH_ENTERING}
  %weaker = and i1 %entering, %passed
  br i1 %weaker, label %undo, label %lost
undo:
  %claimed = sub i64 %state, {HASH_ENTERING - HASH_CLAIMED}
  %old = call i64 @egpu.cas_gpu(i64 %slot, i64 %state, i64 %claimed)
  %undone = icmp eq i64 %old, %state
  br i1 %undone, label %on, label %again
again:
  %more_looks = add i64 %looks, 1
  %patience = icmp ult i64 %looks, {_LOOKS}
  br i1 %patience, label %look, label %lost, !llvm.loop !0
on:
  %beyond = or i1 %passed, %is_own
  %more_looks_on = add i64 %looks, 1
  %next = add i64 %d, 1
  %more = icmp ult i64 %next, %limit
  br i1 %more, label %look, label %won, !llvm.loop !0
won:
  ret i1 true
lost:
  ret i1 false
}}
"""
