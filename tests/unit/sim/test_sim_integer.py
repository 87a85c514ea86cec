"""Integer instructions against Python's unbounded integers."""

import numpy as np
import pytest
from sim_kernels import edge_values, evaluate

COUNT = 300
TYPES = {
    f"{kind}{bits}": np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}")
    for kind in "us"
    for bits in (16, 32, 64)
}


def wrap(value, dtype):
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    if dtype.kind == "i" and value >> (bits - 1):
        value -= 1 << bits
    return value


def trunc_div(a, b):
    if b == 0:
        return -1
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def check(instruction, inputs, result, function):
    result = np.dtype(result)
    got = evaluate(instruction, inputs, result)
    columns = [values.tolist() for values in inputs]
    expected = [wrap(int(function(*row)), result) for row in zip(*columns, strict=True)]
    assert got.tolist() == expected


def operands(seed, dtype, number):
    rng = np.random.default_rng(seed)
    return [edge_values(rng, dtype, COUNT) for _ in range(number)]


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": trunc_div,
    "rem": lambda a, b: -1 if b == 0 else a - trunc_div(a, b) * b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, type):
    dtype = TYPES[type]
    check(f"{name}.{type} %y, %x0, %x1;", operands(1, dtype, 2), dtype, BINARY[name])


@pytest.mark.parametrize("type", TYPES)
def test_high_product(type):
    dtype = TYPES[type]
    bits = dtype.itemsize * 8
    check(f"mul.hi.{type} %y, %x0, %x1;", operands(2, dtype, 2), dtype, lambda a, b: a * b >> bits)
    check(
        f"mad.hi.{type} %y, %x0, %x1, %x2;",
        operands(3, dtype, 3),
        dtype,
        lambda a, b, c: (a * b >> bits) + c,
    )
    check(
        f"mad.lo.{type} %y, %x0, %x1, %x2;",
        operands(4, dtype, 3),
        dtype,
        lambda a, b, c: a * b + c,
    )


@pytest.mark.parametrize("type", ["u16", "s16", "u32", "s32"])
def test_wide_product(type):
    dtype = TYPES[type]
    wide = TYPES[f"{type[0]}{int(type[1:]) * 2}"]
    check(f"mul.wide.{type} %y, %x0, %x1;", operands(5, dtype, 2), wide, lambda a, b: a * b)
    values = operands(6, dtype, 2) + operands(7, wide, 1)
    check(f"mad.wide.{type} %y, %x0, %x1, %x2;", values, wide, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("type", ["u32", "s32"])
def test_24_bit_products(type):
    dtype = TYPES[type]

    def low(a):
        a &= 0xFFFFFF
        return a - (1 << 24) if type == "s32" and a >> 23 else a

    values = operands(8, dtype, 3)
    check(f"mul24.lo.{type} %y, %x0, %x1;", values[:2], dtype, lambda a, b: low(a) * low(b))
    check(f"mul24.hi.{type} %y, %x0, %x1;", values[:2], dtype, lambda a, b: low(a) * low(b) >> 16)
    check(f"mad24.lo.{type} %y, %x0, %x1, %x2;", values, dtype, lambda a, b, c: low(a) * low(b) + c)


@pytest.mark.parametrize("type", TYPES)
def test_sad(type):
    dtype = TYPES[type]
    check(
        f"sad.{type} %y, %x0, %x1, %x2;",
        operands(9, dtype, 3),
        dtype,
        lambda a, b, c: abs(a - b) + c,
    )


@pytest.mark.parametrize("type", ["s16", "s32", "s64"])
def test_signs(type):
    dtype = TYPES[type]
    check(f"neg.{type} %y, %x0;", operands(10, dtype, 1), dtype, lambda a: -a)
    check(f"abs.{type} %y, %x0;", operands(11, dtype, 1), dtype, abs)


def test_saturated():
    values = operands(12, np.dtype("i4"), 2)
    low, high = -(1 << 31), (1 << 31) - 1
    check("add.sat.s32 %y, %x0, %x1;", values, "i4", lambda a, b: max(low, min(high, a + b)))
    check("sub.sat.s32 %y, %x0, %x1;", values, "i4", lambda a, b: max(low, min(high, a - b)))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits):
    dtype = np.dtype(f"u{bits // 8}")
    values = operands(13, dtype, 2)
    check(f"and.b{bits} %y, %x0, %x1;", values, dtype, lambda a, b: a & b)
    check(f"or.b{bits} %y, %x0, %x1;", values, dtype, lambda a, b: a | b)
    check(f"xor.b{bits} %y, %x0, %x1;", values, dtype, lambda a, b: a ^ b)
    check(f"not.b{bits} %y, %x0;", values[:1], dtype, lambda a: ~a)
    check(f"cnot.b{bits} %y, %x0;", values[:1], dtype, lambda a: a == 0)


@pytest.mark.parametrize("type", [*TYPES, "b16", "b32", "b64"])
def test_shifts_clamp(type):
    dtype = TYPES[type.replace("b", "u")]
    bits = dtype.itemsize * 8
    rng = np.random.default_rng(14)
    amounts = rng.integers(0, bits + 4, COUNT, dtype=np.uint32)
    amounts[:8] = [0, 1, bits - 1, bits, bits + 1, 255, 256, 0xFFFFFFFF]
    values = [*operands(15, dtype, 1), amounts]
    check(f"shl.b{bits} %y, %x0, %x1;", values, dtype, lambda a, n: a << min(n, bits))
    check(f"shr.{type} %y, %x0, %x1;", values, dtype, lambda a, n: a >> min(n, bits))


def test_funnel_shifts():
    low, high = operands(16, np.dtype("u4"), 2)
    amount = np.random.default_rng(17).integers(0, 70, COUNT, dtype=np.uint32)
    values = [low, high, amount]
    for mode, limit in (
        ("clamp", lambda n: min(n, 32)),
        ("wrap", lambda n: n & 31),
    ):
        check(
            f"shf.l.{mode}.b32 %y, %x0, %x1, %x2;",
            values,
            "u4",
            lambda a, b, n, limit=limit: ((b << 32 | a) << limit(n)) >> 32,
        )
        check(
            f"shf.r.{mode}.b32 %y, %x0, %x1, %x2;",
            values,
            "u4",
            lambda a, b, n, limit=limit: (b << 32 | a) >> limit(n),
        )


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits):
    dtype = np.dtype(f"u{bits // 8}")
    values = operands(18, dtype, 1)
    values[0] >>= np.random.default_rng(19).integers(0, bits, COUNT).astype(dtype)
    check(f"clz.b{bits} %y, %x0;", values, "u4", lambda a: bits - a.bit_length())
    check(f"popc.b{bits} %y, %x0;", values, "u4", lambda a: a.bit_count())
    check(f"brev.b{bits} %y, %x0;", values, dtype, lambda a: int(f"{a:0{bits}b}"[::-1], 2))
    check(f"bfind.u{bits} %y, %x0;", values, "u4", lambda a: a.bit_length() - 1)
    check(
        f"bfind.shiftamt.u{bits} %y, %x0;",
        values,
        "u4",
        lambda a: bits - a.bit_length() if a else -1,
    )
    signed = operands(20, np.dtype(f"i{bits // 8}"), 1)
    check(f"bfind.s{bits} %y, %x0;", signed, "u4", lambda a: (~a if a < 0 else a).bit_length() - 1)


@pytest.mark.parametrize("type", ["u32", "s32", "u64", "s64"])
def test_bit_fields(type):
    dtype = TYPES[type]
    bits = dtype.itemsize * 8
    rng = np.random.default_rng(21)
    position = rng.integers(0, bits + 10, COUNT, dtype=np.uint32)
    length = rng.integers(0, bits + 10, COUNT, dtype=np.uint32)
    position[:4] = [0, 300, 255, bits - 1]

    def extract(a, pos, count):
        """The pseudo-code of the ISA, bit by bit."""
        pos, count = pos & 255, count & 255
        a &= (1 << bits) - 1
        last = min(pos + count - 1, bits - 1)
        sign = 0 if type[0] == "u" or count == 0 else a >> last & 1
        found = 0
        for i in range(bits):
            bit = a >> (pos + i) & 1 if i < count and pos + i < bits else sign
            found |= bit << i
        return found

    def insert(a, b, pos, count):
        pos, count = pos & 255, count & 255
        for i in range(count):
            if pos + i < bits:
                b = b & ~(1 << (pos + i)) | (a >> i & 1) << (pos + i)
        return b

    check(
        f"bfe.{type} %y, %x0, %x1, %x2;",
        [*operands(22, dtype, 1), position, length],
        dtype,
        extract,
    )
    unsigned = np.dtype(f"u{bits // 8}")
    check(
        f"bfi.b{bits} %y, %x0, %x1, %x2, %x3;",
        [*operands(23, unsigned, 2), position, length],
        unsigned,
        insert,
    )


def test_permute():
    a, b, selector = operands(24, np.dtype("u4"), 3)

    def permute(a, b, selector):
        pool = (b << 32 | a).to_bytes(8, "little")
        found = 0
        for i in range(4):
            choice = selector >> (4 * i) & 15
            byte = pool[choice & 7]
            if choice & 8:
                byte = 0xFF if byte & 0x80 else 0
            found |= byte << (8 * i)
        return found

    check("prmt.b32 %y, %x0, %x1, %x2;", [a, b, selector], "u4", permute)


@pytest.mark.parametrize(
    ("mode", "selector"),
    [("f4e", 0x6543), ("b4e", 0x0123), ("rc8", 0x3333), ("ecl", 0x3333), ("ecr", 0x3210)],
)
def test_permute_modes(mode, selector):
    a, b = operands(25, np.dtype("u4"), 2)
    three = np.full(COUNT, 3, np.uint32)
    got = evaluate(f"prmt.b32.{mode} %y, %x0, %x1, %x2;", [a, b, three], "u4")
    same = evaluate(f"prmt.b32 %y, %x0, %x1, {selector};", [a, b], "u4")
    assert got.tolist() == same.tolist()


@pytest.mark.parametrize("table", [0x80, 0x96, 0xE8, 0x1B, 0xFE, 0x00, 0xFF])
def test_three_way_logic(table):
    values = operands(26, np.dtype("u4"), 3)

    def function(a, b, c):
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i
            for i in range(32)
        )

    check(f"lop3.b32 %y, %x0, %x1, %x2, {table};", values, "u4", function)


def test_bit_mask():
    rng = np.random.default_rng(27)
    start, length = (rng.integers(0, 40, COUNT, dtype=np.uint32) for _ in range(2))
    check(
        "bmsk.wrap.b32 %y, %x0, %x1;",
        [start, length],
        "u4",
        lambda s, n: ((1 << (n & 31)) - 1) << (s & 31),
    )
    check(
        "bmsk.clamp.b32 %y, %x0, %x1;",
        [start, length],
        "u4",
        lambda s, n: ((1 << min(n, 32)) - 1) << s,
    )


@pytest.mark.parametrize("type", ["u32", "s32", "u64"])
def test_extended_precision(type):
    """Three words of each operand, added, subtracted and multiplied with carries."""
    dtype = TYPES[type.replace("s", "u")]
    bits = dtype.itemsize * 8
    words = operands(28, dtype, 6)
    columns = [values.tolist() for values in words]
    modulus = 1 << 3 * bits

    def number(row):
        return sum(word << (bits * i) for i, word in enumerate(row))

    def chain(name, place):
        lines = [
            f".reg .b{bits} %z<3>;",
            f"{name}.cc.{type} %z0, %x0, %x3;",
            f"{name}c.cc.{type} %z1, %x1, %x4;",
            f"{name}c.{type} %z2, %x2, %x5;",
            f"mov.b{bits} %y, %z{place};",
        ]
        return evaluate("\n".join(lines), words, dtype).tolist()

    for name, function in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
        got = list(zip(*(chain(name, place) for place in range(3)), strict=True))
        for i, row in enumerate(zip(*columns, strict=True)):
            assert number(got[i]) == function(number(row[:3]), number(row[3:])) % modulus


def test_extended_product():
    """x0 * x1 + (x3:x2) in 64 bits, from 32-bit parts."""
    words = operands(29, np.dtype("u4"), 4)

    def part(register):
        lines = [
            ".reg .b32 %z<2>;",
            "mad.lo.cc.u32 %z0, %x0, %x1, %x2;",
            "madc.hi.u32 %z1, %x0, %x1, %x3;",
            f"mov.b32 %y, {register};",
        ]
        return evaluate("\n".join(lines), words, "u4").tolist()

    got = [low | high << 32 for low, high in zip(part("%z0"), part("%z1"), strict=True)]
    rows = zip(*(values.tolist() for values in words), strict=True)
    assert got == [(a * b + (d << 32 | c)) % (1 << 64) for a, b, c, d in rows]
