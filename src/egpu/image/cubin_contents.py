"""What is in a cubin, found once for all its kernels.

Images hold up to thousands of kernels, and a process asks for them one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from egpu.image.cubin import Cubin
from egpu.image.cubin_edit import (
    SHT_REL,
    SHT_RELA,
    CubinParts,
    Part,
    Symbol,
    read_symbols,
    take_apart,
)

TEXT = ".text."
_ABOUT_ANOTHER = 0x40  # SHF_INFO_LINK: sh_info is the section that this one is about


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """A cubin's parts and symbols.

    ``kernels``: the symbol of each kernel by name.  ``about``: sections that describe a section of
    code (attributes, constants, shared memory), by its index; ``describing``: all of these.
    ``relocations``: relocation sections by the index of the section that they change.
    """

    parts: CubinParts
    symbols: tuple[Symbol, ...]
    kernels: Mapping[str, Symbol]
    about: Mapping[int, tuple[int, ...]]
    describing: frozenset[int]
    relocations: Mapping[int, tuple[int, ...]]


def contents_of(cubin: Cubin) -> Contents:
    """The contents of an opened cubin; InputError for layouts that no assembler writes."""
    parts = take_apart(cubin)
    about: defaultdict[int, list[int]] = defaultdict(list)
    relocations: defaultdict[int, list[int]] = defaultdict(list)
    for at, part in enumerate(parts.parts):
        if part.type in (SHT_REL, SHT_RELA):
            relocations[part.info].append(at)
        elif _is_about(parts, part):
            about[part.info].append(at)
    symbols = read_symbols(parts)
    return Contents(
        parts=parts,
        symbols=symbols,
        kernels={each.name: each for each in symbols if each.is_kernel},
        about={at: tuple(found) for at, found in about.items()},
        describing=frozenset(at for found in about.values() for at in found),
        relocations={at: tuple(found) for at, found in relocations.items()},
    )


def _is_about(parts: CubinParts, part: Part) -> bool:
    """Whether a section describes one of code.  ptxas flags them; cuBLAS's own assembler only names
    them after it."""
    if not 0 < part.info < len(parts.parts):
        return False
    code = parts.parts[part.info].name
    if not code.startswith(TEXT):
        return False
    named = part.name.endswith("." + code.removeprefix(TEXT)) and not part.name.startswith(TEXT)
    return bool(part.flags & _ABOUT_ANOTHER) or named
