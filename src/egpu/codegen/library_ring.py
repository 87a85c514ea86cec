"""Ring buffers of the device library, as LLVM IR: the producer's side of ``egpu.maps.layout``.

Whatever involves several lanes takes the mask of active lanes and synchronises only those lanes,
which all run the same straight line to the last synchronisation with that mask.  No loop lies
between, so that no other lanes of the warp can come into the same code meanwhile: the hardware
merges groups that wait at one place, and lets them go on with one group's mask
(``egpu.codegen.rounds``).
"""

from __future__ import annotations

from dataclasses import dataclass

from egpu.codegen.arena import (
    RING_CONTROL,
    RING_DISCARD,
    RING_FLAG_LAP,
    RING_FLAG_LARGE,
    RING_FLAG_SECOND,
    RING_FLAG_SIZE,
    RING_FLAG_SPAN,
    RING_GRANULE,
    RING_GROUP_HEADER,
    RING_LAPS,
    RING_PAD_COUNT,
)
from egpu.codegen.primitives import ATTRIBUTES

CLAIM_TRIES = 1024  # losing this often counts as a full ring: a probe never waits
_AHEAD_BITS = 3  # a lane in a crowd thinks up to 2 ** 3 - 1 others come before it
NO_ROOM, AGAIN = -1, -2  # instead of a claim's position; no position is that large
GROUP = "{ i64, i64, i32, i1 }"  # what output_begin gives and output_end takes

_HEAD = RING_CONTROL["head"][0]
_TAIL = RING_CONTROL["tail"][0]
_DROPPED = RING_CONTROL["dropped"][0]
_PRODUCED = RING_CONTROL["produced"][0]
_HEADER = RING_GROUP_HEADER
_ONE = 1 << 32  # one record, in the word of size and count
DISCARD = RING_DISCARD - (1 << 64)  # as a signed 64-bit literal


@dataclass(frozen=True, slots=True)
class Publishing:
    """How a ring's groups are published: what the names of the functions for it end with, their
    last parameters with the same as arguments, and the functions that release a whole group's
    header and its commit word alone."""

    suffix: str
    more: str
    whole: str
    half: str


# The reader looks at the commit word (in the host arena), or the agent at a flag, whose address is
# %flags and a part of the group's (ArenaLayout.flags_base).  A ring has 2 ** %turn bytes.
BY_COMMIT = Publishing("", "", "egpu.release_pair_sys", "egpu.release_sys")
BY_FLAG = Publishing("_flagged", ", i64 %flags, i64 %turn", "egpu.publish", "egpu.publish_half")

_GRANULE_BITS = RING_GRANULE.bit_length() - 1
_SECOND_BITS = RING_FLAG_SECOND.bit_length() - 1 - _GRANULE_BITS

# The flag of a group (egpu.maps.layout) of %granules.  The commit word is the position and 1, which
# reaches no bit of the lap's number; whether the group is discarded is beyond them.
_FLAG = f"""\
define internal void @egpu.flag(
    i64 %group, i64 %commit, i64 %granules, i64 %flags, i64 %turn) {ATTRIBUTES} {{
  %laps = lshr i64 %commit, %turn
  %lap = and i64 %laps, {RING_LAPS - 1}
  %high = shl i64 %lap, {RING_FLAG_LAP}
  %second = and i64 %group, {RING_GRANULE}
  %middle = shl i64 %second, {_SECOND_BITS}
  %where = or i64 %high, %middle
  %value = or i64 %where, %granules
  %short = trunc i64 %value to i16
  %part = lshr i64 %group, {_GRANULE_BITS}
  %even = and i64 %part, {-RING_FLAG_SIZE}
  %flag = add i64 %flags, %even
  call void @egpu.release_flag_gpu(i64 %flag, i16 %short)
  ret void
}}
"""
assert RING_FLAG_SPAN == RING_FLAG_SIZE * RING_GRANULE

# A filler group has no size: it comes out as one granule, RING_FLAG_FILLER.
_PUBLISH = f"""\
define internal void @{BY_FLAG.whole}(i64 %group, i64 %header, i64 %commit{BY_FLAG.more})
    {ATTRIBUTES} {{
  call void @egpu.store_pair_gpu(i64 %group, i64 %header, i64 %commit)
  %count = lshr i64 %header, 32
  %size = and i64 %header, {(1 << 32) - 1}
  %up = add i64 %size, 7
  %record = and i64 %up, -8
  %payload = mul i64 %record, %count
  %padded = add i64 %payload, {_HEADER + RING_GRANULE - 1}
  %found = lshr i64 %padded, {_GRANULE_BITS}
  %large = icmp ugt i64 %found, {RING_FLAG_LARGE}
  %granules = select i1 %large, i64 {RING_FLAG_LARGE}, i64 %found
  call void @egpu.flag(i64 %group, i64 %commit, i64 %granules{BY_FLAG.more})
  ret void
}}
"""
# Size and count were written when the group was reserved.
_PUBLISH_HALF = f"""\
define internal void @{BY_FLAG.half}(i64 %group, i64 %commit{BY_FLAG.more}) {ATTRIBUTES} {{
  %at = add i64 %group, 8
  %p = inttoptr i64 %at to ptr addrspace(1)
  store i64 %commit, ptr addrspace(1) %p, align 8
  call void @egpu.flag(i64 %group, i64 %commit, i64 {RING_FLAG_LARGE}{BY_FLAG.more})
  ret void
}}
"""


# Try once to claim %bytes (a multiple of 16) for %count records where %head is thought to be: {the
# position of the group, NO_ROOM if there is none, or AGAIN; where the head is then; where the tail
# was last seen}.  A group never crosses the ring's end: what is left there becomes a filler group.
# %known is where the tail was once, which can only hide room: it is looked at anew when there seems
# to be none.  Between two tries nothing is read, so that the second comes before others'.  %used is
# compared signed: the tail may have been read after others moved head and tail on, then the swap
# fails and the next try sees it.  %last is where the head was last seen: if %head is a guess beyond
# it, that there is no room says nothing.
#
# Size, count and commit word are released by one store of 16 bytes: with one for each half, records
# of warps took twice the time (measured on an H200).  Neither half is ordered before the other, so
# a reader that finds the commit word without size and count, which are never 0, looks again.
def _claim(by: Publishing) -> str:
    return f"""\
define internal {{ i64, i64, i64 }} @egpu.claim{by.suffix}(
    i64 %control, i64 %data, i64 %size, i64 %bytes, i64 %count, i64 %head, i64 %last,
    i64 %known{by.more})
    {ATTRIBUTES} {{
entry:
  %differing = call i32 @egpu.differing()
  %other = zext i32 %differing to i64
  %own = add i64 %control, %other
  %head_at = add i64 %control, {_HEAD}
  %tail_at = add i64 %control, {_TAIL}
  %mask = sub i64 %size, 1
  %at = and i64 %head, %mask
  %room = sub i64 %size, %at
  %wraps = icmp ugt i64 %bytes, %room
  %filler = select i1 %wraps, i64 %room, i64 0
  %start = add i64 %head, %filler
  %end = add i64 %start, %bytes
  %seeming = sub i64 %end, %known
  %doubtful = icmp sgt i64 %seeming, %size
  br i1 %doubtful, label %look, label %swap
look:
  %fresh = call i64 @egpu.load_gpu(i64 %tail_at)
  %used = sub i64 %end, %fresh
  %full = icmp sgt i64 %used, %size
  br i1 %full, label %none, label %swap
none:
  %sure = icmp eq i64 %head, %last
  br i1 %sure, label %drop, label %done
swap:
  %tail = phi i64 [ %known, %entry ], [ %fresh, %look ]
  %old = call i64 @egpu.cas_gpu(i64 %head_at, i64 %head, i64 %end)
  %won = icmp eq i64 %old, %head
  br i1 %won, label %claimed, label %done
drop:
  %dropped_at = add i64 %own, {_DROPPED}
  call void @egpu.add_gpu(i64 %dropped_at, i64 %count)
  br label %done
claimed:
  %produced_at = add i64 %own, {_PRODUCED}
  call void @egpu.add_gpu(i64 %produced_at, i64 %count)
  br i1 %wraps, label %fill, label %done
fill:
  %filler_at = add i64 %data, %at
  %value = add i64 %head, 1
  call void @{by.whole}(
      i64 %filler_at, i64 {RING_PAD_COUNT << 32 & (1 << 64) - 1}, i64 %value{by.more})
  br label %done
done:
  %position = phi i64 [ {AGAIN}, %none ],
      [ {AGAIN}, %swap ], [ {NO_ROOM}, %drop ], [ %start, %claimed ], [ %start, %fill ]
  %next = phi i64 [ %last, %none ],
      [ %old, %swap ], [ %head, %drop ], [ %end, %claimed ], [ %end, %fill ]
  %seen = phi i64 [ %fresh, %none ],
      [ %tail, %swap ], [ %fresh, %drop ], [ %tail, %claimed ], [ %tail, %fill ]
  %r0 = insertvalue {{ i64, i64, i64 }} zeroinitializer, i64 %position, 0
  %r1 = insertvalue {{ i64, i64, i64 }} %r0, i64 %next, 1
  %r2 = insertvalue {{ i64, i64, i64 }} %r1, i64 %seen, 2
  ret {{ i64, i64, i64 }} %r2
}}
"""


# How many others a lane that lost so often thinks come before it at its next try, which differs
# between lanes and tries.  Of lanes that all expect the head where it was seen, one succeeds in the
# time of an access to memory; of those that expect it further on, each that comes right after the
# one before.  Who expects others that are not there loses for nothing; but to expect no more than
# four times as many as came during the last try made records of warps in host memory a quarter
# slower.  Lanes that claim together are few and need none of it: their groups are large, and the
# link takes those faster that come one after the other.
_AHEAD = f"""\
define internal i64 @egpu.ahead(i1 %joint, i32 %tries) {ATTRIBUTES} {{
  %crowded = call i1 @egpu.crowded(i1 %joint)
  %early = icmp ult i32 %tries, {_AHEAD_BITS}
  %bits = select i1 %early, i32 %tries, i32 {_AHEAD_BITS}
  %left = shl i32 -1, %bits
  %mask = xor i32 %left, -1
  %ticks = call i32 @egpu.ticks()
  %time = lshr i32 %ticks, 1
  %lane = call i32 @egpu.lane()
  %sum = add i32 %time, %lane
  %some = and i32 %sum, %mask
  %others = select i1 %crowded, i32 %some, i32 0
  %r = zext i32 %others to i64
  ret i64 %r
}}
"""


def _claiming(group: str, by: Publishing) -> str:
    """One claim for all lanes that run this together: their ``%mask``, ``%rank`` (of the lane among
    them, 32 bits) and ``%position``; ends in block ``claimed``, where NO_ROOM may be the position.

    ``group`` computes the bytes of a group of ``%many`` lanes as ``%bytes``; ``%largest`` is those
    of a whole warp.  If they are more than a ring's, or %same is false, %joint is not: each lane
    claims alone, and none meets another, since several masks in one place are no better than one
    too old.  A try that others were faster at is followed by another, for which the lanes that are
    together by then find each other again.  The loop is not unrolled: it seldom runs twice.  The
    mask a leader is looked up in holds at least the running lane, so it is never 0.
    """
    return f"""\
  %head_at = add i64 %control, {_HEAD}
  %ends = call {{ i64, i64 }} @egpu.load_pair_gpu(i64 %head_at)
  %first_head = extractvalue {{ i64, i64 }} %ends, 0
  %first_tail = extractvalue {{ i64, i64 }} %ends, 1
  %own = call i32 @egpu.own_lane()
  %below = call i32 @egpu.lanes_below()
  %small = icmp ule i64 %largest, %ring
  %joint = and i1 %same, %small
  br label %attempt
attempt:
  %last = phi i64 [ %first_head, %entry ], [ %moved, %lost ]
  %head = phi i64 [ %first_head, %entry ], [ %expected, %lost ]
  %known = phi i64 [ %first_tail, %entry ], [ %seen, %lost ]
  %tries = phi i32 [ 1, %entry ], [ %more, %lost ]
  %active = call i32 @egpu.active()
  %mask = select i1 %joint, i32 %active, i32 %own
  %many32 = call i32 @llvm.ctpop.i32(i32 %mask)
  %many = zext i32 %many32 to i64
{group}
  %before = and i32 %mask, %below
  %rank = call i32 @llvm.ctpop.i32(i32 %before)
  %leads = icmp eq i32 %rank, 0
  br i1 %leads, label %lead, label %join
lead:
  %claim = call {{ i64, i64, i64 }} @egpu.claim{by.suffix}(
      i64 %control, i64 %data, i64 %ring, i64 %bytes, i64 %many, i64 %head, i64 %last,
      i64 %known{by.more})
  %claim_position = extractvalue {{ i64, i64, i64 }} %claim, 0
  %claim_head = extractvalue {{ i64, i64, i64 }} %claim, 1
  %claim_tail = extractvalue {{ i64, i64, i64 }} %claim, 2
  br label %join
join:
  %mine = phi i64 [ 0, %attempt ], [ %claim_position, %lead ]
  %moved = phi i64 [ %last, %attempt ], [ %claim_head, %lead ]
  %seen = phi i64 [ %known, %attempt ], [ %claim_tail, %lead ]
  br i1 %joint, label %share, label %decided
share:
  %leader = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %told = call i64 @egpu.shuffle(i64 %mine, i32 %leader, i32 %mask)
  br label %decided
decided:
  %tried = phi i64 [ %mine, %join ], [ %told, %share ]
  %again = icmp eq i64 %tried, {AGAIN}
  br i1 %again, label %lost, label %claimed
lost:
  %others = call i64 @egpu.ahead(i1 %joint, i32 %tries)
  %further = mul i64 %others, %bytes
  %expected = add i64 %moved, %further
  %more = add i32 %tries, 1
  %give_up = icmp ugt i32 %more, {CLAIM_TRIES}
  br i1 %give_up, label %drop, label %attempt, !llvm.loop !0
drop:
  %dropped_at = add i64 %control, {_DROPPED}
  call void @egpu.add_gpu(i64 %dropped_at, i64 1)
  br label %claimed
claimed:
  %position = phi i64 [ %tried, %decided ], [ {NO_ROOM}, %drop ]"""


# The bytes of a group of one record a lane.
_RECORDS = f"""\
  %payload = mul i64 %record, %many
  %padded = add i64 %payload, {_HEADER + 15}
  %bytes = and i64 %padded, -16"""


# One claim for all lanes that run this together, if they do so with the same constant %size (%same)
# and straight code follows up to output_end: {address of this lane's record or 0, the group's
# position, the lanes, whether they may be several}.
def _output_begin(by: Publishing) -> str:
    return f"""\
define internal {GROUP} @egpu.output_begin{by.suffix}(
    i64 %control, i64 %data, i64 %ring, i64 %size, i1 %same{by.more}) {ATTRIBUTES} {{
entry:
  %up = add i64 %size, 7
  %record = and i64 %up, -8
  %warp = shl i64 %record, 5
  %warp_padded = add i64 %warp, {_HEADER + 15}
  %largest = and i64 %warp_padded, -16
{_claiming(_RECORDS, by)}
  %failed = icmp eq i64 %position, {NO_ROOM}
  %wrap = sub i64 %ring, 1
  %at = and i64 %position, %wrap
  %group = add i64 %data, %at
  %first = add i64 %group, {_HEADER}
  %rank64 = zext i32 %rank to i64
  %skip = mul i64 %rank64, %record
  %address = add i64 %first, %skip
  %result = select i1 %failed, i64 0, i64 %address
  %r0 = insertvalue {GROUP} zeroinitializer, i64 %result, 0
  %r1 = insertvalue {GROUP} %r0, i64 %position, 1
  %r2 = insertvalue {GROUP} %r1, i32 %mask, 2
  %r3 = insertvalue {GROUP} %r2, i1 %joint, 3
  ret {GROUP} %r3
}}
"""


# Publish the group once every lane of it has written: bar.warp.sync orders their writes before the
# leader's release, which is cumulative (PTX ISA 8.10.7, causality order).
def _output_end(by: Publishing) -> str:
    return f"""\
define internal void @egpu.output_end{by.suffix}(
    i64 %data, i64 %ring, i64 %size, i64 %position, i32 %mask, i1 %joint{by.more})
    {ATTRIBUTES} {{
entry:
  br i1 %joint, label %meet, label %met
meet:
  call void @egpu.sync(i32 %mask)
  br label %met
met:
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
  %value = add i64 %position, 1
  call void @{by.whole}(i64 %group, i64 %header, i64 %value{by.more})
  br label %done
done:
  ret void
}}
"""


# One claim for the lanes that run this together with the same constant %size (%same), one group of
# one record a lane, because each is submitted by itself.  %end gets the position after this lane's
# group: what submit and discard find the group's position by.  They know the size too (%later), or
# it is written here.
def _reserve(by: Publishing) -> str:
    return f"""\
define internal i64 @egpu.reserve{by.suffix}(
    i64 %control, i64 %data, i64 %ring, i64 %size, i1 %same, ptr %end, i1 %later{by.more})
    {ATTRIBUTES} {{
entry:
  %up = add i64 %size, {_HEADER + 15}
  %alone = and i64 %up, -16
  %largest = shl i64 %alone, 5
{_claiming("  %bytes = mul i64 %alone, %many", by)}
  %failed = icmp eq i64 %position, {NO_ROOM}
  br i1 %failed, label %none, label %some
none:
  ret i64 0
some:
  %rank64 = zext i32 %rank to i64
  %skip = mul i64 %rank64, %alone
  %here = add i64 %position, %skip
  %after = add i64 %here, %alone
  store i64 %after, ptr %end, align 8
  %wrap = sub i64 %ring, 1
  %at = and i64 %here, %wrap
  %group = add i64 %data, %at
  %record = add i64 %group, {_HEADER}
  br i1 %later, label %done, label %write
write:
  %header = or i64 %size, {_ONE}
  %p = inttoptr i64 %group to ptr addrspace(1)
  store i64 %header, ptr addrspace(1) %p, align 8
  br label %done
done:
  ret i64 %record
}}
"""


# Publish or drop a reserved record.  Its position is the largest one below %end that lies at its
# place in the ring: the record is not released, so no later claim of this thread can be further
# than one ring ahead of it.  %data may be any ring of the map: rings of one map follow each other.
# %size is the record's, or 0: reserving it has written it.
def _commit(by: Publishing) -> str:
    return f"""\
define internal void @egpu.commit{by.suffix}(
    i64 %record, i64 %data, i64 %ring, ptr %end, i64 %flag, i64 %size{by.more})
    {ATTRIBUTES} {{
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
  %known = icmp ne i64 %size, 0
  br i1 %known, label %whole, label %half
whole:
  %header = or i64 %size, {_ONE}
  call void @{by.whole}(i64 %group, i64 %header, i64 %value{by.more})
  ret void
half:
  %place = add i64 %group, {0 if by.more else 8}
  call void @{by.half}(i64 %place, i64 %value{by.more})
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

RING_FUNCTIONS = (
    *(
        function(by)
        for by in (BY_COMMIT, BY_FLAG)
        for function in (_claim, _output_begin, _output_end, _reserve, _commit)
    ),
    _FLAG,
    _PUBLISH,
    _PUBLISH_HALF,
    _AHEAD,
    _QUERY,
)
