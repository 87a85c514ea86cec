"""Module variables of a twin: read and written where the ORIGINAL module has them.

The twin has a ``.const`` table of their addresses, which the agent fills from cuModuleGetGlobal.
An instruction that names such a variable gets its address from the table.

Constant variables need more.  A register can hold an address of the constant window, which is the
twin's own; the original's constants are reached by their global address.  So once one constant
variable is aliased, every constant address in the twin becomes a generic one and ``ld.const``
through a register becomes a generic load.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from egpu.errors import UnsupportedError
from egpu.image.ptx.lexer import Cursor
from egpu.image.ptx.operands import parse_displacement
from egpu.image.ptx.syntax import Address, Function, Instruction, Module, Variable
from egpu.splice.edits import Edit
from egpu.splice.ptx_names import AddedNames
from egpu.splice.ptx_reach import Reach, initial_names
from egpu.splice.ptx_walk import declared, instructions, line_of, symbols

# Names that compilers give to constants of their own (strings, switch and math tables): no program
# and no host call can name them, so a copy in the twin is as good as the original.
# fmt: off
_COMPILER_CONSTANTS = re.compile(
    r"\$str(?:\$?[0-9]+)?"             # nvcc: format strings, file names
    r"|__unnamed_[0-9]+"               # nvcc, LLVM: nameless constants
    r"|_\$_str(?:_\$_[0-9]+)?"         # clang: .str, .str.1
    r"|\$L__str(?:_\$_[0-9]+)?"        # clang: .L.str
    r"|__const_\$_[\w$]+"              # clang: __const.function.variable
    r"|switch_\$_table_\$_[\w$]+"      # LLVM: switch.table.function
    r"|__cudart_[\w$]+"                # CUDA's math library: trigonometric argument tables
)
# fmt: on


def is_compiler_constant(name: str) -> bool:
    """Whether only a compiler gives this name to a variable, and only to constants."""
    return _COMPILER_CONSTANTS.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Placement:
    """``aliased``: variables in the order of the table; ``kept``: those the twin has itself."""

    aliased: tuple[Variable, ...]
    kept: tuple[Variable, ...]

    @property
    def has_constants(self) -> bool:
        """Whether a ``.const`` variable is aliased."""
        return any(variable.space == "const" for variable in self.aliased)


def place_variables(found: Reach) -> Placement:
    """Which module variables the twin reads through the table and which it has itself.

    Shared and local variables are per block and per thread: always its own.
    """
    written = {
        symbol.name
        for function in found.bodies
        for instruction in instructions(function)
        if instruction.parts[0] != "ld"
        for operand in instruction.operands
        if isinstance(operand, Address)
        for symbol in symbols((operand,))
    }
    aliased: list[Variable] = []
    kept: list[Variable] = []
    for variable in found.variables:
        own = variable.space not in ("global", "const") or (
            _COMPILER_CONSTANTS.fullmatch(variable.name) is not None
            and bool(variable.initializer)
            and not initial_names(variable)
            and variable.name not in written
        )
        (kept if own else aliased).append(variable)
    return Placement(tuple(aliased), tuple(kept))


def rewrite_globals(
    module: Module, function: Function, placement: Placement, names: AddedNames
) -> list[Edit]:
    """Edits that make one function use the table.

    UnsupportedError for an instruction on constant memory that has no generic form.
    """
    slots = {variable.name: index for index, variable in enumerate(placement.aliased)}
    if not slots:
        return []
    if hidden := sorted(declared(function) & slots.keys()):
        raise UnsupportedError(f"{function.name} declares {hidden[0]} again, a module variable")
    constants = (
        {variable.name for variable in placement.kept if variable.space == "const"}
        if placement.has_constants
        else None
    )
    if constants is not None:
        _refuse_constant_parameters(module, function)
    edits: list[Edit] = []
    for instruction in instructions(function):
        opcode = instruction.opcode
        if constants is not None:
            opcode = _generic_opcode(module, instruction, slots, constants)
        if opcode != instruction.opcode or any(
            symbol.name in slots for symbol in symbols(instruction.operands)
        ):
            edits.append(_rewritten(module, instruction, opcode, slots, names))
    return edits


def _refuse_constant_parameters(module: Module, function: Function) -> None:
    span = function.parameters_span
    if ".const" in Cursor(module.text[span.start : span.end]).tokens:
        raise UnsupportedError(
            f"{function.name} takes pointers to constant memory, where its module has variables"
        )


def _generic_opcode(
    module: Module, instruction: Instruction, slots: dict[str, int], constants: set[str]
) -> str:
    """The opcode once constant addresses are generic."""
    named = {symbol.name for symbol in symbols(instruction.operands)}
    if instruction.parts[0] == "mov" and named & constants:
        return "cvta.const.u64"
    if "const" not in instruction.parts:
        return instruction.opcode
    if named & constants:
        return instruction.opcode  # a constant of the twin's own, named directly
    match instruction.parts[0]:
        case "ld" if any(
            isinstance(each, Address) and each.base is not None for each in instruction.operands
        ):
            return ".".join(part for part in instruction.parts if part != "const")
        case "cvta":
            return "mov.b64"
    raise UnsupportedError(
        f"{instruction.opcode} at line {line_of(module, instruction.span.start)}: "
        "it needs the constant bank of the original module"
    )


def _rewritten(
    module: Module,
    instruction: Instruction,
    opcode: str,
    slots: dict[str, int],
    names: AddedNames,
) -> Edit:
    """The instruction in a scope of its own with the addresses it needs."""
    start, end = instruction.span.start, instruction.span.end
    cursor = Cursor(module.text[start:end])
    pieces: list[str] = []
    loads: list[str] = []
    copied = _skip_to_opcode(cursor)
    pieces += (cursor.text[:copied], opcode)
    cursor.at += 1
    while cursor.token.startswith("."):  # "ld .global": the rest of the opcode
        cursor.at += 1
    copied = cursor.end_of_last
    while token := cursor.token:
        at = cursor.start
        in_address = cursor.tokens[cursor.at - 1] == "["
        cursor.at += 1
        if token not in slots:
            continue
        register = names.address(len(loads))
        load = f"ld.const.b64 {register}, [{names.globals}+{8 * slots[token]}];"
        offset = 0 if in_address else parse_displacement(cursor)
        loads.append(load + (f" add.s64 {register}, {register}, {offset};" if offset else ""))
        pieces += (cursor.text[copied:at], register)
        copied = cursor.end_of_last
    text = "".join((*pieces, cursor.text[copied:]))
    if not loads:
        return Edit(start, end, text)
    registers = ", ".join(names.address(number) for number in range(len(loads)))
    return Edit(start, end, f"{{ .reg .b64 {registers}; {' '.join(loads)} {text} }}")


def _skip_to_opcode(cursor: Cursor) -> int:
    """Moves past ``@!p``; gives the offset of the opcode."""
    if cursor.accept("@"):
        cursor.accept("!")
        cursor.at += 1
    return cursor.start
