"""What a kernel needs of its module: functions and variables, and what cannot be taken along.

A twin is a module of its own.  Whatever ties the original kernel to its module by more than a
variable's address (function pointers in memory, kernels it launches, texture references) is
refused.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from egpu.errors import UnsupportedError
from egpu.image.ptx.syntax import (
    Directive,
    Function,
    Instruction,
    Module,
    Register,
    Symbol,
    Variable,
)
from egpu.splice.ptx_walk import (
    call_target,
    declared,
    instructions,
    line_of,
    statements,
    symbols,
    words,
    writes,
)

# Functions without a body that the driver itself provides to every module (CUDA C++ Programming
# Guide, "Formatted output", "Dynamic global memory allocation", "Assertion"; CUDA's crt headers).
SYSTEM_CALLS = frozenset({"vprintf", "malloc", "free", "__assertfail"})
SYSTEM_CALL_PREFIX = "__cuda_syscall_"
_REFERENCES = frozenset({"texref", "samplerref", "surfref"})


@dataclass(frozen=True, slots=True)
class Reach:
    """What a kernel reaches.

    ``functions``: the kernel and every function, declarations included, in source order;
    ``bodies``: those with code; ``variables``: module variables; ``aliases``: ``.alias``
    directives.
    """

    kernel: Function
    functions: tuple[Function, ...]
    bodies: tuple[Function, ...]
    variables: tuple[Variable, ...]
    aliases: tuple[Directive, ...]


def reach(module: Module, kernel: Function) -> Reach:
    """Follows calls, addresses and initial values from ``kernel``.

    UnsupportedError, which names the thing, for what a twin cannot have.
    """
    functions: dict[str, list[Function]] = defaultdict(list)
    for function in module.functions:
        functions[function.name].append(function)
    # Of ".extern .global x;" and the definition after it, the definition.
    variables = {variable.name: variable for variable in module.variables}
    aliases = dict(_alias(each) for each in module.directives if each.name == ".alias")
    seen: set[str] = {kernel.name}
    waiting = [kernel.name]
    while waiting:
        name = waiting.pop()
        used: set[str] = set()
        if name in variables:
            used = initial_names(variables[name])
        for function in functions.get(name, ()):
            used |= used_names(function)
        if name in aliases:
            used.add(aliases[name])
        for other in used - seen:
            if other in functions or other in variables or other in aliases:
                seen.add(other)
                waiting.append(other)
    kept = tuple(each for each in module.functions if each.name in seen)
    found = Reach(
        kernel=kernel,
        functions=kept,
        bodies=tuple(each for each in kept if each.body is not None),
        variables=tuple(each for each in variables.values() if each.name in seen),
        aliases=tuple(
            each for each in module.directives if each.name == ".alias" and _alias(each)[0] in seen
        ),
    )
    _refuse(module, found, aliases, set(functions))
    return found


def used_names(function: Function) -> set[str]:
    """Names from outside a function that its code uses."""
    if function.body is None:
        return set()
    used: set[str] = set()
    for statement in statements(function.body):
        if isinstance(statement, Instruction):
            used.update(symbol.name for symbol in symbols(statement.operands))
        elif isinstance(statement, Directive) and statement.name == ".calltargets":
            used.update(words(statement.text))
    return used - declared(function)


def initial_names(variable: Variable) -> set[str]:
    """Names of variables and functions whose addresses are in an initial value."""
    if not variable.initializer or variable.type in _REFERENCES:
        return set()
    return set(words(variable.initializer)) - {"generic"}


def _alias(directive: Directive) -> tuple[str, str]:
    names = words(directive.text)
    return (names[0], names[1]) if len(names) == 2 else ("", "")


def _refuse(module: Module, found: Reach, aliases: dict[str, str], functions: set[str]) -> None:
    kernel = found.kernel.name
    defined = {each.name for each in found.bodies}
    for function in found.functions:
        if function.is_entry and function.name != kernel:
            raise UnsupportedError(f"kernel {kernel} refers to kernel {function.name}")
        if function.name in defined or function.name in aliases:
            continue
        if function.name in SYSTEM_CALLS or function.name.startswith(SYSTEM_CALL_PREFIX):
            continue
        raise UnsupportedError(
            f"kernel {kernel} calls {function.name}, which its image does not define",
            needs="PTX that is complete without a device linker",
        )
    for variable in found.variables:
        if variable.type in _REFERENCES or variable.space == "tex":
            raise UnsupportedError(
                f"kernel {kernel} uses the texture reference {variable.name}",
                needs="texture objects",
            )
        if tabled := sorted(initial_names(variable) & functions):
            raise UnsupportedError(
                f"kernel {kernel} reads the address of function {tabled[0]} from the variable "
                f"{variable.name}: it belongs to the original module"
            )
    for function in found.bodies:
        _refuse_inner_variables(function)
        _refuse_foreign_pointers(module, kernel, function, defined)


def _refuse_inner_variables(function: Function) -> None:
    """A global variable inside a function has no name that the driver could find it by."""
    for statement in statements(function.body) if function.body else ():
        if isinstance(statement, Variable) and statement.space in ("global", "const", "tex"):
            raise UnsupportedError(
                f"{function.name} declares the .{statement.space} variable {statement.name} inside"
            )


def _refuse_foreign_pointers(
    module: Module, kernel: str, function: Function, defined: set[str]
) -> None:
    """An indirect call must be to a function whose address this code takes itself.

    A pointer from memory or from the host is an address in the original module, whose code was not
    compiled together with the twin's (registers, stack).
    """
    calls = [
        (each, target.name)
        for each in instructions(function)
        if each.parts[0] == "call" and isinstance(target := call_target(each), Register)
    ]
    if not calls:
        return
    definitions: dict[str, list[Instruction]] = defaultdict(list)
    for instruction in instructions(function):
        for register in writes(instruction):
            definitions[register].append(instruction)
    for call, register in calls:
        if not _is_own_function(register, definitions, defined):
            raise UnsupportedError(
                f"kernel {kernel} calls through a pointer from memory at line "
                f"{line_of(module, call.span.start)}"
            )


def _is_own_function(
    register: str, definitions: dict[str, list[Instruction]], defined: set[str]
) -> bool:
    seen = {register}
    waiting = [register]
    while waiting:
        sources = definitions.get(waiting.pop(), [])
        if not sources:
            return False
        for instruction in sources:
            if instruction.parts[0] not in ("mov", "selp"):
                return False
            values = instruction.operands[1 : 3 if instruction.parts[0] == "selp" else 2]
            for value in values:
                if isinstance(value, Register):
                    if value.name not in seen:
                        seen.add(value.name)
                        waiting.append(value.name)
                elif not (isinstance(value, Symbol) and value.name in defined):
                    return False
    return True
