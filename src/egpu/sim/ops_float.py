"""Floating point (PTX ISA 9.0, 9.7.3 to 9.7.5).

Exact: add, sub, mul, fma, div.rn, rcp.rn, sqrt.rn, min, max, abs, neg in round-to-nearest-even.
The directed roundings are exact for add, sub, mul and fma of f32 and refused for the rest.  The
approximate forms (``.approx``, ``.full``, ex2, lg2, sin, cos, rsqrt, tanh) are computed in double
and rounded once: nearer to the true value than a device, so not its bits.  An f32 result that is
not a number is 0x7fffffff, as on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from egpu.image.ptx.syntax import Instruction
from egpu.sim.operands import Run, Scope, apply, scalar, unsupported
from egpu.sim.types import TYPES, Array, Kind, ScalarType, native, raw

Function = Callable[..., Array]
F32, F64, F16 = TYPES["f32"], TYPES["f64"], TYPES["f16"]
_CANONICAL = {16: 0x7FFF, 32: 0x7FFFFFFF}


def _odd(total: Array, error: Array) -> Array:
    """``total + error`` rounded to odd: then rounding once more to a shorter type is exact.

    ``total`` is the nearest double and ``error`` what it left out (Boldo and Melquiond, 2008).
    """
    bits = total.view(np.int64)
    toward_zero = (error != 0) & (np.signbit(error) != np.signbit(total))
    even = (bits & 1) == 0
    # When the exact value lies nearer to zero the truncated neighbour is one below in magnitude.
    adjusted = np.where(toward_zero & even, bits - 1, np.where((error != 0) & even, bits + 1, bits))
    return np.where(np.isfinite(total), adjusted, bits).view(np.float64)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    def split(x: Array) -> tuple[Array, Array]:
        scaled = x * 134217729.0  # 2^27 + 1
        high = scaled - (scaled - x)
        return high, x - high

    product = a * b
    (a1, a2), (b1, b2) = split(a), split(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def _sum_to_odd(a: Array, b: Array) -> Array:
    total, error = _two_sum(a, b)
    return _odd(total, np.where(np.isfinite(total), error, 0.0))


def _fma_short(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add of values whose product is exact in double."""
    a, b, c = (x.astype(np.float64) for x in np.broadcast_arrays(a, b, c))
    return _sum_to_odd(a * b, c)


# Directed roundings: the direction of the next value, given the nearest one and the exact one.
DIRECTED: dict[str, Callable[[Array, Array], tuple[Array, float]]] = {
    "rz": lambda nearest, exact: (abs(nearest) > abs(exact), 0.0),
    "rm": lambda nearest, exact: (nearest > exact, -np.inf),
    "rp": lambda nearest, exact: (nearest < exact, np.inf),
}


def directed32(exact: Array, rounding: str) -> Array:
    """float32 of doubles that are exact, or rounded to odd, in a directed rounding."""
    nearest = exact.astype(np.float32)
    wrong, direction = DIRECTED[rounding](nearest.astype(np.float64), exact)
    moved = np.nextafter(nearest, np.float32(direction))
    result: Array = np.where(wrong & np.isfinite(exact), moved, nearest)
    return result


def _directed(name: str, rounding: str) -> Function:
    """add, sub, mul and fma of float32, through a sum rounded to odd."""

    def run(*operands: Array) -> Array:
        a, b, *c = (x.astype(np.float64) for x in np.broadcast_arrays(*operands))
        if name == "mul":
            return directed32(a * b, rounding)
        first, second = {"add": (a, b), "sub": (a, -b)}.get(name) or (a * b, c[0])
        exact = _sum_to_odd(first, second)
        result = directed32(exact, rounding)
        if rounding != "rm":
            return result
        # rounding down, a sum of zero is -0 unless both parts are +0 (IEEE 754, 6.3)
        plus = (first == 0) & (second == 0) & ~np.signbit(first) & ~np.signbit(second)
        return np.where((exact == 0) & ~plus, np.float32(-0.0), result)

    return run


def _fma_exactly(a: float, b: float, c: float) -> float:
    """By rational arithmetic, for operands outside the range of the error-free products."""
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c  # the sign of an exact zero is that of the floating-point sum
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def fma64(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add of doubles, correctly rounded."""
    a, b, c = (np.ascontiguousarray(x) for x in np.broadcast_arrays(a, b, c))
    product, left = _two_product(a, b)
    high, low = _two_sum(c, left)
    top, rest = _two_sum(product, high)
    low_total, low_error = _two_sum(rest, low)
    result = top + _odd(low_total, low_error)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    result = np.where(finite, result, a * b + c)
    exponents = [np.frexp(np.where(finite, x, 1.0))[1] for x in (a, b, c)]
    size = exponents[0] + exponents[1]
    unsafe = (size < -900) | (size > 1000) | (abs(exponents[2]) > 1000)
    unsafe |= (abs(exponents[0]) > 960) | (abs(exponents[1]) > 960)
    # exact cancellation and zeros: the error-free terms lose the sign of zero
    unsafe |= (result == 0) | (size - exponents[2] > 900) | (exponents[2] - size > 900)
    for lane in np.flatnonzero(unsafe & finite):
        result[lane] = _fma_exactly(float(a[lane]), float(b[lane]), float(c[lane]))
    return result


def _fma(type: ScalarType) -> Function:
    if type.bits == 64:
        return fma64
    return lambda a, b, c: _fma_short(a, b, c).astype(type.native)


def _flush(value: Array) -> Array:
    """Subnormals become zeros of their sign (.ftz)."""
    smallest = np.finfo(value.dtype).tiny
    return np.where(abs(value) < smallest, np.copysign(value.dtype.type(0), value), value)


def _extreme(smaller: bool, keep_nan: bool) -> Function:
    """min and max: a NaN loses against a number unless .NaN; -0 is less than +0."""

    def function(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        sign = np.signbit(a)
        first = (a < b) | ((a == b) & sign) if smaller else (a > b) | ((a == b) & ~sign)
        result = np.where(first, a, b)
        if keep_nan:
            return np.where(np.isnan(a), a, result)  # b's is taken by the comparison
        return np.where(np.isnan(b), a, result)

    return function


def _through_double(function: Function) -> Function:
    def run(*values: Array) -> Array:
        result = function(*(value.astype(np.float64) for value in values))
        return result.astype(values[0].dtype)

    return run


# fmt: off
APPROXIMATE: dict[str, Function] = {   # in double, rounded once
    "rcp":   _through_double(lambda a: 1.0 / a),
    "sqrt":  _through_double(np.sqrt),
    "rsqrt": _through_double(lambda a: 1.0 / np.sqrt(a)),
    "ex2":   _through_double(np.exp2),
    "lg2":   _through_double(np.log2),
    "sin":   _through_double(np.sin),
    "cos":   _through_double(np.cos),
    "tanh":  _through_double(np.tanh),
    "div":   _through_double(np.divide),
}
EXACT: dict[str, Function] = {         # correctly rounded by IEEE arithmetic
    "add":  np.add,
    "sub":  np.subtract,
    "mul":  np.multiply,
    "div":  np.divide,
    "sqrt": np.sqrt,
    "rcp":  lambda a: a.dtype.type(1) / a,
}
OPERANDS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "min": 2, "max": 2, "fma": 3, "mad": 3}
# fmt: on
_KNOWN = frozenset({"rn", "ftz", "sat", "approx", "full", "NaN", *DIRECTED})


def _finished(function: Function, type: ScalarType, modifiers: frozenset[str]) -> Function:
    """``function`` on raw bits, with .ftz, .sat and the canonical NaN around it."""
    flush = "ftz" in modifiers and type.bits < 64
    saturate = "sat" in modifiers
    canonical = _CANONICAL.get(type.bits)

    def run(*operands: Array) -> Array:
        values = [native(operand, type) for operand in operands]
        if flush:
            values = [_flush(value) for value in values]
        result = function(*values)
        if flush:
            result = _flush(result)
        if saturate:  # NaN gives +0
            result = np.where(np.isnan(result), result.dtype.type(0), np.clip(result, 0, 1) + 0)
        bits = raw(result, type)
        if canonical is None:
            return bits
        return np.where(np.isnan(result), type.raw.type(canonical), bits)

    return run


def _rounded_half(exact: Function) -> Function:
    def run(a: Array, b: Array) -> Array:
        result: Array = exact(a.astype(np.float64), b.astype(np.float64))
        return result.astype(np.float16)

    return run


def _function(ins: Instruction, type: ScalarType, modifiers: frozenset[str]) -> Function:
    name = ins.parts[0]
    rounding = next((m for m in modifiers if m in DIRECTED), "")
    if rounding:
        if type.bits != 32 or name not in ("add", "sub", "mul", "fma"):
            raise unsupported(ins)
        return _directed(name, rounding)
    if name in ("fma", "mad"):
        if name == "mad" and type.bits == 32 and "rn" not in modifiers:
            raise unsupported(ins, ": mad.f32 without a rounding is not fused the same everywhere")
        return _fma(type)
    if name in ("min", "max"):
        return _extreme(name == "min", "NaN" in modifiers)
    if "approx" in modifiers or "full" in modifiers or name not in EXACT:
        if name not in APPROXIMATE:
            raise unsupported(ins)
        return APPROXIMATE[name]
    if type.bits == 16 and name in ("add", "sub", "mul"):
        exact = EXACT[name]
        return _rounded_half(exact)
    return EXACT[name]


def _pairwise(function: Function) -> Function:
    """On both halves of f16x2 bits."""

    def run(*operands: Array) -> Array:
        low = function(*((bits & np.uint32(0xFFFF)).astype(np.uint16) for bits in operands))
        high = function(*((bits >> np.uint32(16)).astype(np.uint16) for bits in operands))
        return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)

    return run


def _sign(name: str, type: ScalarType, pair: bool, flush: bool) -> Function:
    top = type.raw.type(0x80008000 if pair else 1 << (type.bits - 1))

    def run(a: Array) -> Array:
        if flush and type.bits == 32 and not pair:
            a = raw(_flush(native(a, type)), type)
        result: Array = a & ~top if name == "abs" else a ^ top
        return result

    return run


def arithmetic(scope: Scope, ins: Instruction) -> Run:
    """The floating-point forms of the arithmetic instructions."""
    type = scalar(ins, ins.parts[-1])
    pair = type.name == "f16x2"
    modifiers = frozenset(ins.parts[1:-1])
    if type.kind is not Kind.FLOAT and not pair:
        raise unsupported(ins)
    if unknown := modifiers - _KNOWN:
        raise unsupported(ins, f" (modifier .{sorted(unknown)[0]})")
    name = ins.parts[0]
    if name in ("abs", "neg"):
        return apply(scope, ins, _sign(name, type, pair, "ftz" in modifiers), type, (type,))
    element = F16 if pair else type
    function = _finished(_function(ins, element, modifiers), element, modifiers)
    if pair:
        function = _pairwise(function)
    return apply(scope, ins, function, type, (type,) * OPERANDS.get(name, 1))


def copy_sign(scope: Scope, ins: Instruction) -> Run:
    """copysign: the sign of the first operand on the magnitude of the second."""
    type = scalar(ins, ins.parts[-1])
    top = type.raw.type(1 << (type.bits - 1))
    return apply(scope, ins, lambda a, b: (b & ~top) | (a & top), type, (type, type))


def test_property(scope: Scope, ins: Instruction) -> Run:
    """testp: what kind of number the operand is."""
    type = scalar(ins, ins.parts[-1])
    tests: dict[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (abs(a) >= np.finfo(type.native).tiny),
        "subnormal": lambda a: (a != 0) & (abs(a) < np.finfo(type.native).tiny),
    }
    test = tests.get(ins.parts[1])
    if test is None:
        raise unsupported(ins)
    return apply(scope, ins, lambda a: test(native(a, type)), TYPES["pred"], (type,))
