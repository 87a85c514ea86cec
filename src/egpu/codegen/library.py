"""The device library: bodies of helpers that are more than a line, as LLVM IR.

Written once over the primitives, for every machine; all of it is inlined.
"""

from __future__ import annotations

import functools
import re

from egpu.codegen.library_memory import MEMORY_FUNCTIONS
from egpu.codegen.library_ring import RING_FUNCTIONS
from egpu.codegen.library_stamped import STAMPED_FUNCTIONS
from egpu.codegen.primitives import ATTRIBUTES, DECLARATIONS, Together, primitives
from egpu.codegen.targets import Machine

_INTRINSICS = """\
declare i32 @llvm.ctpop.i32(i32)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i32 @llvm.cttz.i32(i32, i1)
declare i16 @llvm.bswap.i16(i16)
declare i32 @llvm.bswap.i32(i32)
declare i64 @llvm.bswap.i64(i64)
declare void @llvm.assume(i1)
declare i1 @llvm.nvvm.isspacep.local(ptr)
declare void @llvm.nvvm.exit()
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.disable"}
!2 = !{!"branch_weights", i32 1000, i32 1}
"""

_SHUFFLE64 = f"""\
define internal i64 @egpu.shuffle(i64 %v, i32 %s, i32 %m) {ATTRIBUTES} {{
  %low = trunc i64 %v to i32
  %shifted = lshr i64 %v, 32
  %high = trunc i64 %shifted to i32
  %a = call i32 @egpu.shuffle32(i32 %low, i32 %s, i32 %m)
  %b = call i32 @egpu.shuffle32(i32 %high, i32 %s, i32 %m)
  %x = zext i32 %a to i64
  %y = zext i32 %b to i64
  %z = shl i64 %y, 32
  %r = or i64 %x, %z
  ret i64 %r
}}
"""

_COORDINATES = "".join(
    f"""\
  %t{axis} = call i32 @egpu.tid_{axis}()
  %n{axis} = call i32 @egpu.ntid_{axis}()
  %c{axis} = call i32 @egpu.ctaid_{axis}()
  %t{axis}64 = zext i32 %t{axis} to i64
  %n{axis}64 = zext i32 %n{axis} to i64
  %c{axis}64 = zext i32 %c{axis} to i64
  %f{axis} = mul i64 %c{axis}64, %n{axis}64
  %{axis} = add i64 %f{axis}, %t{axis}64
"""
    for axis in "xyz"
)

# The number of the thread in its launch, counted along x, then y, then z, 64 bits.
_THREAD_NUMBER = f"""\
define internal i64 @egpu.thread_number() {ATTRIBUTES} {{
{_COORDINATES}\
  %gx = call i32 @egpu.nctaid_x()
  %gy = call i32 @egpu.nctaid_y()
  %gx64 = zext i32 %gx to i64
  %gy64 = zext i32 %gy to i64
  %w = mul i64 %gx64, %nx64
  %h = mul i64 %gy64, %ny64
  %zh = mul i64 %z, %h
  %row = add i64 %zh, %y
  %rows = mul i64 %row, %w
  %r = add i64 %rows, %x
  ret i64 %r
}}
"""

# Two rounds of splitmix64's finaliser over what differs between threads and between calls.
_PRANDOM = f"""\
define internal i64 @egpu.prandom() {ATTRIBUTES} {{
  %clock = call i64 @egpu.clock()
  %time = call i64 @egpu.globaltimer()
  %tx = call i32 @egpu.tid_x()
  %ty = call i32 @egpu.tid_y()
  %tz = call i32 @egpu.tid_z()
  %bx = call i32 @egpu.ctaid_x()
  %by = call i32 @egpu.ctaid_y()
  %bz = call i32 @egpu.ctaid_z()
  %ty1 = shl i32 %ty, 10
  %tz1 = shl i32 %tz, 20
  %t1 = or i32 %tx, %ty1
  %thread = or i32 %t1, %tz1
  %by1 = mul i32 %by, 65599
  %bz1 = mul i32 %bz, -1640531527
  %b1 = add i32 %bx, %by1
  %block = add i32 %b1, %bz1
  %thread64 = zext i32 %thread to i64
  %block64 = zext i32 %block to i64
  %high = shl i64 %block64, 32
  %where = or i64 %high, %thread64
  %spread = mul i64 %where, -7046029254386353131
  %when0 = mul i64 %time, -4658895280553007687
  %when = add i64 %when0, %clock
  %x0 = xor i64 %spread, %when
  %x1 = lshr i64 %x0, 30
  %x2 = xor i64 %x0, %x1
  %x3 = mul i64 %x2, -4658895280553007687
  %x4 = lshr i64 %x3, 27
  %x5 = xor i64 %x3, %x4
  %x6 = mul i64 %x5, -7723592293110705685
  %r = lshr i64 %x6, 32
  ret i64 %r
}}
"""


def _named(*texts: str) -> dict[str, str]:
    return {text.split("@", 1)[1].split("(", 1)[0]: text for text in texts}


BODIES: dict[str, str] = _named(
    _SHUFFLE64, *RING_FUNCTIONS, *STAMPED_FUNCTIONS, *MEMORY_FUNCTIONS, _THREAD_NUMBER, _PRANDOM
)

_REFERENCE = re.compile(r"@(egpu\.[a-z_0-9]+)\(")


def _needs(text: str) -> frozenset[str]:
    return frozenset(_REFERENCE.findall(text))


_library_needs = functools.cache(_needs)


def declarations(text: str, machine: Machine, together: Together = Together.WARP) -> str:
    """Everything of the library that the functions in ``text`` reach, for ``machine``."""
    known = BODIES | primitives(machine, together)
    wanted: dict[str, None] = {}
    pending = sorted(_needs(text) & known.keys())
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted[name] = None
            pending.extend(sorted(_library_needs(known[name]) & known.keys()))
    return _INTRINSICS + DECLARATIONS[machine] + "".join(known[name] for name in wanted)
