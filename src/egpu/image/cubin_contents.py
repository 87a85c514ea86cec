"""What is in a cubin, found once for all its kernels.

Images hold up to thousands of kernels, and a process asks for them one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from egpu.image.cubin import Cubin, kernel_symbols
from egpu.image.cubin_edit import (
    CubinParts,
    Symbol,
    read_symbols,
    symbol_rows,
    take_apart,
    with_symbols,
)
from egpu.image.cubin_tables import called


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Contents:
    """A cubin's parts and symbols; ``kernels``: the symbol of each kernel by name."""

    parts: CubinParts
    symbols: Sequence[Symbol]
    kernels: Mapping[str, Symbol]


def contents_of(cubin: Cubin) -> Contents:
    """The contents of an opened cubin; InputError for layouts that no assembler writes."""
    parts = with_symbols(take_apart(cubin))
    symbols = read_symbols(parts)
    return Contents(parts, symbols, _Kernels(symbols, kernel_symbols(symbol_rows(parts))))


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
