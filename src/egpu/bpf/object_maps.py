"""The maps of an object: ``.maps`` definitions in BTF, and its data sections."""

from __future__ import annotations

from dataclasses import dataclass

from egpu.bpf.btf import Btf, BtfKind, BtfMember, BtfType
from egpu.bpf.elf import SYMBOL_SECTION, Elf, Section
from egpu.bpf.map_flags import flag_problem
from egpu.bpf.maptypes import MapType
from egpu.bpf.object_inner import with_inner
from egpu.bpf.program import BPF_F_RDONLY_PROG, MapSpec
from egpu.errors import InputError, UnsupportedError

DATA_SECTIONS = (".rodata", ".data", ".bss")
_MAX_SIZE = (1 << 31) - 1  # of keys, values and data sections
PIN_NONE, PIN_BY_NAME = 0, 1  # enum libbpf_pin_type
_STATIC = 0  # linkage of a VAR
# Members that are written as __uint(name, number); what they set in the map's fields.
_NUMBERS = ("type", "key_size", "value_size", "max_entries", "map_flags", "map_extra", "pinning")
_TYPES = {"key": "key_size", "value": "value_size"}
_REFUSED = {
    "numa_node": "a NUMA node for a map (member 'numa_node')",
    "inner_map_idx": "maps inside maps (member 'inner_map_idx')",
}


@dataclass(frozen=True, slots=True)
class ObjectMaps:
    """All maps of an object.

    ``declared`` gives the map index by (section index, byte offset); ``data`` the map index of each
    data section.
    """

    specs: tuple[MapSpec, ...]
    declared: dict[tuple[int, int], int]
    data: dict[int, int]


def read_maps(elf: Elf, btf: Btf | None) -> ObjectMaps:
    """The maps: those of ``.maps`` in their order, then data sections in theirs.

    Raises InputError for malformed definitions, UnsupportedError for what egpu does not have.
    """
    specs: list[MapSpec] = []
    declared: dict[tuple[int, int], int] = {}
    data: dict[int, int] = {}
    if elf.section("maps") is not None:
        raise UnsupportedError("the legacy 'maps' section", needs="definitions in '.maps' with BTF")
    section = elf.section(".maps")
    if section is not None:
        for offset, spec in _declared_maps(elf, section, btf):
            declared[section.index, offset] = len(specs)
            specs.append(spec)
        specs = with_inner(elf, section, btf, specs)
    for section in elf.sections:
        if _is_data(section) and section.size:
            data[section.index] = len(specs)
            specs.append(_data_map(elf, section, btf))
    return ObjectMaps(tuple(specs), declared, data)


def _is_data(section: Section) -> bool:
    return any(
        section.name == name or section.name.startswith(f"{name}.") for name in DATA_SECTIONS
    )


def _data_map(elf: Elf, section: Section, btf: Btf | None) -> MapSpec:
    where = f"{elf.name}: section {section.index} ({section.name})"
    if section.size > _MAX_SIZE:
        raise InputError(f"{section.size} bytes of data, limit {_MAX_SIZE}", where=where)
    if elf.relocations.get(section.index):
        raise UnsupportedError(f"addresses in initialised data at {where}")
    if not section.is_zero_filled and len(section.data) != section.size:
        raise InputError(f"{len(section.data)} bytes of {section.size}", where=where)
    read_only = section.name.startswith(".rodata")
    types = _data_types(elf, section, btf) if btf is not None else None
    return MapSpec(
        section.name,
        MapType.ARRAY,
        key_size=4,
        value_size=section.size,
        max_entries=1,
        flags=BPF_F_RDONLY_PROG if read_only else 0,
        initial=None if section.is_zero_filled else bytes(section.data),
        read_only=read_only,
        btf=types,
        value_type=_section_type(types, section.name),
    )


def _section_type(btf: Btf | None, name: str) -> int:
    row = btf.find(name, BtfKind.DATASEC) if btf is not None else None
    return row.id if row is not None else 0


def _data_types(elf: Elf, section: Section, btf: Btf) -> Btf | None:
    """``btf`` with the section's size and its variables' offsets, which compilers leave to loaders.

    None when a variable does not lie inside the section: the map then has no type.
    """
    row = btf.find(section.name, BtfKind.DATASEC)
    if row is None:
        return None
    symbols = {
        symbol.name: symbol.value
        for symbol in elf.symbols
        if symbol.section == section.index and symbol.type != SYMBOL_SECTION
    }
    members = []
    for member in row.members:
        variable = btf.type_at(member.type)
        static = variable.encoding == _STATIC
        offset = member.offset if static else symbols.get(variable.name, member.offset)
        if variable.kind is not BtfKind.VAR or offset + member.size > section.size:
            return None
        members.append(BtfMember(variable.name, member.type, offset, size=member.size))
    types = list(btf.types)
    types[row.id] = BtfType(row.id, row.kind, row.name, section.size, members=tuple(members))
    return btf.with_types(tuple(types))


def _declared_maps(elf: Elf, section: Section, btf: Btf | None) -> list[tuple[int, MapSpec]]:
    where = f"{elf.name}: section {section.index} (.maps)"
    row = btf.find(".maps", BtfKind.DATASEC) if btf is not None else None
    if btf is None or row is None:
        raise InputError("map definitions without BTF", where=where, hint="compile with -g")
    offsets = {
        symbol.name: symbol.value
        for symbol in elf.symbols
        if symbol.section == section.index and symbol.type != SYMBOL_SECTION
    }
    found: dict[str, tuple[int, MapSpec]] = {}
    for member in row.members:
        variable = btf.type_at(member.type)
        place = f"{where}, map {variable.name!r}"
        if variable.kind is not BtfKind.VAR or variable.name not in offsets:
            raise InputError("BTF names a map that has no symbol", where=place)
        if variable.name in found:
            raise InputError("defined twice", where=place)
        found[variable.name] = (
            offsets[variable.name],
            _declared_map(btf, variable.name, btf.resolve(variable.type), place),
        )
    missing = offsets.keys() - found.keys()
    if missing:
        raise InputError(f"no BTF for map {min(missing)!r}", where=where)
    return sorted(found.values(), key=lambda item: item[0])


def _declared_map(btf: Btf, name: str, definition: BtfType, where: str) -> MapSpec:
    if definition.kind is not BtfKind.STRUCT:
        raise InputError(f"its type is {definition.kind.name}, not a struct", where=where)
    numbers: dict[str, int] = {}
    types: dict[str, int] = {}
    for member in definition.members:
        if member.name in _REFUSED:
            raise UnsupportedError(f"{_REFUSED[member.name]} at {where}")
        if member.name == "values":  # what is in a map of maps; object_inner.py reads it
            numbers.setdefault("key_size", 4)
            continue
        pointer = btf.resolve(member.type)
        if pointer.kind is not BtfKind.PTR or member.name not in (*_NUMBERS, *_TYPES):
            raise InputError(
                f"unknown member {member.name!r}", where=where, hint=f"egpu reads {_known()}"
            )
        if member.name in _NUMBERS:
            array = btf.resolve(pointer.type)
            if array.kind is not BtfKind.ARRAY:
                raise InputError(f"member {member.name!r} is not a __uint", where=where)
            _set(numbers, member.name, array.count, where)
        else:
            types[member.name] = pointer.type
            _set(numbers, _TYPES[member.name], btf.size_of(pointer.type), where)
    return _spec(btf, name, numbers, types, where)


def _known() -> str:
    return ", ".join((*_NUMBERS, *_TYPES))


def _set(numbers: dict[str, int], key: str, value: int, where: str) -> None:
    if numbers.setdefault(key, value) != value:
        raise InputError(f"{key} is both {numbers[key]} and {value}", where=where)


def _spec(
    btf: Btf, name: str, numbers: dict[str, int], types: dict[str, int], where: str
) -> MapSpec:
    if "type" not in numbers:
        raise InputError("no type", where=where)
    pinning = numbers.get("pinning", PIN_NONE)
    if pinning not in (PIN_NONE, PIN_BY_NAME):
        raise InputError(f"pinning is {pinning}", where=where, hint="LIBBPF_PIN_BY_NAME is 1")
    try:
        kind = MapType(numbers["type"])
    except ValueError as error:
        raise UnsupportedError(f"map type {numbers['type']} at {where}") from error
    problem = flag_problem(kind, numbers.get("map_flags", 0))
    if problem is not None:
        raise InputError(problem.text, where=where, hint=problem.hint)
    for key in ("key_size", "value_size", "max_entries"):
        if numbers.setdefault(key, 0) > _MAX_SIZE:
            raise InputError(f"{key} is {numbers[key]}, limit {_MAX_SIZE}", where=where)
    return MapSpec(
        name,
        kind,
        key_size=numbers["key_size"],
        value_size=numbers["value_size"],
        max_entries=numbers["max_entries"],
        flags=numbers.get("map_flags", 0),
        extra=numbers.get("map_extra", 0),
        pin_by_name=pinning == PIN_BY_NAME,
        btf=btf,
        key_type=types.get("key", 0),
        value_type=types.get("value", 0),
    )
