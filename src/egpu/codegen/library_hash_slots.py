"""Hash tables of the device library, as LLVM IR: clearing an entry's values and freeing the least
recently used entry."""

from __future__ import annotations

from egpu.codegen.arena import (
    HASH_FULL,
    HASH_INCARNATION,
    HASH_SLOT,
    HASH_STATE,
    HashTable,
)
from egpu.codegen.library_hash import LOW
from egpu.codegen.primitives import ATTRIBUTES


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


_AT_ONCE = 4  # slots whose words are under way at a time


def evict_function(name: str, table: HashTable) -> str:
    """``name(table, hash, count, own slot)`` frees the least recently used entry, but the own one,
    of the ``count`` slots (a multiple of 4) from a place on; whether it could (i1): none may be
    there, or another thread may have been faster."""
    loads, choices = [], []
    before = ("%best", "%oldest", "%was")
    for n in range(_AT_ONCE):
        loads.append(f"""\
  %place{n} = add i64 %first, {n}
  %number{n} = and i64 %place{n}, {table.slots - 1}
  %skip{n} = mul i64 %number{n}, {table.stride}
  %slot{n} = add i64 %table, %skip{n}
  %state{n} = call i64 @egpu.load_gpu(i64 %slot{n})
  %at{n} = add i64 %slot{n}, {HASH_SLOT["used"][0]}
  %used{n} = call i64 @egpu.load_gpu(i64 %at{n})""")
        choices.append(f"""\
  %kind{n} = and i64 %state{n}, {HASH_STATE}
  %full{n} = icmp eq i64 %kind{n}, {HASH_FULL}
  %older{n} = icmp ult i64 %used{n}, {before[1]}
  %not_own{n} = icmp ne i64 %slot{n}, %own
  %other{n} = and i1 %full{n}, %not_own{n}
  %take{n} = and i1 %other{n}, %older{n}
  %chosen{n} = select i1 %take{n}, i64 %slot{n}, i64 {before[0]}
  %since{n} = select i1 %take{n}, i64 %used{n}, i64 {before[1]}
  %is{n} = select i1 %take{n}, i64 %state{n}, i64 {before[2]}""")
        before = (f"%chosen{n}", f"%since{n}", f"%is{n}")
    chosen, since, is_now = before
    looking = "\n".join([*loads, *choices])
    return f"""\
define internal i1 @{name}(
    i64 %table, i64 %hash, i64 %count, i64 %own) {ATTRIBUTES} {{
entry:
  br label %look
look:
  %d = phi i64 [ 0, %entry ], [ %next, %look ]
  %best = phi i64 [ 0, %entry ], [ {chosen}, %look ]
  %oldest = phi i64 [ -1, %entry ], [ {since}, %look ]
  %was = phi i64 [ 0, %entry ], [ {is_now}, %look ]
  %first = add i64 %hash, %d
{looking}
  %next = add i64 %d, {_AT_ONCE}
  %more = icmp ult i64 %next, %count
  br i1 %more, label %look, label %choose, !llvm.loop !0
choose:
  %any = icmp ne i64 {chosen}, 0
  br i1 %any, label %free, label %none
free:
  %number_only = and i64 {is_now}, {~LOW}
  %freed = add i64 %number_only, {HASH_INCARNATION}
  %old = call i64 @egpu.swap_gpu(i64 {chosen}, i64 {is_now}, i64 %freed)
  %won = icmp eq i64 %old, {is_now}
  ret i1 %won
none:
  ret i1 false
}}
"""
