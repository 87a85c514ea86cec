"""Numbers that a kernel does not use, for what an exit probe shares with lanes that go on."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from egpu.errors import InternalError, UnsupportedError
from egpu.splice.sass_carried import pairs_named
from egpu.splice.sass_encoding import (
    BARRIER,
    BARRIERS,
    BREAK,
    BSSY,
    BSYNC,
    OPCODE,
    UNIFORM_PREDICATES,
    UNIFORM_REGISTERS,
    UPT,
    URZ,
    Field,
)
from egpu.splice.sass_uniform import (
    REGISTER,
    Usage,
    predicate_fields,
    register_fields,
    usage_exact,
)


@dataclass(frozen=True, slots=True)
class Renaming:
    """(number, new number) of a probe's uniform registers, predicates and barriers."""

    registers: tuple[tuple[int, int], ...]
    predicates: tuple[tuple[int, int], ...]
    barriers: tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=256)
def free_numbers(probe: tuple[int, ...], kernel: Usage) -> Renaming:
    """Numbers for ``probe`` that ``kernel`` does not use; UnsupportedError when there are none."""
    own, named = usage_exact(probe)
    return Renaming(
        _registers(probe, named, kernel),
        _matched("uniform predicates", own.predicates, kernel.predicates, UNIFORM_PREDICATES),
        _matched("convergence barriers", own.barriers, kernel.barriers, BARRIERS),
    )


def _registers(
    probe: Sequence[int], named: frozenset[int], kernel: Usage
) -> tuple[tuple[int, int], ...]:
    """No instruction of a probe names more than a pair, which begins at an even number.  Pairs stay
    together; if there are too few, only those that an instruction names as a pair do."""
    free = [each for each in range(UNIFORM_REGISTERS) if each not in kernel.registers]
    pairs = [each for each in free if each % 2 == 0 and each + 1 in free]
    wanted = sorted({each - each % 2 for each in named})
    if len(pairs) < len(wanted):
        wanted = sorted(pairs_named(probe))
    singles = sorted(each for each in named if each - each % 2 not in wanted)
    chosen = dict(zip(wanted, reversed(pairs), strict=False))
    left = [each for each in free if each - each % 2 not in chosen.values()]
    left.sort(key=lambda each: (each - each % 2 in pairs, each))  # those that make no pair first
    if len(chosen) < len(wanted) or len(left) < len(singles):
        raise UnsupportedError(
            f"an exit probe that uses {2 * len(wanted) + len(singles)} uniform registers in a "
            f"kernel that leaves {len(free)} of {UNIFORM_REGISTERS} untouched"
        )
    alone = dict(zip(singles, left, strict=False))
    return tuple(
        (each, alone[each] if each in alone else chosen[each - each % 2] + each % 2)
        for each in sorted(named)
    )


def _matched(
    what: str, wanted: frozenset[int], used: frozenset[int], count: int
) -> tuple[tuple[int, int], ...]:
    free = [each for each in range(count) if each not in used]
    if len(free) < len(wanted):
        raise UnsupportedError(
            f"an exit probe that uses {len(wanted)} {what} in a kernel that uses {len(used)} of "
            f"{count}"
        )
    return tuple(zip(sorted(wanted), reversed(free), strict=False))


@functools.lru_cache(maxsize=256)
def renamed(words: tuple[int, ...], renaming: Renaming) -> tuple[int, ...]:
    """A probe's code with its new numbers."""
    registers, predicates = dict(renaming.registers), dict(renaming.predicates)
    barriers = dict(renaming.barriers)
    return tuple(_renamed(word, registers, predicates, barriers) for word in words)


def _renamed(
    word: int,
    registers: Mapping[int, int],
    predicates: Mapping[int, int],
    barriers: Mapping[int, int],
) -> int:
    fields, named = register_fields(word), predicate_fields(word)
    if fields is None or named is None:
        raise InternalError(f"an unknown instruction {OPCODE.of(word):#x} to rename")
    for at in fields:
        field = Field(at, REGISTER)
        if field.of(word) != URZ:
            word = field.set(word, registers[field.of(word)])
    for at in named:
        field = Field(at, 3)
        if field.of(word) != UPT:
            word = field.set(word, predicates[field.of(word)])
    if OPCODE.of(word) in (BSSY, BSYNC, BREAK):
        word = BARRIER.set(word, barriers[BARRIER.of(word)])
    return word
