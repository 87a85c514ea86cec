"""Lanes that part in an entry probe go on together: the kernel was compiled for a whole warp.

What the assembler puts at a probe's end is not enough.  Where lanes have parted its
``bar.warp.sync`` gathers them (``WARPSYNC.COLLECTIVE``) and sends each back to where it came from;
they go on one by one.  That is right for a probe that ends there, but behind it the kernel may
exchange values with ``SHFL``, which the assembler does not guard where it knows that all are there.
"""

from __future__ import annotations

from collections.abc import Sequence

from egpu.errors import UnsupportedError
from egpu.splice.sass_encoding import (
    BARRIER,
    BARRIERS,
    BREAK,
    BSSY,
    BSYNC,
    GUARD,
    OPCODE,
    PT,
    RELATIVE,
    SECOND_GUARD,
    SIZE,
    WARPSYNCS,
    distance_of,
    instruction,
    with_distance,
)
from egpu.splice.sass_uniform import usage


def between_barriers(words: Sequence[int], arch: int) -> tuple[int, ...]:
    """Code that its lanes leave at its end, where those that came together wait for each other if
    they may have parted in it; UnsupportedError when it uses every convergence barrier itself.
    """
    if not _parts(words, arch):
        return tuple(words)
    free = sorted(set(range(BARRIERS)) - usage(words).barriers)
    if not free:
        raise UnsupportedError("a probe that uses every convergence barrier")
    behind = (len(words) + 1) * SIZE  # counted from the first instruction to behind the last
    begins = with_distance(BARRIER.set(instruction(BSSY), free[0]), arch, behind)
    return begins, *words, BARRIER.set(instruction(BSYNC), free[0])


def _parts(words: Sequence[int], arch: int) -> bool:
    """Whether lanes may come to the end one by one: unless every branch that they can take
    differently is between a BSSY and where its lanes meet, which none of them leaves."""
    joined: set[int] = set()
    for index, word in enumerate(words):
        opcode = OPCODE.of(word)
        if opcode == BSSY:
            joined.update(range(index, index + 1 + distance_of(word, arch) // SIZE))
        if opcode in (BREAK, *WARPSYNCS):
            return True
        alike = GUARD.of(word) == PT and SECOND_GUARD.of(word) == PT
        if opcode in RELATIVE and not alike and index not in joined:
            return True
    return False
