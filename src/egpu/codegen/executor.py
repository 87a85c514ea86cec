"""A program as a PTX module of its own, for `egpu exec`, conformance and tests."""

from __future__ import annotations

import re

from egpu.codegen.arena import ARENA_HEADER_SIZE, LAUNCH_BLOCK, ArenaLayout
from egpu.codegen.device_code import Relocation, RelocKind
from egpu.codegen.lower import Lowered, lower
from egpu.codegen.probe import KERNEL_ATTRIBUTES
from egpu.codegen.targets import Machine, emit_ptx
from egpu.errors import UnsupportedError
from egpu.verifier.verified import VerifiedProgram

KERNEL = "egpu_exec"
OPERATE_KERNEL = "egpu_operate"
_PLACE = re.compile(r"mov\.b64\s+(%\w+),\s*(__egpu_\w+);")
# An arena's header of zeros, for programs that read no more of a launch.
_HEADER = f"{KERNEL}_header"
_HEADER_DECLARED = f".global .align 16 .b8 {_HEADER}[{ARENA_HEADER_SIZE}];"
_HEADER_AT = Relocation(RelocKind.LAUNCH, LAUNCH_BLOCK["device_arena"][0])
# Parameters of OPERATE_KERNEL that stand for fields of the launch block.
_ARENAS = {LAUNCH_BLOCK["device_arena"][0]: 4, LAUNCH_BLOCK["host_arena"][0]: 5}


def compile_executor_ptx(vp: VerifiedProgram) -> str:
    """PTX with the kernel ``egpu_exec(u64 memory, u64 stride, u64 results, u64 count)``.

    Thread t < count of the grid (one-dimensional) runs the program with r1 = memory + t * stride
    and r2 = the size that the verifier was given, and writes r0 to ``results[t]``.  There is no
    launch: times are the device's own, and who launched reads as 0.  Raises TypeError for anything
    that the verifier did not make, UnsupportedError for a program that needs an arena (maps,
    budgets, other launch fields).
    """
    lowered = lower(vp, Machine.NVPTX)
    if lowered.symbols == (_HEADER_AT,) and vp.facts.budget is None:
        text = emit_ptx(lowered.module(_kernel(lowered, vp, KERNEL, "")))
        text = _PLACE.sub(rf"mov.u64 \1, {_HEADER};", text)
        return text.replace(".visible .entry", f"{_HEADER_DECLARED}\n.visible .entry", 1)
    if lowered.symbols:
        names = ", ".join(sorted(symbol.symbol for symbol in lowered.symbols))
        raise UnsupportedError(
            f"program {vp.program.name} on the PTX executor: it uses {names}",
            needs="a program without maps and without launch fields",
        )
    return emit_ptx(lowered.module(_kernel(lowered, vp, KERNEL, "")))


def compile_operate_ptx(vp: VerifiedProgram, layout: ArenaLayout) -> str:
    """The same for a program with maps, which lie in arenas of ``layout``: PTX with the kernel
    ``egpu_operate(u64 memory, u64 stride, u64 results, u64 count, u64 device_arena,
    u64 host_arena)``.

    Raises TypeError for anything that the verifier did not make, UnsupportedError for a program
    that needs the launch of a probed kernel.
    """
    lowered = lower(vp, Machine.NVPTX)
    values = {symbol.symbol: _value(vp, symbol, layout) for symbol in lowered.symbols}
    arenas = ", i64 %device_arena, i64 %host_arena"
    text = emit_ptx(lowered.module(_kernel(lowered, vp, OPERATE_KERNEL, arenas)))
    return _PLACE.sub(lambda found: f"{values[found[2]].format(register=found[1])}", text)


def _value(vp: VerifiedProgram, symbol: Relocation, layout: ArenaLayout) -> str:
    """The statement that leaves a symbol's value in a register."""
    if symbol.kind is RelocKind.LAUNCH and symbol.index in _ARENAS:
        parameter = f"{OPERATE_KERNEL}_param_{_ARENAS[symbol.index]}"
        return f"ld.param.u64 {{register}}, [{parameter}];"
    place = layout.places[symbol.index] if symbol.index < len(layout.places) else None
    if symbol.kind is RelocKind.SM_SLOTS:
        number = layout.sm_slots
    elif place is not None and symbol.kind is RelocKind.MAP:
        number = place.offset
    elif place is not None and symbol.kind is RelocKind.MAP_STRIDE:
        number = place.stride
    elif place is not None and symbol.kind is RelocKind.MAP_SPREAD:
        number = place.spread
    else:
        raise UnsupportedError(
            f"program {vp.program.name} outside of a kernel: it reads {symbol.symbol}",
            needs="a kernel launch",
        )
    return f"mov.b64 {{register}}, {number};"


def _kernel(lowered: Lowered, vp: VerifiedProgram, name: str, more: str) -> str:
    """IR of the kernel ``name``; ``more`` are parameters after the usual four."""
    parameters = f"i64 %memory, i64 %stride, i64 %results, i64 %count{more}"
    return f"""\
define ptx_kernel void @{name}({parameters}) #0 {{
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
