"""Maps of maps as objects declare them: ``.values = {&a, &b}``, an address for each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from egpu.bpf.btf import Btf, BtfKind
from egpu.bpf.elf import SYMBOL_SECTION, Elf, Section
from egpu.bpf.maptypes import INNER, Storage, traits
from egpu.bpf.program import NO_MAP, MapSpec
from egpu.errors import InputError, UnsupportedError

_ADDRESS = 8  # bytes of a pointer


def with_inner(
    elf: Elf, section: Section, btf: Btf | None, specs: Sequence[MapSpec]
) -> list[MapSpec]:
    """``specs``, the maps of ``.maps`` in the order of their places, with what is in each.

    Raises InputError for addresses that are no maps of one shape, UnsupportedError for maps that
    cannot be in others and for program arrays.
    """
    places = _places(elf, section, btf, specs)
    where = f"{elf.name}: section {section.index} (.maps)"
    inner: dict[int, dict[int, int]] = {}
    for row in elf.relocations.get(section.index, ()):
        symbol = elf.symbols[row.symbol]
        target = symbol.value
        if symbol.type == SYMBOL_SECTION:
            target = int.from_bytes(section.data[row.offset : row.offset + _ADDRESS], "little")
        outer = next(
            (n for n, (_, start, end) in places.items() if start <= row.offset < end), None
        )
        found = next((n for n, (begin, _, _) in places.items() if begin == target), None)
        if outer is None or symbol.section != section.index or found is None:
            raise InputError(f"the address at offset {row.offset} is no map's", where=where)
        inner.setdefault(outer, {})[(row.offset - places[outer][1]) // _ADDRESS] = found
    return [
        _filled(spec, inner.get(number, {}), specs, f"{where}, map {spec.name!r}")
        for number, spec in enumerate(specs)
    ]


def _filled(spec: MapSpec, inner: dict[int, int], specs: Sequence[MapSpec], where: str) -> MapSpec:
    if traits(spec.type).storage is not Storage.MAPS:
        if inner:
            raise UnsupportedError(f"map type {spec.type.name} with values at {where}")
        return spec
    if not inner:
        raise UnsupportedError(
            f"an empty {spec.type.name} at {where}", needs="maps in it: .values = {&a, &b}"
        )
    if max(inner) >= spec.max_entries:
        raise InputError(f"{max(inner) + 1} maps, max_entries is {spec.max_entries}", where=where)
    shapes = {_shape(specs[number]) for number in inner.values()}
    if len(shapes) > 1:
        names = ", ".join(specs[number].name for number in inner.values())
        raise InputError(f"the maps in it differ in type or sizes: {names}", where=where)
    kind = specs[next(iter(inner.values()))].type
    if traits(kind).storage not in INNER:
        raise UnsupportedError(f"{kind.phrase} inside another map at {where}")
    found = tuple(inner.get(key, NO_MAP) for key in range(max(inner) + 1))
    return replace(spec, inner=found)


def _shape(spec: MapSpec) -> tuple[int, ...]:
    return spec.type, spec.key_size, spec.value_size, spec.max_entries, spec.flags


def _places(
    elf: Elf, section: Section, btf: Btf | None, specs: Sequence[MapSpec]
) -> dict[int, tuple[int, int, int]]:
    """For each map where it is, and where its values begin and end (nowhere: at its start)."""
    symbols = {
        symbol.name: symbol
        for symbol in elf.symbols
        if symbol.section == section.index and symbol.type != SYMBOL_SECTION
    }
    found = {}
    for number, spec in enumerate(specs):
        symbol = symbols[spec.name]
        begin = symbol.value
        values = next(_values(btf, spec.name), 0) if btf is not None else 0
        start = begin + values if values else begin
        found[number] = (begin, start, begin + symbol.size if values else begin)
    return found


def _values(btf: Btf, name: str) -> Iterator[int]:
    """The byte offset of the member 'values' of map ``name``, if it has one."""
    row = btf.find(name, BtfKind.VAR)
    if row is None:
        return
    for member in btf.resolve(row.type).members:
        if member.name == "values":
            yield member.offset // 8
