"""Scalar types of PTX (PTX ISA 9.0, 5.2) as numpy types.

A register holds raw bits in the unsigned type of its width; signed and floating meaning is a view
that the instruction takes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


class Kind(enum.Enum):
    """How the bits of a type are read."""

    UNSIGNED = "u"
    SIGNED = "s"
    BITS = "b"
    FLOAT = "f"
    PREDICATE = "pred"


@dataclass(frozen=True, slots=True)
class ScalarType:
    """``raw`` is the storage type; ``native`` the one to compute in (equal to ``raw`` for bits)."""

    name: str
    kind: Kind
    bits: int
    raw: np.dtype[Any]
    native: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.bits // 8


def _row(name: str, kind: Kind, bits: int, raw: Any, native: Any) -> tuple[str, ScalarType]:
    return name, ScalarType(name, kind, bits, np.dtype(raw), np.dtype(native))


# fmt: off
TYPES: dict[str, ScalarType] = dict((
    _row("pred",  Kind.PREDICATE,  1, np.bool_,  np.bool_),
    _row("b8",    Kind.BITS,       8, np.uint8,  np.uint8),
    _row("b16",   Kind.BITS,      16, np.uint16, np.uint16),
    _row("b32",   Kind.BITS,      32, np.uint32, np.uint32),
    _row("b64",   Kind.BITS,      64, np.uint64, np.uint64),
    _row("u8",    Kind.UNSIGNED,   8, np.uint8,  np.uint8),
    _row("u16",   Kind.UNSIGNED,  16, np.uint16, np.uint16),
    _row("u32",   Kind.UNSIGNED,  32, np.uint32, np.uint32),
    _row("u64",   Kind.UNSIGNED,  64, np.uint64, np.uint64),
    _row("s8",    Kind.SIGNED,     8, np.uint8,  np.int8),
    _row("s16",   Kind.SIGNED,    16, np.uint16, np.int16),
    _row("s32",   Kind.SIGNED,    32, np.uint32, np.int32),
    _row("s64",   Kind.SIGNED,    64, np.uint64, np.int64),
    _row("f16",   Kind.FLOAT,     16, np.uint16, np.float16),
    _row("f32",   Kind.FLOAT,     32, np.uint32, np.float32),
    _row("f64",   Kind.FLOAT,     64, np.uint64, np.float64),
    _row("bf16",  Kind.BITS,      16, np.uint16, np.uint16),   # converted, never computed with
    _row("f16x2", Kind.BITS,      32, np.uint32, np.uint32),
    _row("bf16x2", Kind.BITS,     32, np.uint32, np.uint32),
))
# fmt: on

PREDICATE = TYPES["pred"]
B32 = TYPES["b32"]
B64 = TYPES["b64"]
U32 = TYPES["u32"]
U64 = TYPES["u64"]


def raw(value: Array, type: ScalarType) -> Array:
    """``value`` (in the native type) as bits."""
    if value.dtype == type.raw:
        return value
    return np.ascontiguousarray(value).view(type.raw)


def native(bits: Array, type: ScalarType) -> Array:
    """Bits as values of ``type``."""
    return bits if bits.dtype == type.native else np.ascontiguousarray(bits).view(type.native)


def resized(bits: Array, type: ScalarType, target: np.dtype[Any]) -> Array:
    """Bits of ``type`` as they stand in storage of another width: cut, sign- or zero-extended."""
    if bits.dtype == target:
        return bits
    if target.itemsize > bits.dtype.itemsize and type.kind is Kind.SIGNED:
        return bits.view(type.native).astype(f"i{target.itemsize}").view(target)
    return bits.astype(target)
