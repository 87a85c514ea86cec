"""The abstract domain against every concrete value, at widths small enough to enumerate."""

import itertools
import random

import pytest

from egpu.bpf.isa import AluOp, JmpOp
from egpu.verifier import tnum
from egpu.verifier.refine import INVERSE, compare
from egpu.verifier.scalar import S64, ScalarDomain, covers
from egpu.verifier.word import Width


def signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) else value


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def concrete(op, is_signed, a, b, bits):
    """RFC 9669 section 4.1, written without the code under test."""
    sa, sb = signed(a, bits), signed(b, bits)
    amount = b & (bits - 1)
    match op:
        case AluOp.ADD:
            result = a + b
        case AluOp.SUB:
            result = a - b
        case AluOp.MUL:
            result = a * b
        case AluOp.DIV if is_signed:
            result = truncated(sa, sb) if b else 0
        case AluOp.MOD if is_signed:
            result = sa - truncated(sa, sb) * sb if b else a
        case AluOp.DIV:
            result = a // b if b else 0
        case AluOp.MOD:
            result = a % b if b else a
        case AluOp.AND:
            result = a & b
        case AluOp.OR:
            result = a | b
        case AluOp.XOR:
            result = a ^ b
        case AluOp.LSH:
            result = a << amount
        case AluOp.RSH:
            result = a >> amount
        case AluOp.ARSH:
            result = sa >> amount
    return result & ((1 << bits) - 1)


def holds(op, a, b, bits):
    sa, sb = signed(a, bits), signed(b, bits)
    return {
        JmpOp.JEQ: a == b,
        JmpOp.JNE: a != b,
        JmpOp.JGT: a > b,
        JmpOp.JGE: a >= b,
        JmpOp.JLT: a < b,
        JmpOp.JLE: a <= b,
        JmpOp.JSGT: sa > sb,
        JmpOp.JSGE: sa >= sb,
        JmpOp.JSLT: sa < sb,
        JmpOp.JSLE: sa <= sb,
        JmpOp.JSET: bool(a & b),
        None: not a & b,
    }[op]


def in_word(value, word, bits):
    return (
        value & ~word.mask == word.value
        and word.umin <= value <= word.umax
        and word.smin <= signed(value, bits) <= word.smax
    )


def in_scalar(value, scalar, domain):
    bits, half = domain.full.bits, domain.half.bits
    low = value & domain.half.limit
    return in_word(value, scalar.word, bits) and in_word(low, domain.low_word(scalar), half)


def tnums(bits):
    size = 1 << bits
    return [(v, m) for m in range(size) for v in range(size) if not v & m]


def members_of(t, bits):
    return [x for x in range(1 << bits) if x & ~t[1] == t[0]]


def words(width):
    """Every word that one unsigned range, one signed range or one tnum makes."""
    size, low = 1 << width.bits, -(1 << (width.bits - 1))
    found = set()
    for a, b in itertools.combinations_with_replacement(range(size), 2):
        found.add(width.reduce((0, width.limit), a, b, width.smin, width.smax))
        found.add(width.reduce((0, width.limit), 0, width.limit, low + a, low + b))
    for t in tnums(width.bits):
        found.add(width.reduce(t, 0, width.limit, width.smin, width.smax))
    return sorted(found)


TNUM_OPERATIONS = {
    "add": (tnum.add, lambda x, y: x + y),
    "sub": (tnum.sub, lambda x, y: x - y),
    "mul": (tnum.mul, lambda x, y: x * y),
    "and": (lambda a, b, m: tnum.conjunction(a, b), lambda x, y: x & y),
    "or": (lambda a, b, m: tnum.disjunction(a, b), lambda x, y: x | y),
    "xor": (lambda a, b, m: tnum.difference(a, b), lambda x, y: x ^ y),
}


@pytest.mark.parametrize("name", TNUM_OPERATIONS)
def test_tnum_operation_holds_every_concrete_result(name):
    abstract, exact = TNUM_OPERATIONS[name]
    bits, limit = 3, 7
    for a, b in itertools.product(tnums(bits), repeat=2):
        value, mask = abstract(a, b, limit)
        assert not value & mask
        assert value | mask <= limit
        results = {exact(x, y) & limit for x in members_of(a, bits) for y in members_of(b, bits)}
        assert all(r & ~mask == value for r in results), (name, a, b)


@pytest.mark.parametrize("name", ["and", "or", "xor", "add", "sub"])
def test_tnum_operation_is_optimal(name):
    abstract, exact = TNUM_OPERATIONS[name]
    for a, b in itertools.product(tnums(3), repeat=2):
        results = [exact(x, y) & 7 for x in members_of(a, 3) for y in members_of(b, 3)]
        unknown = 0
        for r in results:
            unknown |= r ^ results[0]
        assert abstract(a, b, 7) == (results[0] & ~unknown, unknown), (name, a, b)


def test_tnum_shifts_ranges_and_sets():
    bits, limit = 4, 15
    for t in tnums(bits):
        inside = members_of(t, bits)
        zeros = min((x & -x).bit_length() - 1 if x else bits for x in inside)
        assert tnum.trailing_zeros(t, bits) <= zeros
        for amount in range(bits):
            for x in inside:
                for got, want in (
                    (tnum.shift_left(t, amount, limit), x << amount & limit),
                    (tnum.shift_right(t, amount), x >> amount),
                    (tnum.shift_arithmetic(t, amount, limit), signed(x, bits) >> amount & limit),
                ):
                    assert want & ~got[1] == got[0]
        for other in tnums(bits):
            theirs = set(members_of(other, bits))
            assert tnum.contains(t, other) == (theirs <= set(inside))
            both = tnum.intersect(t, other)
            common = theirs & set(inside)
            assert (both is None) == (not common)
            if both is not None:
                assert set(members_of(both, bits)) == common
    for low, high in itertools.combinations_with_replacement(range(16), 2):
        value, mask = tnum.from_range(low, high)
        assert all(x & ~mask == value for x in range(low, high + 1))


def test_reduce_drops_no_member_and_finds_contradictions():
    width = Width(4)
    randomness = random.Random(1)
    for _ in range(8_000):
        t = randomness.choice(tnums(4))
        ul, uh = sorted(randomness.choices(range(16), k=2))
        sl, sh = sorted(randomness.choices(range(-8, 8), k=2))
        inside = [x for x in members_of(t, 4) if ul <= x <= uh and sl <= signed(x, 4) <= sh]
        word = width.reduce(t, ul, uh, sl, sh)
        assert word is not None or not inside
        assert all(in_word(x, word, 4) for x in inside)


@pytest.mark.parametrize(
    ("op", "is_signed"), sorted(Width(4).operations), ids=lambda v: getattr(v, "name", str(v))
)
def test_word_operation_holds_every_concrete_result(op, is_signed):
    width = Width(4)
    every = words(width)
    inside = {w: [x for x in range(16) if in_word(x, w, 4)] for w in every}
    table = [[concrete(op, is_signed, a, b, 4) for b in range(16)] for a in range(16)]
    randomness = random.Random(int(op))
    pairs = [(randomness.choice(every), randomness.choice(every)) for _ in range(800)]
    pairs += [(w, width.constant(c)) for w in every[::3] for c in range(0, 16, 2)]
    for a, b in pairs:
        result = width.operations[op, is_signed](a, b)
        for x in inside[a]:
            for y in inside[b]:
                assert in_word(table[x][y], result, 4), (op, a, b, x, y, result)


@pytest.mark.parametrize("op", [*INVERSE, None], ids=str)
def test_word_comparison_keeps_every_pair_that_satisfies_it(op):
    domain = ScalarDomain(8)
    low_domain = Width(4)
    every = words(low_domain)
    randomness = random.Random(7)
    for _ in range(600):
        a, b = (domain.from_low(randomness.choice(every)) for _ in range(2))
        xs, ys = ([v for v in range(16) if in_scalar(v, s, domain)] for s in (a, b))
        for low in (False, True):
            bits = 4 if low else 8
            narrowed = compare(domain, op, low, a, b)
            satisfying = [(x, y) for x in xs for y in ys if holds(op, x, y, bits)]
            assert narrowed is not None or not satisfying, (op, low, a, b)
            for x, y in satisfying:
                assert in_scalar(x, narrowed[0], domain), (op, low, a, b, x, y)
                assert in_scalar(y, narrowed[1], domain), (op, low, a, b, x, y)


def random_scalar(domain, randomness):
    """A scalar and all its members, from a few random facts about both halves."""
    full, half = domain.full, domain.half
    while True:
        word, low = full.unknown, half.unknown
        for _ in range(randomness.randrange(1, 4)):
            width = randomness.choice((full, half))
            t = (0, width.limit)
            if randomness.random() < 0.4:
                mask = randomness.getrandbits(width.bits)
                t = randomness.getrandbits(width.bits) & ~mask, mask
            u = sorted(randomness.choices(range(width.limit + 1), k=2))
            s = sorted(randomness.choices(range(width.smin, width.smax + 1), k=2))
            if randomness.random() < 0.5:
                u = [0, width.limit]
            else:
                s = [width.smin, width.smax]
            fact = width.reduce(t, *u, *s)
            if fact is None:
                continue
            if width is full:
                word = full.intersect(word, fact) or word
            else:
                low = half.intersect(low, fact) or low
        scalar = domain.sync(word, low)
        inside = [
            x
            for x in range(full.limit + 1)
            if in_word(x, word, full.bits) and in_word(x & half.limit, low, half.bits)
        ]
        if scalar is None:
            assert not inside
            continue
        assert all(in_scalar(x, scalar, domain) for x in inside)
        if inside:
            return scalar, inside


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize(
    ("op", "is_signed"), sorted(Width(4).operations), ids=lambda v: getattr(v, "name", str(v))
)
def test_scalar_arithmetic_at_eight_bits(op, is_signed, low):
    domain = ScalarDomain(8)
    randomness = random.Random(int(op) + 1)
    for _ in range(60):
        (a, xs), (b, ys) = (random_scalar(domain, randomness) for _ in range(2))
        alu = domain.alu_low if low else domain.alu
        result = alu(op, a, b, signed=is_signed)
        bits = 4 if low else 8
        limit = (1 << bits) - 1
        for x in randomness.sample(xs, min(12, len(xs))):
            for y in randomness.sample(ys, min(12, len(ys))):
                want = concrete(op, is_signed, x & limit, y & limit, bits)
                assert in_scalar(want, result, domain), (a, b, x, y)


@pytest.mark.parametrize("op", [*INVERSE, None], ids=str)
def test_scalar_comparison_at_eight_bits(op):
    domain = ScalarDomain(8)
    randomness = random.Random(3)
    for _ in range(60):
        (a, xs), (b, ys) = (random_scalar(domain, randomness) for _ in range(2))
        for low in (False, True):
            limit = 15 if low else 255
            bits = 4 if low else 8
            narrowed = compare(domain, op, low, a, b)
            for x in xs[:: max(1, len(xs) // 12)]:
                for y in ys[:: max(1, len(ys) // 12)]:
                    if holds(op, x & limit, y & limit, bits):
                        assert narrowed is not None
                        assert in_scalar(x, narrowed[0], domain)
                        assert in_scalar(y, narrowed[1], domain)


def test_thirty_two_bit_comparison_does_not_constrain_the_upper_half():
    """Facts section 7, class 2."""
    narrowed, _ = compare(S64, JmpOp.JEQ, True, S64.unknown, S64.constant(5))
    assert (narrowed.umin >> 32, narrowed.umax >> 32) == (0, 0xFFFFFFFF)
    assert (narrowed.umin32, narrowed.umax32) == (5, 5)


def test_sign_extension_truncation_and_join():
    domain = ScalarDomain(8)
    randomness = random.Random(5)
    for _ in range(150):
        scalar, inside = random_scalar(domain, randomness)
        for bits in (2, 4):
            extended = domain.sign_extend(scalar, bits)
            low = domain.sign_extend(scalar, bits, to_low=True)
            short = domain.truncate(scalar, bits)
            for x in inside:
                part = x & ((1 << bits) - 1)
                assert in_scalar(signed(part, bits) & 0xFF, extended, domain)
                assert in_scalar(signed(part, bits) & 0x0F, low, domain)
                assert in_scalar(part, short, domain)
        other, others = random_scalar(domain, randomness)
        joined = domain.join(scalar, other)
        assert covers(joined, scalar)
        assert covers(joined, other)
        assert all(in_scalar(x, joined, domain) for x in inside + others)
        if covers(scalar, other):
            assert all(in_scalar(x, scalar, domain) for x in others)


def test_sign_extension_to_the_low_half_clears_the_upper_one():
    """Facts section 7, class 1: MOVSX 8 to 32 zero-extends even where the value fits."""
    minus_one = S64.constant(-1)
    assert S64.sign_extend(minus_one, 8, to_low=True).constant() == 0xFFFFFFFF
    assert S64.sign_extend(S64.constant(0x80), 8).constant() == 0xFFFFFFFFFFFFFF80


@pytest.mark.parametrize("size", [2, 4, 8])
def test_byte_swap(size):
    randomness = random.Random(size)
    for _ in range(200):
        mask = randomness.getrandbits(64)
        value = randomness.getrandbits(64) & ~mask
        word = S64.full.reduce((value, mask), 0, S64.full.limit, S64.full.smin, S64.full.smax)
        scalar = S64.made(word)
        swapped = S64.byte_swap(scalar, size)
        for _ in range(10):
            member = value | randomness.getrandbits(64) & mask
            low = (member & ((1 << 8 * size) - 1)).to_bytes(size, "little")
            assert in_scalar(int.from_bytes(low, "big"), swapped, S64)


def test_constants_stay_constants_at_full_width():
    randomness = random.Random(11)
    for op, is_signed in S64.full.operations:
        for _ in range(100):
            a, b = randomness.getrandbits(64), randomness.choice([0, 1, 2, 2**64 - 1, 2**63, 3])
            exact = concrete(op, is_signed, a, b, 64)
            got = S64.alu(op, S64.constant(a), S64.constant(b), signed=is_signed)
            assert got == S64.constant(exact), (op, a, b)


def test_modulo_and_division_give_useful_bounds():
    assert S64.alu(AluOp.MOD, S64.unknown, S64.constant(10)).umax == 9
    assert S64.alu(AluOp.DIV, S64.unknown, S64.constant(2**60)).umax == 15
    assert S64.alu(AluOp.AND, S64.unknown, S64.constant(0xFF)).umax == 255
    assert S64.alu_low(AluOp.RSH, S64.unknown, S64.constant(27)).umax == 31
    assert S64.from_range(3, 9)[2:6] == (3, 9, 3, 9)


def test_no_operation_is_left_out():
    """What the tests above go through is what the instruction set has."""
    elsewhere = {AluOp.NEG, AluOp.MOV, AluOp.END}  # 0 - x, sign extension, byte swaps
    assert {op for op, _ in Width(4).operations} | elsewhere == set(AluOp)
    assert {op for op, is_signed in Width(4).operations if is_signed} == {AluOp.DIV, AluOp.MOD}
    assert set(INVERSE) == set(JmpOp) - {JmpOp.JA, JmpOp.CALL, JmpOp.EXIT, JmpOp.JCOND}


@pytest.mark.parametrize(
    ("op", "is_signed"), sorted(Width(3).operations), ids=lambda v: getattr(v, "name", str(v))
)
def test_word_operation_on_every_pair_of_words(op, is_signed):
    """All words of three bits with all others, all members with all others; shifts, whose amounts
    are masked, at widths that are powers of two: all of two bits, and all of four by all amounts.
    """
    shifts = op in (AluOp.LSH, AluOp.RSH, AluOp.ARSH)
    for bits in (2, 4) if shifts else (3,):
        width = Width(bits)
        every = words(width)
        others = every if bits < 4 else [width.constant(amount) for amount in range(16)]
        inside = {
            w: [x for x in range(1 << bits) if in_word(x, w, bits)] for w in (*every, *others)
        }
        operation = width.operations[op, is_signed]
        for a, b in itertools.product(every, others):
            result = operation(a, b)
            reached = {concrete(op, is_signed, x, y, bits) for x in inside[a] for y in inside[b]}
            assert all(in_word(value, result, bits) for value in reached), (op, a, b, result)


@pytest.mark.parametrize("low", [False, True], ids=["all bits", "low half"])
@pytest.mark.parametrize("op", [*INVERSE, None], ids=str)
def test_comparison_of_every_pair_of_scalars(op, low):
    """All words of two bits, as the low halves of scalars of four bits and as these themselves."""
    domain = ScalarDomain(4)
    scalars = [domain.from_low(word) for word in words(Width(2))]
    scalars += [domain.made(word) for word in words(Width(4))[:: 1 if low else 2]][::5]
    inside = {s: [x for x in range(16) if in_scalar(x, s, domain)] for s in scalars}
    bits, limit = (2, 3) if low else (4, 15)
    for a, b in itertools.product(scalars, repeat=2):
        narrowed = compare(domain, op, low, a, b)
        for x in inside[a]:
            for y in inside[b]:
                if holds(op, x & limit, y & limit, bits):
                    assert narrowed is not None, (op, a, b)
                    assert in_scalar(x, narrowed[0], domain), (op, a, b, x, y)
                    assert in_scalar(y, narrowed[1], domain), (op, a, b, x, y)


def test_sign_extension_and_truncation_of_every_scalar():
    domain = ScalarDomain(4)
    for word in words(Width(4)):
        scalar = domain.made(word)
        inside = [x for x in range(16) if in_scalar(x, scalar, domain)]
        for bits in (1, 2):
            extended = domain.sign_extend(scalar, bits)
            low = domain.sign_extend(scalar, bits, to_low=True)
            short = domain.truncate(scalar, bits)
            for x in inside:
                part = x & ((1 << bits) - 1)
                assert in_scalar(signed(part, bits) & 15, extended, domain)
                assert in_scalar(signed(part, bits) & 3, low, domain)
                assert in_scalar(part, short, domain)
