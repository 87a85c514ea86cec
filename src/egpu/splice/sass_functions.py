"""Functions in sections of their own that a kernel may call, and in which threads may end.

A twin has one kernel, so what is done to such a function is done for it alone: its ways out lead to
a copy of the exit probes behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from egpu.image.cubin import STT_FUNC
from egpu.image.cubin_attributes import (
    CODES,
    read_attributes,
    symbol_value,
    words,
    write_attributes,
)
from egpu.image.cubin_edit import CubinParts, read_symbols, sized_symbol, symbol_table
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import EXIT, SIZE
from egpu.splice.sass_kernel import other_functions

_TEXT, _INFO = ".text.", ".nv.info."


def called_registers(parts: CubinParts) -> int:
    """The most registers that a function has which the kernel may call, 0 without any."""
    sections = set(other_functions(parts))
    rows = parts.find(".nv.info")
    if not sections or rows is None:
        return 0
    functions = {each.index for each in read_symbols(parts) if each.section in sections}
    return max(
        (
            symbol_value(each)[1]
            for each in read_attributes(parts.parts[rows].data)
            if each.code == CODES["REGCOUNT"] and symbol_value(each)[0] in functions
        ),
        default=0,
    )


def with_functions(parts: CubinParts, redirect: Callable[[Code], Code]) -> CubinParts:
    """The cubin in which ``redirect`` has changed every such function that ends threads."""
    for at in other_functions(parts):
        code = Code.of(parts.parts[at].data)
        if code.where(EXIT):
            parts = _with_function(parts, at, redirect(code))
    return parts


def _with_function(parts: CubinParts, at: int, code: Code) -> CubinParts:
    before = len(parts.parts[at].data)
    table_at = symbol_table(parts)
    table = parts.parts[table_at].data
    data = code.data()
    for each in read_symbols(parts):
        last = each.section == at and each.type == STT_FUNC and each.value + each.size == before
        if last:
            table = sized_symbol(table, each.index, len(data) - each.value)
    changed = {at: data, table_at: table}
    info = parts.find(_INFO + parts.parts[at].name.removeprefix(_TEXT))
    if info is not None:
        offsets = words("EXIT_INSTR_OFFSETS", [index * SIZE for index in code.where(EXIT)])
        changed[info] = write_attributes(
            [
                offsets if each.code == CODES["EXIT_INSTR_OFFSETS"] else each
                for each in read_attributes(parts.parts[info].data)
            ]
        )
    return parts.with_data(changed)
