"""Logic, shifts, bit fields and permutations (PTX ISA 9.0, 9.7.1 and 9.7.8), on raw bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from egpu.image.ptx.syntax import Immediate, Instruction
from egpu.sim.operands import Run, Scope, apply, scalar, unsupported
from egpu.sim.types import B32, TYPES, U32, Array, Kind, ScalarType, native, raw


def _signed(type: ScalarType) -> bool:
    return type.kind is Kind.SIGNED


def _shift_left(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    amount = np.minimum(b, bits - 1).astype(a.dtype)
    result: Array = np.where(b >= bits, a.dtype.type(0), a << amount)
    return result


def _shift_right(a: Array, b: Array, type: ScalarType) -> Array:
    """Amounts past the width give all zeros, or all sign bits of a signed operand."""
    amount = np.minimum(b, type.bits - 1).astype(type.raw)
    if _signed(type):
        return raw(native(a, type) >> amount.view(type.native), type)
    result: Array = np.where(b >= type.bits, type.raw.type(0), a >> amount)
    return result


def _funnel(left: bool, clamp: bool) -> Callable[..., Array]:
    def function(low: Array, high: Array, amount: Array) -> Array:
        n = (np.minimum(amount, 32) if clamp else amount & np.uint32(31)).astype(np.uint64)
        joined = high.astype(np.uint64) << np.uint64(32) | low
        if left:  # n = 32 gives the low word
            return (joined << n >> np.uint64(32)).astype(np.uint32)
        return (joined >> n).astype(np.uint32)

    return function


def _count_leading(a: Array) -> Array:
    """Leading zeros, by halving."""
    bits = a.dtype.itemsize * 8
    count = np.full(a.shape, bits, np.uint32)
    value = a.copy()
    step = bits // 2
    while step:
        upper = value >> a.dtype.type(step)
        found = upper != 0
        count = np.where(found, count - np.uint32(step), count)
        value = np.where(found, upper, value)
        step //= 2
    result: Array = (count - (value != 0)).astype(np.uint32)
    return result


def _population(a: Array) -> Array:
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, a.dtype.itemsize)
    result: Array = np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.uint32)
    return result


def _reverse(a: Array) -> Array:
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, a.dtype.itemsize)
    bits = np.unpackbits(octets, axis=-1)[..., ::-1]
    return np.packbits(bits, axis=-1).view(a.dtype).reshape(a.shape)


def _find_leading(type: ScalarType, shift_amount: bool) -> Callable[[Array], Array]:
    """bfind: the highest bit that differs from the sign; all ones when there is none."""

    def function(a: Array) -> Array:
        value = np.where(native(a, type) < 0, ~a, a) if _signed(type) else a
        zeros = _count_leading(value)
        found = zeros if shift_amount else np.uint32(type.bits - 1) - zeros
        return np.where(zeros == type.bits, np.uint32(0xFFFFFFFF), found)

    return function


def _extract(type: ScalarType) -> Callable[..., Array]:
    """bfe: position and length are taken modulo 256 and clamped to the operand."""
    bits = type.bits

    def function(a: Array, position: Array, length: Array) -> Array:
        start = position & np.uint32(255)
        count = length & np.uint32(255)
        body = _shift_right(a, start, TYPES[f"u{bits}"])
        one = type.raw.type(1)
        # the part of the field that lies past the operand is sign, too
        inside = np.minimum(count, np.uint32(bits) - np.minimum(start, np.uint32(bits)))
        mask = np.where(
            inside >= bits, ~type.raw.type(0), _shift_left(np.array([one]), inside) - one
        ).astype(type.raw)
        result: Array = body & mask
        if not _signed(type):
            return result  # an empty field is 0 already
        last = np.minimum(start + count - np.uint32(1), np.uint32(bits - 1))
        sign = _shift_right(a, last, TYPES[f"u{bits}"]) & one
        sign = np.where(count == 0, type.raw.type(0), sign)
        extended: Array = np.where(sign != 0, result | ~mask, result)
        return extended

    return function


def _insert(a: Array, b: Array, position: Array, length: Array) -> Array:
    bits = a.dtype.itemsize * 8
    start = position & np.uint32(255)
    count = length & np.uint32(255)
    one = b.dtype.type(1)
    ones = np.where(count >= bits, ~b.dtype.type(0), _shift_left(np.array([one]), count) - one)
    mask = _shift_left(ones.astype(b.dtype), start)
    return (b & ~mask) | (_shift_left(a, start) & mask)


def _three_way(table: int) -> Callable[..., Array]:
    """lop3: bit (a << 2 | b << 1 | c) of the table, for every bit position."""

    def function(a: Array, b: Array, c: Array) -> Array:
        result: Array = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
        for row in range(8):
            if table >> row & 1:
                result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    return function


def _permute(a: Array, b: Array, selector: Array) -> Array:
    pool = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.zeros(np.broadcast(pool, selector).shape, np.uint32)
    for byte in range(4):
        choice = selector >> np.uint32(4 * byte)
        picked = (pool >> ((choice & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(
            np.uint32
        ) & np.uint32(0xFF)
        sign = np.where(picked & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
        picked = np.where(choice & np.uint32(8), sign, picked)
        result |= picked << np.uint32(8 * byte)
    return result


# prmt's modes: the selector that gives the same bytes, by c & 3 (PTX ISA, prmt)
# fmt: off
PERMUTE_MODES = {
    "f4e":  (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e":  (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8":  (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl":  (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr":  (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
# fmt: on


def _permute_mode(mode: str) -> Callable[..., Array]:
    selectors = np.array(PERMUTE_MODES[mode], np.uint32)
    return lambda a, b, c: _permute(a, b, selectors[c & np.uint32(3)])


def bits(scope: Scope, ins: Instruction) -> Run:
    """Shifts, bit fields, counts, permutations."""
    name = ins.parts[0]
    type = scalar(ins, ins.parts[1] if name == "prmt" else ins.parts[-1])
    match name:
        case "shl":
            return apply(scope, ins, _shift_left, type, (type, U32))
        case "shr":
            return apply(scope, ins, lambda a, b: _shift_right(a, b, type), type, (type, U32))
        case "shf":
            if ins.parts[1] not in ("l", "r") or ins.parts[2] not in ("clamp", "wrap"):
                raise unsupported(ins)
            funnel = _funnel(ins.parts[1] == "l", ins.parts[2] == "clamp")
            return apply(scope, ins, funnel, B32, (B32, B32, U32))
        case "clz":
            return apply(scope, ins, _count_leading, U32, (type,))
        case "popc":
            return apply(scope, ins, _population, U32, (type,))
        case "brev":
            return apply(scope, ins, _reverse, type, (type,))
        case "bfind":
            function = _find_leading(type, "shiftamt" in ins.parts)
            return apply(scope, ins, function, U32, (type,))
        case "bfe":
            return apply(scope, ins, _extract(type), type, (type, U32, U32))
        case "bfi":
            return apply(scope, ins, _insert, type, (type, type, U32, U32))
        case "prmt":
            mode = ins.parts[2] if len(ins.parts) > 2 else ""
            permute = _permute_mode(mode) if mode in PERMUTE_MODES else _permute
            return apply(scope, ins, permute, B32, (B32, B32, B32))
        case "bmsk":
            return _bit_mask(scope, ins)
    raise unsupported(ins)


def _bit_mask(scope: Scope, ins: Instruction) -> Run:
    clamp = "clamp" in ins.parts

    def function(start: Array, length: Array) -> Array:
        first = start if clamp else start & np.uint32(31)
        count = length if clamp else length & np.uint32(31)
        one = np.array([1], np.uint32)
        ones = np.where(count >= 32, np.uint32(0xFFFFFFFF), _shift_left(one, count) - one)
        return _shift_left(ones.astype(np.uint32), first)

    return apply(scope, ins, function, B32, (U32, U32))


def three_way(scope: Scope, ins: Instruction) -> Run:
    """lop3.b32 d, a, b, c, table."""
    if len(ins.operands) != 5 or len(ins.parts) != 2:
        raise unsupported(ins)  # the form with a predicate result
    table = ins.operands[4]
    if not isinstance(table, Immediate):
        raise unsupported(ins)
    write = scope.write(ins.operands[0], B32)
    a, b, c = (scope.read(operand, B32) for operand in ins.operands[1:4])
    function = _three_way(table.bits & 0xFF)
    return lambda lanes: write(lanes, function(a(lanes), b(lanes), c(lanes)))


LOGIC: dict[str, Callable[..., Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
}


def logic(scope: Scope, ins: Instruction) -> Run:
    """and, or, xor, not, cnot on bits and predicates."""
    type = scalar(ins, ins.parts[-1])
    name = ins.parts[0]
    if name == "cnot":
        return apply(scope, ins, lambda a: (a == 0).astype(a.dtype), type, (type,))
    sources = (type,) if name == "not" else (type, type)
    return apply(scope, ins, LOGIC[name], type, sources)
