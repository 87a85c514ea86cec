"""Integer arithmetic (PTX ISA 9.0, 9.7.1).

Functions work on raw bits of the instruction's type; numpy integers wrap as the device's do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from egpu.image.ptx.syntax import Instruction
from egpu.sim.operands import Run, Scope, apply, scalar, unsupported
from egpu.sim.types import TYPES, Array, Kind, ScalarType, native, raw

Binary = Callable[[Array, Array], Array]


def _signed(type: ScalarType) -> bool:
    return type.kind is Kind.SIGNED


def _limits(type: ScalarType) -> tuple[int, int]:
    info = np.iinfo(type.native)
    return int(info.min), int(info.max)


def high_product(a: Array, b: Array, type: ScalarType) -> Array:
    """The upper half of the double-width product of two raw operands."""
    if type.bits < 64:
        wide = f"i{type.bits // 4}" if _signed(type) else f"u{type.bits // 4}"
        product = native(a, type).astype(wide) * native(b, type).astype(wide)
        result: Array = (product >> type.bits).astype(type.native).view(type.raw)
        return result
    low_mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high = a & low_mask, a >> half
    b_low, b_high = b & low_mask, b >> half
    middle = a_high * b_low + (a_low * b_low >> half)
    other = a_low * b_high + (middle & low_mask)
    result = a_high * b_high + (middle >> half) + (other >> half)
    if _signed(type):
        zero = np.uint64(0)
        sign = np.uint64(63)
        result = result - np.where(a >> sign != 0, b, zero) - np.where(b >> sign != 0, a, zero)
    return np.asarray(result)


def _wide(type: ScalarType) -> ScalarType:
    return TYPES[f"{type.kind.value}{type.bits * 2}"]


def _wide_product(type: ScalarType) -> Binary:
    wide = _wide(type)

    def function(a: Array, b: Array) -> Array:
        return raw(native(a, type).astype(wide.native) * native(b, type).astype(wide.native), wide)

    return function


def divide(a: Array, b: Array, type: ScalarType) -> Array:
    """Truncating quotient; by zero all ones, as the device's division sequence gives."""
    a, b = np.broadcast_arrays(a, b)
    x, y = native(a, type), native(b, type)
    by_zero = y == 0
    safe = np.where(by_zero, type.native.type(1), y)
    if _signed(type):
        lowest = _limits(type)[0]
        overflow = (x == lowest) & (safe == -1)
        safe = np.where(overflow, type.native.type(1), safe)
        quotient = x // safe
        inexact = (x % safe != 0) & ((x < 0) != (safe < 0))
        quotient = quotient + inexact
    else:
        quotient = x // safe
    ones = np.array(-1 if _signed(type) else _limits(type)[1], type.native)
    return raw(np.where(by_zero, ones, quotient.astype(type.native)), type)


def remainder(a: Array, b: Array, type: ScalarType) -> Array:
    """Remainder with the dividend's sign; by zero all ones."""
    a, b = np.broadcast_arrays(a, b)
    quotient = divide(a, b, type)
    ones = np.array(-1).astype(type.raw)
    return np.where(b == 0, ones, a - quotient * b)


def _saturated_add(a: Array, b: Array, subtract: bool) -> Array:
    x, y = a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64)
    total = x - y if subtract else x + y
    result: Array = np.clip(total, -(1 << 31), (1 << 31) - 1).astype(np.int32).view(np.uint32)
    return result


def _absolute(a: Array, type: ScalarType) -> Array:
    return np.where(native(a, type) < 0, np.zeros_like(a) - a, a)


def _pick(smaller: bool, type: ScalarType) -> Binary:
    choose = np.minimum if smaller else np.maximum
    return lambda a, b: raw(choose(native(a, type), native(b, type)), type)


def _difference(type: ScalarType) -> Callable[..., Array]:
    def function(a: Array, b: Array, c: Array) -> Array:
        less = native(a, type) < native(b, type)
        return np.where(less, b - a, a - b) + c

    return function


def _low24(a: Array, type: ScalarType) -> Array:
    if _signed(type):
        return ((a << np.uint32(8)).view(np.int32) >> np.int32(8)).astype(np.int64)
    return (a & np.uint32(0xFFFFFF)).astype(np.int64)


def _product24(type: ScalarType, high: bool) -> Binary:
    def function(a: Array, b: Array) -> Array:
        product = _low24(a, type) * _low24(b, type)
        return (product >> (16 if high else 0)).astype(np.uint64).astype(np.uint32)

    return function


def _simple(scope: Scope, ins: Instruction) -> Run | None:
    """add, sub, min, max, abs, neg, div, rem, sad of integers."""
    type = scalar(ins, ins.parts[-1])
    two, one = (type, type), (type,)
    match ins.parts[0]:
        case ("add" | "sub") as name if "sat" in ins.parts:
            if type.name != "s32":
                raise unsupported(ins)
            subtract = name == "sub"
            return apply(scope, ins, lambda a, b: _saturated_add(a, b, subtract), type, two)
        case "add":
            return apply(scope, ins, np.add, type, two)
        case "sub":
            return apply(scope, ins, np.subtract, type, two)
        case "min":
            return apply(scope, ins, _pick(True, type), type, two)
        case "max":
            return apply(scope, ins, _pick(False, type), type, two)
        case "abs":
            return apply(scope, ins, lambda a: _absolute(a, type), type, one)
        case "neg":
            return apply(scope, ins, lambda a: np.zeros_like(a) - a, type, one)
        case "div":
            return apply(scope, ins, lambda a, b: divide(a, b, type), type, two)
        case "rem":
            return apply(scope, ins, lambda a, b: remainder(a, b, type), type, two)
        case "sad":
            return apply(scope, ins, _difference(type), type, (type, type, type))
    return None


def arithmetic(scope: Scope, ins: Instruction) -> Run:
    """The integer forms of the arithmetic instructions."""
    if any(part in ("cc", "relu") for part in ins.parts) or ins.parts[-1].endswith("x2"):
        raise unsupported(ins)
    run = _simple(scope, ins)
    if run is None:
        raise unsupported(ins)
    return run


def multiply(scope: Scope, ins: Instruction) -> Run:
    """mul and mad of integers, in their lo, hi and wide forms."""
    type = scalar(ins, ins.parts[-1])
    if len(ins.parts) != 3 or ins.parts[1] not in ("lo", "hi", "wide"):
        raise unsupported(ins)
    form = ins.parts[1]
    product: Binary
    if form == "lo":
        product, result = np.multiply, type
    elif form == "hi":
        product, result = (lambda a, b: high_product(a, b, type)), type
    else:
        if type.bits > 32:
            raise unsupported(ins)
        product, result = _wide_product(type), _wide(type)
    if ins.parts[0] == "mul":
        return apply(scope, ins, product, result, (type, type))
    return apply(scope, ins, lambda a, b, c: product(a, b) + c, result, (type, type, result))


def multiply24(scope: Scope, ins: Instruction) -> Run:
    """mul24 and mad24."""
    type = scalar(ins, ins.parts[-1])
    if type.bits != 32 or ins.parts[1] not in ("lo", "hi") or "sat" in ins.parts:
        raise unsupported(ins)
    product = _product24(type, ins.parts[1] == "hi")
    if ins.parts[0] == "mul24":
        return apply(scope, ins, product, type, (type, type))
    return apply(scope, ins, lambda a, b, c: product(a, b) + c, type, (type, type, type))
