"""Uniform values of an exit probe in as few registers as they take.

``ptxas`` gives every value a register that nobody needs for long, as if there were 63 of them.
Where a kernel leaves few, values that live at different times share one here, and so do those that
are the same: most are copies of one descriptor, made anew for each access to memory.

No instruction moves, so a value is there when it is read, as before.  What is new is that one is
written where another was: not before whoever reads that has done so.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from egpu.errors import InternalError
from egpu.splice.sass_carried import block_begins, live_registers, reads_and_writes, values_named
from egpu.splice.sass_encoding import ALL_SCOREBOARDS, GUARD, OPCODE, PT, URZ, WAIT, YIELD_OP, Field
from egpu.splice.sass_rules import Rule, before_wait, tracked
from egpu.splice.sass_same import Value, Values
from egpu.splice.sass_uniform import REGISTER, SOMETIMES, register_fields


@dataclass(eq=False, slots=True)
class _Part:
    """Where a register is in use in a piece of straight code: from the ``first`` instruction, which
    writes it, to the ``last``, behind which nothing of it is needed.

    ``values``: what is written in between; ``unread``: that nothing of it is needed anywhere.
    ``everywhere``: it is needed in more than one piece.
    """

    register: int
    first: int
    last: int
    values: set[Value] = field(default_factory=set)
    unread: bool = False
    everywhere: bool = False


_Parts = dict[tuple[int, int], _Part]  # by index of an instruction, and register that it names
_Unit = list[_Part]  # of one register, or of two that an instruction names as a pair


@functools.lru_cache(maxsize=256)
def packed(
    words: tuple[int, ...], arch: int, free: frozenset[int], rules: frozenset[Rule]
) -> tuple[int, ...] | None:
    """The same code with its uniform values in registers of ``free``; None where they are too few.

    A value that is needed in more than one piece of straight code is alone in its register, where
    only constants may be (``carried``).
    """
    begins = _piece_begins(words, arch)
    values = Values(words, begins)
    parts = _parts(words, arch, begins, values)
    numbers = _numbers(_units(words, parts), free)
    if numbers is None:
        return None
    out = []
    for at, word in enumerate(words):
        out.append(_renumbered(word, {each: numbers[parts[at, each]] for each in _named(word)}))
    _check_same(words, out, arch, begins, values)
    return _with_waits(out, begins, rules)


def _piece_begins(words: Sequence[int], arch: int) -> frozenset[int]:
    """Where another group of lanes may have run before, or lanes come from elsewhere."""
    yields = {at + 1 for at, word in enumerate(words) if OPCODE.of(word) == YIELD_OP}
    return block_begins(words, arch) | yields


def _named(word: int) -> set[int]:
    reads, writes = reads_and_writes(word)
    return reads | writes


def _parts(words: Sequence[int], arch: int, begins: frozenset[int], values: Values) -> _Parts:
    live, needed = live_registers(words, arch)
    found: _Parts = {}
    everywhere: dict[int, _Part] = {}
    begun: dict[int, _Part] = {}
    for at, word in enumerate(words):
        if at in begins:
            for part in begun.values():
                part.everywhere = True
            begun.clear()
        writes = reads_and_writes(word)[1]
        for register in _named(word):
            if register in writes and register not in live[at] | begun.keys():
                begun[register] = _Part(register, at, at)
            if register not in begun | everywhere:
                everywhere[register] = _Part(register, 0, len(words), everywhere=True)
            part = found[at, register] = begun.get(register) or everywhere[register]
            if register in writes:
                part.values.add(values.written(at, register))
        for register in begun.keys() - needed[at]:
            part = begun.pop(register)
            part.last, part.unread = at, at == part.first
    for key, part in found.items():
        if part.everywhere:
            found[key] = everywhere.setdefault(part.register, part)
    return found


def _units(words: Sequence[int], parts: _Parts) -> list[_Unit]:
    """Parts that stay side by side, together."""
    unit_of = {part: [part] for part in parts.values()}
    for at, word in enumerate(words):
        for first, pair, _ in values_named(word):
            if not pair:
                continue
            one, other = unit_of[parts[at, first]], unit_of[parts[at, first + 1]]
            if one is not other:
                one += other
                unit_of.update(dict.fromkeys(other, one))
    units = list({id(unit): unit for unit in unit_of.values()}.values())
    for unit in units:
        _settle_unread(unit)
    return units


def _settle_unread(unit: _Unit) -> None:
    """What nobody reads has landed when what the same instruction writes is read; else nobody knows
    when."""
    for part in unit:
        beside = [each.last for each in unit if not each.unread and each.first == part.first]
        if part.unread and beside:
            part.last = max(beside)
        elif part.unread:
            part.everywhere = True


def _numbers(units: Sequence[_Unit], free: frozenset[int]) -> dict[_Part, int] | None:
    """Which register each part gets, pairs first: whatever is left will do for others."""
    chosen: dict[_Part, int] = {}
    taken: dict[int, list[_Part]] = defaultdict(list)
    pairs = sorted(each for each in free if each % 2 == 0 and each + 1 in free)
    singles = sorted(free, key=lambda each: (each - each % 2 in pairs, each))
    for unit in sorted(units, key=_order):
        pair = _is_pair(unit)
        # From the first of a pair, or the only one, as they are now.
        base = min(part.register for part in unit)
        base -= base % 2 if pair else 0
        for number in pairs if pair else singles:
            new = {part: number + part.register - base for part in unit}
            if not any(_collide(part, other) for part in unit for other in taken[new[part]]):
                break
        else:
            return None
        chosen |= new
        for part in unit:
            taken[new[part]].append(part)
    return chosen


def _order(unit: _Unit) -> tuple[bool, bool, int]:
    return not _is_pair(unit), not _whole(unit), min(part.first for part in unit)


def _is_pair(unit: _Unit) -> bool:
    return len({part.register for part in unit}) > 1


def _whole(unit: _Unit) -> bool:
    return any(part.everywhere for part in unit)


def _collide(one: _Part, other: _Part) -> bool:
    if one.everywhere or other.everywhere:
        return True
    if one.last < other.first or other.last < one.first:
        return False
    return one.values != other.values or len(one.values) > 1


def _renumbered(word: int, numbers: Mapping[int, int]) -> int:
    for at in register_fields(word) or ():
        place = Field(at, REGISTER)
        if place.of(word) != URZ:
            word = place.set(word, numbers[place.of(word)])
    return word


def _with_waits(
    words: Sequence[int], begins: frozenset[int], rules: frozenset[Rule]
) -> tuple[int, ...]:
    """A register is written when all that was under way is done, where that may read it: what reads
    late has a scoreboard, and all are waited for."""
    if Rule.LATE_READS not in rules:
        return tuple(words)
    out = list(tracked(tuple(words), rules))
    read_at_once: set[int] = set()
    for at, word in enumerate(words):
        if at in begins:
            read_at_once.clear()
        reads, writes = reads_and_writes(word)
        if not writes <= read_at_once:
            out[at] = WAIT.set(out[at], ALL_SCOREBOARDS)
            if at:
                out[at - 1] = before_wait(out[at - 1], rules)
        if OPCODE.of(word) in SOMETIMES:
            read_at_once -= reads
        else:
            read_at_once |= reads | writes
    return tuple(out)


def _check_same(
    words: Sequence[int], now: Sequence[int], arch: int, begins: frozenset[int], values: Values
) -> None:
    """Every instruction reads the values that it read before, and so do other pieces of code."""
    needed = live_registers(words, arch)[1]
    moved: dict[int, int] = {}  # where what other pieces of code need is now
    for last in (False, True):
        before: dict[int, frozenset[Value]] = {}
        after: dict[int, frozenset[Value]] = {}
        for at, (word, new) in enumerate(zip(words, now, strict=True)):
            if at in begins:
                before, after = {}, {}
            kept = GUARD.of(word) != PT
            written: list[tuple[int, int]] = []
            for (register, pair, writes), (number, _, _) in zip(
                values_named(word), values_named(new), strict=True
            ):
                halves = [(register + half, number + half) for half in range(1 + pair)]
                if writes:
                    written += halves
                    continue
                for old, other in halves:
                    read = before.get(old, _ELSEWHERE)
                    if read != after.get(other, _ELSEWHERE):
                        raise _wrong(at)
                    if read >= _ELSEWHERE and moved.setdefault(old, other) != other:
                        raise _wrong(at)
            for old, other in written:
                value = frozenset({values.written(at, old)})
                before[old] = value | (before.get(old, _ELSEWHERE) if kept else set())
                after[other] = value | (after.get(other, _ELSEWHERE) if kept else set())
            if last and (at + 1 in begins or at + 1 == len(words)):
                for old in needed[at]:
                    here = after.get(moved.get(old, URZ), _ELSEWHERE)
                    if before.get(old, _ELSEWHERE) != here:
                        raise _wrong(at)


_ELSEWHERE: frozenset[Value] = frozenset({-1})  # written in another piece of code


def _wrong(at: int) -> InternalError:
    return InternalError(f"another uniform value is read at {at}, or behind it")
