"""What the kernels of a cubin have in common, and which sections and attributes are understood."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from egpu.image.cubin_attributes import (
    ATTRIBUTES,
    Attribute,
    Form,
    Shape,
    attribute_places,
    read_attributes,
)
from egpu.image.cubin_contents import Contents
from egpu.image.cubin_edit import SHT_NULL, Part
from egpu.image.cubin_tables import Column, words_at

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
    renumbered.  ``symbols`` that are in no section; ``rows`` of ``.nv.info`` as places in ``info``,
    its bytes, and ``about``, the symbol of each or NO_SYMBOL.
    """

    sections: tuple[int, ...]
    known: bool
    symbols: Column
    info: bytes
    rows: Column
    about: Column


NO_SYMBOL = -1  # rows that name none


@functools.lru_cache(maxsize=32)
def common_of(contents: Contents) -> Common:
    parts = contents.parts.parts
    sections = tuple(at for at in contents.others if not parts[at].name.startswith(_DEBUG))
    at = next((at for at in sections if parts[at].name == ROWS), None)
    info = b"" if at is None else parts[at].data
    section = contents.table["section"]
    return Common(
        sections,
        all(is_known(parts[at]) for at in sections),
        np.flatnonzero((section == 0) | (section >= RESERVED_INDEX)),
        info,
        *_rows(info),
    )


def _rows(info: bytes) -> tuple[Column, Column]:
    """Where rows are, and what symbols they are about."""
    text, places = np.frombuffer(info, np.uint8), attribute_places(info)
    named = _OF_SYMBOLS[text[places + 1]] & (text[places + 2] >= 4)
    numbers = np.full(len(places), NO_SYMBOL)
    numbers[named] = words_at(info, "<u4")[places[named] + 4]
    return places, numbers


def _codes(chosen: Iterable[int]) -> NDArray[np.bool_]:
    """Whether a code is one of these."""
    return np.isin(np.arange(256), list(chosen))


_KNOWN_CODES = _codes(ATTRIBUTES)
_OF_SYMBOLS = _codes(code for code, kind in ATTRIBUTES.items() if kind.shape is Shape.SYMBOL_VALUE)


_SIZED = int(Form.SIZED)
RESERVED_INDEX = 0xFF00  # from here on a symbol's section is no section (ELF gABI)
ROWS = ".nv.info"


def is_known(part: Part) -> bool:
    """Whether nothing in a section can hold a number that nobody knows of (small attributes have no
    room for one)."""
    if part.type != SHT_NULL and not part.name.startswith(_KNOWN):
        return False
    if not part.name.startswith(ROWS):
        return True
    if part.name != ROWS:  # a kernel's, which are a few of many lengths
        attributes = read_attributes(part.data)
        return all(each.code in ATTRIBUTES for each in attributes if each.form == _SIZED)
    text, places = np.frombuffer(part.data, np.uint8), attribute_places(part.data)
    return bool(_KNOWN_CODES[text[places + 1][text[places] == _SIZED]].all())


def shape_of(attribute: Attribute) -> Shape | None:
    kind = ATTRIBUTES.get(attribute.code)
    return kind.shape if kind else None
