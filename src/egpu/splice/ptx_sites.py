"""Where probes go: the entry of a kernel and every way out of it (PTX ISA 9.0, section 9.7.13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egpu.image.ptx.syntax import (
    Block,
    Directive,
    Function,
    Instruction,
    Label,
    Module,
    Symbol,
    Variable,
)
from egpu.splice.ptx_walk import call_target, instructions, line_of, statements, symbols, words

_LEAVING = frozenset({"ret", "exit"})
_FAULTING = frozenset({"trap", "brkpt"})
_ENDING = frozenset({"ret", "exit", "trap", "bra", "brx"})
_NO_RETURN = frozenset({"__assertfail"})


@dataclass(frozen=True, slots=True)
class Sites:
    """Places in one kernel, as character offsets.

    ``entry``: before its first instruction; ``exits``: the instructions that end a thread;
    ``end``: before the closing brace when control can fall through it, else None; ``uncovered``:
    what ends a thread and cannot be probed.
    """

    entry: int
    exits: tuple[Instruction, ...]
    end: int | None
    uncovered: tuple[str, ...]


def find_sites(module: Module, kernel: Function, reached: Sequence[Function]) -> Sites:
    """The sites of ``kernel``; ``reached`` are it and the functions with code that it reaches."""
    body = kernel.body
    if body is None:
        raise ValueError(f"kernel {kernel.name} has no body")
    silent = _NO_RETURN | {
        each.name
        for each in module.functions
        if any(directive.name == ".noreturn" for directive in each.directives)
    }
    uncovered: list[str] = []
    for function in reached:
        place = "" if function is kernel else f" in {function.name}"
        for instruction in instructions(function):
            what = _ends_unprobed(instruction, silent)
            if what:
                uncovered.append(f"{what} at line {line_of(module, instruction.span.start)}{place}")
    return Sites(
        entry=_entry(body),
        exits=tuple(each for each in instructions(kernel) if each.parts[0] in _LEAVING),
        end=body.span.end - 1 if _falls_through(body, silent) else None,
        uncovered=tuple(uncovered),
    )


def leaves_from(function: Function) -> Instruction | None:
    """The first ``exit`` of a function: it ends the thread without coming back to the kernel."""
    return next((each for each in instructions(function) if each.parts[0] == "exit"), None)


def _entry(body: Block) -> int:
    for statement in body.statements:
        if isinstance(statement, Variable):
            continue
        if isinstance(statement, Directive) and statement.name == ".loc":
            continue
        return statement.span.start
    return body.span.end - 1


def _ends_unprobed(instruction: Instruction, silent: frozenset[str] | set[str]) -> str:
    if instruction.parts[0] in _FAULTING:
        return instruction.parts[0]
    if instruction.parts[0] == "call":
        target = call_target(instruction)
        if isinstance(target, Symbol) and target.name in silent:
            return f"call of {target.name}, which does not return,"
    return ""


def _falls_through(body: Block, silent: frozenset[str] | set[str]) -> bool:
    """Whether control can reach the end of a body, as far as its last statements tell."""
    jumped = _jump_targets(body)
    last = _last(body, jumped)
    if not isinstance(last, Instruction) or last.guard is not None:
        return True
    if last.parts[0] in _ENDING:
        return False
    return not _ends_unprobed(last, silent)


def _last(block: Block, jumped: set[str]) -> Label | Instruction | None:
    """The last statement that has code or is jumped to; labels for debuggers are passed over."""
    found: Label | Instruction | None = None
    for statement in statements(block):
        match statement:
            case Instruction():
                found = statement
            case Label(name=name) if name in jumped:
                found = statement
    return found


def _jump_targets(body: Block) -> set[str]:
    names: set[str] = set()
    for statement in statements(body):
        if isinstance(statement, Instruction):
            names.update(symbol.name for symbol in symbols(statement.operands))
        elif isinstance(statement, Directive) and statement.name == ".branchtargets":
            names.update(words(statement.text))
    return names
