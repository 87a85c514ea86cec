"""``egpu gen``: a Python module with the types of an object's maps, programs and variables."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from egpu.bpf.btf import Btf, BtfKind, BtfType
from egpu.bpf.btf_encode import fields_of
from egpu.bpf.btf_values import legal_names
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import NO_MAP, MapSpec, Object

_CHAR, _BOOL = 2, 4  # encoding bits of INT
_SPELLED = 8  # elements of an array whose types are written out
_SECTIONS = {".rodata": "Rodata", ".data": "Data", ".bss": "Bss"}
_BUILT_IN = frozenset({"bool", "bytes", "float", "int", "object", "tuple"})
_METHODS = frozenset({"count", "index"})  # of every tuple, which a field of that name replaces
_IGNORED = "  # type: ignore[assignment]"
_TEXT = 400  # characters of an array's type that are written out
_IMPORTED = frozenset({"NamedTuple", "TypedDict"})
_PROTOCOLS = frozenset(
    {
        "TypedBloom",
        "TypedMap",
        "TypedOuter",
        "TypedPerSmArray",
        "TypedPerSmHash",
        "TypedQueue",
        "TypedRing",
        "TypedStacks",
    }
)
_RESERVED = frozenset({"Maps", "Programs", "None", "True", "False", *_SECTIONS.values()})


def module_text(obj: Object, sha256: str) -> str:
    """The module for ``obj``, whose file has the digest ``sha256`` (hexadecimal).

    It defines a subclass of ``egpu.Object`` that opens the file beside the module.
    """
    title = _camel(obj.name.removesuffix(".o").removesuffix(".bpf")) or "Loaded"
    names = _Names({*_RESERVED, *_IMPORTED, *_PROTOCOLS})
    title = names.free(title)
    maps = [(spec.name, names.map_type(spec, obj.maps)) for spec in obj.maps if _has_view(spec)]
    sections = [
        (class_name, spec, list(names.variables(spec)))
        for section, class_name in _SECTIONS.items()
        for spec in obj.maps
        if spec.name == section and _is_section(spec)
    ]
    typed = {each for _, text in maps for each in _TYPED.findall(text)}
    parts = [_head(obj.name, typed, names.classes), *names.classes]
    parts += [_section_class(class_name, spec, rows) for class_name, spec, rows in sections]
    parts += [_maps(maps), _programs(obj), _object(obj, title, sha256, names, sections)]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


_TYPED = re.compile(r"Typed\w+")


def _head(name: str, typed: set[str], classes: list[str]) -> str:
    names = ", ".join(sorted(typed))
    checking = f"\nif TYPE_CHECKING:\n    from egpu.maps.typed import {names}\n" if names else ""
    built_in = "import builtins\n" if any("builtins." in text for text in classes) else ""
    shown = _escaped(name)
    return f'''"""Types of {shown}, written by `egpu gen {shown}`: do not edit."""

from __future__ import annotations

{built_in}from typing import TYPE_CHECKING, NamedTuple, TypedDict

import egpu
{checking}'''


def _section_class(class_name: str, spec: MapSpec, rows: list[tuple[str, str]]) -> str:
    lines = [
        f"class {class_name}(egpu.Globals):",
        f'    """Global variables of {spec.name}."""',
        "",
    ]
    hidden = _BUILT_IN & {name for name, _ in rows}
    return "\n".join([*lines, *(f"    {name}: {_qualified(kind, hidden)}" for name, kind in rows)])


def _maps(maps: list[tuple[str, str]]) -> str:
    rows = "".join(f'        "{_escaped(name)}": "{kind}",\n' for name, kind in maps)
    return f'Maps = TypedDict(\n    "Maps",\n    {{\n{rows}    }},\n)'


def _programs(obj: Object) -> str:
    lines = ["class Programs:", '    """The programs by name."""', ""]
    lines.append("    def __init__(self, owner: egpu.Object) -> None:")
    attributes = legal_names(tuple(program.name for program in obj.programs))
    lines += [
        f'        self.{attribute} = owner.programs["{_escaped(program.name)}"]'
        for attribute, program in zip(attributes, obj.programs, strict=True)
    ] or ["        pass"]
    return "\n".join(lines)


def _object(
    obj: Object,
    title: str,
    sha256: str,
    names: _Names,
    sections: list[tuple[str, MapSpec, list[tuple[str, str]]]],
) -> str:
    records = "".join(
        f'        ("{_escaped(c_name)}", {class_name}._fields): {class_name},\n'
        for class_name, c_name in names.records
    )
    lines = [
        f"class {title}(egpu.Object):",
        f'    """The programs, maps and variables of {_escaped(obj.name)}."""',
        "",
        f'    FILE = "{_escaped(obj.name)}"',
        f'    SHA256 = "{sha256}"',
        f"    RECORDS = {{\n{records}    }}" if records else "    RECORDS = {}",
        "",
        "    @property",
        "    def progs(self) -> Programs:",
        '        """The programs as attributes."""',
        "        return Programs(self)",
        "",
        "    if TYPE_CHECKING:",
        "",
        "        @property",
        "        def maps(self) -> Maps: ...",
    ]
    for class_name, spec, _ in sections:
        lines += [
            "",
            "        @property",
            f"        def {spec.name[1:]}(self) -> {class_name}: ...",
        ]
    return "\n".join(lines)


def _has_view(spec: MapSpec) -> bool:
    return traits(spec.type).storage is not None


def _is_section(spec: MapSpec) -> bool:
    btf = spec.btf
    return btf is not None and btf.resolve(spec.value_type).kind is BtfKind.DATASEC


@dataclass(slots=True)
class _Names:
    """The classes of a module: each C struct once.  ``records`` are (class, C name)."""

    taken: set[str]
    classes: list[str] = field(default_factory=list)
    records: list[tuple[str, str]] = field(default_factory=list)
    known: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)

    def map_type(self, spec: MapSpec, maps: Sequence[MapSpec]) -> str:
        """The type of a map's view; ``maps`` are the object's, of which some may be in it."""
        kind = traits(spec.type)
        value = self._of(spec, spec.value_type, spec.value_size, f"{_camel(spec.name)}Value")
        if kind.storage is Storage.RING:
            return f"TypedRing[{value if spec.value_type else 'bytes'}]"
        if kind.per_thread:
            return f"TypedMap[int, tuple[{value}, ...]]"
        if kind.indexed:
            return f"TypedPerSmArray[{value}]" if kind.per_sm else f"TypedMap[int, {value}]"
        match kind.storage:
            case Storage.DEQUE:
                return f"TypedQueue[{value}]"
            case Storage.BLOOM:
                return f"TypedBloom[{value}]"
            case Storage.STACKS:
                return "TypedStacks"
            case Storage.MAPS:
                inner = {
                    self.map_type(maps[index], maps) for index in spec.inner if index != NO_MAP
                }
                return f"TypedOuter[{' | '.join(sorted(inner)) or 'object'}]"
        key = self._of(spec, spec.key_type, spec.key_size, f"{_camel(spec.name)}Key")
        return f"{'TypedPerSmHash' if kind.per_sm else 'TypedMap'}[{key}, {value}]"

    def variables(self, spec: MapSpec) -> Iterator[tuple[str, str]]:
        """Names and types of a section's variables that are Python names."""
        btf = spec.btf
        assert btf is not None
        for each in fields_of(btf, btf.resolve(spec.value_type)):
            legal = each.name.isidentifier() and not keyword.iskeyword(each.name)
            if legal and not each.name.startswith("__"):  # a class would take those for its own
                yield each.name, self.type_of(btf, each.type, f"{_camel(each.name)}Value")

    def _of(self, spec: MapSpec, type_id: int, size: int, name: str) -> str:
        if spec.btf is None or not type_id:
            return "bytes"
        if spec.btf.resolve(type_id).kind is BtfKind.DATASEC:
            return "tuple[object, ...]"
        return self.type_of(spec.btf, type_id, name)

    def type_of(self, btf: Btf, type_id: int, name: str) -> str:
        """The Python type of a C type's values; ``name`` for a class without a C name."""
        row = btf.resolve(type_id)
        match row.kind:
            case BtfKind.INT:
                return "bool" if row.encoding & _BOOL else "int"
            case BtfKind.ENUM | BtfKind.ENUM64 | BtfKind.PTR:
                return "int"
            case BtfKind.FLOAT:
                return "float"
            case BtfKind.ARRAY:
                return self._array(btf, row, name)
            case BtfKind.STRUCT | BtfKind.UNION:
                return self._record(btf, row, row.name or _typedef(btf, type_id) or name)
            case _:
                return "object"

    def _array(self, btf: Btf, row: BtfType, name: str) -> str:
        element = btf.resolve(row.type)
        if element.size == 1 and (element.name == "char" or element.encoding & _CHAR):
            return "bytes"
        if not row.count or not btf.size_of(row.type):
            return "tuple[()]"
        inner = self.type_of(btf, row.type, name)
        if row.count <= _SPELLED and row.count * len(inner) <= _TEXT:
            return f"tuple[{', '.join([inner] * row.count)}]"
        return f"tuple[{inner}, ...]"

    def _record(self, btf: Btf, row: BtfType, name: str) -> str:
        fields = fields_of(btf, row)
        names = legal_names(tuple(each.name for each in fields))
        found = self.known.get((row.name, names))
        if found is not None:
            return found
        class_name = self.free(_camel(name) or "Record")
        self.known[row.name, names] = class_name
        types = [
            self.type_of(btf, each.type, f"{class_name}{_camel(own)}")
            for each, own in zip(fields, names, strict=True)
        ]
        lines = [f"class {class_name}(NamedTuple):"]
        if row.name:
            lines += [f'    """C\'s {row.kind.name.lower()} {_escaped(row.name)}."""', ""]
        # A field hides the type of its name from those behind it.
        hidden = _BUILT_IN & set(names)
        lines += [
            f"    {own}: {_qualified(kind, hidden)}{_IGNORED if own in _METHODS else ''}"
            for own, kind in zip(names, types, strict=True)
        ]
        self.classes.append("\n".join(lines if names else [*lines, "    pass"]))
        self.records.append((class_name, row.name))
        return class_name

    def free(self, name: str) -> str:
        """A name for a class that no other has."""
        number, found = 1, name
        while found in self.taken:
            number += 1
            found = f"{name}{number}"
        self.taken.add(found)
        return found


def _qualified(kind: str, hidden: frozenset[str] | set[str]) -> str:
    return re.sub(
        r"\w+", lambda word: f"builtins.{word[0]}" if word[0] in hidden else word[0], kind
    )


def _typedef(btf: Btf, type_id: int) -> str:
    row = btf.type_at(type_id)
    while row.kind in (BtfKind.CONST, BtfKind.VOLATILE):
        row = btf.type_at(row.type)
    return row.name if row.kind is BtfKind.TYPEDEF else ""


def _camel(name: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", name)
    text = "".join(word[0].upper() + word[1:] for word in words)
    return f"N{text}" if text[:1].isdigit() else text


def _escaped(name: str) -> str:
    """A name from an object file, which may hold anything, for the inside of a string literal."""
    return name.encode("unicode_escape").decode().replace('"', '\\"')
