"""What code generation gives: a probe for one target, with symbolic relocations.

One compile serves every kernel: whatever depends on the kernel or on the map layout is a symbol
that the splicer resolves.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from egpu.bpf.program import AttachKind, Level, MapSpec


class Target(enum.Enum):
    """Code-generation targets of this version."""

    PTX = "ptx"
    HOST = "host"


class Launch(enum.Enum):
    """How the kernel is launched that a probe is for.

    A launch recorded into a graph keeps its twin for good, so its probe asks the arena at every
    replay whether probes are still on; a direct launch is decided when it is made.
    """

    DIRECT = "direct"
    CAPTURED = "captured"


class RelocKind(enum.Enum):
    """What a symbol of a probe's PTX text stands for.

    The symbols are ordinary PTX identifiers; ``index`` is the number at their end.  Each stands as
    the source operand of a statement of exactly this shape and these tokens::

        mov.b64 REGISTER, SYMBOL;

    without a guard, on a line of its own, and nowhere else.  The splicer replaces the whole
    statement by instructions that leave the symbol's 64-bit value in REGISTER (a ``.b64`` register
    of the probe).  A symbol may occur several times.
    """

    PARAMETER = "__egpu_param_"  # kernel parameter i, declared size, zero-extended to 64 bits
    PARAM_BYTES = "__egpu_bytes_"  # 8 bytes at byte offset i of the parameter block, zero past it
    PARAM_SIZE = "__egpu_param_size"  # bytes of the kernel's own parameter block
    LAUNCH = "__egpu_launch_"  # 8 bytes at byte offset i of the launch block
    START_TIME = "__egpu_start_time"  # %globaltimer saved at entry
    START_CLOCK = "__egpu_start_clock"  # %clock64 saved at entry
    MAP = "__egpu_map_"  # byte offset of map i in the device arena
    MAP_STRIDE = "__egpu_stride_"  # bytes between the copies of map i (per-SM maps, ring control)
    MAP_SPREAD = "__egpu_spread_"  # copies of map i per SM slot, a power of two (per-SM maps)
    RING_DATA = "__egpu_ring_data_"  # byte offset of map i's record memory in the arena it is in
    RING_SIZE = "__egpu_ring_size_"  # bytes of ONE SM's ring of map i
    RING_SLOTS = "__egpu_ring_slots_"  # stamped slots of ONE SM's ring of map i (a power of two)
    RING_FLAGS = "__egpu_ring_flags"  # ArenaLayout.flags_base, for rings in device memory
    LINE = "__egpu_line_"  # 8 bytes at byte offset i of the PTX instruction's text, zero past it
    SM_SLOTS = "__egpu_sm_slots"  # number of SM slots in this layout


@dataclass(frozen=True, slots=True)
class Relocation:
    """One symbol used by the probe."""

    kind: RelocKind
    index: int = 0

    @property
    def symbol(self) -> str:
        indexed = self.kind.value.endswith("_")
        return f"{self.kind.value}{self.index}" if indexed else self.kind.value


def only_per_sm(relocations: Collection[Relocation]) -> bool:
    """Whether all the memory that a probe with these symbols reaches is in per-SM arrays."""
    maps = {each.index for each in relocations if each.kind is RelocKind.MAP}
    return maps == {each.index for each in relocations if each.kind is RelocKind.MAP_SPREAD}


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A compiled probe.

    ``text`` for PTX: the BODY of a function, declarations and instructions without the braces; it
    ends by falling through its last line, leaves by nothing else (no ``ret``, and ``exit`` only
    where ``ends_threads``), uses only registers and labels that it declares, and never needs a
    larger ``.target`` than ``sm_70`` or a larger ``.version`` than ``isa``.
    ``digest`` identifies program, target and egpu version: caches are keyed by it.
    ``detail`` is the attach point's: the class of the instructions that it is for.
    """

    target: Target
    program: str
    kind: AttachKind
    level: Level
    text: str
    relocations: tuple[Relocation, ...]
    maps: tuple[MapSpec, ...]
    isa: tuple[int, int]
    digest: str
    launch: Launch = Launch.DIRECT
    ends_threads: bool = False
    detail: str = ""
