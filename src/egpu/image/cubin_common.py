"""What the kernels of a cubin have in common, and which sections and attributes are understood."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from egpu.image.cubin_attributes import ATTRIBUTES, Attribute, Form, Shape, read_attributes
from egpu.image.cubin_contents import TEXT, Contents
from egpu.image.cubin_edit import SHT_NULL, SHT_REL, SHT_RELA, Part, Symbol

_DEBUG = (
    ".debug_",
    ".nv_debug_",
    ".rel.debug_",
    ".rela.debug_",
    ".rel.nv_debug_",
    ".rela.nv_debug_",
)
# Sections whose contents are known to hold no number of a section or symbol, or are renumbered.
_KNOWN = (
    ".shstrtab",
    ".strtab",
    ".symtab",
    ".note.nv.",
    ".nv.info",
    ".nv.compat",
    ".nv.callgraph",
    ".nv.rel.action",
    ".nv.constant",
    ".nv.global",
    ".nv.shared",
    ".nv.local",
    ".text.",
    ".rel.text.",
    ".rela.text.",
    ".rel.nv.constant",
    ".rela.nv.constant",
    ".rel.nv.global",
    ".rela.nv.global",
)


@dataclass(frozen=True, slots=True)
class Common:
    """What all kernels of a cubin have in common.

    ``sections`` that belong to no kernel; ``known``: nothing in them holds a number that is not
    renumbered.  ``symbols`` by section; ``rows`` of ``.nv.info`` by symbol, each with its place.
    """

    sections: tuple[int, ...]
    known: bool
    symbols: Mapping[int, tuple[Symbol, ...]]
    rows: Mapping[int, tuple[tuple[int, Attribute], ...]]


NO_SYMBOL = -1  # rows that name none


@functools.lru_cache(maxsize=32)
def common_of(contents: Contents) -> Common:
    parts = contents.parts.parts
    described = {at for found in contents.about.values() for at in found}
    sections = tuple(
        at
        for at, part in enumerate(parts)
        if not part.name.startswith((TEXT, *_DEBUG))
        and at not in described
        and part.type not in (SHT_REL, SHT_RELA)
    )
    symbols: defaultdict[int, list[Symbol]] = defaultdict(list)
    for symbol in contents.symbols:
        symbols[symbol.section].append(symbol)
    rows: defaultdict[int, list[tuple[int, Attribute]]] = defaultdict(list)
    at = contents.parts.find(ROWS)
    for place, row in enumerate(read_attributes(parts[at].data) if at is not None else ()):
        named = shape_of(row) is Shape.SYMBOL_VALUE
        index = int.from_bytes(row.payload[:4], "little") if named else NO_SYMBOL
        rows[index].append((place, row))
    return Common(
        sections,
        all(is_known(parts[at]) for at in sections),
        {section: tuple(found) for section, found in symbols.items()},
        {index: tuple(found) for index, found in rows.items()},
    )


ROWS = ".nv.info"


def is_known(part: Part) -> bool:
    """Whether nothing in a section can hold a number that nobody knows of (small attributes have no
    room for one)."""
    if part.type != SHT_NULL and not part.name.startswith(_KNOWN):
        return False
    return not part.name.startswith(ROWS) or all(
        each.form != Form.SIZED or each.code in ATTRIBUTES for each in read_attributes(part.data)
    )


def shape_of(attribute: Attribute) -> Shape | None:
    kind = ATTRIBUTES.get(attribute.code)
    return kind.shape if kind else None
