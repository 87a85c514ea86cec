"""Tristate numbers: which bits of a value are known.

A tnum is a pair ``(value, mask)``: a set bit of ``mask`` is unknown, every other bit equals that of
``value``; ``value & mask`` is 0.  Every function works at any width: ``limit`` is the mask of the
width (``2**bits - 1``).  A result holds every result of members of the arguments; tests enumerate
that at small widths.
"""

from __future__ import annotations

Tnum = tuple[int, int]


def add(a: Tnum, b: Tnum, limit: int) -> Tnum:
    """a + b, wrapping."""
    value = a[0] + b[0]
    # The carries that can differ are those in which the least and the greatest sum differ.
    unknown = ((value + a[1] + b[1]) ^ value | a[1] | b[1]) & limit
    return value & ~unknown & limit, unknown


def sub(a: Tnum, b: Tnum, limit: int) -> Tnum:
    """a - b, wrapping."""
    value = a[0] - b[0]
    unknown = ((value + a[1]) ^ (value - b[1]) | a[1] | b[1]) & limit
    return value & ~unknown & limit, unknown


def conjunction(a: Tnum, b: Tnum) -> Tnum:
    """a & b."""
    value = a[0] & b[0]
    return value, (a[0] | a[1]) & (b[0] | b[1]) & ~value


def disjunction(a: Tnum, b: Tnum) -> Tnum:
    """a | b."""
    value = a[0] | b[0]
    return value, (a[1] | b[1]) & ~value


def difference(a: Tnum, b: Tnum) -> Tnum:
    """a ^ b."""
    unknown = a[1] | b[1]
    return (a[0] ^ b[0]) & ~unknown, unknown


def mul(a: Tnum, b: Tnum, limit: int) -> Tnum:
    """a * b, wrapping: the known product plus the unknown part of every partial product."""
    value, unknown = a
    shifted_value, shifted_mask = b
    doubt: Tnum = (0, 0)
    while value or unknown:
        if value & 1:
            doubt = add(doubt, (0, shifted_mask), limit)
        elif unknown & 1:
            doubt = add(doubt, (0, shifted_value | shifted_mask), limit)
        value, unknown = value >> 1, unknown >> 1
        shifted_value, shifted_mask = shifted_value << 1 & limit, shifted_mask << 1 & limit
    return add((a[0] * b[0] & limit, 0), doubt, limit)


def shift_left(a: Tnum, amount: int, limit: int) -> Tnum:
    """a << amount, for a constant amount below the width."""
    return a[0] << amount & limit, a[1] << amount & limit


def shift_right(a: Tnum, amount: int) -> Tnum:
    """a >> amount, unsigned, for a constant amount."""
    return a[0] >> amount, a[1] >> amount


def shift_arithmetic(a: Tnum, amount: int, limit: int) -> Tnum:
    """a >> amount, signed: an unknown sign bit is copied as unknown bits."""
    fill = limit & ~(limit >> amount)
    sign = (limit + 1) >> 1
    value, unknown = a[0] >> amount, a[1] >> amount
    return value | (fill if a[0] & sign else 0), unknown | (fill if a[1] & sign else 0)


def from_range(low: int, high: int) -> Tnum:
    """The common leading bits of every value from ``low`` to ``high`` (unsigned, low <= high)."""
    unknown = (1 << (low ^ high).bit_length()) - 1
    return low & ~unknown, unknown


def intersect(a: Tnum, b: Tnum) -> Tnum | None:
    """What is in both, None if nothing is."""
    if (a[0] ^ b[0]) & ~a[1] & ~b[1]:
        return None
    unknown = a[1] & b[1]
    return (a[0] | b[0]) & ~unknown, unknown


def contains(a: Tnum, b: Tnum) -> bool:
    """Whether every member of b is one of a."""
    return not (b[1] & ~a[1] or (a[0] ^ b[0]) & ~a[1])


def trailing_zeros(a: Tnum, bits: int) -> int:
    """How many low bits are known to be 0 (``bits`` for the constant 0)."""
    low = a[0] | a[1]
    return (low & -low).bit_length() - 1 if low else bits
