"""Numbers as polynomials of thread and block indices, and which indices such a number tells apart.

``block_x * block_dim_x + thread_x`` is the polynomial {(block_dim_x, block_x): 1, (thread_x,): 1}.
Sums and products do not wrap here; the numbers of programs do, so what is told apart is told apart
for grids of fewer than 2^32 threads (docs/verifier.md says so).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from egpu.bpf.context import FIELDS

AXES = "xyz"
THREADS = frozenset(f"thread_{axis}" for axis in AXES)
BLOCKS = frozenset(f"block_{axis}" for axis in AXES)
INDICES = THREADS | BLOCKS
# An index is below its extent; both are context fields.
EXTENT = {f"thread_{axis}": f"block_dim_{axis}" for axis in AXES}
EXTENT |= {f"block_{axis}": f"grid_{axis}" for axis in AXES}
NAMES = INDICES | frozenset(EXTENT.values())
_MAXIMUM = {row.name: row.maximum for row in FIELDS if row.name in INDICES}
_TERMS = 12  # a longer sum is no thread number
_FACTOR = 1 << 16  # a larger one (as of x << 32) may leave nothing in the low half

Term = tuple[str, ...]  # a product of fields, sorted; () is 1


class Linear(NamedTuple):
    """A sum of products with integer coefficients, none of them 0, sorted."""

    terms: tuple[tuple[Term, int], ...]

    @property
    def constant(self) -> int | None:
        """The number, where it is one."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None


def number(value: int) -> Linear:
    return _made({(): value})


def field(name: str) -> Linear:
    return _made({(name,): 1})


def add(a: Linear, b: Linear, sign: int = 1) -> Linear | None:
    """a + sign * b; None if that is too long to matter."""
    total = dict(a.terms)
    for term, factor in b.terms:
        total[term] = total.get(term, 0) + sign * factor
    return _made(total) if len(total) <= _TERMS else None


def multiply(a: Linear, b: Linear) -> Linear | None:
    """a * b; None if that is too long to matter."""
    total: dict[Term, int] = {}
    for left, x in a.terms:
        for right, y in b.terms:
            term = tuple(sorted(left + right))
            total[term] = total.get(term, 0) + x * y
    return _made(total) if len(total) <= _TERMS else None


def divide(a: Linear, divisor: int) -> Linear | None:
    """a / divisor where that is exact for every term, None where not."""
    if any(factor % divisor for _, factor in a.terms):
        return None
    return _made({term: factor // divisor for term, factor in a.terms})


def _made(terms: dict[Term, int]) -> Linear:
    return Linear(tuple(sorted((term, factor) for term, factor in terms.items() if factor)))


class Digits(NamedTuple):
    """The indices that a number tells apart, and the least distance of two numbers that differ."""

    indices: frozenset[str]
    step: int


NO_DIGITS = Digits(frozenset(), 0)


def digits(a: Linear) -> Digits | None:
    """The indices of a number in mixed radix: each digit is an index, and every higher digit has
    its extent as a factor (or a constant that is no less than any extent).

    None if it is no such number: threads that differ may give the same.
    """
    terms = {term: factor for term, factor in a.terms if term}
    if any(not 0 < factor <= _FACTOR for factor in terms.values()):
        return None
    found: set[str] = set()
    step = math.gcd(*terms.values()) if terms else 0
    while terms:
        unit = math.gcd(*terms.values())
        lowest = _lowest(terms, unit)
        if lowest is None:
            return None
        found.add(lowest[0])
        terms = lowest[1]
    return Digits(frozenset(found), step)


def _lowest(terms: dict[Term, int], unit: int) -> tuple[str, dict[Term, int]] | None:
    """The lowest digit, and the rest divided by its extent."""
    for term, factor in terms.items():
        if len(term) != 1 or term[0] not in INDICES or factor != unit:
            continue
        index = term[0]
        others = {other: value for other, value in terms.items() if other != term}
        if any(index in other for other in others):
            continue
        extent = EXTENT[index]
        if all(extent in other for other in others):
            return index, {_without(other, extent): value for other, value in others.items()}
        maximum = _MAXIMUM[index]
        if maximum is not None and math.gcd(*others.values()) > unit * maximum:
            return index, others
    return None


def _without(term: Term, name: str) -> Term:
    place = term.index(name)
    return term[:place] + term[place + 1 :]


def zero_means(a: Linear) -> frozenset[str]:
    """The indices that are 0 whenever the number is: a sum of products that cannot be negative."""
    if any(not term or not 0 < factor <= _FACTOR for term, factor in a.terms):
        return frozenset()
    named: frozenset[str] = frozenset()
    for term, _ in a.terms:
        indices = [name for name in term if name in INDICES]
        if len(indices) == 1:  # the other factors are extents, which are at least 1
            named |= {indices[0]}
    return named
