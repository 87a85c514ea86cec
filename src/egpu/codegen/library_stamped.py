"""Taking a slot of a ring of stamped slots, as LLVM IR: the producer's side of
``egpu.maps.ring_table``.

Who takes one runs alone in its warp (``MapSpec.stamped``), so nothing here meets other lanes.
"""

from __future__ import annotations

from egpu.codegen.arena import RING_CONTROL, RING_ROOM
from egpu.codegen.library_ring import CLAIM_TRIES
from egpu.codegen.primitives import ATTRIBUTES

NO_SLOT = -1  # instead of a slot's number, which has RING_ROOM bits

_HEAD = RING_CONTROL["head"][0]
_TAIL = RING_CONTROL["tail"][0]
_DROPPED = RING_CONTROL["dropped"][0]
_ASK = 1 - (1 << RING_ROOM)  # one slot more asked for, room for one less
_FEW = 1 << 20  # asked for in vain since somebody looked: far from what the room's bits can hold
_LAST = (1 << RING_ROOM) - (1 << RING_ROOM - 8)  # no ring goes beyond: its numbers would repeat

# The number of a slot for this lane, or NO_SLOT.
#
# The addition alone says whether there was room, and in the order of additions the slots go to
# those that saw some: `asked + room` is the number of slots that were taken, whatever is asked for
# in vain.  Who saw none looks at the tail.  If that gives room, one exchange puts it into the word
# and takes the first of the new slots; asking in vain ends with it, and so it does, seldom, where
# it would fill the room's bits.  An exchange fails because others asked meanwhile, or gave the
# room: then this lane asks again.
#
# `differing` keeps ptxas from adding up over lanes that are not there.
_TAKE_SLOT = f"""\
define internal i64 @egpu.take_slot(i64 %control, i64 %slots, i64 %stride) {ATTRIBUTES} {{
entry:
  %differing = call i32 @egpu.differing()
  %other = zext i32 %differing to i64
  %own = add i64 %control, %other
  %head_at = add i64 %own, {_HEAD}
  br label %ask
ask:
  %tries = phi i32 [ 0, %entry ], [ %more, %which ]
  %old = call i64 @egpu.take_gpu(i64 %head_at, i64 {_ASK})
  %there = icmp sgt i64 %old, {(1 << RING_ROOM) - 1}
  br i1 %there, label %got, label %none, !prof !2
got:
  %number = and i64 %old, {(1 << RING_ROOM) - 1}
  br label %done
none:
  %first = add i64 %old, {_ASK}
  br label %look
look:
  %word = phi i64 [ %first, %none ], [ %seen, %which ]
  %turn = phi i32 [ %tries, %none ], [ %more, %which ]
  %asked = and i64 %word, {(1 << RING_ROOM) - 1}
  %room = ashr i64 %word, {RING_ROOM}
  %taken = add i64 %asked, %room
  %tail_at = add i64 %control, {_TAIL}
  %tail = call i64 @egpu.load_gpu(i64 %tail_at)
  %read = udiv i64 %tail, %stride
  %end = add i64 %read, %slots
  %new = sub i64 %end, %taken
  %some = icmp sgt i64 %new, 0
  %before = icmp ult i64 %taken, {_LAST}
  %gives = and i1 %some, %before
  %vain = icmp slt i64 %room, {-_FEW}
  %swaps = or i1 %gives, %vain
  br i1 %swaps, label %swap, label %drop
swap:
  %rest = sub i64 %new, 1
  %left = select i1 %gives, i64 %rest, i64 0
  %mine = zext i1 %gives to i64
  %next = add i64 %taken, %mine
  %high = shl i64 %left, {RING_ROOM}
  %value = or i64 %high, %next
  %seen = call i64 @egpu.cas_gpu(i64 %head_at, i64 %word, i64 %value)
  %won = icmp eq i64 %seen, %word
  %goes_on = xor i1 %won, true
  %again = and i1 %goes_on, %gives
  br i1 %again, label %lost, label %ended
lost:
  %more = add i32 %turn, 1
  %tired = icmp ugt i32 %more, {CLAIM_TRIES}
  %given = icmp sgt i64 %seen, {(1 << RING_ROOM) - 1}
  br i1 %tired, label %drop, label %which
which:
  br i1 %given, label %ask, label %look, !llvm.loop !0
ended:
  br i1 %gives, label %done, label %drop
drop:
  %dropped_at = add i64 %own, {_DROPPED}
  call void @egpu.add_gpu(i64 %dropped_at, i64 1)
  br label %done
done:
  %result = phi i64 [ %number, %got ], [ %taken, %ended ], [ {NO_SLOT}, %drop ]
  ret i64 %result
}}
"""

STAMPED_FUNCTIONS = (_TAKE_SLOT,)
