"""Probes without the branch that ``ptxas`` puts around a single reduction.

``@p red`` in PTX becomes a branch of the lanes without ``p`` around some instructions and a barrier
where they meet, or at an exit the end of those lanes: for one reduction that is dearer than
computing its address in every lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from egpu.splice.sass_encoding import (
    BARRIER,
    BASE,
    BRA,
    BSSY,
    BSYNC,
    EXIT,
    GUARD,
    GUARD_REGISTER,
    NOP,
    OPCODE,
    PREDICATE_RESULT,
    PT,
    RELATIVE,
    RZ,
    SECOND_GUARD,
    SIZE,
    SOURCE_A,
    STALL,
    WAIT,
    YIELD,
    Field,
    distance_of,
    instruction,
)
from egpu.splice.sass_operands import Kind, Resource, operands

_RED, _LDC = 0x18E, 0x182
# Instructions, by base opcode, that only compute: lanes for which they were not meant can run them.
# fmt: off
_WITH_RESULT = frozenset({  # a predicate at bit 81 ...
    0x00C, 0x010, 0x011, 0x012, 0x024, 0x025, 0x048,  # ISETP, IADD3, LEA, LOP3, IMAD, .WIDE, VIMNMX
})
_WITH_TWO = frozenset({0x00C, 0x010, 0x048})  # ... and another one at bit 84
_WITHOUT = frozenset({
    0x002, 0x007, 0x019, 0x01A, 0x036, 0x109, 0x035,  # MOV, SEL, SHF, SGXT, VIADD, POPC, HFMA2
    0x005, 0x119, 0x182,                              # CS2R, S2R, LDC
    0x082, 0x090, 0x092, 0x0A4, 0x0A5, 0x0B9, 0x0BF,  # UMOV, UIADD3, ULOP3, UIMAD, ..., UPOPC
})
# fmt: on
_MOST_STALL, _LONG_STALL = 15, 12
_NEGATED = 8
_SECOND_RESULT = Field(84, 3)


def straightened(words: Sequence[int], arch: int) -> tuple[int, ...]:
    """A probe of the form ``BSSY; @p BRA over; ...; over: BSYNC; EXIT``, or ``@p EXIT; ...; EXIT``,
    with the reductions in between guarded instead; any other as it is.

    Every other instruction keeps its distance in cycles from those before it.
    """
    places = _places(words, arch)
    if places is None:
        return tuple(words)
    parting, met = places[-2:]
    guard = GUARD.of(words[parting]) ^ _NEGATED
    inside = range(parting + 1, met)
    if not all(_may_be_guarded(words[at], guard) for at in inside):
        return tuple(words)
    if _read_behind([words[at] for at in inside], words[met + 1 :]):
        return tuple(words)
    dropped = {*places, *(at for at in range(met, len(words)) if _is_idle(words[at]))}
    dropped.discard(len(words) - 1)  # where lanes end there is nothing else that they meet at
    out: list[int] = []
    wait = 0
    for at, word in enumerate(words):
        if at in dropped:
            wait |= WAIT.of(word)
            _stall(out, STALL.of(word))
            continue
        guarded = at in inside and BASE.of(word) == _RED
        kept = GUARD.set(word, guard) if guarded else word
        out.append(WAIT.set(kept, WAIT.of(kept) | wait))
        wait = 0
    return tuple(out)


def _read_behind(inside: Sequence[int], behind: Sequence[int]) -> bool:
    """Whether what is computed inside may be read behind where lanes meet: those that went around
    it have other values there."""
    rest = [word for word in behind if not _is_idle(word) and OPCODE.of(word) != EXIT]
    if not rest:
        return False
    changed: set[Resource] = set()
    for word in inside:
        found = operands(word)
        if found is None:
            return True
        changed |= found.writes
    changed.discard(_MEMORY)
    for word in rest:
        found = operands(word)
        if found is None or found.reads & changed:
            return True
        changed -= found.surely
    return False


_MEMORY: Resource = (Kind.MEMORY, 0)


def _is_idle(word: int) -> bool:
    return OPCODE.of(word) == NOP


def _stall(words: list[int], cycles: int) -> None:
    """So many cycles more before whatever follows."""
    stall = STALL.of(words[-1]) + cycles if words else cycles
    most = min(stall, _MOST_STALL) if words else 0
    if words:
        words[-1] = YIELD.set(STALL.set(words[-1], most), int(most < _LONG_STALL))
    if stall > most:
        words.append(instruction(NOP, stall=stall - most))


def _places(words: Sequence[int], arch: int) -> tuple[int, ...] | None:
    """Where BSSY, BRA and BSYNC, or the two EXITs, are, if there are no other jumps and the probe
    ends in its EXIT: where lanes part, and where they no longer are apart, come last."""
    jumps = [at for at, word in enumerate(words) if _leads_elsewhere(word)]
    opcodes = [OPCODE.of(words[at]) for at in jumps]
    if opcodes == [EXIT, EXIT]:
        return tuple(jumps) if _ends_some(words, *jumps) else None
    if opcodes != [BSSY, BRA, BSYNC, EXIT]:
        return None
    meeting, branch, met, end = jumps
    whole = SECOND_GUARD.of(words[branch]) == PT and GUARD_REGISTER.of(words[branch]) != PT
    alike = BARRIER.of(words[meeting]) == BARRIER.of(words[met])
    always = all(GUARD.of(words[at]) == PT for at in (meeting, met, end))
    around = _target(words, branch, arch) == met and _target(words, meeting, arch) == met + 1
    fits = whole and alike and always and around and end == len(words) - 1
    return (meeting, branch, met) if fits else None


def _ends_some(words: Sequence[int], some: int, end: int) -> bool:
    """Whether lanes of one predicate end at ``some``, and all others at ``end``, the last one."""
    first, last = words[some], words[end]
    one = SECOND_GUARD.of(first) == PT and GUARD_REGISTER.of(first) != PT
    return one and GUARD.of(last) == SECOND_GUARD.of(last) == PT and end == len(words) - 1


def _leads_elsewhere(word: int) -> bool:
    opcode = OPCODE.of(word)
    return opcode in RELATIVE or opcode in (EXIT, BSYNC)


def _target(words: Sequence[int], at: int, arch: int) -> int:
    return at + 1 + distance_of(words[at], arch) // SIZE


def _may_be_guarded(word: int, guard: int) -> bool:
    """Whether an instruction only computes and leaves the predicate alone, or is a reduction."""
    base = BASE.of(word)
    if base == _RED:
        return GUARD.of(word) == PT
    if base == _LDC and SOURCE_A.of(word) != RZ:
        return False  # from a place that lanes for which it was not meant have not computed
    results = {PREDICATE_RESULT.of(word)} if base in _WITH_RESULT else set()
    if base in _WITH_TWO:
        results.add(_SECOND_RESULT.of(word))
    return base in _WITH_RESULT | _WITHOUT and guard % _NEGATED not in results
