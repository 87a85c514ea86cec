"""Module variables of a machine-code twin: the original module's, not copies.

Code finds a variable's address in constant bank 4, where the loader puts it by a relocation.  For a
variable that the program can see and change, the relocation goes and the place is filled with the
address that the ORIGINAL module's variable has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from egpu.errors import InputError, UnsupportedError
from egpu.image.cubin_edit import (
    CubinParts,
    Symbol,
    file_offsets,
    relocating,
    relocation_at,
    relocation_table,
    relocations_of,
    symbol_rows,
)
from egpu.image.cubin_kernel import Kernel
from egpu.image.cubin_tables import Table, called_at
from egpu.splice.ptx_globals import is_compiler_constant
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    CONSTANT_BANK,
    CONSTANT_FORMS,
    CONSTANT_OFFSET,
    FORM,
    LDC,
    RZ,
    SOURCE_A,
    ULDC_INDEXED,
    UNIFORM_A,
    URZ,
)

STT_OBJECT = 1
_ADDRESS_64 = 2  # relocation type: the symbol's 64-bit address
_TEXT = ".text."
_ADDRESSES = ".nv.constant4"
_CONSTANTS = ".nv.constant3"
_VARIABLES = (".nv.global", ".nv.global.init", _CONSTANTS)


@dataclass(frozen=True, slots=True)
class GlobalPatch:
    """``offset``: a byte offset in the twin's image, where 8 bytes take the address of the original
    module's variable ``name`` plus ``addend``."""

    offset: int
    name: str
    addend: int = 0


@dataclass(frozen=True, slots=True)
class _Shared:
    section: int
    at: int
    name: str
    addend: int


def share_globals(
    parts: CubinParts, kernel: Kernel, symbols: Sequence[Symbol], code: Code
) -> tuple[CubinParts, tuple[_Shared, ...]]:
    """The cubin without the relocations of variables that are shared, and what to fill in.

    ``symbols`` as they were before the kernel was changed, which moves none; ``code`` is what is
    in the kernel's section.
    """
    variables = _Variables(parts, symbols)
    _check(parts, kernel, variables, code)
    bank = parts.find(_ADDRESSES)
    if bank is None or not variables.maybe.any():
        return parts, ()
    used = used_constants(parts, kernel, 4, code)
    shared: list[_Shared] = []
    changed: dict[int, bytes] = {}
    for at in relocating(parts, bank):
        table = relocation_table(parts.parts[at])
        stays = np.ones(len(table), np.bool_)
        places = variables.named_by(table).nonzero()[0]
        for index, symbol, offset in zip(
            *(each.tolist() for each in (places, table["symbol"][places], table["offset"][places])),
            strict=True,
        ):
            if used is not None and offset not in used:
                continue
            name = variables.name(symbol)
            if name is None:
                continue
            each = relocation_at(parts.parts[at], index)
            if each.type != _ADDRESS_64:
                raise UnsupportedError(f"{kernel.name}: a relocation of {name} ({each.type})")
            addend = each.addend
            if addend is None:
                data = parts.parts[bank].data
                addend = int.from_bytes(data[each.offset : each.offset + 8], "little")
            shared.append(_Shared(bank, each.offset, name, addend))
            stays[index] = False
        if not stays.all():
            changed[at] = table[stays].tobytes()
    return parts.with_data(changed), tuple(shared)


def _check(
    parts: CubinParts,
    kernel: Kernel,
    variables: _Variables,
    code: Code,
) -> None:
    for _, each in relocations_of(parts, kernel.text):
        if (name := variables.name(each.symbol)) is not None:
            raise UnsupportedError(f"{kernel.name}, whose code holds the address of {name}")
    constants = [at for at, part in enumerate(parts.parts) if part.name == _CONSTANTS]
    maybe = variables.in_sections(constants).nonzero()[0].tolist()
    written = [name for name in map(variables.name, maybe) if name is not None]
    if written and used_constants(parts, kernel, 3, code) != frozenset():
        raise UnsupportedError(
            f"{kernel.name}, which reads __constant__ memory that the program can write "
            f"({written[0]})"
        )


def used_constants(
    parts: CubinParts, kernel: Kernel, bank: int, code: Code
) -> frozenset[int] | None:
    """Offsets of 8-byte places in a constant bank that the code reads, None if any may be; ``code``
    is that of the kernel's section."""
    found: set[int] = set()
    for at, part in enumerate(parts.parts):
        if not part.name.startswith(_TEXT):
            continue
        own = at == kernel.text
        if not own and parts.find(f".nv.info.{part.name.removeprefix(_TEXT)}") is not None:
            continue  # another kernel's
        places = constants_of(code if own else Code.of(part.data), bank)
        if places is None:
            return None
        found |= places
    return frozenset(found)


def constants_of(code: Code, bank: int) -> frozenset[int] | None:
    """The same of one section's code."""
    forms, opcodes = code.field(FORM), code.opcodes
    here = code.field(CONSTANT_BANK) == bank
    here &= (forms == CONSTANT_FORMS[0]) | (forms == CONSTANT_FORMS[1])
    if not here.any():
        return frozenset()
    indexed = here & (
        ((opcodes == LDC) & (code.field(SOURCE_A) != RZ))
        | ((opcodes == ULDC_INDEXED) & (code.field(UNIFORM_A) != URZ))
    )
    if indexed.any():
        return None
    offsets = set(code.field(CONSTANT_OFFSET)[here].tolist())
    return frozenset(offset // 8 * 8 for offset in offsets)


class _Variables:
    """Symbols of variables that a program can see; ``maybe``: of each symbol, whether it is one but
    for its name."""

    def __init__(self, parts: CubinParts, symbols: Sequence[Symbol]) -> None:
        rows = symbol_rows(parts)
        self._symbols = symbols
        self._sections = rows["section"]
        self._objects = rows["info"] & 0xF == STT_OBJECT
        self.maybe = self.in_sections(
            [at for at, part in enumerate(parts.parts) if part.name in _VARIABLES]
        )

    def in_sections(self, sections: Sequence[int]) -> NDArray[np.bool_]:
        """Of each symbol, whether it is an object of one of these sections."""
        found = np.zeros(len(self._sections), np.bool_)
        for each in sections:
            found |= self._sections == each
        found &= self._objects
        return found

    def named_by(self, relocations: Table) -> NDArray[np.bool_]:
        """Of each relocation, whether its symbol may be one."""
        named = relocations["symbol"]
        if len(named) and (most := int(named.max())) >= len(self.maybe):
            raise InputError(f"a relocation by symbol {most}", where="cubin")
        found: NDArray[np.bool_] = self.maybe[named]
        return found

    def name(self, symbol: int) -> str | None:
        """The name of a variable, None for a symbol that is none."""
        if symbol >= len(self.maybe):
            raise InputError(f"a relocation by symbol {symbol}", where="cubin")
        if not self.maybe[symbol]:
            return None
        name = called_at(self._symbols, symbol)
        return None if is_compiler_constant(name) else name


def patches(parts: CubinParts, shared: tuple[_Shared, ...]) -> tuple[GlobalPatch, ...]:
    """Where to fill in what, in the file that the parts make."""
    if not shared:
        return ()
    begins = file_offsets(parts)
    return tuple(
        GlobalPatch(begins[each.section] + each.at, each.name, each.addend) for each in shared
    )
