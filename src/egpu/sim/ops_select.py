"""Comparison and selection (PTX ISA 9.0, 9.7.6, 9.7.7)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from egpu.image.ptx.syntax import Instruction, Pair
from egpu.sim.lanes import Lanes
from egpu.sim.operands import Run, Scope, apply, scalar, unsupported
from egpu.sim.types import PREDICATE, TYPES, Array, Kind, ScalarType, native

Compare = Callable[[Array, Array], Array]


def _ordered(function: Compare) -> Compare:
    """False when an operand is not a number (only != is true of NaN by itself)."""
    return lambda a, b: function(a, b) & ~(_nan(a) | _nan(b))


def _unordered(function: Compare) -> Compare:
    return lambda a, b: function(a, b) | _nan(a) | _nan(b)


def _nan(a: Array) -> Array:
    return np.isnan(a) if a.dtype.kind == "f" else np.zeros(a.shape, np.bool_)


# fmt: off
COMPARE: dict[str, Compare] = {
    "eq": np.equal,          "ne": _ordered(np.not_equal),
    "lt": np.less,           "le": np.less_equal,
    "gt": np.greater,        "ge": np.greater_equal,
    "lo": np.less,           "ls": np.less_equal,     # unsigned names
    "hi": np.greater,        "hs": np.greater_equal,
    "equ": _unordered(np.equal),   "neu": _unordered(np.not_equal),
    "ltu": _unordered(np.less),    "leu": _unordered(np.less_equal),
    "gtu": _unordered(np.greater), "geu": _unordered(np.greater_equal),
    "num": lambda a, b: ~(_nan(a) | _nan(b)),
    "nan": lambda a, b: _nan(a) | _nan(b),
}
COMBINE: dict[str, Compare] = {
    "and": np.logical_and,
    "or":  np.logical_or,
    "xor": np.logical_xor,
}
# fmt: on


def _flushed(value: Array) -> Array:
    return np.where(abs(value) < np.finfo(np.float32).tiny, value * np.float32(0), value)


def _comparison(ins: Instruction, type: ScalarType) -> Compare:
    compare = COMPARE.get(ins.parts[1])
    if compare is None or type.name in ("f16x2", "bf16", "bf16x2"):
        raise unsupported(ins)
    flush = "ftz" in ins.parts and type.name == "f32"

    def function(a: Array, b: Array) -> Array:
        x, y = native(a, type), native(b, type)
        return compare(_flushed(x), _flushed(y)) if flush else compare(x, y)

    return function


def _combination(ins: Instruction) -> Compare | None:
    for part in ins.parts[2:-1]:
        if part in COMBINE:
            return COMBINE[part]
        if part != "ftz":
            break
    return None


def set_predicate(scope: Scope, ins: Instruction) -> Run:
    """setp.cmp[.bool].type p[|q], a, b[, [!]c]: q is the combination with the complement."""
    type = scalar(ins, ins.parts[-1])
    compare, combine = _comparison(ins, type), _combination(ins)
    if len(ins.operands) != (3 if combine is None else 4):
        raise unsupported(ins)
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    write = scope.write(first, PREDICATE)
    write_second = scope.write(second, PREDICATE) if second is not None else None
    a, b = scope.read(ins.operands[1], type), scope.read(ins.operands[2], type)
    c = scope.read(ins.operands[3], PREDICATE) if combine is not None else None

    def run(lanes: Lanes) -> None:
        result = compare(a(lanes), b(lanes))
        complement = ~result
        if combine is not None and c is not None:
            other = c(lanes)
            result, complement = combine(result, other), combine(complement, other)
        write(lanes, result)
        if write_second is not None:
            write_second(lanes, complement)

    if write_second is None and c is None:
        return lambda lanes: write(lanes, compare(a(lanes), b(lanes)))
    return run


def set_value(scope: Scope, ins: Instruction) -> Run:
    """set.cmp[.bool].dtype.stype d, a, b[, c]: all ones or 1.0 for true."""
    result, type = scalar(ins, ins.parts[-2]), scalar(ins, ins.parts[-1])
    compare, combine = _comparison(ins, type), _combination(ins)
    one = {"f32": 0x3F800000, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}.get(result.name)
    if one is None:
        raise unsupported(ins)
    yes, no = result.raw.type(one), result.raw.type(0)

    def function(a: Array, b: Array, *other: Array) -> Array:
        truth = compare(a, b)
        result: Array = np.where(truth if combine is None else combine(truth, other[0]), yes, no)
        return result

    sources = (type, type) if combine is None else (type, type, PREDICATE)
    return apply(scope, ins, function, result, sources)


def select(scope: Scope, ins: Instruction) -> Run:
    """selp.type d, a, b, p."""
    type = scalar(ins, ins.parts[-1])

    def choose(a: Array, b: Array, p: Array) -> Array:
        return np.where(p, a, b)

    return apply(scope, ins, choose, type, (type, type, PREDICATE))


def select_by_sign(scope: Scope, ins: Instruction) -> Run:
    """slct.dtype.ctype d, a, b, c: a where c >= 0."""
    type, control = scalar(ins, ins.parts[-2]), scalar(ins, ins.parts[-1])
    if control.name not in ("s32", "f32"):
        raise unsupported(ins)
    control = TYPES[control.name]

    def choose(a: Array, b: Array, c: Array) -> Array:
        value = native(c, control)
        if control.kind is Kind.FLOAT and "ftz" in ins.parts:
            value = _flushed(value)
        return np.where(value >= 0, a, b)

    return apply(scope, ins, choose, type, (type, type, control))
