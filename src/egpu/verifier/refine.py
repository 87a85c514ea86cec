"""What a comparison says of its operands on the way that is taken.

``compare`` gives the operands narrowed by "``a op b`` holds", None when it never does; the other
way of a branch is the comparison with ``INVERSE[op]``.
"""

from __future__ import annotations

from collections.abc import Callable

from egpu.bpf import arith
from egpu.bpf.isa import JmpOp
from egpu.verifier.scalar import S64, Scalar, ScalarDomain, remember
from egpu.verifier.word import Width, Word

Pair = tuple[Word, Word] | None


# The comparison that holds where another does not; JSET's (no common bit) has no opcode.
INVERSE: dict[JmpOp, JmpOp | None] = {
    JmpOp.JEQ: JmpOp.JNE,
    JmpOp.JNE: JmpOp.JEQ,
    JmpOp.JGT: JmpOp.JLE,
    JmpOp.JLE: JmpOp.JGT,
    JmpOp.JGE: JmpOp.JLT,
    JmpOp.JLT: JmpOp.JGE,
    JmpOp.JSGT: JmpOp.JSLE,
    JmpOp.JSLE: JmpOp.JSGT,
    JmpOp.JSGE: JmpOp.JSLT,
    JmpOp.JSLT: JmpOp.JSGE,
    JmpOp.JSET: None,
}


def _unsigned(width: Width, word: Word, low: int, high: int) -> Word | None:
    return width.reduce(word[:2], max(word.umin, low), min(word.umax, high), word.smin, word.smax)


def _signed(width: Width, word: Word, low: int, high: int) -> Word | None:
    return width.reduce(word[:2], word.umin, word.umax, max(word.smin, low), min(word.smax, high))


def _pair(a: Word | None, b: Word | None) -> Pair:
    return None if a is None or b is None else (a, b)


def _equal(width: Width, a: Word, b: Word) -> Pair:
    both = width.intersect(a, b)
    return _pair(both, both)


def _without(width: Width, word: Word, value: int) -> Word | None:
    """``word`` without one value, where that is an end of a range."""
    signed = width.signed(value)
    return width.reduce(
        word[:2],
        word.umin + (word.umin == value),
        word.umax - (word.umax == value),
        word.smin + (word.smin == signed),
        word.smax - (word.smax == signed),
    )


def _different(width: Width, a: Word, b: Word) -> Pair:
    return _pair(
        a if b.mask else _without(width, a, b.value),
        b if a.mask else _without(width, b, a.value),
    )


def _less(width: Width, a: Word, b: Word, gap: int) -> Pair:
    """a + gap <= b, unsigned."""
    return _pair(
        _unsigned(width, a, 0, b.umax - gap), _unsigned(width, b, a.umin + gap, width.limit)
    )


def _less_signed(width: Width, a: Word, b: Word, gap: int) -> Pair:
    return _pair(
        _signed(width, a, width.smin, b.smax - gap), _signed(width, b, a.smin + gap, width.smax)
    )


def _common(width: Width, a: Word, b: Word) -> Pair:
    """a & b is not 0: a single bit that both may have, they have."""
    may = (a.value | a.mask) & (b.value | b.mask)
    if not may:
        return None
    if may & (may - 1):
        return a, b
    return _pair(
        width.reduce((a.value | may, a.mask & ~may), *a[2:]),
        width.reduce((b.value | may, b.mask & ~may), *b[2:]),
    )


def _clear(width: Width, a: Word, b: Word) -> Pair:
    """a & b is 0: what is surely set in one is clear in the other."""
    if a.value & b.value:
        return None
    return _pair(
        width.reduce((a.value, a.mask & ~b.value), *a[2:]),
        width.reduce((b.value, b.mask & ~a.value), *b[2:]),
    )


def _swapped(less: Callable[[Width, Word, Word, int], Pair], gap: int) -> Callable[..., Pair]:
    def greater(width: Width, a: Word, b: Word) -> Pair:
        pair = less(width, b, a, gap)
        return pair and (pair[1], pair[0])

    return greater


_RULES: dict[JmpOp | None, Callable[[Width, Word, Word], Pair]] = {
    JmpOp.JEQ: _equal,
    JmpOp.JNE: _different,
    JmpOp.JLT: lambda width, a, b: _less(width, a, b, 1),
    JmpOp.JLE: lambda width, a, b: _less(width, a, b, 0),
    JmpOp.JGT: _swapped(_less, 1),
    JmpOp.JGE: _swapped(_less, 0),
    JmpOp.JSLT: lambda width, a, b: _less_signed(width, a, b, 1),
    JmpOp.JSLE: lambda width, a, b: _less_signed(width, a, b, 0),
    JmpOp.JSGT: _swapped(_less_signed, 1),
    JmpOp.JSGE: _swapped(_less_signed, 0),
    JmpOp.JSET: _common,
    None: _clear,
}


def compare(
    domain: ScalarDomain, op: JmpOp | None, low: bool, a: Scalar, b: Scalar
) -> tuple[Scalar, Scalar] | None:
    """``a`` and ``b`` narrowed by ``a op b``, on the low halves if ``low``; None if impossible.

    ``op`` None is "no common bit", the inverse of JSET.  Links are kept.
    """
    if not (a[1] or b[1]) and domain.full.bits == 64:
        holds = arith.compare(op or JmpOp.JSET, 32 if low else 64, a[0], b[0])
        return (a, b) if holds == (op is not None) else None
    key = domain.full.bits, op, low, a[:10], b[:10]
    found = _known.get(key, _UNKNOWN)
    if found is _UNKNOWN:
        found = remember(_known, key, _compare(domain, op, low, a, b))
    if found is None:
        return None
    left, right = found
    return left.linked(a[10]), right.linked(b[10])


_Way = tuple[Scalar, Scalar] | None
_ways: dict[tuple[object, ...], tuple[_Way, _Way]] = {}  # results, links aside


def ways(op: JmpOp, low: bool, a: Scalar, b: Scalar) -> tuple[_Way, _Way]:
    """``a`` and ``b`` where ``a op b`` does not hold, and where it does; None where that cannot be.

    What is the same on the only possible way is not narrowed.
    """
    if not (a[1] or b[1]):
        holds = arith.compare(op, 32 if low else 64, a[0], b[0])
        return (None, (a, b)) if holds else ((a, b), None)
    key = op, low, a[:10] if a[10] else a, b[:10] if b[10] else b
    found = _ways.get(key)
    if found is None:
        pair = _compare(S64, INVERSE[op], low, a, b), _compare(S64, op, low, a, b)
        found = remember(_ways, key, pair)
    fallen, taken = found
    if taken is None:
        return (a, b), None
    if fallen is None:
        return None, (a, b)
    return (
        (fallen[0].linked(a[10]), fallen[1].linked(b[10])),
        (taken[0].linked(a[10]), taken[1].linked(b[10])),
    )


_UNKNOWN = S64.unknown, S64.unknown  # no result, told by identity
_known: dict[tuple[object, ...], tuple[Scalar, Scalar] | None] = {}  # results, links aside


def _compare(
    domain: ScalarDomain, op: JmpOp | None, low: bool, a: Scalar, b: Scalar
) -> tuple[Scalar, Scalar] | None:
    rule = _RULES[op]
    if low:
        pair = rule(domain.half, domain.low_word(a), domain.low_word(b))
        if pair is None:
            return None
        left = domain.sync(a.word, pair[0], a.link) if a.mask else a
        right = domain.sync(b.word, pair[1], b.link) if b.mask else b
    else:
        pair = rule(domain.full, a.word, b.word)
        if pair is None:
            return None
        left = domain.sync(pair[0], domain.low_word(a), a.link) if a.mask else a
        right = domain.sync(pair[1], domain.low_word(b), b.link) if b.mask else b
    return None if left is None or right is None else (left, right)
