"""Programs of ``kprobe/__directly_run``: run as kernels of their own, not attached to one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from egpu.bpf.maptypes import traits
from egpu.bpf.program import AttachKind, AttachPoint, MapSpec, Object
from egpu.errors import InputError

_KERNEL = "egpu_directly_run"
_MOST_THREADS = 1024  # of a block, on every device
_MOST_BLOCKS = (2**31 - 1, 65_535, 65_535)  # of a grid, on every device
_WORD = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """How often, and with which grid and block."""

    count: int = 1
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)

    @classmethod
    def parse(cls, words: Iterable[str]) -> Shape:
        """``[count [gx gy gz bx by bz]]``; InputError (usage) for anything else."""
        try:
            numbers = [int(word) for word in words]
        except ValueError as error:
            raise InputError(f"no number: {error}", usage=True) from error
        if len(numbers) not in (0, 1, 7) or any(number < 1 for number in numbers):
            raise InputError("count, or count gx gy gz bx by bz, of positive numbers", usage=True)
        if len(numbers) < 7:
            return cls(numbers[0]) if numbers else cls()
        count, gx, gy, gz, bx, by, bz = numbers
        if bx * by * bz > _MOST_THREADS:
            raise InputError(f"a block of {bx * by * bz} threads, limit {_MOST_THREADS}")
        if any(size > most for size, most in zip((gx, gy, gz), _MOST_BLOCKS, strict=True)):
            raise InputError(f"a grid of {gx},{gy},{gz}, limit 2147483647,65535,65535")
        return cls(count, (gx, gy, gz), (bx, by, bz))


def carried() -> AttachPoint:
    """Where a directly run program goes: the entry of the carrier's kernel."""
    return AttachPoint(AttachKind.ENTRY, _KERNEL)


def directly_run(made: Object, name: str) -> Object:
    """``made`` with its program ``name`` alone, to be run by itself.

    InputError (usage) if there is no such program; it need not be in a ``__directly_run`` section.
    """
    programs = made.by_name()
    if name not in programs:
        direct = [
            each.name
            for each in made.programs
            if any(point.kind is AttachKind.EXECUTOR for point in each.attach)
        ]
        raise InputError(
            f"no program {name} in it",
            where=made.name,
            hint=f"it can run {', '.join(direct or programs)} directly",
            usage=True,
        )
    return replace(made, programs=(replace(programs[name], attach=(carried(),)),))


def with_values(made: Object, changes: Iterable[tuple[str, int, int]]) -> Object:
    """``made`` with elements of its arrays set: (map, index, number).

    InputError for a map that is no array, an index past its end, a number that does not fit.
    """
    specs = {spec.name: spec for spec in made.maps}
    for name, index, number in changes:
        if name not in specs:
            raise InputError(f"no map {name} in it", where=made.name, hint=", ".join(specs))
        specs[name] = _with_value(specs[name], index, number)
    maps = tuple(specs.values())
    programs = tuple(replace(program, maps=maps) for program in made.programs)
    return replace(made, maps=maps, programs=programs)


def _with_value(spec: MapSpec, index: int, number: int) -> MapSpec:
    where, kind = f"map {spec.name}", traits(spec.type)
    if not kind.indexed or kind.per_sm or kind.per_thread:
        raise InputError(f"{spec.type.name} cannot be set before it runs", where=where)
    if not 0 <= index < spec.max_entries:
        raise InputError(f"has {spec.max_entries} elements, not {index}", where=where)
    try:
        value = number.to_bytes(spec.value_size, "little", signed=number < 0)
    except OverflowError as error:
        raise InputError(
            f"{number} needs more than {spec.value_size} bytes", where=where
        ) from error
    stride = -(-spec.value_size // _WORD) * _WORD
    content = bytearray((spec.initial or b"").ljust((index + 1) * stride, b"\0"))
    content[index * stride : index * stride + len(value)] = value
    return replace(spec, initial=bytes(content))


def carrier(shape: Shape) -> list[str]:
    """The command whose kernel carries a directly run program."""
    words = [str(number) for number in (shape.count, *shape.grid, *shape.block)]
    return [sys.executable, "-m", "egpu.loader.carrier", _KERNEL, *words]
