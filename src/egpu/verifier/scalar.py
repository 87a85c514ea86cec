"""An abstract register value that is not a pointer: a 64-bit word and its low 32 bits.

The low half has bounds of its own because 32-bit comparisons and arithmetic say nothing of the
upper half.  ``ScalarDomain`` is parametrised by width so that tests can enumerate it; the verifier
uses ``S64``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from egpu.bpf import arith
from egpu.bpf.isa import AluOp
from egpu.errors import InternalError
from egpu.verifier import tnum
from egpu.verifier.word import Width, Word

# The low half of the result depends only on the low halves of the operands.
_LOW_HALF = frozenset({AluOp.ADD, AluOp.SUB, AluOp.MUL, AluOp.AND, AluOp.OR, AluOp.XOR})


_new = tuple.__new__  # Scalar(...) without matching arguments to names


class Scalar(NamedTuple):
    """Known bits, bounds at full width, bounds of the low half, and a link.

    Scalars with the same ``link`` (not 0) hold the same value on this path: what a branch learns of
    one holds for all.
    """

    value: int
    mask: int
    umin: int
    umax: int
    smin: int
    smax: int
    umin32: int
    umax32: int
    smin32: int
    smax32: int
    link: int = 0

    @property
    def word(self) -> Word:
        return _new(Word, self[:6])

    def linked(self, link: int) -> Scalar:
        """The same number with another link."""
        return self if self[10] == link else _new(Scalar, (*self[:10], link))

    def constant(self) -> int | None:
        """The unsigned value if it is known."""
        return None if self.mask else self.value


_Key = TypeVar("_Key")
_Made = TypeVar("_Made")
_REMEMBERED = 1 << 15  # results of operations kept; the oldest go first


def remember(known: dict[_Key, _Made], key: _Key, made: _Made) -> _Made:
    """Keep the result of a pure operation in ``known``, which stays bounded."""
    if len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[key] = made
    return made


class ScalarDomain:
    """Scalars of ``bits`` bits whose low half has ``bits // 2``.

    Operations are pure and exploration asks the same ones again and again, so their results are
    remembered.
    """

    __slots__ = ("_constants", "_results", "full", "half", "unknown", "zero")

    def __init__(self, bits: int) -> None:
        self.full = Width(bits)
        self.half = Width(bits // 2)
        self._constants: dict[int, Scalar] = {}
        self._results: dict[tuple[object, ...], Scalar] = {}
        self.unknown = Scalar(*self.full.unknown, *self.half.unknown[2:])
        self.zero = self.constant(0)

    def constant(self, value: int) -> Scalar:
        """The scalar that is exactly ``value``, taken modulo the width."""
        value &= self.full.limit
        found = self._constants.get(value)
        if found is None:
            found = remember(self._constants, value, self._constant(value))
        return found

    def _constant(self, value: int) -> Scalar:
        full, half = self.full, self.half
        low = value & half.limit
        signed = value - full.limit - 1 if value & full.sign else value
        signed_low = low - half.limit - 1 if low & half.sign else low
        bounds = value, value, signed, signed, low, low, signed_low, signed_low
        return _new(Scalar, (value, 0, *bounds, 0))

    def low_word(self, scalar: Scalar) -> Word:
        """The low half as a word of its own."""
        limit = self.half.limit
        return _new(Word, (scalar[0] & limit, scalar[1] & limit, *scalar[6:10]))

    def sync(self, full: Word | None, low: Word | None, link: int = 0) -> Scalar | None:
        """The scalar with these two halves after each has told the other what it knows.

        None if they contradict: no value satisfies both.
        """
        half, limit = self.half, self.half.limit
        if full is not None and low is not None and full.umax <= limit:
            # The upper half is 0, so the low one says everything.
            told = Word(*full[:4], half.smin, half.smax)
            low = half.intersect(low, told)
            return None if low is None else self.from_low(low, link)
        while full is not None and low is not None:
            upper_low, upper_high = full.umin & ~limit, full.umax & ~limit
            if upper_low == upper_high:
                umin, umax = full.umin & limit, full.umax & limit
            else:
                umin, umax = 0, limit
            smin, smax = half.smin, half.smax
            fits = full.smin >= smin and full.smax <= smax
            if fits:
                smin, smax = full.smin, full.smax
            bits = full.value & limit, full.mask & limit
            told = Word(*bits, umin, umax, smin, smax)
            low = half.intersect(low, told)
            if low is None:
                return None
            # The low half is at least umin whatever the upper one is; the same for the others.
            again = self.full.intersect(
                full,
                Word(
                    full.value & ~limit | low.value,
                    full.mask & ~limit | low.mask,
                    upper_low | low.umin,
                    upper_high | low.umax,
                    low.smin if fits else full.smin & ~limit | low.umin,
                    low.smax if fits else full.smax & ~limit | low.umax,
                ),
            )
            if again == full:
                return Scalar(*full, *low[2:], link)
            full = again
        return None

    def made(self, full: Word, low: Word | None = None) -> Scalar:
        """``sync`` of the result of an operation, which always exists."""
        if full == self.full.unknown and (low is None or low == self.half.unknown):
            return self.unknown
        scalar = self.sync(full, low or self.half.unknown)
        if scalar is None:
            raise InternalError("an abstract operation has no result")
        return scalar

    def from_low(self, low: Word, link: int = 0) -> Scalar:
        """A low half zero-extended."""
        value, mask, umin, umax, smin, smax = low
        made = value, mask, umin, umax, umin, umax, umin, umax, smin, smax, link
        return _new(Scalar, made)

    def from_range(self, umin: int, umax: int) -> Scalar:
        """Any value between two unsigned bounds."""
        key = umin, umax
        found = self._results.get(key)
        if found is None:
            found = remember(self._results, key, self._from_range(umin, umax))
        return found

    def _from_range(self, umin: int, umax: int) -> Scalar:
        width = self.full
        word = width.reduce((0, width.limit), umin, umax, width.smin, width.smax)
        if word is None:
            raise InternalError(f"empty range {umin}..{umax}")
        return self.made(word)

    def from_signed(self, smin: int, smax: int) -> Scalar:
        """Any value between two signed bounds."""
        word = self.full.reduce((0, self.full.limit), 0, self.full.limit, smin, smax)
        if word is None:
            raise InternalError(f"empty range {smin}..{smax}")
        return self.made(word)

    def sum(self, a: Scalar, b: Scalar) -> Scalar:
        return self.alu(AluOp.ADD, a, b)

    def multiplied(self, turns: int, number: int) -> Scalar:
        """``number`` times 0 to ``turns``."""
        if turns > self.full.limit:
            return self.unknown
        return self.alu(AluOp.MUL, self.from_range(0, turns), self.constant(number))

    def alu(self, op: AluOp, a: Scalar, b: Scalar, *, signed: bool = False) -> Scalar:
        """``a op b`` at full width; ``signed`` selects SDIV and SMOD."""
        if not (a[1] or b[1]) and self.full.bits == 64:
            return self.constant(arith.alu(op, 64, int(signed), a[0], b[0]))
        key = op, signed, a[:10] if a[10] else a, b[:10] if b[10] else b
        found = self._results.get(key)
        if found is None:
            found = remember(self._results, key, self._alu(op, a, b, signed))
        return found

    def _alu(self, op: AluOp, a: Scalar, b: Scalar, signed: bool) -> Scalar:
        full = self.full.operations[op, signed](a.word, b.word)
        if not full.mask:
            return self.constant(full.value)
        low = None
        if op in _LOW_HALF:
            low = self.half.operations[op, signed](self.low_word(a), self.low_word(b))
        return self.made(full, low)

    def alu_low(self, op: AluOp, a: Scalar, b: Scalar, *, signed: bool = False) -> Scalar:
        """``a op b`` on the low halves, zero-extended."""
        if not (a[1] or b[1]) and self.full.bits == 64:
            return self.constant(arith.alu(op, 32, int(signed), a[0], b[0]))
        key = op, signed, a[:10] if a[10] else a, b[:10] if b[10] else b, "low"
        found = self._results.get(key)
        if found is None:
            operation = self.half.operations[op, signed]
            made = self.from_low(operation(self.low_word(a), self.low_word(b)))
            found = remember(self._results, key, made)
        return found

    def truncate(self, scalar: Scalar, bits: int) -> Scalar:
        """The low ``bits`` bits, zero-extended."""
        limit = (1 << bits) - 1
        if scalar.umax <= limit:
            return scalar
        if bits == self.half.bits:
            value, mask, _, _, _, _, umin, umax, smin, smax, _ = scalar
            made = value & limit, mask & limit, umin, umax, umin, umax, umin, umax, smin, smax, 0
            return _new(Scalar, made)
        return self.alu(AluOp.AND, scalar, self.constant(limit))

    def sign_extend(self, scalar: Scalar, bits: int, *, to_low: bool = False) -> Scalar:
        """The low ``bits`` bits sign-extended, to full width or to the low half."""
        if not to_low and self.full.bits == bits:
            return scalar
        width = Width(bits)
        if scalar.smin >= width.smin and scalar.smax <= width.smax:
            extended = scalar.linked(0)
        else:
            sign, limit = width.sign, width.limit
            upper = self.full.limit & ~limit
            value, mask = scalar.value & limit, scalar.mask & limit
            value |= upper if value & sign else 0
            mask |= upper if mask & sign else 0
            smin, smax = width.smin, width.smax
            if bits == self.half.bits:
                smin, smax = scalar.smin32, scalar.smax32
            word = self.full.reduce((value, mask), 0, self.full.limit, smin, smax)
            if word is None:
                raise InternalError("sign extension has no result")
            extended = self.made(word)
        return self.from_low(self.low_word(extended)) if to_low else extended

    def byte_swap(self, scalar: Scalar, size: int) -> Scalar:
        """The low ``size`` bytes in reverse order, zero-extended."""
        limit = (1 << 8 * size) - 1
        value, mask = (
            int.from_bytes((part & limit).to_bytes(size, "little"), "big")
            for part in (scalar.value, scalar.mask)
        )
        word = self.full.reduce((value, mask), 0, self.full.limit, self.full.smin, self.full.smax)
        if word is None:
            raise InternalError("byte swap has no result")
        return self.made(word)

    def join(self, a: Scalar, b: Scalar) -> Scalar:
        """A scalar that holds both, unlinked."""
        if a[:10] == b[:10]:
            return a.linked(0)
        mask = a.mask | b.mask | (a.value ^ b.value)
        return Scalar(
            a.value & ~mask,
            mask,
            min(a.umin, b.umin),
            max(a.umax, b.umax),
            min(a.smin, b.smin),
            max(a.smax, b.smax),
            min(a.umin32, b.umin32),
            max(a.umax32, b.umax32),
            min(a.smin32, b.smin32),
            max(a.smax32, b.smax32),
        )


def covers(a: Scalar, b: Scalar) -> bool:
    """Whether every value of b is one of a (links aside)."""
    return (
        a.umin <= b.umin
        and a.umax >= b.umax
        and a.smin <= b.smin
        and a.smax >= b.smax
        and a.umin32 <= b.umin32
        and a.umax32 >= b.umax32
        and a.smin32 <= b.smin32
        and a.smax32 >= b.smax32
        and tnum.contains(a[:2], b[:2])
    )


S64 = ScalarDomain(64)

# Any value of 8, 16, 32 or 64 bits, zero-extended.
ANY = {bits: S64.from_range(0, (1 << bits) - 1) for bits in (8, 16, 32, 64)}
