"""Looks at code before and after it is put together: nothing leads anywhere but where it must."""

from __future__ import annotations

from collections.abc import Sequence

from egpu.errors import InternalError, UnsupportedError
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    BARRIER,
    BRA,
    BREAK,
    BSSY,
    BSYNC,
    CALL,
    EXIT,
    OPCODE,
    RELATIVE,
    RETURNS,
    SIZE,
    WARPSYNCS,
    distance_of,
    for_all,
)

_TURNS = frozenset({BRA, BSSY, CALL, EXIT, *RETURNS, *WARPSYNCS})  # others lead to the next one
_NAMES_A_PLACE = frozenset({BRA, BSSY, CALL, *RETURNS})
# On sm_90 a WARPSYNC that is a COLLECTIVE has one, others have the next instruction there.  Before,
# none has: a register of the mask lies where the place would be.
_WARPSYNC_PLACES = 90


def check_probe(words: Sequence[int], arch: int) -> None:
    """UnsupportedError for a probe with a jump whose place is not in it or is not known."""
    for index, word in enumerate(words):
        opcode = OPCODE.of(word)
        if opcode not in RELATIVE or opcode == BREAK:
            continue
        if opcode in WARPSYNCS and arch < _WARPSYNC_PLACES:
            continue
        place = _place(index, word, arch)
        known = opcode in _NAMES_A_PLACE or opcode in WARPSYNCS
        if not known or not 0 <= place < len(words):
            raise UnsupportedError(f"a probe with a jump out of it ({opcode:#x} at {index})")


def check_meetings(words: Sequence[int], arch: int) -> None:
    """UnsupportedError for a probe in which lanes go on elsewhere than behind where they meet, so
    that they cannot do without meeting."""
    began = {
        (_place(at, word, arch), BARRIER.of(word)): at
        for at, word in enumerate(words)
        if OPCODE.of(word) == BSSY
    }
    ended = {
        (at + 1, BARRIER.of(word)): at for at, word in enumerate(words) if OPCODE.of(word) == BSYNC
    }
    unknown = began.keys() ^ ended.keys()
    if unknown:
        at = min((began | ended)[each] for each in unknown)
        raise UnsupportedError(f"a probe in which lanes meet in an unknown way (at {at})")


def check_spliced(before: Code, after: Code, arch: int) -> None:
    """InternalError unless what was put behind a section's code stays there until it ends the
    thread; from the first instruction it may go back to the second one.

    ``before`` and ``after``: the section's code.  What is another instruction now must be a jump
    behind the old code; the other old ones did not move, so they lead where they led.
    """
    size = len(before)
    entering: set[int] = set()
    leaving: set[int] = set()
    for index in (before.opcodes != after.opcodes[:size]).nonzero()[0].tolist():
        if OPCODE.of(after[index]) != BRA:
            raise _wrong(index)
        (leaving if index else entering).add(_place(index, after[index], arch))
    appended = range(size, len(after))
    _walk(after, leaving, appended, arch)
    _walk(after, entering, appended, arch, resumed=1)


def _walk(code: Code, begins: set[int], within: range, arch: int, resumed: int = -1) -> None:
    opcodes = code.opcodes[within.start : within.stop].tolist()
    seen = {resumed}
    work = list(begins)
    while work:
        index = work.pop()
        while index not in seen:
            if index not in within:
                raise _wrong(index)
            seen.add(index)
            if opcodes[index - within.start] in _TURNS:
                work += _next(index, code[index], arch)
                break
            index += 1


def _next(index: int, word: int, arch: int) -> list[int]:
    """Where lanes can be after an instruction; a function comes back behind its call."""
    opcode = OPCODE.of(word)
    found = [] if for_all(word) and opcode in (BRA, EXIT, *RETURNS) else [index + 1]
    if opcode in (BRA, BSSY, CALL) or (opcode in WARPSYNCS and arch >= _WARPSYNC_PLACES):
        found.append(_place(index, word, arch))
    return found


def _place(index: int, word: int, arch: int) -> int:
    return index + 1 + distance_of(word, arch) // SIZE


def _wrong(index: int) -> InternalError:
    return InternalError(f"spliced code leads elsewhere at {index * SIZE:#x}")
