"""What a module says about its kernels without compiling them."""

from __future__ import annotations

from collections.abc import Iterator

from egpu.image.ptx.syntax import Block, Function, Module, Variable
from egpu.sim.operands import Layout


def block_limits(function: Function) -> tuple[int, tuple[int, int, int] | None]:
    """Most threads of a block, and the block that .reqntid demands (PTX ISA 11.4)."""
    most, required = 1024, None
    for directive in function.directives:
        words = directive.text.replace(",", " ").rstrip(";").split()
        if not words or words[0] not in (".maxntid", ".reqntid"):
            continue
        x, y, z = ([int(word, 0) for word in words[1:4]] + [1, 1])[:3]
        most = min(1024, x * y * z)
        if words[0] == ".reqntid":
            required = (x, y, z)
    return most, required


def kernel_names(module: Module) -> tuple[str, ...]:
    """The kernels with a body, in the order of the text."""
    return tuple(f.name for f in module.functions if f.is_entry and f.body is not None)


def declared_sizes(module: Module, function: Function) -> tuple[int, int]:
    """Bytes of shared and local memory that a kernel declares, without compiling it.

    Shared variables of the module count for every kernel; those of called functions are left out.
    """
    layout = Layout()
    for variable in (*module.variables, *_variables(function.body)):
        if variable.space in ("shared", "local"):
            layout.place(variable.space, variable.size, variable.align)
    return layout.shared, layout.local


def _variables(block: Block | None) -> Iterator[Variable]:
    for statement in block.statements if block is not None else ():
        match statement:
            case Variable():
                yield statement
            case Block():
                yield from _variables(statement)
            case _:
                pass
