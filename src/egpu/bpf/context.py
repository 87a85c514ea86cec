"""The probe context: the one table of its fields (design.md section 5).

r1 of a probe points at a *virtual* context.  Reads are lowered to parameter loads, special
registers and the launch block, never to memory, so a field costs nothing until it is read.  It
begins like x86-64 ``struct pt_regs`` so that BPF_KPROBE and PT_REGS_PARM1-6 work; other pt_regs
fields have no meaning on a GPU and reading them is refused.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from egpu.bpf.program import MEMORY_CAPTURE, AttachPoint

CONTEXT_VERSION = 1
# struct pt_regs of x86-64 (Linux arch/x86/include/uapi/asm/ptrace.h), 8 bytes each.
PT_REGS = (
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
    "orig_ax", "ip", "cs", "flags", "sp", "ss",
)  # fmt: skip
PARAM_WINDOW = 4096  # bytes of kernel parameters reachable through param[]


class Source(enum.Enum):
    """Where a field comes from."""

    PARAMETER = "kernel parameter by index"
    SPECIAL = "PTX special register"
    LAUNCH = "launch block field"
    START = "value saved by the splicer at kernel entry (exit probes only)"
    PARAM_BYTES = "kernel parameter bytes"
    CONSTANT = "known when compiled"
    LINE_BYTES = "text of the PTX instruction at the site"


_LAUNCH_SHAPE = ("%nctaid", "%ntid")  # the special registers that are parameters of the launch


@dataclass(frozen=True, slots=True)
class Field:
    """A context field: byte ``offset``, ``size``, and how it is produced.

    ``detail``: parameter index, PTX special register, launch-block field, start value or constant.
    ``maximum``: inclusive upper bound of the unsigned value (P15), None if any value of its size.
    ``uniform``: the same for all lanes of a warp (P7).
    """

    name: str
    offset: int
    size: int
    source: Source
    detail: str
    maximum: int | None = None
    uniform: bool = False
    exit_only: bool = False

    @property
    def launch(self) -> bool:
        """Whether all threads of a launch see the same value."""
        shape = self.detail.startswith(_LAUNCH_SHAPE)
        return self.uniform and (self.source is not Source.SPECIAL or shape)


PT_REGS_SIZE = 168
_S = Source

# fmt: off
FIELDS: tuple[Field, ...] = (
    # struct pt_regs, System V x86-64 argument registers
    Field("parm5",        72,  8, _S.PARAMETER, "4", uniform=True),   # r8
    Field("parm6",        64,  8, _S.PARAMETER, "5", uniform=True),   # r9
    Field("parm4",        88,  8, _S.PARAMETER, "3", uniform=True),   # rcx
    Field("parm3",        96,  8, _S.PARAMETER, "2", uniform=True),   # rdx
    Field("parm2",       104,  8, _S.PARAMETER, "1", uniform=True),   # rsi
    Field("parm1",       112,  8, _S.PARAMETER, "0", uniform=True),   # rdi
    # egpu fields, version 1
    Field("version",     168,  4, _S.CONSTANT, str(CONTEXT_VERSION), CONTEXT_VERSION, uniform=True),
    Field("flags",       172,  4, _S.LAUNCH, "flags", uniform=True),
    Field("grid_x",      176,  4, _S.SPECIAL, "%nctaid.x", 0x7FFFFFFF, uniform=True),
    Field("grid_y",      180,  4, _S.SPECIAL, "%nctaid.y", 0xFFFF, uniform=True),
    Field("grid_z",      184,  4, _S.SPECIAL, "%nctaid.z", 0xFFFF, uniform=True),
    Field("block_dim_x", 188,  4, _S.SPECIAL, "%ntid.x", 1024, uniform=True),
    Field("block_dim_y", 192,  4, _S.SPECIAL, "%ntid.y", 1024, uniform=True),
    Field("block_dim_z", 196,  4, _S.SPECIAL, "%ntid.z", 64, uniform=True),
    Field("block_x",     200,  4, _S.SPECIAL, "%ctaid.x", 0x7FFFFFFE, uniform=True),
    Field("block_y",     204,  4, _S.SPECIAL, "%ctaid.y", 0xFFFE, uniform=True),
    Field("block_z",     208,  4, _S.SPECIAL, "%ctaid.z", 0xFFFE, uniform=True),
    Field("thread_x",    212,  4, _S.SPECIAL, "%tid.x", 1023),
    Field("thread_y",    216,  4, _S.SPECIAL, "%tid.y", 1023),
    Field("thread_z",    220,  4, _S.SPECIAL, "%tid.z", 63),
    Field("sm",          224,  4, _S.SPECIAL, "%smid", uniform=True),
    Field("warp",        228,  4, _S.SPECIAL, "%warpid", uniform=True),
    Field("lane",        232,  4, _S.SPECIAL, "%laneid", 31),
    Field("active_mask", 236,  4, _S.SPECIAL, "activemask"),
    Field("launch_id",   240,  8, _S.LAUNCH, "launch_id", uniform=True),
    Field("kernel_id",   248,  4, _S.LAUNCH, "kernel_id", uniform=True),
    Field("param_size",  252,  4, _S.CONSTANT, "param_size", PARAM_WINDOW, uniform=True),
    Field("globaltimer", 256,  8, _S.SPECIAL, "%globaltimer"),
    Field("clock",       264,  8, _S.SPECIAL, "%clock64"),
    Field("start_time",  272,  8, _S.START, "globaltimer", exit_only=True),
    Field("start_clock", 280,  8, _S.START, "clock", exit_only=True),
    Field("param",       288, PARAM_WINDOW, _S.PARAM_BYTES, "", uniform=True),
)
# fmt: on

CONTEXT_SIZE = 288 + PARAM_WINDOW

# What r1 points at in bpftime's memory-capture programs: the text of the instruction, NUL-padded
# (and cut so that the last byte is NUL).
LINE_SIZE = 512
LINE_FIELDS = (Field("line", 0, LINE_SIZE, _S.LINE_BYTES, "", uniform=True),)


def fields_of(points: Iterable[AttachPoint]) -> tuple[Field, ...]:
    """The context that a program attached to ``points`` gets."""
    captures = any(point.detail == MEMORY_CAPTURE for point in points)
    return LINE_FIELDS if captures else FIELDS


def field_at(offset: int, size: int, fields: Sequence[Field] = FIELDS) -> Field | None:
    """The one of ``fields`` that holds bytes ``offset`` to ``offset + size``, None if none does.

    A narrower load inside a field is allowed; one that straddles two fields is not.
    """
    return _field_at(offset, size) if fields is FIELDS else _search(offset, size, fields)


@functools.lru_cache(1 << 10)
def _field_at(offset: int, size: int) -> Field | None:
    return _search(offset, size, FIELDS)


def _search(offset: int, size: int, fields: Sequence[Field]) -> Field | None:
    for row in fields:
        if row.offset <= offset and offset + size <= row.offset + row.size:
            return row
    return None
