"""Hash tables of the device library, as LLVM IR: looking for a key and claiming a slot.

The protocol is that of ``egpu.maps.layout``.  Each map has functions of its own, since sizes and
places in a slot are constants.
"""

from __future__ import annotations

from egpu.bpf.maptypes import HASH_WINDOW
from egpu.codegen.arena import (
    HASH_BUSY,
    HASH_FULL,
    HASH_INCARNATION,
    HASH_PINS,
    HASH_SLOT,
    HASH_STATE,
    HASH_TAG_BITS,
    HashTable,
)
from egpu.codegen.primitives import ATTRIBUTES

LOW = (1 << 2 + HASH_TAG_BITS) - 1  # state and part of the hash
SETTLED = ~HASH_PINS  # all of a state word but its pins
FOUND = "{ i64, i64 }"  # slot or 0, its state word
CLAIMED = "{ i64, i64 }"  # slot or 0, how many slots from home it is, counted from 1


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


def find_function(name: str, table: HashTable, words: int) -> str:
    """``name(table, hash, reach, key words...)`` gives FOUND.

    A word of the key is compared only between two looks at the state, so that an entry that goes
    and another that comes meanwhile are never taken for one.
    """
    keys = ", ".join(f"i64 %k{n}" for n in range(words))
    compare = ["  %differs0 = and i64 0, 0"]
    for n in range(words):
        compare += [
            f"  %at{n} = add i64 %slot, {table.key + 8 * n}",
            f"  %word{n} = call i64 @egpu.acquire_gpu(i64 %at{n})",
            f"  %x{n} = xor i64 %word{n}, %k{n}",
            f"  %differs{n + 1} = or i64 %differs{n}, %x{n}",
        ]
    comparing = "\n".join(compare)
    return f"""\
define internal {FOUND} @{name}(i64 %table, i64 %hash, i64 %reach, {keys}) {ATTRIBUTES} {{
entry:
{_want(HASH_FULL)}
  %far = icmp ugt i64 %reach, {HASH_WINDOW}
  %limit = select i1 %far, i64 {HASH_WINDOW}, i64 %reach
  %any = icmp ne i64 %limit, 0
  br i1 %any, label %look, label %none
look:
  %d = phi i64 [ 0, %entry ], [ %next, %on ]
{_slot(table)}
  %state = call i64 @egpu.acquire_gpu(i64 %slot)
  %low = and i64 %state, {LOW}
  %hit = icmp eq i64 %low, %want
  br i1 %hit, label %compare, label %on
compare:
{comparing}
  %again = call i64 @egpu.load_gpu(i64 %slot)
  %change = xor i64 %again, %state
  %moved = and i64 %change, {SETTLED}
  %different = or i64 %differs{words}, %moved
  %same = icmp eq i64 %different, 0
  br i1 %same, label %found, label %on
on:
  %next = add i64 %d, 1
  %more = icmp ult i64 %next, %limit
  br i1 %more, label %look, label %none, !llvm.loop !0
found:
  %f0 = insertvalue {FOUND} zeroinitializer, i64 %slot, 0
  %f1 = insertvalue {FOUND} %f0, i64 %state, 1
  ret {FOUND} %f1
none:
  ret {FOUND} zeroinitializer
}}
"""


def clear_function(name: str, words: int) -> str:
    """``name(address, copies, stride)`` writes ``words`` zeros at ``address`` and at each of the
    other copies, ``stride`` bytes apart."""
    stores = "\n".join(
        f"  %at{n} = add i64 %here, {8 * n}\n"
        f"  %p{n} = inttoptr i64 %at{n} to ptr addrspace(1)\n"
        f"  store i64 0, ptr addrspace(1) %p{n}, align 8"
        for n in range(words)
    )
    return f"""\
define internal void @{name}(i64 %address, i64 %copies, i64 %stride) {ATTRIBUTES} {{
entry:
  br label %copy
copy:
  %number = phi i64 [ 0, %entry ], [ %next, %copy ]
  %skip = mul i64 %number, %stride
  %here = add i64 %address, %skip
{stores}
  %next = add i64 %number, 1
  %more = icmp ult i64 %next, %copies
  br i1 %more, label %copy, label %done, !llvm.loop !0
done:
  ret void
}}
"""


def evict_function(name: str, table: HashTable) -> str:
    """``name(table, hash)`` frees the least recently used entry of a key's window; whether it could
    (i1): none may be there that nobody writes to, or another thread may have been faster."""
    return f"""\
define internal i1 @{name}(i64 %table, i64 %hash) {ATTRIBUTES} {{
entry:
  br label %look
look:
  %d = phi i64 [ 0, %entry ], [ %next, %look ]
  %best = phi i64 [ 0, %entry ], [ %chosen, %look ]
  %oldest = phi i64 [ -1, %entry ], [ %since, %look ]
  %was = phi i64 [ 0, %entry ], [ %is, %look ]
{_slot(table)}
  %state = call i64 @egpu.acquire_gpu(i64 %slot)
  %at = add i64 %slot, {HASH_SLOT["used"][0]}
  %used = call i64 @egpu.load_gpu(i64 %at)
  %kind = and i64 %state, {HASH_STATE | HASH_PINS}
  %full = icmp eq i64 %kind, {HASH_FULL}
  %older = icmp ult i64 %used, %oldest
  %take = and i1 %full, %older
  %chosen = select i1 %take, i64 %slot, i64 %best
  %since = select i1 %take, i64 %used, i64 %oldest
  %is = select i1 %take, i64 %state, i64 %was
  %next = add i64 %d, 1
  %more = icmp ult i64 %next, {HASH_WINDOW}
  br i1 %more, label %look, label %choose, !llvm.loop !0
choose:
  %any = icmp ne i64 %chosen, 0
  br i1 %any, label %free, label %none
free:
  %number_only = and i64 %is, {~LOW}
  %freed = add i64 %number_only, {HASH_INCARNATION}
  %old = call i64 @egpu.swap_gpu(i64 %chosen, i64 %is, i64 %freed)
  %won = icmp eq i64 %old, %is
  ret i1 %won
none:
  ret i1 false
}}
"""


def claim_function(name: str, table: HashTable) -> str:
    """``name(table, hash)`` makes the first free slot of a key's window BUSY; gives CLAIMED."""
    return f"""\
define internal {CLAIMED} @{name}(i64 %table, i64 %hash) {ATTRIBUTES} {{
entry:
{_want(HASH_BUSY)}
  br label %look
look:
  %d = phi i64 [ 0, %entry ], [ %next, %on ]
{_slot(table)}
  %state = call i64 @egpu.load_gpu(i64 %slot)
  %taken = and i64 %state, {HASH_STATE | HASH_PINS}
  %free = icmp eq i64 %taken, 0
  br i1 %free, label %try, label %on
try:
  %busy = or i64 %state, %want
  %old = call i64 @egpu.swap_gpu(i64 %slot, i64 %state, i64 %busy)
  %won = icmp eq i64 %old, %state
  br i1 %won, label %claimed, label %on
on:
  %next = add i64 %d, 1
  %more = icmp ult i64 %next, {HASH_WINDOW}
  br i1 %more, label %look, label %none, !llvm.loop !0
claimed:
  %distance = add i64 %d, 1
  %c0 = insertvalue {CLAIMED} zeroinitializer, i64 %slot, 0
  %c1 = insertvalue {CLAIMED} %c0, i64 %distance, 1
  ret {CLAIMED} %c1
none:
  ret {CLAIMED} zeroinitializer
}}
"""
