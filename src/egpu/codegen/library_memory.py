"""Reading the workload's memory, as LLVM IR: by the table of ``egpu.bpf.own_maps``."""

from __future__ import annotations

from egpu.bpf.own_maps import (
    ALLOCATIONS_HEADER,
    ALLOCATIONS_LIMIT,
    ALLOCATIONS_READERS,
    ALLOCATIONS_ROW,
    ALLOCATIONS_STRIDE,
    ALLOCATIONS_STRIPES,
)
from egpu.codegen.primitives import ATTRIBUTES

# Looks at a table that changes meanwhile: a probe never waits.  A change takes the agent tens of
# microseconds and a look takes one or two, so that many in a row all but never meet one each.
TRIES = 16
EFAULT = -14  # uapi/asm-generic/errno-base.h
_HALF = ALLOCATIONS_LIMIT * ALLOCATIONS_ROW

# Counts a reader in: the state by which it reads, and where it is counted.  No rows and 0 if the
# state changed at every look.  The fence stands between what the agent looks for, in the other
# order: whom it does not see as a reader sees the new state.
_BEGIN = f"""\
define internal {{ i64, i64 }} @egpu.begin_read(i64 %table) {ATTRIBUTES} {{
entry:
  %sm = call i32 @egpu.sm()
  %stripe = and i32 %sm, {ALLOCATIONS_STRIPES - 1}
  %wide = zext i32 %stripe to i64
  %away = mul i64 %wide, {ALLOCATIONS_STRIDE}
  %readers = add i64 %table, {ALLOCATIONS_READERS}
  %own = add i64 %readers, %away
  br label %look
look:
  %tries = phi i32 [ 1, %entry ], [ %more, %changed ]
  %state = call i64 @egpu.load_gpu(i64 %table)
  %shifted = lshr i64 %state, 13
  %half = and i64 %shifted, 8
  %counter = add i64 %own, %half
  call void @egpu.add_gpu(i64 %counter, i64 1)
  call void @egpu.fence_gpu()
  %again = call i64 @egpu.acquire_gpu(i64 %table)
  %same = icmp eq i64 %again, %state
  br i1 %same, label %done, label %changed
changed:
  call void @egpu.add_gpu(i64 %counter, i64 -1)
  %more = add i32 %tries, 1
  %give_up = icmp ugt i32 %more, {TRIES}
  br i1 %give_up, label %done, label %look, !llvm.loop !0
done:
  %by = phi i64 [ %state, %look ], [ 0, %changed ]
  %at = phi i64 [ %counter, %look ], [ 0, %changed ]
  %half_made = insertvalue {{ i64, i64 }} undef, i64 %by, 0
  %made = insertvalue {{ i64, i64 }} %half_made, i64 %at, 1
  ret {{ i64, i64 }} %made
}}
"""

# Counts it out, after all that it has read.
_END = f"""\
define internal void @egpu.end_read(i64 %counter) {ATTRIBUTES} {{
entry:
  %none = icmp eq i64 %counter, 0
  br i1 %none, label %done, label %leave
leave:
  call void @egpu.add_release_gpu(i64 %counter, i64 -1)
  br label %done
done:
  ret void
}}
"""

# How many bytes may be read from %address on by this state, 0 if none: a binary search for the last
# row that begins at or before it.  Rows are read past the L1 cache, which could hold older ones.
_READABLE = f"""\
define internal i64 @egpu.readable(i64 %table, i64 %state, i64 %address) {ATTRIBUTES} {{
entry:
  %rows = and i64 %state, 65535
  %shifted = lshr i64 %state, 16
  %half = and i64 %shifted, 1
  %skip = mul i64 %half, {_HALF}
  %first = add i64 %table, {ALLOCATIONS_HEADER}
  %base = add i64 %first, %skip
  br label %search
search:
  %low = phi i64 [ 0, %entry ], [ %low2, %step ]
  %high = phi i64 [ %rows, %entry ], [ %high2, %step ]
  %open = icmp ult i64 %low, %high
  br i1 %open, label %step, label %found
step:
  %sum = add i64 %low, %high
  %middle = lshr i64 %sum, 1
  %there = mul i64 %middle, {ALLOCATIONS_ROW}
  %row = add i64 %base, %there
  %start = call i64 @egpu.load_gpu(i64 %row)
  %before = icmp ule i64 %start, %address
  %after = add i64 %middle, 1
  %low2 = select i1 %before, i64 %after, i64 %low
  %high2 = select i1 %before, i64 %high, i64 %middle
  br label %search, !llvm.loop !0
found:
  %none = icmp eq i64 %low, 0
  br i1 %none, label %done, label %bound
bound:
  %last = mul i64 %low, {ALLOCATIONS_ROW}
  %beyond = add i64 %base, %last
  %end_at = sub i64 %beyond, 8
  %end = call i64 @egpu.load_gpu(i64 %end_at)
  %left = sub i64 %end, %address
  %inside = icmp ugt i64 %end, %address
  %room = select i1 %inside, i64 %left, i64 0
  br label %done
done:
  %result = phi i64 [ 0, %found ], [ %room, %bound ]
  ret i64 %result
}}
"""

# %size bytes at %from to %to, or zeros: 0 or -EFAULT.  Words where both ends allow it.
_READ = f"""\
define internal i64 @egpu.probe_read(i64 %table, i64 %from, i64 %size, ptr %to) {ATTRIBUTES} {{
entry:
  %reading = call {{ i64, i64 }} @egpu.begin_read(i64 %table)
  %state = extractvalue {{ i64, i64 }} %reading, 0
  %counter = extractvalue {{ i64, i64 }} %reading, 1
  %room = call i64 @egpu.readable(i64 %table, i64 %state, i64 %from)
  %good = icmp uge i64 %room, %size
  %ends = or i64 %from, %size
  %odd = and i64 %ends, 7
  %whole = icmp eq i64 %odd, 0
  br i1 %good, label %choose, label %clear
choose:
  br i1 %whole, label %words, label %bytes
words:
  %w = phi i64 [ 0, %choose ], [ %w2, %words ]
  %wfrom = add i64 %from, %w
  %wp = inttoptr i64 %wfrom to ptr addrspace(1)
  %word = load volatile i64, ptr addrspace(1) %wp, align 8
  %wto = getelementptr i8, ptr %to, i64 %w
  store i64 %word, ptr %wto, align 1
  %w2 = add i64 %w, 8
  %wmore = icmp ult i64 %w2, %size
  br i1 %wmore, label %words, label %done
bytes:
  %b = phi i64 [ 0, %choose ], [ %b2, %bytes ]
  %bfrom = add i64 %from, %b
  %bp = inttoptr i64 %bfrom to ptr addrspace(1)
  %byte = load volatile i8, ptr addrspace(1) %bp, align 1
  %bto = getelementptr i8, ptr %to, i64 %b
  store i8 %byte, ptr %bto, align 1
  %b2 = add i64 %b, 1
  %bmore = icmp ult i64 %b2, %size
  br i1 %bmore, label %bytes, label %done
clear:
  %c = phi i64 [ 0, %entry ], [ %c2, %clear ]
  %cto = getelementptr i8, ptr %to, i64 %c
  store i8 0, ptr %cto, align 1
  %c2 = add i64 %c, 1
  %cmore = icmp ult i64 %c2, %size
  br i1 %cmore, label %clear, label %done
done:
  %result = phi i64 [ 0, %words ], [ 0, %bytes ], [ {EFAULT}, %clear ]
  call void @egpu.end_read(i64 %counter)
  ret i64 %result
}}
"""

# Text at %from with its NUL, cut to %size bytes of which the last is NUL: the bytes written; what
# follows is zeroed.  -EFAULT and zeros if it leaves the memory before it ends.
_READ_TEXT = f"""\
define internal i64 @egpu.probe_read_text(i64 %table, i64 %from, i64 %size, ptr %to) {ATTRIBUTES} {{
entry:
  %reading = call {{ i64, i64 }} @egpu.begin_read(i64 %table)
  %state = extractvalue {{ i64, i64 }} %reading, 0
  %counter = extractvalue {{ i64, i64 }} %reading, 1
  %room = call i64 @egpu.readable(i64 %table, i64 %state, i64 %from)
  %last = sub i64 %size, 1
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i2, %keep ]
  %cut = icmp eq i64 %i, %last
  br i1 %cut, label %end, label %look
look:
  %inside = icmp ult i64 %i, %room
  br i1 %inside, label %take, label %clear
take:
  %at = add i64 %from, %i
  %p = inttoptr i64 %at to ptr addrspace(1)
  %byte = load volatile i8, ptr addrspace(1) %p, align 1
  %stop = icmp eq i8 %byte, 0
  br i1 %stop, label %end, label %keep
keep:
  %to_i = getelementptr i8, ptr %to, i64 %i
  store i8 %byte, ptr %to_i, align 1
  %i2 = add i64 %i, 1
  br label %next, !llvm.loop !0
end:
  %length = add i64 %i, 1
  br label %clear
clear:
  %result = phi i64 [ {EFAULT}, %look ], [ %length, %end ]
  %begin = phi i64 [ 0, %look ], [ %i, %end ]
  br label %zero
zero:
  %z = phi i64 [ %begin, %clear ], [ %z2, %zero ]
  %zto = getelementptr i8, ptr %to, i64 %z
  store i8 0, ptr %zto, align 1
  %z2 = add i64 %z, 1
  %zmore = icmp ult i64 %z2, %size
  br i1 %zmore, label %zero, label %done, !llvm.loop !0
done:
  call void @egpu.end_read(i64 %counter)
  ret i64 %result
}}
"""

MEMORY_FUNCTIONS = (_BEGIN, _END, _READABLE, _READ, _READ_TEXT)
