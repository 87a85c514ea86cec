"""PTX as a tree over its own text (PTX ISA 9.0, chapters 4, 5, 10, 11).

The parse is lossless by construction: a node knows its span ``[start, end)`` in ``Module.text`` and
nothing is ever printed from the tree.  Rewriting is a list of edits on the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Span:
    """Character offsets ``start`` (inclusive) and ``end`` (exclusive) in the module's text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Register:
    """``%r1``, ``%tid.x``, ``_``, or a name declared by ``.reg``; ``negated`` for ``!%p1``.

    A component or selector (``.x``, ``.h1``) stays part of the name.
    """

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal; ``text`` as written, sign included.

    ``bits`` is its value: integers as 64-bit two's complement, ``0f`` forms as 32 IEEE bits, ``0d``
    and decimal floating-point forms as 64.
    """

    text: str
    bits: int
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, function, label or parameter name, with the ``+n`` of an address expression."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """``[base+offset]``; ``base`` None for an absolute address.  ``extra`` holds what follows a
    comma inside the brackets (tensor coordinates)."""

    base: Register | Symbol | None
    offset: int = 0
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b}``; ``(a, b)`` of a call's parameter lists has ``call_list`` set."""

    items: tuple[Operand, ...]
    call_list: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """``%p|%q`` (setp's two results, shfl's predicate) ."""

    first: Operand
    second: Operand


Operand: TypeAlias = Register | Immediate | Symbol | Address | Vector | Pair


@dataclass(frozen=True, slots=True)
class Instruction:
    """``@!p opcode.mod.type operands;``.

    ``opcode`` is everything up to the first blank ("ld.global.v2.u32"), ``parts`` it split at dots
    ("::" forms stay whole).  ``guard`` is the predicate register, ``guard_negated`` its ``!``.
    """

    span: Span
    opcode: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: str | None = None
    guard_negated: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """``name:``."""

    span: Span
    name: str


@dataclass(frozen=True, slots=True)
class Directive:
    """A directive statement: ``.loc``, ``.pragma``, ``.branchtargets``, ``.callprototype``, …

    ``label`` is set for ``name: .branchtargets a, b;`` and ``.callprototype``.
    """

    span: Span
    name: str
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A declaration in any state space: ``.reg .b32 %r<5>;``, ``.shared .align 4 .b8 s[64];``, …

    ``space`` without dot ("reg", "global", "const", "shared", "local", "param", "tex"); ``type``
    without dot; ``count`` of ``%r<5>``, else None; ``dims`` of arrays (an empty ``[]`` gives 0);
    ``linkage`` among "", "extern", "visible", "weak", "common"; ``initializer`` as written.
    ``size`` in bytes, 0 when incomplete; ``vector`` 1, 2, 4 or 8.  ``span`` is that of the whole
    statement, which the declarators of ``.reg .b32 a, b;`` share.
    """

    span: Span
    name: str
    space: str
    type: str
    align: int
    size: int
    vector: int = 1
    dims: tuple[int, ...] = ()
    count: int | None = None
    linkage: str = ""
    initializer: str = ""
    is_pointer: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """``{ … }``: ``span`` includes the braces, ``statements`` are in source order."""

    span: Span
    statements: tuple[Statement, ...]


Statement: TypeAlias = Instruction | Label | Directive | Variable | Block


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal parameter with its place in the parameter block, in bytes."""

    name: str
    type: str
    size: int
    align: int
    offset: int


@dataclass(frozen=True, slots=True)
class Function:
    """``.entry`` or ``.func``.  ``body`` is None for a declaration.

    ``parameters_span`` covers the parenthesised list, parentheses included, or the empty place
    where one would stand if the function has none (start == end).  ``directives`` are those around
    the list (".maxntid 256", ".reqntid", ".noreturn", …).
    """

    span: Span
    name: str
    is_entry: bool
    linkage: str
    parameters: tuple[Parameter, ...]
    parameters_span: Span
    returns: tuple[Parameter, ...]
    directives: tuple[Directive, ...]
    body: Block | None


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module. ``version`` (9, 0), ``target`` "sm_90a" (first of the list), ``options`` the
    rest of the list ("debug", "texmode_unified")."""

    text: str
    version: tuple[int, int]
    target: str
    options: tuple[str, ...]
    address_size: int
    variables: tuple[Variable, ...]
    functions: tuple[Function, ...]
    directives: tuple[Directive, ...]
    version_span: Span
    target_span: Span

    def entry(self, name: str) -> Function:
        """The kernel ``name``; KeyError if the module defines none."""
        for function in self.functions:
            if function.is_entry and function.name == name and function.body is not None:
                return function
        raise KeyError(name)
