"""Variables and formal parameters (PTX ISA 9.0, sections 5.1 to 5.4 and 7.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from egpu.image.ptx.lexer import Cursor
from egpu.image.ptx.operands import Names, parse_dimension
from egpu.image.ptx.syntax import Parameter, Span, Variable

# fmt: off
TYPE_SIZES: dict[str, int] = {  # bytes; .pred has no size in memory
    "pred": 0,
    "b8": 1,   "u8": 1,   "s8": 1,
    "b16": 2,  "u16": 2,  "s16": 2,  "f16": 2,   "bf16": 2,
    "b32": 4,  "u32": 4,  "s32": 4,  "f32": 4,   "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "b64": 8,  "u64": 8,  "s64": 8,  "f64": 8,   "f32x2": 8,
    "b128": 16,
    "texref": 8, "samplerref": 8, "surfref": 8,
}
# fmt: on
SPACES = frozenset({".reg", ".sreg", ".const", ".global", ".local", ".param", ".shared", ".tex"})
LINKAGES = frozenset({".extern", ".visible", ".weak", ".common"})
_VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}
_POINTER_SPACES = frozenset({".const", ".global", ".local", ".shared", ".param"})
_Declarator: TypeAlias = tuple[str, int | None, tuple[int, ...], str]  # name, count, dims, value
_MAX_DIMENSIONS = 16
_MAX_ALIGN = 1 << 20  # far above what any device takes; keeps offsets small numbers


@dataclass(frozen=True, slots=True)
class Specifier:
    """What stands before the names of a declaration."""

    type: str
    vector: int
    align: int  # as written, 0 when not
    is_pointer: bool

    def size_of(self, dims: tuple[int, ...]) -> int:
        """Bytes of a variable with these dimensions."""
        return TYPE_SIZES[self.type] * self.vector * math.prod(dims)

    @property
    def alignment(self) -> int:
        """The written alignment, else the natural one."""
        return self.align or max(TYPE_SIZES[self.type] * self.vector, 1)


def parse_specifier(cursor: Cursor) -> Specifier:
    """``.attribute(…) .align n .v4 .f32 .ptr .global .align 8``, in any order."""
    kind = ""
    vector, align = 1, 0
    is_pointer = False
    while cursor.token.startswith("."):
        token = cursor.take()
        if token == ".align":
            value = _alignment(cursor)
            align = align if is_pointer else value
        elif token == ".attribute":
            if cursor.token != "(":
                raise cursor.unexpected("'('")
            cursor.skip_group()
        elif token == ".ptr":
            is_pointer = True
        elif token in _VECTORS:
            vector = _VECTORS[token]
        elif token[1:] in TYPE_SIZES and not kind:
            kind = token[1:]
        elif not (is_pointer and token in _POINTER_SPACES):
            cursor.at -= 1
            raise cursor.unexpected("a type")
    if not kind:
        raise cursor.unexpected("a type")
    return Specifier(kind, vector, align, is_pointer)


def _alignment(cursor: Cursor) -> int:
    at = cursor.start
    value = parse_dimension(cursor)
    if value == 0 or value & (value - 1) or value > _MAX_ALIGN:
        raise cursor.error_at(at, f"the alignment {value} is not a power of two")
    return value


def parse_dimensions(cursor: Cursor) -> tuple[int, ...]:
    """``[4][8]``; an empty ``[]`` gives 0."""
    dims: list[int] = []
    while cursor.accept("["):
        dims.append(0 if cursor.token == "]" else parse_dimension(cursor))
        cursor.expect("]")
        if len(dims) > _MAX_DIMENSIONS:
            raise cursor.error("too many dimensions")
    return tuple(dims)


def parse_variables(cursor: Cursor, names: Names) -> tuple[Variable, ...]:
    """A variable declaration from its linkage or space to its ``;``."""
    begin = cursor.start
    linkage = cursor.take()[1:] if cursor.token in LINKAGES else ""
    if cursor.token not in SPACES:
        raise cursor.unexpected("a state space")
    space = cursor.take()[1:]
    if space == "const" and cursor.accept("["):  # ".const[2]": bank of PTX 1.x and 2.x
        parse_dimension(cursor)
        cursor.expect("]")
    specifier = parse_specifier(cursor)
    found = _declarators(cursor, names, space)
    span = Span(begin, cursor.end_of_last)
    return tuple(
        Variable(
            span=span,
            name=name,
            space=space,
            type=specifier.type,
            align=specifier.alignment,
            size=specifier.size_of(dims),
            vector=specifier.vector,
            dims=dims,
            count=count,
            linkage=linkage,
            initializer=initializer,
            is_pointer=specifier.is_pointer,
        )
        for name, count, dims, initializer in found
    )


def _declarators(cursor: Cursor, names: Names, space: str) -> list[_Declarator]:
    """``%r<5>, a[4] = {…}, b;``, each noted in ``names``."""
    found: list[_Declarator] = []
    while True:
        name = _name(cursor)
        count = _range_count(cursor) if cursor.accept("<") else None
        dims = parse_dimensions(cursor)
        initializer = _initializer(cursor) if cursor.accept("=") else ""
        names.declare(name, space=space, count=count)
        found.append((name, count, dims, initializer))
        if cursor.accept(";"):
            return found
        cursor.expect(",")


def _name(cursor: Cursor) -> str:
    name = cursor.word("a name")
    if "." in name or "::" in name:
        raise cursor.error_at(cursor.starts[cursor.at - 1], f"'{name}' is not a name")
    return name


def _range_count(cursor: Cursor) -> int:
    token = cursor.token
    if not token.isdigit() or len(token) > 9:
        raise cursor.unexpected("the number of registers")
    cursor.at += 1
    cursor.expect(">")
    return int(token)


def _initializer(cursor: Cursor) -> str:
    begin = cursor.start
    while cursor.token not in (",", ";"):
        if cursor.token in ("{", "(", "["):
            cursor.skip_group()
        else:
            cursor.take()
    if cursor.start == begin:
        raise cursor.unexpected("an initial value")
    return cursor.text[begin : cursor.end_of_last]


def parse_parameters(cursor: Cursor, names: Names) -> tuple[Parameter, ...]:
    """``(.param .u64 a, .param .align 8 .b8 b[16])`` with the place of each, in bytes."""
    cursor.expect("(")
    found: list[Parameter] = []
    offset = 0
    if cursor.accept(")"):
        return ()
    while True:
        if cursor.token not in (".param", ".reg"):
            raise cursor.unexpected("'.param'")
        space = cursor.take()[1:]
        specifier = parse_specifier(cursor)
        name = _name(cursor)
        dims = parse_dimensions(cursor)
        names.declare(name, space=space, count=None)
        size = specifier.size_of(dims)
        offset = -(-offset // specifier.alignment) * specifier.alignment
        found.append(Parameter(name, specifier.type, size, specifier.alignment, offset))
        offset += size
        if cursor.accept(")"):
            return tuple(found)
        cursor.expect(",")
