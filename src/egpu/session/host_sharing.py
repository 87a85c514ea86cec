"""What programs of the host and of kernels may do with a map that both have.

A program of the host runs on the session's copy.  What it sets goes to the device before its thread
goes on, so kernels launched afterwards have it, as long as nothing but the host sets it.  What both
sides only add to is kept apart and added up when it is read.  Anything else would lose updates.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from egpu.bpf.isa import CALL, CallSrc, Class, instructions
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import MapSpec
from egpu.errors import UnsupportedError
from egpu.session.additive import added_to_only
from egpu.verifier import VerifiedProgram
from egpu.verifier.verified import Region

_LOOKUP, _UPDATE, _DELETE = 1, 2, 3
_MAP = 1  # the register that has a helper's map
_LOADS = (Class.LD, Class.LDX)
_POINTERS = (Region.MAP_POINTER, Region.INNER_MAP)


class Sharing(enum.Enum):
    """How a map of host programs is kept."""

    GIVEN = "given"  # by the host; kernels read it, if they have it at all
    ADDED = "added"  # by both sides


def sharing(
    host: Sequence[VerifiedProgram], device: Sequence[VerifiedProgram], maps: Sequence[MapSpec]
) -> dict[int, Sharing]:
    """How each map of a host program is kept; UnsupportedError where there is no right way."""
    changed = {index for program in device for index in _changed(program)}
    added = added_to_only([*host, *device], len(maps))
    used = sorted({index for program in host for index in program.facts.maps})
    return {
        index: _one(maps[index], maps[index].writable and index in changed, index in added)
        for index in used
    }


def _one(spec: MapSpec, changed: bool, added: bool) -> Sharing:
    storage = traits(spec.type).storage
    if storage is Storage.STACKS:  # it has nothing that a program changes
        return Sharing.GIVEN
    if not changed and storage in (Storage.ARRAY, Storage.HASH):
        return Sharing.GIVEN
    if changed and added and storage is Storage.ARRAY and spec.value_size % 4 == 0:
        return Sharing.ADDED
    raise UnsupportedError(
        f"map {spec.name} ({spec.type.name}) in a program that runs on the host",
        needs="an array or hash map that no program in a kernel changes, or an array that all "
        "programs only add to by atomic additions whose result is not used",
    )


def _changed(program: VerifiedProgram) -> Iterator[int]:
    """The maps that a program may change; reading and looking up change nothing."""
    count = len(program.program.maps)
    operands = program.facts.operands
    for pc, insn, _ in instructions(program.program.code):
        loads = insn.opcode & 7 in _LOADS
        helper = insn.opcode == CALL and insn.src == CallSrc.HELPER
        for register in range(11):
            operand = operands.get((pc, register))
            if operand is None or loads or operand.regions <= {Region.STACK, Region.SCALAR}:
                continue
            if helper and insn.imm == _LOOKUP:
                continue
            if helper and insn.imm in (_UPDATE, _DELETE) and register != _MAP:
                continue  # its key and value are read
            if operand.regions & {*_POINTERS, Region.MAP_VALUE}:
                yield from range(count) if operand.map is None else (operand.map,)
