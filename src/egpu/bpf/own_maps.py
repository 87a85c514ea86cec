"""Maps that egpu adds to a program because its level or helpers that it calls need them.

Their names are no C identifiers, so no object has them; sessions do not show them.

``.allocations`` tells probes which memory they may read: the process's allocations in one context,
as the agent sees them come and go::

    0     u64 state: bits 0-15 rows, bit 16 which half holds them, bits 32-63 counts changes
    64    ALLOCATIONS_STRIPES times, 64 bytes apart: u64 readers of half 0, u64 readers of half 1
    4160  half 0: ALLOCATIONS_LIMIT rows of u64 start, u64 end, by start; they do not overlap
    ...   half 1

A reader counts itself in for the half that the state names, and looks at the state again: only if
it has not changed does it read rows, and memory that they say is there; then it counts itself out.
The agent writes the half that is not in use, then the state, and waits until the other half has no
readers.  So when a change has been made nobody reads by the table before it, and memory that is
not in the table any more may go.  SMs count in stripes, so that they do not wait for each other.

``.blocks`` is where the groups of lanes that leave a block meet (``egpu.bpf.block_exits``).
"""

from __future__ import annotations

from dataclasses import replace

from egpu.bpf import isa
from egpu.bpf.helpers import HELPERS
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import AttachKind, Level, MapSpec, Program

PRINT_RING = ".printk"
PRINT_RING_SIZE = 4 << 20  # bytes, over all SMs
ALLOCATIONS = ".allocations"
ALLOCATIONS_LIMIT = 4096  # rows of one half
ALLOCATIONS_READERS = 64  # where the stripes begin
ALLOCATIONS_STRIPES = 64
ALLOCATIONS_STRIDE = 64  # bytes
ALLOCATIONS_HEADER = ALLOCATIONS_READERS + ALLOCATIONS_STRIPES * ALLOCATIONS_STRIDE
ALLOCATIONS_ROW = 16
BLOCKS = ".blocks"
BLOCKS_LIMIT = 1 << 15  # blocks that some of their threads have left; no device holds so many

_ALLOCATIONS_SIZE = ALLOCATIONS_HEADER + 2 * ALLOCATIONS_LIMIT * ALLOCATIONS_ROW
SPECS: dict[str, MapSpec] = {
    PRINT_RING: MapSpec(PRINT_RING, MapType.RINGBUF, 0, 0, PRINT_RING_SIZE),
    ALLOCATIONS: MapSpec(ALLOCATIONS, MapType.ARRAY, 4, _ALLOCATIONS_SIZE, 1),
    BLOCKS: MapSpec(BLOCKS, MapType.HASH, 24, 8, BLOCKS_LIMIT),
}
_NEEDED: dict[str, str] = {  # by the device bodies of helpers
    "print": PRINT_RING,
    "probe_read": ALLOCATIONS,
    "probe_read_text": ALLOCATIONS,
}


def with_own_maps(program: Program) -> Program:
    """``program`` with the maps that its helpers need behind its own."""
    added = tuple(SPECS[name] for name in missing_maps(program))
    return replace(program, maps=(*program.maps, *added)) if added else program


def missing_maps(program: Program) -> tuple[str, ...]:
    """Names of the maps that ``program``'s helpers and level need and it does not have."""
    bodies = {
        HELPERS[insn.imm].body
        for _, insn, _ in isa.instructions(program.code)
        if insn.opcode == isa.CALL and insn.src == isa.CallSrc.HELPER and insn.imm in HELPERS
    }
    needed = {_NEEDED[body] for body in bodies & _NEEDED.keys()}
    if any((each.kind, each.level) == (AttachKind.EXIT, Level.BLOCK) for each in program.attach):
        needed.add(BLOCKS)
    return tuple(name for name in SPECS if name in needed and own_map(program.maps, name) is None)


def own_map(maps: tuple[MapSpec, ...], name: str) -> int | None:
    """The index of the map of that name, None if there is none."""
    return next((index for index, spec in enumerate(maps) if spec.name == name), None)
