"""One kernel of a cubin: what describes it, and how it is changed.

A kernel is spread over its code (``.text.<name>``), its attributes (``.nv.info.<name>`` and its
rows of ``.nv.info``), its constant bank 0 with the parameters (``.nv.constant0.<name>``) and its
symbol.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from egpu.errors import InputError, UnsupportedError
from egpu.image.cubin import SYMBOL
from egpu.image.cubin_attributes import (
    CODES,
    Attribute,
    Form,
    bank,
    bank_of,
    is_parameter,
    parameter,
    parameters_of,
    read_attributes,
    symbol_value,
    words,
    write_attributes,
)
from egpu.image.cubin_edit import (
    CubinParts,
    Symbol,
    read_symbols,
    sized_symbol,
    symbol_table,
)
from egpu.image.cubin_tables import called

REGISTERS_SHIFT = 24  # sh_info of a text section before sm_90: registers << 24 | symbol
STT_SECTION = 3


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as it stands in its cubin.

    ``text``, ``info`` and ``constants`` are section indices.  ``parameters``: (offset, size) of
    each; ``bank_offset``: where they begin in constant bank 0, None for a kernel without any.
    ``registers`` as the assembler counts them, more than it uses.  ``frame``: bytes of its own
    stack.
    """

    symbol: Symbol
    text: int
    info: int
    constants: int
    attributes: tuple[Attribute, ...]
    registers: int
    frame: int
    parameters: tuple[tuple[int, int], ...]
    parameter_size: int
    bank_offset: int | None

    @property
    def name(self) -> str:
        return self.symbol.name

    def attribute(self, name: str) -> Attribute | None:
        """The first attribute of that name."""
        code = CODES[name]
        return next((each for each in self.attributes if each.code == code), None)


def open_kernel(parts: CubinParts, name: str) -> Kernel:
    """The kernel ``name``; InputError when there is none, or what describes it is missing."""
    symbols = read_symbols(parts)
    named = (symbols[at] for at in called(symbols, name))
    symbol = next((each for each in named if each.is_kernel), None)
    if symbol is None:
        raise InputError(f"no kernel {name}", where="cubin")
    if symbol.value or not 0 < symbol.section < len(parts.parts):
        raise UnsupportedError(f"{name}, which shares its section with other kernels,")
    found = [parts.find(f"{prefix}.{name}") for prefix in (".nv.info", ".nv.constant0")]
    if found[0] is None or found[1] is None:
        raise InputError(f"kernel {name} has no attributes or no constant bank", where="cubin")
    attributes = read_attributes(parts.parts[found[0]].data)
    rows = _rows(parts, symbol.index)
    kernel = Kernel(
        symbol=symbol,
        text=symbol.section,
        info=found[0],
        constants=found[1],
        attributes=attributes,
        registers=rows.get("REGCOUNT", parts.parts[symbol.section].info >> REGISTERS_SHIFT),
        frame=rows.get("FRAME_SIZE", 0),
        parameters=_parameters(attributes),
        parameter_size=0,
        bank_offset=None,
    )
    described = kernel.attribute("PARAM_CBANK")
    if described is None:
        return kernel
    _, offset, size = bank(described)
    return replace(kernel, bank_offset=offset, parameter_size=size)


def _parameters(attributes: Sequence[Attribute]) -> tuple[tuple[int, int], ...]:
    found = {}
    for each in attributes:
        if is_parameter(each):
            ordinal, offset, size = parameter(each)
            found[ordinal] = (offset, size)
    if sorted(found) != list(range(len(found))):
        raise InputError(f"parameters {sorted(found)}", where="cubin")
    return tuple(found[ordinal] for ordinal in sorted(found))


def _rows(parts: CubinParts, symbol: int) -> dict[str, int]:
    """The symbol's rows of ``.nv.info``."""
    section = parts.find(".nv.info")
    found: dict[str, int] = {}
    if section is not None:
        for each in read_attributes(parts.parts[section].data):
            if each.code in _ROWS and symbol_value(each)[0] == symbol:
                found[_ROWS[each.code]] = symbol_value(each)[1]
    return found


_ROWS = {CODES[name]: name for name in ("REGCOUNT", "FRAME_SIZE", "MIN_STACK_SIZE")}


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a kernel.

    ``hidden``: (offset, size) of one more parameter, ``parameter_size``: bytes up to its end,
    ``bank_offset``: where parameters begin in constant bank 0.  ``offsets``: new lists of
    instruction offsets by attribute name (others stay); ``frame``: bytes of stack at least.
    """

    text: bytes
    registers: int
    frame: int
    hidden: tuple[int, int]
    parameter_size: int
    bank_offset: int
    offsets: Mapping[str, Sequence[int]]


def change_kernel(parts: CubinParts, kernel: Kernel, change: Change) -> CubinParts:
    """The cubin with the kernel changed; everything else stays."""
    table_at = symbol_table(parts)
    table = sized_symbol(parts.parts[table_at].data, kernel.symbol.index, len(change.text))
    bank_symbol = _bank_symbol(parts, kernel)
    if bank_symbol is None:
        bank_symbol = len(table) // SYMBOL.size
        table += SYMBOL.pack(0, STT_SECTION, 0, kernel.constants, 0, 0)
    constants = parts.parts[kernel.constants].data
    missing = change.bank_offset + change.parameter_size - len(constants)
    changed = {
        table_at: table,
        kernel.text: change.text,
        kernel.info: write_attributes(_attributes(kernel, change, bank_symbol)),
        kernel.constants: constants + bytes(max(missing, 0)),
    }
    rows = parts.find(".nv.info")
    if rows is None:
        raise InputError("no .nv.info section", where="cubin")
    changed[rows] = write_attributes(_changed_rows(parts, rows, kernel, change))
    text = parts.parts[kernel.text]
    info = text.info
    if info >> REGISTERS_SHIFT:
        info = info & (1 << REGISTERS_SHIFT) - 1 | change.registers << REGISTERS_SHIFT
    return parts.with_data(changed, info={kernel.text: info})


def _bank_symbol(parts: CubinParts, kernel: Kernel) -> int | None:
    described = kernel.attribute("PARAM_CBANK")
    if described is not None:
        return bank(described)[0]
    for each in read_symbols(parts):
        if each.type == STT_SECTION and each.section == kernel.constants:
            return each.index
    return None


def _attributes(kernel: Kernel, change: Change, bank_symbol: int) -> list[Attribute]:
    size = Attribute(Form.HALF, CODES["CBANK_PARAM_SIZE"], change.parameter_size)
    described = bank_of(bank_symbol, change.bank_offset, change.parameter_size)
    records = parameters_of((*kernel.parameters, change.hidden))
    out: list[Attribute] = []
    if not kernel.parameters:
        records += [size, described]
    for each in kernel.attributes:
        name = _NAMES.get(each.code, "")
        if is_parameter(each):
            out += records
            records = []
        elif each.code == CODES["CBANK_PARAM_SIZE"]:
            out.append(size)
        elif each.code == CODES["PARAM_CBANK"]:
            out.append(described)
        elif name in change.offsets:
            out.append(words(name, change.offsets[name]))
        else:
            out.append(each)
    out += records
    present = {each.code for each in out}
    out += [
        words(name, values)
        for name, values in change.offsets.items()
        if CODES[name] not in present and values
    ]
    return out


_NAMES = {code: name for name, code in CODES.items()}


def _changed_rows(
    parts: CubinParts, section: int, kernel: Kernel, change: Change
) -> list[Attribute]:
    minimum = {"FRAME_SIZE": change.frame, "MIN_STACK_SIZE": change.frame}
    out: list[Attribute] = []
    seen = set()
    for each in read_attributes(parts.parts[section].data):
        name = _NAMES.get(each.code, "")
        if name in ("REGCOUNT", *minimum) and symbol_value(each)[0] == kernel.symbol.index:
            was = symbol_value(each)[1]
            value = change.registers if name == "REGCOUNT" else max(was, minimum[name])
            out.append(each._replace(payload=struct.pack("<II", kernel.symbol.index, value)))
            seen.add(name)
        else:
            out.append(each)
    if "REGCOUNT" not in seen and not parts.parts[kernel.text].info >> REGISTERS_SHIFT:
        raise InputError(f"no register count of {kernel.name}", where="cubin")
    return out
