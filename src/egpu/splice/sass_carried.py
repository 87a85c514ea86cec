"""Uniform values of an exit probe that live where another group of lanes could spoil them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from egpu.errors import InternalError
from egpu.splice.sass_encoding import (
    BASE,
    BRA,
    BSSY,
    BSYNC,
    CALL,
    CARRY_SOURCE,
    EXIT,
    FORM,
    GUARD,
    GUARD_REGISTER,
    HAS_UNIFORM,
    LDS,
    OPCODE,
    PREDICATE_SOURCE,
    PT,
    RELATIVE,
    RETURNS,
    RZ,
    SECOND_GUARD,
    SIZE,
    SOURCE_A,
    SOURCE_B,
    STALL,
    ULDC,
    UMOV,
    UMOV_IMMEDIATE,
    UPT,
    URZ,
    YIELD_OP,
    Field,
    distance_of,
    for_all,
)
from egpu.splice.sass_predicates import (
    PREDICATE_RESULTS,
    Predicate,
    guard_of,
    is_of,
    predicates_written,
)
from egpu.splice.sass_uniform import (
    ALWAYS,
    REGISTER,
    SOMETIMES,
    predicate_fields,
    register_fields,
)

_OPERAND_B = 32


@functools.lru_cache(maxsize=1024)
def carried(words: tuple[int, ...], arch: int) -> frozenset[int]:
    """Uniform registers that are read after lanes may have parted or met again since they were
    written, unless they only ever hold constants; uniform predicates as numbers from 64 on.

    Another group of the warp's lanes can run, and write them, where one waits: at a branch that
    lanes take differently, at a barrier where they meet, and at a YIELD.
    """
    varying = _varying(words)
    known = _written_since(words, arch)
    found: set[int] = set()
    for index, word in enumerate(words):
        before = known[index]
        if before is not None:
            guard = guard_of(word)
            reads = _all_reads_and_writes(word)[0]
            found |= {each for each in reads if not {each, (each, guard)} & before}
    return frozenset(each for each in found if each in varying or each >= _PREDICATES)


@functools.lru_cache(maxsize=256)
def localised(words: tuple[int, ...], arch: int) -> tuple[int, ...]:
    """The same code; uniform values that live in one basic block only are kept in other registers
    than those that live across branches.

    So a register that holds one constant from beginning to end holds nothing else in between.
    """
    live, needed = live_registers(words, arch)
    begins = block_begins(words, arch)
    used = {register // 2 for word in words for register in _named(word)}
    free = [pair for pair in range(URZ // 2) if pair not in used]
    other: dict[int, int] = {}
    found = list(words)
    for first, last, pair in _local_values(words, live, needed, begins):
        if pair not in other:
            if not free:
                return words
            other[pair] = free.pop(0)
        for at in range(first, last + 1):
            found[at] = _with_pair(found[at], pair, other[pair])
    _check_same(live[0], live_registers(found, arch)[0][0])
    return tuple(found)


def _check_same(needed: frozenset[int], now: frozenset[int]) -> None:
    """What code needs and has not written stays the same when values get other registers."""
    if now != needed:
        raise InternalError("a uniform value that was given another register on some ways only")


def _named(word: int) -> set[int]:
    fields = register_fields(word) or ()
    return {Field(at, REGISTER).of(word) for at in fields} - {URZ}


def _with_pair(word: int, pair: int, other: int) -> int:
    for at in register_fields(word) or ():
        field = Field(at, REGISTER)
        if field.of(word) != URZ and field.of(word) // 2 == pair:
            word = field.set(word, 2 * other + field.of(word) % 2)
    return word


def _local_values(
    words: Sequence[int],
    live: Sequence[frozenset[int]],
    needed: Sequence[frozenset[int]],
    begins: frozenset[int],
) -> list[tuple[int, int, int]]:
    """(first, last instruction, pair of registers) of values that end where they began: from a
    write into a pair of which nothing is needed, to where nothing of it is needed any more, on
    whatever way."""
    found: list[tuple[int, int, int]] = []
    open_since: dict[int, int] = {}
    for at, word in enumerate(words):
        if at in begins:
            open_since.clear()
        before = {register // 2 for register in live[at]}
        after = {register // 2 for register in needed[at]}
        for pair in {register // 2 for register in reads_and_writes(word)[1]} - before:
            open_since[pair] = at
        for pair in set(open_since) - after:
            found.append((open_since.pop(pair), at, pair))
    return found


def block_begins(words: Sequence[int], arch: int) -> frozenset[int]:
    """Where instructions are that jumps lead to or that follow one."""
    found: set[int] = {0}
    for at, word in enumerate(words):
        opcode = OPCODE.of(word)
        if opcode in (BRA, CALL):
            found |= {at + 1, at + 1 + distance_of(word, arch) // SIZE}
        elif opcode == BSSY:
            found.add(at + 1 + distance_of(word, arch) // SIZE)
        elif opcode in RELATIVE or opcode in (EXIT, BSYNC):
            found.add(at + 1)
    return frozenset(found)


def live_registers(
    words: Sequence[int], arch: int
) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """Registers that are needed before each instruction, and behind it on any way."""
    live: list[frozenset[int]] = [frozenset()] * len(words)
    behind = list(live)
    returned = tuple(at + 1 for at, word in enumerate(words) if OPCODE.of(word) == CALL)
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(words))):
            word = words[at]
            after: frozenset[int] = frozenset()
            back = returned if OPCODE.of(word) in RETURNS else ()
            for to in (*back, *_successors(word, at, arch)):
                if 0 <= to < len(words):
                    after |= live[to]
            reads, writes = reads_and_writes(word)
            surely = writes if GUARD.of(word) == PT else set()
            behind[at] = after
            needed = frozenset(after - surely | reads)
            if needed != live[at]:
                live[at], changed = needed, True
    return live, behind


def _successors(word: int, at: int, arch: int) -> tuple[int, ...]:
    """Where lanes go on; a function's way back is not among them."""
    opcode = OPCODE.of(word)
    if opcode in (BRA, CALL):
        to = at + 1 + distance_of(word, arch) // SIZE
        return (to,) if for_all(word) else (to, at + 1)
    ends = opcode == EXIT or opcode in RETURNS
    return () if ends and for_all(word) else (at + 1,)


# A register or predicate that was written, or was where a guard held.
_Written = int | tuple[int, Predicate]


def _written_since(words: Sequence[int], arch: int) -> list[frozenset[_Written] | None]:
    """Per instruction, what was surely written since the lanes last parted or met; None where no
    lane comes."""
    known: list[frozenset[_Written] | None] = [None] * len(words)
    begins = block_begins(words, arch)
    work: list[tuple[int, frozenset[_Written]]] = [(0, frozenset())]
    while work:
        index, arriving = work.pop()
        if index >= len(words):
            continue
        before = known[index]
        merged = arriving if before is None else before & arriving
        if merged == before:
            continue
        known[index] = merged
        word = words[index]
        opcode = OPCODE.of(word)
        parts = opcode in _MEETINGS
        if opcode == BRA:
            parts = not for_all(word) and not _uniform_guard(words, index, begins)
        after = frozenset() if parts else _with_writes(merged, word)
        work += [(to, after) for to in _successors(word, index, arch)]
        if opcode == CALL and for_all(word):
            work.append((index + 1, after))  # where it comes back
    return known


def _with_writes(known: frozenset[_Written], word: int) -> frozenset[_Written]:
    """What is written behind an instruction.  What it writes under a guard counts for what has the
    same guard, as long as the predicate is the same."""
    changed = predicates_written(word)
    kept = {each for each in known if isinstance(each, int) or not is_of(each[1], changed)}
    writes = _all_reads_and_writes(word)[1]
    guard = guard_of(word)
    if guard is None:
        return frozenset(kept | writes)
    if not is_of(guard, changed):
        kept |= {(each, guard) for each in writes}
    return frozenset(kept)


def _uniform_guard(words: Sequence[int], branch: int, begins: frozenset[int]) -> bool:
    """Whether a branch's predicate comes from constants and uniform registers alone, as far as the
    instructions right before it tell, which lanes reach in one way."""
    if SECOND_GUARD.of(words[branch]) != PT or HAS_UNIFORM.of(words[branch]):
        return False
    wanted = {GUARD_REGISTER.of(words[branch])}
    for at in reversed(range(branch)):
        word = words[at]
        if at + 1 in begins:
            return False  # what comes from elsewhere may have another value
        results = {number for uniform, number in predicates_written(word) if not uniform}
        if not results & wanted:
            continue
        own = BASE.of(word) == _ISETP and SOURCE_A.of(word) == RZ and GUARD.of(word) == PT
        if not own or (FORM.of(word) == 1 and SOURCE_B.of(word) != RZ):
            return False
        wanted -= results
        wanted |= {PREDICATE_SOURCE.of(word), CARRY_SOURCE.of(word)} - {PT}
        if not wanted:
            return True
    return False


_MEETINGS = (RELATIVE | {BSYNC, YIELD_OP}) - {BRA, BSSY}
_ISETP = 0x00C


def _varying(words: Sequence[int]) -> set[int]:
    """Registers that do not hold one constant wherever they are written."""
    found: set[int] = set()
    constants: dict[int, int] = {}
    for word in words:
        opcode = OPCODE.of(word)
        same = opcode in (ULDC, UMOV_IMMEDIATE) or (
            opcode == UMOV and Field(_OPERAND_B, REGISTER).of(word) == URZ
        )
        for register in reads_and_writes(word)[1]:
            value = GUARD.set(word & _WITHOUT_CONTROL, PT)
            if not same or constants.setdefault(register, value) != value:
                found.add(register)
    return found


_WITHOUT_CONTROL = (1 << STALL.at) - 1


def reads_and_writes(word: int) -> tuple[set[int], set[int]]:
    """Uniform registers that an instruction of the tables reads and writes."""
    reads: set[int] = set()
    writes: set[int] = set()
    for first, pair, written in values_named(word):
        (writes if written else reads).update((first, first + 1) if pair else (first,))
    return reads, writes


def pairs_named(words: Sequence[int]) -> frozenset[int]:
    """The first of each two uniform registers that an instruction of a probe names as a pair."""
    return frozenset(first for word in words for first, pair, _ in values_named(word) if pair)


def values_named(word: int) -> Iterator[tuple[int, bool, bool]]:
    """(uniform register, whether the next belongs to it, whether it is written)."""
    opcode = OPCODE.of(word)
    for at in register_fields(word) or ():
        first = Field(at, REGISTER).of(word)
        if first == URZ:
            continue
        if at == _DESTINATION and opcode in ALWAYS and opcode not in _NO_DESTINATION:
            yield first, opcode in _WIDE and _is_wide(word), True
        elif opcode in SOMETIMES and opcode not in (BRA, LDS):
            yield first, True, False  # a memory descriptor
        else:
            wide = (opcode in _WIDE_SOURCE and at == _OPERAND_C) or opcode in _WIDE_SOURCES
            yield first, wide, False


def _all_reads_and_writes(word: int) -> tuple[set[int], set[int]]:
    """The same with uniform predicates.  One that is written under a guard may keep its value: it
    is read."""
    reads, writes = reads_and_writes(word)
    for at in predicate_fields(word) or ():
        number = Field(at, 3).of(word)
        if number == UPT:
            continue
        written = at in PREDICATE_RESULTS and GUARD.of(word) == PT
        (writes if written else reads).add(_PREDICATES + number)
    return reads, writes


_PREDICATES = 64  # behind the registers
_DESTINATION = 16
_UIADD3_64 = 0x297
_NO_DESTINATION = (0x28C, 0x88C)
_WIDE = (0x2A5, 0x8A5, _UIADD3_64, ULDC)
_WIDE_SOURCE = (0x2A5, 0x8A5)
_OPERAND_C = 64
_WIDE_SOURCES = (0xE25, _UIADD3_64)  # IMAD.WIDE with a uniform third operand
_ULDC_SIZE, _ULDC_64 = Field(73, 3), 5


def _is_wide(word: int) -> bool:
    return OPCODE.of(word) != ULDC or _ULDC_SIZE.of(word) == _ULDC_64
