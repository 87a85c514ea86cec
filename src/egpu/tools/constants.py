"""Settings of a tool's programs: constants in .rodata, set before they are verified.

Programs are verified and compiled with the values that they will run with, and the device holds
them in memory that no program can write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from egpu.bpf.btf import BtfKind
from egpu.bpf.program import MapSpec, Object
from egpu.errors import InputError

SECTION = ".rodata"


def with_constants(loaded: Object, values: Mapping[str, int]) -> Object:
    """``loaded`` with its integers ``const volatile NAME`` as ``values`` says.

    Raises InputError for a name that it does not have or a value that does not fit.
    """
    maps = list(loaded.maps)
    for name, value in values.items():
        index, start, size = _place(maps, name, loaded.name)
        if not 0 <= value < 1 << 8 * size:
            raise InputError(
                f"{value} does not fit into {size} bytes", where=f"constant {name}", usage=True
            )
        spec = maps[index]
        data = bytearray(spec.initial or bytes(spec.value_size))
        data[start : start + size] = value.to_bytes(size, "little")
        maps[index] = replace(spec, initial=bytes(data))
    changed = tuple(maps)
    programs = tuple(replace(program, maps=changed) for program in loaded.programs)
    return replace(loaded, maps=changed, programs=programs)


def constant(spec: MapSpec, name: str) -> int:
    """What a constant of the section map ``spec`` is set to."""
    _, start, size = _place([spec], name, spec.name)
    data = spec.initial or bytes(spec.value_size)
    return int.from_bytes(data[start : start + size], "little")


def _place(maps: list[MapSpec], name: str, owner: str) -> tuple[int, int, int]:
    """(map, first byte, bytes) of a constant."""
    for index, spec in enumerate(maps):
        if not spec.name.startswith(SECTION) or spec.btf is None or not spec.value_type:
            continue
        row = spec.btf.resolve(spec.value_type)
        for member in row.members if row.kind is BtfKind.DATASEC else ():
            if spec.btf.type_at(member.type).name == name:
                return index, member.offset, member.size
    raise InputError(f"has no constant {name}", where=owner, usage=True)
