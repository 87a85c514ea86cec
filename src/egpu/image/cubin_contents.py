"""What is in a cubin, found once for all its kernels.

Images hold up to thousands of kernels, and a process asks for them one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from egpu.image.cubin import (
    Cubin,
    kernel_symbols,
    section_names,
    section_table,
    symbol_table_of,
)
from egpu.image.cubin_edit import (
    SHT_REL,
    SHT_RELA,
    CubinParts,
    Symbol,
    read_symbols,
    symbol_table,
    take_apart,
)
from egpu.image.cubin_tables import Table, name_of, named

TEXT = ".text."
_ABOUT_ANOTHER = 0x40  # SHF_INFO_LINK: sh_info is the section that this one is about


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """A cubin's parts and symbols.

    ``kernels``: the symbol of each kernel by name.  ``about``: sections that describe a section of
    code (attributes, constants, shared memory), by its index; ``describing``: all of these.
    ``relocations``: relocation sections by the index of the section that they change.  ``others``:
    sections that are none of these and no code.  ``symbols_of``: symbols by section.
    """

    parts: CubinParts
    symbols: Sequence[Symbol]
    kernels: Mapping[str, Symbol]
    about: Mapping[int, Sequence[int]]
    describing: frozenset[int]
    relocations: Mapping[int, Sequence[int]]
    others: tuple[int, ...]
    symbols_of: Mapping[int, Sequence[int]]


def contents_of(cubin: Cubin) -> Contents:
    """The contents of an opened cubin; InputError for layouts that no assembler writes."""
    parts = take_apart(cubin)
    symbols = read_symbols(parts)
    table = section_table(cubin.data)
    names = section_names(cubin.data, table)
    code = named(table, names, TEXT.encode())
    changing = (table["type"] == SHT_REL) | (table["type"] == SHT_RELA)
    describing = _describing(table, names, code, changing)
    rows = symbol_table_of(parts.parts[symbol_table(parts)].data)
    return Contents(
        parts=parts,
        symbols=symbols,
        kernels={each.name: each for each in map(symbols.__getitem__, kernel_symbols(rows))},
        about=_grouped(sorted(describing), table["info"]),
        describing=describing,
        relocations=_grouped(np.flatnonzero(changing).tolist(), table["info"]),
        others=tuple(
            at for at in np.flatnonzero(~code & ~changing).tolist() if at not in describing
        ),
        symbols_of=_grouped(range(len(rows)), rows["section"]),
    )


def _describing(
    table: Table, names: bytes, code: np.ndarray, changing: np.ndarray
) -> frozenset[int]:
    """Sections that describe one of code.  ptxas flags them; cuBLAS's own assembler only names them
    after it."""
    about = np.minimum(table["info"], len(table) - 1)
    maybe = (table["info"] < len(table)) & (table["info"] > 0) & ~changing & code[about]
    flagged = (table["flags"] & _ABOUT_ANOTHER).astype(np.bool_)
    places = table["name"].tolist()
    after = [
        at
        for at in np.flatnonzero(maybe & ~flagged & ~code).tolist()
        if name_of(names, places[at]).endswith(_after(name_of(names, places[about[at]])))
    ]
    return frozenset((*np.flatnonzero(maybe & flagged).tolist(), *after))


def _after(code: str) -> str:
    return "." + code.removeprefix(TEXT)


def _grouped(rows: Sequence[int], keys: np.ndarray) -> dict[int, list[int]]:
    """``rows`` by their keys."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for at, key in zip(rows, keys[rows].tolist(), strict=True):
        found[key].append(at)
    return dict(found)
