"""What is in a cubin, found once for all its kernels.

Images hold up to thousands of kernels, and a process asks for them one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from egpu.image.cubin import (
    Cubin,
    kernel_symbols,
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
    with_symbols,
)
from egpu.image.cubin_tables import Grouped, NamedRows, Table, called, name_of

TEXT = ".text."
_ABOUT_ANOTHER = 0x40  # SHF_INFO_LINK: sh_info is the section that this one is about


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """A cubin's parts and symbols.

    ``kernels``: the symbol of each kernel by name; ``table``: the symbols' rows.  ``about``:
    sections that describe a section of code (attributes, constants, shared memory), by its index;
    ``describing``: of each section, whether it is one of these.
    ``relocations``: relocation sections by the index of the section that they change.  ``others``:
    sections that are none of these and no code.
    """

    parts: CubinParts
    symbols: Sequence[Symbol]
    table: Table
    kernels: Mapping[str, Symbol]
    about: Mapping[int, Sequence[int]]
    describing: NDArray[np.bool_]
    relocations: Mapping[int, Sequence[int]]
    others: tuple[int, ...]


def contents_of(cubin: Cubin) -> Contents:
    """The contents of an opened cubin; InputError for layouts that no assembler writes."""
    parts = with_symbols(take_apart(cubin))
    symbols, sections = read_symbols(parts), parts.parts
    assert isinstance(sections, NamedRows)
    table = section_table(cubin.data)
    code = sections.beginning(TEXT.encode())
    changing = (table["type"] == SHT_REL) | (table["type"] == SHT_RELA)
    describing = _describing(table, cubin.names, code, changing)
    rows = symbol_table_of(parts.parts[symbol_table(parts)].data)
    others = ~code & ~changing & ~describing
    return Contents(
        parts=parts,
        symbols=symbols,
        table=rows,
        kernels=_Kernels(symbols, kernel_symbols(rows)),
        about=Grouped(describing.nonzero()[0], table["info"]),
        describing=describing,
        relocations=Grouped(changing.nonzero()[0], table["info"]),
        others=tuple(others.nonzero()[0].tolist()),
    )


class _Kernels(Mapping[str, Symbol]):
    """The symbols of kernels by name; where several have one name, the last of them."""

    __slots__ = ("_found", "_places", "_symbols")

    def __init__(self, symbols: Sequence[Symbol], places: Sequence[int]) -> None:
        self._symbols = symbols
        self._places = dict.fromkeys(places)
        self._found: dict[str, Symbol] = {}

    def __getitem__(self, name: str) -> Symbol:
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Symbol:
        for at in reversed(called(self._symbols, name)):
            if at in self._places:
                return self._symbols[at]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(self._symbols[at].name for at in self._places))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _describing(
    table: Table, names: bytes, code: NDArray[np.bool_], changing: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Sections that describe one of code.  ptxas flags them; cuBLAS's own assembler only names them
    after it."""
    info = table["info"]
    about = np.minimum(info, len(table) - 1)
    maybe = (info < len(table)) & (info > 0) & ~changing & code[about]
    flagged = (table["flags"] & _ABOUT_ANOTHER).astype(np.bool_)
    found: NDArray[np.bool_] = maybe & flagged
    for at in (maybe & ~flagged & ~code).nonzero()[0].tolist():
        own, other = (name_of(names, int(table["name"][each])) for each in (at, about[at]))
        found[at] = own.endswith(_after(other))
    return found


def _after(code: str) -> str:
    return "." + code.removeprefix(TEXT)
