"""A program as a PTX module of its own, for `egpu exec`, conformance and tests."""

from __future__ import annotations

from egpu.codegen.lower import lower
from egpu.codegen.probe import KERNEL_ATTRIBUTES
from egpu.codegen.targets import Machine, emit_ptx
from egpu.errors import UnsupportedError
from egpu.verifier.verified import VerifiedProgram

KERNEL = "egpu_exec"


def compile_executor_ptx(vp: VerifiedProgram) -> str:
    """PTX with the kernel ``egpu_exec(u64 memory, u64 stride, u64 results, u64 count)``.

    Thread t < count of the grid (one-dimensional) runs the program with r1 = memory + t * stride
    and r2 = the size that the verifier was given, and writes r0 to ``results[t]``.  Raises
    TypeError for anything that the verifier did not make, UnsupportedError for a program that needs
    an arena (maps, launch fields).
    """
    lowered = lower(vp, Machine.NVPTX)
    if lowered.symbols:
        names = ", ".join(sorted(symbol.symbol for symbol in lowered.symbols))
        raise UnsupportedError(
            f"program {vp.program.name} on the PTX executor: it uses {names}",
            needs="a program without maps and without launch fields",
        )
    start = f"""\
define ptx_kernel void @{KERNEL}(i64 %memory, i64 %stride, i64 %results, i64 %count) #0 {{
  %block = call i32 @egpu.ctaid_x()
  %width = call i32 @egpu.ntid_x()
  %thread = call i32 @egpu.tid_x()
  %block64 = zext i32 %block to i64
  %width64 = zext i32 %width to i64
  %thread64 = zext i32 %thread to i64
  %first = mul i64 %block64, %width64
  %index = add i64 %first, %thread64
  %inside = icmp ult i64 %index, %count
  br i1 %inside, label %run, label %done
run:
  %skip = mul i64 %index, %stride
  %r1 = add i64 %memory, %skip
{lowered.start("%r1", str(vp.memory_size))}
  %place = shl i64 %index, 3
  %address = add i64 %results, %place
  %pointer = inttoptr i64 %address to ptr addrspace(1)
  store i64 %result, ptr addrspace(1) %pointer, align 8
  br label %done
done:
  ret void
}}
{KERNEL_ATTRIBUTES}"""
    return emit_ptx(lowered.module(start))
