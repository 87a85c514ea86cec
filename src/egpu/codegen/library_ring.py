"""Ring buffers of the device library, as LLVM IR: the producer's side of ``egpu.maps.layout``.

Whatever involves several lanes takes the mask of active lanes once and synchronises only those
lanes, which all run the same straight line to the next synchronisation.
"""

from __future__ import annotations

from egpu.codegen.arena import (
    RING_CONTROL,
    RING_DISCARD,
    RING_GROUP_HEADER,
    RING_PAD_COUNT,
)
from egpu.codegen.primitives import ATTRIBUTES

CLAIM_TRIES = 1024  # losing this often counts as a full ring: a probe never waits
NO_ROOM = -1  # a claim's position when it failed; no position is that large

_HEAD = RING_CONTROL["head"][0]
_TAIL = RING_CONTROL["tail"][0]
_DROPPED = RING_CONTROL["dropped"][0]
_PRODUCED = RING_CONTROL["produced"][0]
_HEADER = RING_GROUP_HEADER
DISCARD = RING_DISCARD - (1 << 64)  # as a signed 64-bit literal

# Claim %bytes (a multiple of 16) for %count records: the position of the group, NO_ROOM if there is
# none.  A group never crosses the ring's end: what is left there becomes a filler group.  %used is
# compared signed: the tail may have been read after others moved head and tail on, then the swap
# fails and the next try sees it.
_CLAIM = f"""\
define internal i64 @egpu.claim(
    i64 %control, i64 %data, i64 %size, i64 %bytes, i64 %count) {ATTRIBUTES} {{
entry:
  %head_at = add i64 %control, {_HEAD}
  %tail_at = add i64 %control, {_TAIL}
  %mask = sub i64 %size, 1
  %first = call i64 @egpu.load_gpu(i64 %head_at)
  br label %attempt
attempt:
  %head = phi i64 [ %first, %entry ], [ %old, %lost ]
  %tries = phi i32 [ 1, %entry ], [ %more, %lost ]
  %tail = call i64 @egpu.load_gpu(i64 %tail_at)
  %at = and i64 %head, %mask
  %room = sub i64 %size, %at
  %wraps = icmp ugt i64 %bytes, %room
  %filler = select i1 %wraps, i64 %room, i64 0
  %start = add i64 %head, %filler
  %end = add i64 %start, %bytes
  %used = sub i64 %end, %tail
  %full = icmp sgt i64 %used, %size
  br i1 %full, label %drop, label %swap
swap:
  %old = call i64 @egpu.cas_gpu(i64 %head_at, i64 %head, i64 %end)
  %won = icmp eq i64 %old, %head
  br i1 %won, label %claimed, label %lost
lost:
  %more = add i32 %tries, 1
  %give_up = icmp ugt i32 %more, {CLAIM_TRIES}
  br i1 %give_up, label %drop, label %attempt, !llvm.loop !0
drop:
  %dropped_at = add i64 %control, {_DROPPED}
  call void @egpu.add_gpu(i64 %dropped_at, i64 %count)
  ret i64 {NO_ROOM}
claimed:
  %produced_at = add i64 %control, {_PRODUCED}
  call void @egpu.add_gpu(i64 %produced_at, i64 %count)
  br i1 %wraps, label %fill, label %done
fill:
  %filler_at = add i64 %data, %at
  %p = inttoptr i64 %filler_at to ptr addrspace(1)
  store i64 {RING_PAD_COUNT << 32 & (1 << 64) - 1}, ptr addrspace(1) %p, align 8
  %filler_commit = add i64 %filler_at, 8
  %value = add i64 %head, 1
  call void @egpu.release_sys(i64 %filler_commit, i64 %value)
  br label %done
done:
  ret i64 %start
}}
"""

# The loop is not unrolled: it seldom runs twice.  The mask a leader is looked up in holds at least
# the running lane, so it is never 0.
#
# One claim for all lanes that run this together with the same %size (%same: it is a constant, so
# they all have it): {address of this lane's record or 0, the group's position, the lanes}.  If the
# lanes' records together are larger than a ring, each lane claims for itself.
_OUTPUT_BEGIN = f"""\
define internal {{ i64, i64, i32 }} @egpu.output_begin(
    i64 %control, i64 %data, i64 %ring, i64 %size, i1 %same) {ATTRIBUTES} {{
entry:
  %active = call i32 @egpu.active()
  br i1 %same, label %agreed, label %ask
ask:
  %matched = call i32 @egpu.match(i64 %size, i32 %active)
  br label %agreed
agreed:
  %lanes = phi i32 [ %active, %entry ], [ %matched, %ask ]
  %up = add i64 %size, 7
  %record = and i64 %up, -8
  %own = call i32 @egpu.own_lane()
  %many = call i32 @llvm.ctpop.i32(i32 %lanes)
  %many64 = zext i32 %many to i64
  %payload = mul i64 %record, %many64
  %padded = add i64 %payload, {_HEADER + 15}
  %together = and i64 %padded, -16
  %fits = icmp ule i64 %together, %ring
  %alone0 = add i64 %record, {_HEADER + 15}
  %alone = and i64 %alone0, -16
  %mask = select i1 %fits, i32 %lanes, i32 %own
  %count = select i1 %fits, i64 %many64, i64 1
  %bytes = select i1 %fits, i64 %together, i64 %alone
  %below = call i32 @egpu.lanes_below()
  %before = and i32 %mask, %below
  %rank = call i32 @llvm.ctpop.i32(i32 %before)
  %leads = icmp eq i32 %rank, 0
  br i1 %leads, label %lead, label %join
lead:
  %claimed = call i64 @egpu.claim(i64 %control, i64 %data, i64 %ring, i64 %bytes, i64 %count)
  br label %join
join:
  %mine = phi i64 [ 0, %agreed ], [ %claimed, %lead ]
  %leader = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %position = call i64 @egpu.shuffle(i64 %mine, i32 %leader, i32 %mask)
  %failed = icmp eq i64 %position, {NO_ROOM}
  %wrap = sub i64 %ring, 1
  %at = and i64 %position, %wrap
  %group = add i64 %data, %at
  %first = add i64 %group, {_HEADER}
  %rank64 = zext i32 %rank to i64
  %skip = mul i64 %rank64, %record
  %address = add i64 %first, %skip
  %result = select i1 %failed, i64 0, i64 %address
  %r0 = insertvalue {{ i64, i64, i32 }} zeroinitializer, i64 %result, 0
  %r1 = insertvalue {{ i64, i64, i32 }} %r0, i64 %position, 1
  %r2 = insertvalue {{ i64, i64, i32 }} %r1, i32 %mask, 2
  ret {{ i64, i64, i32 }} %r2
}}
"""

# Publish the group once every lane of it has written: bar.warp.sync orders their writes before the
# leader's release, which is cumulative (PTX ISA 8.10.7, causality order).
_OUTPUT_END = f"""\
define internal void @egpu.output_end(
    i64 %data, i64 %ring, i64 %size, i64 %position, i32 %mask) {ATTRIBUTES} {{
entry:
  call void @egpu.sync(i32 %mask)
  %below = call i32 @egpu.lanes_below()
  %before = and i32 %mask, %below
  %leads = icmp eq i32 %before, 0
  br i1 %leads, label %publish, label %done
publish:
  %wrap = sub i64 %ring, 1
  %at = and i64 %position, %wrap
  %group = add i64 %data, %at
  %many = call i32 @llvm.ctpop.i32(i32 %mask)
  %many64 = zext i32 %many to i64
  %high = shl i64 %many64, 32
  %header = or i64 %high, %size
  %p = inttoptr i64 %group to ptr addrspace(1)
  store i64 %header, ptr addrspace(1) %p, align 8
  %commit = add i64 %group, 8
  %value = add i64 %position, 1
  call void @egpu.release_sys(i64 %commit, i64 %value)
  br label %done
done:
  ret void
}}
"""

# One claim a warp, one group of one record a lane, because each is submitted by itself.  %end gets
# the position after this lane's group: what submit and discard find the group's position by.
_RESERVE = f"""\
define internal i64 @egpu.reserve(
    i64 %control, i64 %data, i64 %ring, i64 %size, ptr %end) {ATTRIBUTES} {{
entry:
  %mask0 = call i32 @egpu.active()
  %up = add i64 %size, {_HEADER + 15}
  %step = and i64 %up, -16
  %own = call i32 @egpu.own_lane()
  %many = call i32 @llvm.ctpop.i32(i32 %mask0)
  %many64 = zext i32 %many to i64
  %together = mul i64 %step, %many64
  %fits = icmp ule i64 %together, %ring
  %mask = select i1 %fits, i32 %mask0, i32 %own
  %count = select i1 %fits, i64 %many64, i64 1
  %bytes = select i1 %fits, i64 %together, i64 %step
  %below = call i32 @egpu.lanes_below()
  %before = and i32 %mask, %below
  %rank = call i32 @llvm.ctpop.i32(i32 %before)
  %leads = icmp eq i32 %rank, 0
  br i1 %leads, label %lead, label %join
lead:
  %claimed = call i64 @egpu.claim(i64 %control, i64 %data, i64 %ring, i64 %bytes, i64 %count)
  br label %join
join:
  %mine = phi i64 [ 0, %entry ], [ %claimed, %lead ]
  %leader = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %position = call i64 @egpu.shuffle(i64 %mine, i32 %leader, i32 %mask)
  %failed = icmp eq i64 %position, {NO_ROOM}
  br i1 %failed, label %none, label %some
none:
  ret i64 0
some:
  %rank64 = zext i32 %rank to i64
  %skip = mul i64 %rank64, %step
  %here = add i64 %position, %skip
  %after = add i64 %here, %step
  store i64 %after, ptr %end, align 8
  %wrap = sub i64 %ring, 1
  %at = and i64 %here, %wrap
  %group = add i64 %data, %at
  %header = or i64 %size, {1 << 32}
  %p = inttoptr i64 %group to ptr addrspace(1)
  store i64 %header, ptr addrspace(1) %p, align 8
  %record = add i64 %group, {_HEADER}
  ret i64 %record
}}
"""

# Publish or drop a reserved record.  Its position is the largest one below %end that lies at its
# place in the ring: the record is not released, so no later claim of this thread can be further
# than one ring ahead of it.  %data may be any ring of the map: rings of one map follow each other.
_COMMIT = f"""\
define internal void @egpu.commit(
    i64 %record, i64 %data, i64 %ring, ptr %end, i64 %flag) {ATTRIBUTES} {{
entry:
  %group = sub i64 %record, {_HEADER}
  %offset = sub i64 %group, %data
  %after = load i64, ptr %end, align 8
  %last = sub i64 %after, 1
  %distance = sub i64 %last, %offset
  %wrap = sub i64 %ring, 1
  %back = and i64 %distance, %wrap
  %position = sub i64 %last, %back
  %value0 = add i64 %position, 1
  %value = or i64 %value0, %flag
  %commit = add i64 %group, 8
  call void @egpu.release_sys(i64 %commit, i64 %value)
  ret void
}}
"""

# BPF_RB_AVAIL_DATA 0, BPF_RB_RING_SIZE 1, BPF_RB_CONS_POS 2, BPF_RB_PROD_POS 3 (uapi/linux/bpf.h),
# of this SM's ring; the consumer's position is the agent's last copy.
_QUERY = f"""\
define internal i64 @egpu.query(i64 %control, i64 %ring, i64 %what) {ATTRIBUTES} {{
entry:
  %tail_at = add i64 %control, {_TAIL}
  %head_at = add i64 %control, {_HEAD}
  %tail = call i64 @egpu.load_gpu(i64 %tail_at)
  %head = call i64 @egpu.load_gpu(i64 %head_at)
  %available = sub i64 %head, %tail
  %is0 = icmp eq i64 %what, 0
  %is1 = icmp eq i64 %what, 1
  %is2 = icmp eq i64 %what, 2
  %is3 = icmp eq i64 %what, 3
  %a = select i1 %is3, i64 %head, i64 0
  %b = select i1 %is2, i64 %tail, i64 %a
  %c = select i1 %is1, i64 %ring, i64 %b
  %d = select i1 %is0, i64 %available, i64 %c
  ret i64 %d
}}
"""

RING_FUNCTIONS = (_CLAIM, _OUTPUT_BEGIN, _OUTPUT_END, _RESERVE, _COMMIT, _QUERY)
