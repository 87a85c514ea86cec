"""Which rings in device memory get stamped slots.

A slot holds one record of one size, and each of its words says which lap it is of
(``egpu.maps.ring_table``).  So all that a map's rings hold must be whole records of one size of
whole words, written by the helper, and by lanes that are alone: what a warp's lanes write together
takes less room as one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egpu.bpf.helpers import HELPERS
from egpu.bpf.isa import instructions
from egpu.bpf.maptypes import Storage, ring_bytes, traits
from egpu.bpf.prints import VALUES_LIMIT
from egpu.bpf.program import Level, MapSpec
from egpu.maps.layout import RING_STAMPED_MOST, RING_STAMPED_SLOTS, stamped_stride
from egpu.verifier import VerifiedProgram
from egpu.verifier.verified import PRINTED_VALUE, Region

_CALL = 0x85
_OPERANDS = PRINTED_VALUE + VALUES_LIMIT  # registers, and values taken from arrays
_WORD = 8
_MAPS = frozenset({Region.MAP_POINTER, Region.INNER_MAP, Region.MAP_VALUE})
# Helpers that write a record, by their bodies: the registers of the map and of the record's size.
_WRITERS = {"ringbuf_output": (1, 3), "perf_output": (2, 5)}
_OTHER = 0  # instead of a size: no record, or none that fits a slot


def stamped_maps(programs: Sequence[VerifiedProgram], maps: Sequence[MapSpec]) -> dict[int, int]:
    """Bytes of a record by the indices of the maps that ``programs``, all that there are, use in
    this way only."""
    found: dict[int, set[int]] = {}
    for program in programs:
        for index, size in _uses(program, len(maps)):
            found.setdefault(index, set()).add(size)
    return {
        index: size
        for index, sizes in found.items()
        if len(sizes) == 1 and (size := min(sizes)) != _OTHER and _fits(maps[index], size)
    }


def _fits(spec: MapSpec, size: int) -> bool:
    """However few SMs there are."""
    if traits(spec.type).storage is not Storage.RING:
        return False
    asked = ring_bytes(spec.type, spec.max_entries, spec.value_size)
    return asked <= stamped_stride(size) * RING_STAMPED_SLOTS


def _uses(verified: VerifiedProgram, count: int) -> Iterator[tuple[int, int]]:
    """(map, size of the record or _OTHER) for everything that the program does with maps; what may
    be any map is all."""
    program, operands = verified.program, verified.facts.operands
    alone = not program.on_host and all(
        point.level in (Level.WARP, Level.BLOCK) for point in program.attach
    )
    for pc, insn, _ in instructions(program.code):
        helper = HELPERS.get(insn.imm) if insn.opcode == _CALL and insn.src == 0 else None
        ring, length = _WRITERS.get(helper.body if helper else "", (_OTHER, _OTHER))
        for register in range(_OPERANDS):
            operand = operands.get((pc, register))
            if operand is None or operand.regions.isdisjoint(_MAPS):
                continue
            size = _OTHER
            if register == ring and alone:
                written = operands[pc, length].value or _OTHER
                size = written if written % _WORD == 0 and written <= RING_STAMPED_MOST else _OTHER
            for index in range(count) if operand.map is None else (operand.map,):
                yield index, size
