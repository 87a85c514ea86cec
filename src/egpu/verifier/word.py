"""An abstract machine word of one width: known bits with unsigned and signed bounds.

``Width`` is the width, a parameter so that tests can enumerate every operation at 4 and 5 bits; the
verifier uses 64 and 32.  Every operation gives a word that holds all concrete results (RFC 9669
section 4.1 semantics: division by zero gives 0, modulo by zero its dividend, shift amounts are
masked).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from egpu.bpf.isa import AluOp
from egpu.errors import InternalError
from egpu.verifier import tnum


class Word(NamedTuple):
    """Known bits and inclusive bounds of a value of some width."""

    value: int
    mask: int
    umin: int
    umax: int
    smin: int
    smax: int


class Width:
    """The operations on words of ``bits`` bits."""

    __slots__ = ("bits", "limit", "operations", "sign", "smax", "smin", "unknown")

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.limit = (1 << bits) - 1
        self.sign = 1 << (bits - 1)
        self.smin, self.smax = -self.sign, self.sign - 1
        self.unknown = Word(0, self.limit, 0, self.limit, self.smin, self.smax)
        self.operations: dict[tuple[AluOp, bool], Callable[[Word, Word], Word]] = {
            (AluOp.ADD, False): self.add,
            (AluOp.SUB, False): self.sub,
            (AluOp.MUL, False): self.mul,
            (AluOp.DIV, False): self.divide,
            (AluOp.MOD, False): self.modulo,
            (AluOp.DIV, True): self.divide_signed,
            (AluOp.MOD, True): self.modulo_signed,
            (AluOp.AND, False): self.conjunction,
            (AluOp.OR, False): self.disjunction,
            (AluOp.XOR, False): self.difference,
            (AluOp.LSH, False): self.shift_left,
            (AluOp.RSH, False): self.shift_right,
            (AluOp.ARSH, False): self.shift_arithmetic,
        }

    def signed(self, value: int) -> int:
        """``value`` read as two's complement."""
        return value - self.limit - 1 if value & self.sign else value

    def constant(self, value: int) -> Word:
        """The word that is exactly ``value``."""
        value &= self.limit
        signed = self.signed(value)
        return Word(value, 0, value, value, signed, signed)

    def reduce(self, bits: tnum.Tnum, umin: int, umax: int, smin: int, smax: int) -> Word | None:
        """The tightest word of these facts that a few rounds find, None if they contradict."""
        value, mask = bits
        limit, sign, wrap = self.limit, self.sign, self.limit + 1
        while True:
            umin = max(umin, value)
            umax = min(umax, value | mask)
            if umin ^ umax < sign:  # one half of the circle: signed order is unsigned order
                negative = wrap if umin >= sign else 0
                smin = max(smin, umin - negative)
                smax = min(smax, umax - negative)
            if smin > smax:
                return None
            if smin >= 0 or smax < 0:
                umin, umax = max(umin, smin & limit), min(umax, smax & limit)
            # The signed range crosses 0, so unsigned it is [0, smax] and [smin & limit, limit].
            elif umin > smax:
                umin, smax = max(umin, smin & limit), -1
            elif umax < smin & limit:
                umax, smin = min(umax, smax), 0
            if umin > umax:
                return None
            unknown = (1 << (umin ^ umax).bit_length()) - 1
            if (value ^ umin) & ~unknown & ~mask:
                return None  # the bits that all of the range shares are known otherwise
            if not mask & ~unknown:
                break
            value, mask = value | umin & ~unknown & mask, mask & unknown
        if umin ^ umax < sign:
            negative = wrap if umin >= sign else 0
            smin, smax = max(smin, umin - negative), min(smax, umax - negative)
            if smin > smax:
                return None
        return Word(value, mask, umin, umax, smin, smax)

    def _made(
        self,
        bits: tnum.Tnum | None = None,
        unsigned: tuple[int, int] | None = None,
        signed: tuple[int, int] | None = None,
    ) -> Word:
        word = self.reduce(
            bits or (0, self.limit),
            *(unsigned or (0, self.limit)),
            *(signed or (self.smin, self.smax)),
        )
        if word is None:
            raise InternalError("an abstract operation has no result")
        return word

    def _unsigned(self, low: int, high: int) -> tuple[int, int] | None:
        """Bounds after wrapping: known if both ends wrap equally often."""
        if low >> self.bits == high >> self.bits:
            return low & self.limit, high & self.limit
        return None

    def _signed(self, low: int, high: int) -> tuple[int, int] | None:
        if low >= self.smin and high <= self.smax:
            return low, high
        return None

    def add(self, a: Word, b: Word) -> Word:
        return self._made(
            tnum.add(a[:2], b[:2], self.limit),
            self._unsigned(a.umin + b.umin, a.umax + b.umax),
            self._signed(a.smin + b.smin, a.smax + b.smax),
        )

    def sub(self, a: Word, b: Word) -> Word:
        return self._made(
            tnum.sub(a[:2], b[:2], self.limit),
            self._unsigned(a.umin - b.umax, a.umax - b.umin),
            self._signed(a.smin - b.smax, a.smax - b.smin),
        )

    def mul(self, a: Word, b: Word) -> Word:
        products = [x * y for x in (a.smin, a.smax) for y in (b.smin, b.smax)]
        return self._made(
            tnum.mul(a[:2], b[:2], self.limit),
            self._unsigned(a.umin * b.umin, a.umax * b.umax),
            self._signed(min(products), max(products)),
        )

    def divide(self, a: Word, b: Word) -> Word:
        if not b.umax:
            return self.constant(0)
        low = a.umin // b.umax if b.umin else 0
        return self._made(unsigned=(low, a.umax // max(b.umin, 1)))

    def modulo(self, a: Word, b: Word) -> Word:
        if not b.umax or a.umax < b.umin:
            return a
        if not (a.mask or b.mask):
            return self.constant(a.value % b.value)
        if b.umin == b.umax and not b.umin & (b.umin - 1):
            return self.conjunction(a, self.constant(b.umin - 1))
        # A divisor that may be 0 leaves the dividend.
        high = min(a.umax, b.umax - 1) if b.umin else a.umax
        return self._made(unsigned=(0, high))

    def divide_signed(self, a: Word, b: Word) -> Word:
        if b.mask == 0 and b.value:
            divisor = b.smin
            if divisor == -1 and a.smin == self.smin:
                return self.sub(self.constant(0), a)
            ends = sorted(_truncate(end, divisor) for end in (a.smin, a.smax))
            return self._made(signed=(ends[0], ends[1]))
        if not b.umax:
            return self.constant(0)
        # No quotient is farther from 0 than its dividend; MIN / -1 wraps to MIN.
        far = max(abs(a.smin), abs(a.smax))
        if b.smin <= -1 <= b.smax and a.smin == self.smin:
            return self.unknown
        low = -far if b.smin < 0 or a.smin < 0 else 0
        high = far if (b.smin < 0 and a.smin < 0) or a.smax > 0 else 0
        return self._made(signed=(max(low, self.smin), min(high, self.smax)))

    def modulo_signed(self, a: Word, b: Word) -> Word:
        if not b.umax:
            return a
        if not (a.mask or b.mask):
            return self.constant(a.smin - _truncate(a.smin, b.smin) * b.smin)
        # The sign is the dividend's; the size below the divisor's, unless that may be 0.
        low, high = min(0, a.smin), max(0, a.smax)
        if b.umin:
            below = max(abs(b.smin), abs(b.smax)) - 1
            low, high = max(low, -below), min(high, below)
        return self._made(signed=(low, high))

    def conjunction(self, a: Word, b: Word) -> Word:
        return self._made(tnum.conjunction(a[:2], b[:2]), (0, min(a.umax, b.umax)))

    def disjunction(self, a: Word, b: Word) -> Word:
        return self._made(tnum.disjunction(a[:2], b[:2]), (max(a.umin, b.umin), self.limit))

    def difference(self, a: Word, b: Word) -> Word:
        return self._made(tnum.difference(a[:2], b[:2]))

    def _amount(self, b: Word) -> Word:
        """A shift amount, masked to the width."""
        return b if b.umax < self.bits else self.conjunction(b, self.constant(self.bits - 1))

    def shift_left(self, a: Word, b: Word) -> Word:
        b = self._amount(b)
        bits = tnum.shift_left(a[:2], b.value, self.limit) if not b.mask else None
        if bits is None:
            zeros = min(tnum.trailing_zeros(a[:2], self.bits) + b.umin, self.bits)
            bits = 0, self.limit & ~((1 << zeros) - 1)
        high = a.umax << b.umax
        return self._made(
            bits,
            (a.umin << b.umin, high) if high <= self.limit else None,
            self._signed(
                min(a.smin << b.umax, a.smin << b.umin), max(a.smax << b.umax, a.smax << b.umin)
            ),
        )

    def shift_right(self, a: Word, b: Word) -> Word:
        b = self._amount(b)
        bits = tnum.shift_right(a[:2], b.value) if not b.mask else None
        return self._made(bits, (a.umin >> b.umax, a.umax >> b.umin))

    def shift_arithmetic(self, a: Word, b: Word) -> Word:
        b = self._amount(b)
        bits = tnum.shift_arithmetic(a[:2], b.value, self.limit) if not b.mask else None
        low = a.smin >> (b.umin if a.smin < 0 else b.umax)
        high = a.smax >> (b.umax if a.smax < 0 else b.umin)
        return self._made(bits, signed=(low, high))

    def intersect(self, a: Word, b: Word) -> Word | None:
        """What is in both, None if nothing is."""
        bits = tnum.intersect(a[:2], b[:2])
        if bits is None:
            return None
        return self.reduce(
            bits,
            max(a.umin, b.umin),
            min(a.umax, b.umax),
            max(a.smin, b.smin),
            min(a.smax, b.smax),
        )


def _truncate(dividend: int, divisor: int) -> int:
    """Division towards zero; Python's // goes towards minus infinity."""
    quotient = abs(dividend) // abs(divisor)
    return -quotient if (dividend < 0) != (divisor < 0) else quotient
