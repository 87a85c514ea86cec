"""Floating point against exact rational arithmetic and numpy."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from sim_kernels import evaluate

from egpu.errors import UnsupportedError

COUNT = 400
SPECIAL = {
    np.float32: [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, 1.1754944e-38, 3.4028235e38],
    np.float64: [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 2.2e-308, 1.79e308],
}


def values(seed, dtype, number, spread=30):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        x = rng.standard_normal(COUNT) * np.exp2(rng.integers(-spread, spread, COUNT))
        x = x.astype(dtype)
        picked = rng.random(COUNT) < 0.2
        x[picked] = rng.choice(np.array(SPECIAL[dtype], dtype), COUNT)[picked]
        found.append(x)
    return found


def same(got, expected):
    """Bits equal, any NaN equal to any other."""
    both = np.isnan(got) & np.isnan(expected)
    bits = f"u{got.dtype.itemsize}"
    assert (both | (got.view(bits) == expected.view(bits))).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_arithmetic(name, dtype):
    type = "f32" if dtype is np.float32 else "f64"
    a, b = values(1, dtype, 2)
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    with np.errstate(all="ignore"):
        same(evaluate(f"{name}.rn.{type} %y, %x0, %x1;", [a, b], dtype), function(a, b))


def round_float32(exact):
    """The float32 nearest to a rational, ties to even."""
    if exact == 0:
        return 0.0
    sign, size = (-1, -exact) if exact < 0 else (1, exact)
    exponent = max(
        math.floor(math.log2(size.numerator)) - math.floor(math.log2(size.denominator)), -126
    )
    while exponent > -126 and size < Fraction(2) ** exponent:
        exponent -= 1
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    ulp = Fraction(2) ** (exponent - 23)
    rounded = round(size / ulp) * ulp
    return sign * (math.inf if rounded >= Fraction(2) ** 128 else float(rounded))


def test_fma32_is_fused():
    a, b, c = (x for x in values(2, np.float32, 3, spread=10))
    with np.errstate(all="ignore"):
        c[::3] = -(a * b)[::3]  # cancellation shows a product that was rounded
    got = evaluate("fma.rn.f32 %y, %x0, %x1, %x2;", [a, b, c], np.float32)
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        if not all(map(math.isfinite, (x, y, z))):
            with np.errstate(all="ignore"):
                expected = float(np.float64(x) * np.float64(y) + np.float64(z))
            assert result == expected or (math.isnan(result) and math.isnan(expected))
            continue
        assert result == round_float32(Fraction(x) * Fraction(y) + Fraction(z))


def test_fma32_double_rounding():
    # the exact sum lies just above a tie of float32 that double rounding would send down
    a, b, c = np.float32([1 + 2**-12]), np.float32([1 + 2**-12]), np.float32([2**-60])
    got = evaluate("fma.rn.f32 %y, %x0, %x1, %x2;", [a, b, c], np.float32)
    assert got[0] == round_float32(Fraction(float(a[0])) ** 2 + Fraction(2) ** -60)
    assert got[0] != np.float32(float(a[0]) ** 2)


@pytest.mark.parametrize("spread", [10, 400, 520])
def test_fma64_is_fused(spread):
    a, b, c = values(3, np.float64, 3, spread=spread)
    with np.errstate(all="ignore"):
        c[::3] = -(a * b)[::3]
    got = evaluate("fma.rn.f64 %y, %x0, %x1, %x2;", [a, b, c], np.float64)
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        if not all(map(math.isfinite, (x, y, z))):
            with np.errstate(all="ignore"):
                expected = float(np.float64(x) * np.float64(y) + np.float64(z))
        else:
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            try:
                expected = exact.numerator / exact.denominator
            except OverflowError:
                expected = math.inf if exact > 0 else -math.inf
        assert result == expected or (math.isnan(result) and math.isnan(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_min_max(dtype):
    type = "f32" if dtype is np.float32 else "f64"
    a, b = values(4, dtype, 2)
    a[:6] = [0.0, -0.0, np.nan, 1.0, np.nan, 5.0]
    b[:6] = [-0.0, 0.0, 1.0, np.nan, np.nan, 5.0]
    low = evaluate(f"min.{type} %y, %x0, %x1;", [a, b], dtype)
    high = evaluate(f"max.{type} %y, %x0, %x1;", [a, b], dtype)
    assert np.signbit(low[:2]).all()
    assert not np.signbit(high[:2]).any()
    both_zero = (a == 0) & (b == 0)
    with np.errstate(invalid="ignore"):
        same(low[~both_zero], np.fmin(a, b)[~both_zero])
        same(high[~both_zero], np.fmax(a, b)[~both_zero])


def test_min_nan():
    a, b = np.float32([np.nan, 1, 2]), np.float32([1, np.nan, 1])
    got = evaluate("min.NaN.f32 %y, %x0, %x1;", [a, b], np.float32)
    assert np.isnan(got[:2]).all()
    assert got[2] == 1


def test_not_a_number_is_canonical():
    a = np.float32([np.inf, 0.0])
    got = evaluate("sub.f32 %y, %x0, %x0;", [a], np.uint32)
    assert got.tolist() == [0x7FFFFFFF, 0]


def test_flush_and_saturate():
    a = np.float32([1e-45, -1e-45, 0.5, 2.0, -3.0, np.nan])
    one = np.ones(6, np.float32)
    flushed = evaluate("mul.ftz.f32 %y, %x0, %x1;", [a, one], np.uint32)
    assert flushed[:2].tolist() == [0, 0x80000000]
    limited = evaluate("mul.sat.f32 %y, %x0, %x1;", [a, one], np.float32)
    assert limited[2:].tolist() == [0.5, 1.0, 0.0, 0.0]
    assert evaluate("mul.f32 %y, %x0, %x1;", [a, one], np.float32)[0] == a[0]


UNARY = {
    "sqrt.rn.f32": np.sqrt,
    "rcp.rn.f32": lambda a: np.float32(1) / a,
    "neg.f32": np.negative,
    "abs.f32": np.abs,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    (a,) = values(5, np.float32, 1)
    with np.errstate(all="ignore"):
        same(evaluate(f"{name} %y, %x0;", [a], np.float32), UNARY[name](a))


APPROXIMATE = {
    "sin.approx.f32": np.sin,
    "cos.approx.f32": np.cos,
    "ex2.approx.f32": np.exp2,
    "lg2.approx.f32": np.log2,
    "rsqrt.approx.f32": lambda a: 1 / np.sqrt(a),
    "rcp.approx.ftz.f32": lambda a: 1 / a,
    "sqrt.approx.f32": np.sqrt,
    "tanh.approx.f32": np.tanh,
}


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximations(name):
    a = np.linspace(0.01, 20, COUNT).astype(np.float32)
    got = evaluate(f"{name} %y, %x0;", [a], np.float32)
    assert np.allclose(got, APPROXIMATE[name](a.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("name", ["add", "mul", "sub"])
def test_half(name):
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(COUNT).astype(np.float16) * 8 for _ in range(2))
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name]
    got = evaluate(f"{name}.f16 %y, %x0, %x1;", [a, b], np.float16)
    same(got, function(a.astype(np.float64), b.astype(np.float64)).astype(np.float16))


def test_half_pairs():
    rng = np.random.default_rng(7)
    a, b, c = (rng.standard_normal(2 * COUNT).astype(np.float16) for _ in range(3))
    packed = [x.view(np.uint32) for x in (a, b, c)]
    got = evaluate("fma.rn.f16x2 %y, %x0, %x1, %x2;", packed, np.uint32).view(np.float16)
    wide = [x.astype(np.float64) for x in (a, b, c)]
    expected = (wide[0] * wide[1] + wide[2]).astype(np.float16)
    same(got, expected)


INTEGERS = {"s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64, "s16": np.int16}
ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@pytest.mark.parametrize("rounding", ROUND)
@pytest.mark.parametrize("type", INTEGERS)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_float_to_integer(source, type, rounding):
    dtype = np.float32 if source == "f32" else np.float64
    (a,) = values(8, dtype, 1, spread=70)
    a[:4] = [0.5, 1.5, -0.5, 2.5]
    info = np.iinfo(INTEGERS[type])
    got = evaluate(f"cvt.{rounding}.{type}.{source} %y, %x0;", [a], INTEGERS[type])
    for x, result in zip(a.tolist(), got.tolist(), strict=True):
        if math.isnan(x):
            narrow = source == "f32" and info.bits < 64
            raw = 0 if narrow else 1 << (info.bits - 1)
            assert result & ((1 << info.bits) - 1) == raw
        elif math.isinf(x):
            assert result == (info.max if x > 0 else info.min)
        else:
            whole = int(ROUND[rounding](np.float64(x)))
            assert result == max(info.min, min(info.max, whole))


@pytest.mark.parametrize("type", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("result", ["f32", "f64"])
def test_integer_to_float(type, result):
    rng = np.random.default_rng(9)
    info = np.iinfo(INTEGERS[type])
    a = rng.integers(info.min, info.max, COUNT, dtype=INTEGERS[type], endpoint=True)
    got = evaluate(
        f"cvt.rn.{result}.{type} %y, %x0;", [a], np.float32 if result == "f32" else np.float64
    )
    for x, y in zip(a.tolist(), got.tolist(), strict=True):
        assert y == (round_float32(Fraction(x)) if result == "f32" else float(x))


def test_between_float_widths():
    (a,) = values(10, np.float64, 1)
    with np.errstate(all="ignore"):
        same(evaluate("cvt.rn.f32.f64 %y, %x0;", [a], np.float32), a.astype(np.float32))
        (b,) = values(11, np.float32, 1, spread=12)
        same(evaluate("cvt.f64.f32 %y, %x0;", [b], np.float64), b.astype(np.float64))
        same(evaluate("cvt.rn.f16.f32 %y, %x0;", [b], np.float16), b.astype(np.float16))


def test_bfloat():
    a = np.float32([1.0, 1.00390625, 1.01171875, np.nan, np.inf, 3.4e38])
    got = evaluate("cvt.rn.bf16.f32 %y, %x0;", [a], np.uint16)
    # ties go to even: 1.00390625 is half way between 0x3f80 and 0x3f81
    assert got.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x7FFF, 0x7F80, 0x7F80]
    packed = evaluate("cvt.rn.f16x2.f32 %y, %x0, %x1;", [a[:1], a[:1] * 2], np.uint32)
    assert packed.tolist() == [0x3C004000]


@pytest.mark.parametrize(
    ("compare", "function"),
    [
        ("eq", lambda a, b: a == b),
        ("ne", lambda a, b: a < b or a > b),
        ("lt", lambda a, b: a < b),
        ("ge", lambda a, b: a >= b),
        ("equ", lambda a, b: not (a < b or a > b)),
        ("neu", lambda a, b: a != b),
        ("ltu", lambda a, b: not a >= b),
        ("geu", lambda a, b: not a < b),
        ("num", lambda a, b: not (math.isnan(a) or math.isnan(b))),
        ("nan", lambda a, b: math.isnan(a) or math.isnan(b)),
    ],
)
def test_comparisons(compare, function):
    a, b = values(12, np.float32, 2)
    b[::4] = a[::4]
    got = evaluate(f"setp.{compare}.f32 %y, %x0, %x1;", [a, b], np.bool_)
    assert got.tolist() == [function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_literals():
    zero = np.zeros(1, np.float32)
    got = evaluate("add.f32 %y, %x0, 0f40490FDB;", [zero], np.uint32)
    assert got[0] == 0x40490FDB
    got = evaluate("add.f64 %y, %x0, 0d400921FB54442D18;", [np.zeros(1)], np.float64)
    assert got[0] == struct.unpack(">d", bytes.fromhex("400921FB54442D18"))[0]


def directed(exact, rounding):
    """The float32 next to a rational in a directed rounding."""
    nearest = round_float32(exact)
    downwards = rounding == "rm" or (rounding == "rz" and exact > 0)
    if math.isinf(nearest):
        wrong = (nearest > 0) == downwards
    else:
        wrong = Fraction(nearest) > exact if downwards else Fraction(nearest) < exact
    end = np.float32(-math.inf if downwards else math.inf)
    with np.errstate(over="ignore"):
        return float(np.nextafter(np.float32(nearest), end)) if wrong else nearest


@pytest.mark.parametrize("rounding", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_directed_roundings(name, rounding):
    a, b, c = values(13, np.float32, 3, spread=60)
    number = 3 if name == "fma" else 2
    operands = ", ".join(f"%x{i}" for i in range(number))
    got = evaluate(f"{name}.{rounding}.f32 %y, {operands};", [a, b, c][:number], np.float32)
    function = {
        "add": lambda x, y, z: x + y,
        "sub": lambda x, y, z: x - y,
        "mul": lambda x, y, z: x * y,
        "fma": lambda x, y, z: x * y + z,
    }[name]
    tested = 0
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        if all(map(math.isfinite, (x, y, z))):
            exact = function(Fraction(x), Fraction(y), Fraction(z))
            assert result == directed(exact, rounding)
            tested += 1
    assert tested > COUNT / 2


def test_zero_of_a_sum_rounded_down():
    a, b = np.float32([1, 0.0, 0.0, -0.0]), np.float32([-1, 0.0, -0.0, -0.0])
    got = evaluate("add.rm.f32 %y, %x0, %x1;", [a, b], np.uint32)
    assert got.tolist() == [0x80000000, 0, 0x80000000, 0x80000000]
    got = evaluate("add.rz.f32 %y, %x0, %x1;", [a, b], np.uint32)
    assert got.tolist() == [0, 0, 0, 0x80000000]


@pytest.mark.parametrize("rounding", ["rz", "rm", "rp"])
def test_directed_conversions(rounding):
    (a,) = values(14, np.float64, 1)
    a = a[np.isfinite(a)]
    got = evaluate(f"cvt.{rounding}.f32.f64 %y, %x0;", [a], np.float32)
    assert got.tolist() == [directed(Fraction(x), rounding) for x in a.tolist()]
    integers = np.random.default_rng(15).integers(-(1 << 31), (1 << 31) - 1, COUNT, dtype=np.int32)
    got = evaluate(f"cvt.{rounding}.f32.s32 %y, %x0;", [integers], np.float32)
    assert got.tolist() == [directed(Fraction(x), rounding) for x in integers.tolist()]


def test_other_roundings_are_refused():
    with pytest.raises(UnsupportedError, match=r"div\.rz\.f32.*kernel k, line"):
        evaluate("div.rz.f32 %y, %x0, %x0;", [np.zeros(1, np.float32)], np.float32)
    with pytest.raises(UnsupportedError, match=r"add\.rz\.f64"):
        evaluate("add.rz.f64 %y, %x0, %x0;", [np.zeros(1)], np.float64)
