"""Operands and constant expressions (PTX ISA 9.0, sections 4.5 and 6)."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable

from egpu.image.ptx.lexer import Cursor, is_word
from egpu.image.ptx.syntax import Address, Immediate, Operand, Pair, Register, Symbol, Vector

NESTING_LIMIT = 64  # of brackets in operands and expressions; compilers emit at most 2
_MASK64 = (1 << 64) - 1


class Names:
    """Which plain identifiers are registers here: a stack of scopes.

    ``%name`` is a register unless a variable of that name was declared.
    """

    __slots__ = ("_ranges", "_registers", "_variables", "interned")

    def __init__(self) -> None:
        self._registers: list[set[str]] = [set()]
        self._ranges: list[dict[str, int]] = [{}]
        self._variables: set[str] = set()
        self.interned: dict[str, Register] = {}

    def enter(self) -> None:
        """Opens a scope."""
        self._registers.append(set())
        self._ranges.append({})

    def leave(self) -> None:
        """Closes the innermost scope."""
        self._registers.pop()
        self._ranges.pop()

    def declare(self, name: str, *, space: str, count: int | None) -> None:
        """Notes a declaration of the innermost scope."""
        if space != "reg":
            if name.startswith("%"):
                self._variables.add(name)
        elif not name.startswith("%"):
            if count is None:
                self._registers[-1].add(name)
            else:
                self._ranges[-1][name] = count

    def is_register(self, word: str) -> bool:
        """Whether ``word`` (with or without a component like ``.x``) names a register."""
        if word[0] == "%":
            return word not in self._variables
        name = word.partition(".")[0]
        return name == "_" or any(name in scope for scope in self._registers) or self._ranged(name)

    def _ranged(self, name: str) -> bool:
        if not any(self._ranges):
            return False
        digits = re.search(r"[0-9]{1,9}$", name)
        if digits is None:
            return False
        for split in range(digits.start(), len(name)):
            for scope in self._ranges:
                if int(name[split:]) < scope.get(name[:split], 0):
                    return True
        return False


def parse_operand(cursor: Cursor, names: Names, *, depth: int = 0) -> Operand:
    """The operand at the cursor; InputError when there is none."""
    if depth > NESTING_LIMIT:
        raise cursor.error("brackets are nested too deeply")
    token = cursor.token
    first = token[:1]
    if first == "[":
        return _address(cursor, names, depth)
    if first == "{":
        return Vector(_list(cursor, names, "}", depth))
    if first == "!" and is_word(cursor.ahead()):
        cursor.at += 1
        return Register(cursor.take(), negated=True)
    if is_word(token):
        return _named(cursor, names)
    return _immediate(cursor)


def parse_call_list(cursor: Cursor, names: Names) -> Vector:
    """``(a, b)`` of a call instruction."""
    return Vector(_list(cursor, names, ")", 0), call_list=True)


def _list(cursor: Cursor, names: Names, close: str, depth: int) -> tuple[Operand, ...]:
    cursor.at += 1
    items: list[Operand] = []
    if cursor.accept(close):
        return ()
    while True:
        items.append(parse_operand(cursor, names, depth=depth + 1))
        if cursor.accept(close):
            return tuple(items)
        cursor.expect(",")


def _named(cursor: Cursor, names: Names) -> Operand:
    word = cursor.take()
    following = cursor.token
    if names.is_register(word):
        register = names.interned.get(word)
        if register is None:
            register = names.interned[word] = Register(word)
        if following == "|":
            cursor.at += 1
            return Pair(register, _named_after_bar(cursor, names))
        return register
    if following in ("+", "-"):
        return Symbol(word, parse_displacement(cursor))
    if following == "|":
        cursor.at += 1
        return Pair(Symbol(word), _named_after_bar(cursor, names))
    if following == "[":
        raise cursor.error("array indexing of an operand is not supported; write an address")
    return Symbol(word)


def _named_after_bar(cursor: Cursor, names: Names) -> Operand:
    negated = cursor.accept("!")
    word = cursor.word("a register after '|'")
    return Register(word, negated) if names.is_register(word) else Symbol(word)


def _address(cursor: Cursor, names: Names, depth: int) -> Address:
    cursor.at += 1
    base: Register | Symbol | None = None
    offset = 0
    if is_word(cursor.token):
        word = cursor.take()
        base = Register(word) if names.is_register(word) else Symbol(word)
        if cursor.token in ("+", "-"):
            offset = parse_displacement(cursor)
    else:
        offset = parse_constant(cursor)
    extra: list[Operand] = []
    while cursor.accept(","):
        extra.append(parse_operand(cursor, names, depth=depth + 1))
    cursor.expect("]")
    return Address(base, offset, tuple(extra))


def parse_displacement(cursor: Cursor) -> int:
    """The sum of the ``+n`` and ``-n`` at the cursor, 0 if none stands there."""
    total = 0
    while cursor.token in ("+", "-"):
        sign = -1 if cursor.take() == "-" else 1
        total += sign * _binary(cursor, _BINARY["+"][0] + 1, 0)
    return total


def _immediate(cursor: Cursor) -> Immediate:
    start = cursor.start
    sign = 1
    at = cursor.at
    while cursor.token in ("-", "+"):
        sign = -sign if cursor.take() == "-" else sign
    literal = cursor.token
    bits = float_bits(literal)
    if bits is not None:
        cursor.at += 1
        if sign < 0:
            bits ^= 1 << (31 if literal[:2] in ("0f", "0F") else 63)
        return Immediate(cursor.text[start : cursor.end_of_last], bits, is_float=True)
    cursor.at = at
    value = parse_constant(cursor)
    return Immediate(cursor.text[start : cursor.end_of_last], value & _MASK64)


def float_bits(literal: str) -> int | None:
    """IEEE bits of a floating-point literal (32 of a ``0f`` form, else 64), None for others."""
    if literal[:2] in ("0f", "0F", "0d", "0D"):
        return int(literal[2:], 16)
    if literal[:1].isdigit() and literal[:2] not in ("0x", "0X") and set(literal) & set(".eE"):
        return int.from_bytes(struct.pack("<d", float(literal)), "little")
    return None


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


# PTX ISA 9.0, table 5 (operator precedence), lowest first.
# fmt: off
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a) or bool(b))),
    "&&": (2, lambda a, b: int(bool(a) and bool(b))),
    "|":  (3, operator.or_),
    "^":  (4, operator.xor),
    "&":  (5, operator.and_),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<":  (7, lambda a, b: int(a < b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">":  (7, lambda a, b: int(a > b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, lambda a, b: (a << b) & _MASK64),
    ">>": (8, operator.rshift),
    "+":  (9, operator.add),
    "-":  (9, operator.sub),
    "*":  (10, operator.mul),
    "/":  (10, _divide),
    "%":  (10, lambda a, b: a - b * _divide(a, b)),
}
_UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": lambda a: int(not a),
}
# fmt: on


def parse_constant(cursor: Cursor) -> int:
    """The value of the integer constant expression at the cursor."""
    return _binary(cursor, 0, 0)


def parse_dimension(cursor: Cursor) -> int:
    """A constant that must not be negative (an array size, an alignment)."""
    at = cursor.start
    value = parse_constant(cursor)
    if value < 0:
        raise cursor.error_at(at, f"the size {value} is negative")
    return value


def _binary(cursor: Cursor, lowest: int, depth: int) -> int:
    left = _unary(cursor, depth)
    while True:
        entry = _BINARY.get(cursor.token)
        if entry is None or entry[0] < lowest:
            return left
        precedence, apply = entry
        at = cursor.start
        sign = cursor.take()
        right = _binary(cursor, precedence + 1, depth + 1)
        if (sign in ("/", "%") and right == 0) or (sign in ("<<", ">>") and not 0 <= right < 64):
            raise cursor.error_at(at, f"the constant expression has no value ({sign} {right})")
        left = apply(left, right)
        if not -_MASK64 <= left <= _MASK64:
            raise cursor.error_at(at, "the constant expression needs over 64 bits")


def _unary(cursor: Cursor, depth: int) -> int:
    if depth > NESTING_LIMIT:
        raise cursor.error("the constant expression is nested too deeply")
    token = cursor.token
    if token in _UNARY:
        cursor.at += 1
        return _UNARY[token](_unary(cursor, depth + 1))
    if token == "(":
        cursor.at += 1
        value = _binary(cursor, 0, depth + 1)
        cursor.expect(")")
        return value
    if not token[:1].isdigit() or float_bits(token) is not None:
        raise cursor.unexpected("an operand or an integer constant")
    cursor.at += 1
    return _integer(cursor, token)


def _integer(cursor: Cursor, literal: str) -> int:
    digits = literal.rstrip("U")
    if digits[:2] in ("0x", "0X"):
        value = int(digits[2:], 16)
    elif digits[:2] in ("0b", "0B"):
        value = int(digits[2:], 2)
    elif len(digits) > 24:
        value = 1 << 64
    elif digits[0] == "0" and len(digits) > 1:
        if set(digits) & set("89"):
            raise cursor.error_at(cursor.starts[cursor.at - 1], f"'{literal}' is not octal")
        value = int(digits, 8)
    else:
        value = int(digits)
    if value > _MASK64:
        raise cursor.error_at(cursor.starts[cursor.at - 1], "the integer needs over 64 bits")
    return value
