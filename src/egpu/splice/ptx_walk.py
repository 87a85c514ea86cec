"""Walks over PTX trees."""

from __future__ import annotations

from collections.abc import Iterator

from egpu.image.ptx.lexer import Cursor, is_word
from egpu.image.ptx.syntax import (
    Address,
    Block,
    Directive,
    Function,
    Instruction,
    Label,
    Module,
    Operand,
    Pair,
    Register,
    Statement,
    Symbol,
    Variable,
    Vector,
)

_RANGE = 1 << 16  # names of one range that are listed; compilers do not declare plain ranges


def statements(block: Block) -> Iterator[Statement]:
    """Every statement in source order; a nested block comes before what it holds."""
    stack = [iter(block.statements)]
    while stack:
        statement = next(stack[-1], None)
        if statement is None:
            stack.pop()
            continue
        yield statement
        if isinstance(statement, Block):
            stack.append(iter(statement.statements))


def instructions(function: Function) -> Iterator[Instruction]:
    """Every instruction of a function in source order; none for a declaration."""
    if function.body is not None:
        for statement in statements(function.body):
            if isinstance(statement, Instruction):
                yield statement


def symbols(operands: tuple[Operand, ...]) -> Iterator[Symbol]:
    """Every symbol in operands, also inside addresses, vectors and pairs."""
    stack = list(reversed(operands))
    while stack:
        operand = stack.pop()
        match operand:
            case Symbol():
                yield operand
            case Address(base=base, extra=extra):
                stack.extend(reversed(extra))
                if isinstance(base, Symbol):
                    yield base
            case Vector(items=items):
                stack.extend(reversed(items))
            case Pair(first=first, second=second):
                stack += (second, first)
            case _:
                pass


def declared(function: Function) -> set[str]:
    """Names that a function declares: parameters, variables and labels."""
    names = {each.name for each in (*function.parameters, *function.returns)}
    if function.body is not None:
        names |= names_inside(function.body)
    return names


def names_inside(body: Block) -> set[str]:
    """Names that a body declares, at any depth; not those of ``%r<n>`` ranges."""
    names: set[str] = set()
    for statement in statements(body):
        if isinstance(statement, Variable) and statement.count is not None:
            if not statement.name.startswith("%"):
                names.update(f"{statement.name}{n}" for n in range(min(statement.count, _RANGE)))
        elif isinstance(statement, Variable | Label):
            names.add(statement.name)
        elif isinstance(statement, Directive) and statement.label:
            names.add(statement.label)
    return names


def words(text: str) -> list[str]:
    """The words of a directive's text."""
    return [token for token in Cursor(text).tokens if is_word(token)]


def call_target(call: Instruction) -> Operand | None:
    """What a call instruction calls: a Symbol, or a Register of an indirect call."""
    for operand in call.operands:
        if not (isinstance(operand, Vector) and operand.call_list):
            return operand
    return None


def writes(instruction: Instruction) -> set[str]:
    """Registers that an instruction may write: those of its first operand (vectors and pairs too).

    More than it writes for stores and barriers; a call writes its return list only.
    """
    if not instruction.operands:
        return set()
    match instruction.operands[0]:
        case Register(name=name) if instruction.parts[0] != "call":
            return {name}
        case Vector(items=items):
            return {each.name for each in items if isinstance(each, Register)}
        case Pair(first=first, second=second):
            return {each.name for each in (first, second) if isinstance(each, Register)}
    return set()


def line_of(module: Module, offset: int) -> int:
    """Line number, from 1, of a character offset."""
    return module.text.count("\n", 0, offset) + 1
