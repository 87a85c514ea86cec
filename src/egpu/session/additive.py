"""Which per-SM maps are only ever added to.

Nobody reads a single copy of such a map on the device, so the warps of an SM may use different
copies of it: sums stay exact and additions do not queue up (``maps.plan``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egpu.bpf.isa import instructions
from egpu.bpf.prints import VALUES_LIMIT
from egpu.bpf.program import MapSpec
from egpu.maps import summable
from egpu.verifier import VerifiedProgram, liveness, structure
from egpu.verifier.liveness import Liveness
from egpu.verifier.verified import PRINTED_VALUE, Operand, Region, RmwOp

_LOOKUP = 1  # bpf_map_lookup_elem
# imm of an atomic add, and of one that fetches (RFC 9669, table "atomic operations"): compilers
# emit the latter for __sync_fetch_and_add whether or not anybody wants the old value.
_ADD, _FETCH_ADD = 0, 1
_ATOMIC = (0xC3, 0xDB)  # STX | ATOMIC | W and DW
_CALL = 0x85


def additive_maps(programs: Sequence[VerifiedProgram], maps: Sequence[MapSpec]) -> frozenset[int]:
    """Indices of the maps that every program only adds to: ``*v += n``, or an atomic add whose old
    value nobody uses."""
    added = added_to_only(programs, len(maps))
    # Maps inside others are reached by one code, so they must be laid out alike.
    inner = {index for spec in maps for index in spec.inner}
    return frozenset(index for index in added - inner if summable(maps[index]))


def added_to_only(programs: Sequence[VerifiedProgram], count: int) -> frozenset[int]:
    """The same of ``count`` maps, whatever their values are."""
    other: set[int] = set()
    for program in programs:
        other.update(_used_otherwise(program))
    return frozenset(index for index in range(count) if index not in other)


_OPERANDS = PRINTED_VALUE + VALUES_LIMIT  # registers, and values taken from arrays


def _used_otherwise(verified: VerifiedProgram) -> Iterator[int]:
    facts, count = verified.facts, len(verified.program.maps)
    added: set[int] = set()
    after: Liveness | None = None
    for store, rmw in facts.rmw.items():
        if rmw.op is RmwOp.ADD:
            added.update((store, rmw.load_pc, *rmw.skip_pcs))
    code = verified.program.code
    for pc, insn, _ in instructions(code):
        if insn.opcode == _CALL and insn.src == 0 and insn.imm == _LOOKUP:
            continue
        if pc in added or (insn.opcode in _ATOMIC and insn.imm == _ADD):
            # The value that is added must not point into a map; the verifier saw to that.
            continue
        if insn.opcode in _ATOMIC and insn.imm == _FETCH_ADD:
            after = after or liveness.analyse(structure.analyse(verified.program, verified.policy))
            if not after.at(pc + 1).registers >> insn.src & 1:  # the old value is not used
                continue
        for register in range(_OPERANDS):
            operand = facts.operands.get((pc, register))
            if operand is not None and _reaches(operand):
                yield from range(count) if operand.map is None else (operand.map,)


def _reaches(operand: Operand) -> bool:
    return not operand.regions.isdisjoint({Region.MAP_POINTER, Region.INNER_MAP, Region.MAP_VALUE})
