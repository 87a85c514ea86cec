"""The hash of hash maps and Bloom filters: splitmix64's finaliser over 8-byte words.

Device code, the reference interpreter and views compute the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from egpu.bpf.arith import MASK64

# The multipliers of splitmix64's finaliser, and an arbitrary odd start.
START, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(data: bytes) -> int:
    """64 bits that depend on every bit of ``data``, filled up with zeros to whole words."""
    value = START
    for start in range(0, len(data), 8):
        value ^= int.from_bytes(data[start : start + 8], "little")
        value = (value ^ value >> 30) * FIRST & MASK64
    value = (value ^ value >> 27) * SECOND & MASK64
    return value ^ value >> 31


def bloom_places(data: bytes, bits: int, each: int) -> Iterator[int]:
    """Which of ``bits`` (a power of two) a value sets: from the lower half of its hash on, in
    steps of the upper half, made odd."""
    value = mixed(data)
    step = value >> 32 | 1
    for number in range(each):
        yield (value + number * step) & (bits - 1)
