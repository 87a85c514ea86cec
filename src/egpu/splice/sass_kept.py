"""What an entry probe computed is there when the exit probe runs, if registers are to spare.

Probes that count at entry and at exit add to the same copy of a per-SM map: half of either is its
address.  Where both compute it in the same way, the entry probe leaves it in two registers above
everything else, and the exit probe uses them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from egpu.codegen.device_code import DeviceCode
from egpu.image.cubin_kernel import Kernel
from egpu.splice.occupancy import free_registers
from egpu.splice.sass_encoding import (
    DESTINATION,
    GUARD,
    NOP,
    OPCODE,
    PT,
    READ_SCOREBOARD,
    REUSE,
    RZ,
    SOURCE_A,
    STALL,
    WAIT,
    WRITE_SCOREBOARD,
    YIELD,
)
from egpu.splice.sass_operands import Kind, Resource, operands, register_sources
from egpu.splice.sass_probe import ProbeBlock, ProbeBlocks
from egpu.splice.sass_rules import Rule, register_count
from egpu.splice.sass_schedule import reordered

# A value as the way in which it is computed: an instruction without the registers that it names,
# and the values that it reads.
Value = tuple[int, tuple["Value", ...]]
_NOT_COMPUTED = (
    DESTINATION,
    STALL,
    YIELD,
    WRITE_SCOREBOARD,
    READ_SCOREBOARD,
    WAIT,
    REUSE,
)  # of an instruction, nothing that its result depends on
_TIMES = ("%clock64", "%globaltimer")  # what programs read; copies are picked by %clock
_MARGIN = 2  # registers of a count that no instruction may name (sass_rules)


def with_kept_address(
    blocks: ProbeBlocks,
    probes: Sequence[DeviceCode],
    kernel: Kernel,
    called: int,
    rules: frozenset[Rule],
) -> ProbeBlocks:
    """The same probes; the exit probe without its own address, if that costs no resident block.

    Any copy of a map that is added to will do, so the one that the clock picked at entry does.
    ``called``: registers of what the kernel may call.
    """
    entry, leaving = blocks.entry, blocks.exit
    if entry is None or leaving is None or blocks.starts:
        return blocks
    if any(time in probe.text for probe in probes for time in _TIMES):
        return blocks
    above = max(kernel.registers, called, entry.registers, leaving.registers) - _MARGIN
    first = above + above % 2
    count = register_count(first + 1, rules)
    if count > free_registers(kernel.registers):
        return blocks
    found = _kept(entry.words, leaving.words, first)
    if found is None:
        return blocks
    return replace(
        blocks, entry=_with(entry, found[0], count), exit=_with(leaving, found[1], count)
    )


_Words = tuple[int, ...]


@functools.lru_cache(maxsize=256)  # kernels of one size, with as many registers
def _kept(entry: _Words, leaving: _Words, first: int) -> tuple[_Words, _Words] | None:
    """Both probes' code with the address in the registers from ``first`` on."""
    found = _shared(entry, leaving, first)
    # Without what stood between them, instructions would no longer wait for each other as long.
    rest = None if found is None else reordered(found[1])
    return None if found is None or rest is None else (tuple(found[0]), rest)


def _with(block: ProbeBlock, words: Sequence[int], registers: int) -> ProbeBlock:
    return replace(block, words=tuple(words), registers=max(block.registers, registers))


@dataclass(slots=True)
class _Trace:
    """The reductions of a straight probe: by index, the value of the address."""

    additions: dict[int, Value]
    computed_at: dict[int, int]  # by index of a reduction: of what computes its address


def _shared(
    entry: Sequence[int], leaving: Sequence[int], first: int
) -> tuple[list[int], list[int]] | None:
    """Both probes, with the address of every reduction in the registers from ``first`` on."""
    own, other = _traced(tuple(entry)), _traced(tuple(leaving))
    if own is None or other is None:
        return None
    values = {*own.additions.values(), *other.additions.values()}
    places = {*own.computed_at.values()}
    if len(values) != 1 or len(places) != 1 or not other.additions:
        return None
    (at,) = places
    kept = [*entry]
    kept[at] = DESTINATION.set(kept[at], first)
    for index in own.additions:
        kept[index] = SOURCE_A.set(kept[index], first)
    if _reads_pair(kept[at + 1 :], DESTINATION.of(entry[at])):
        return None
    rest = [
        SOURCE_A.set(word, first) if index in other.additions else word
        for index, word in enumerate(leaving)
    ]
    return kept, _needed(rest)


def _reads_pair(words: Sequence[int], first: int) -> bool:
    """Whether a value in ``first`` and the next one is read before others are there."""
    left = {(Kind.REGISTER, first), (Kind.REGISTER, first + 1)}
    for word in words:
        found = operands(word)
        if found is None:
            continue
        if found.reads & left:
            return True
        left -= found.surely
    return False


@functools.lru_cache(maxsize=256)  # for each number of registers
def _traced(words: _Words) -> _Trace | None:
    """None for a probe with instructions that are not known, or addresses that depend on more than
    the values of registers."""
    values: dict[Resource, tuple[Value, int]] = {}
    trace = _Trace({}, {})
    for index, word in enumerate(words[:-1]):
        found = operands(word)
        if found is None and OPCODE.of(word) != NOP:
            return None
        if found is None:
            continue
        if (Kind.MEMORY, 0) in found.writes:
            address = SOURCE_A.of(word)
            pair = [values.get((Kind.REGISTER, address + half)) for half in (0, 1)]
            if pair[0] is None or pair[0] != pair[1]:
                return None
            trace.additions[index], trace.computed_at[index] = pair[0]
            continue
        value = _value(word, found.reads, values)
        for written in found.writes:
            values.pop(written, None)
            if value is not None and written in found.surely:
                values[written] = value, index
    return trace


def _value(
    word: int, reads: frozenset[Resource], values: dict[Resource, tuple[Value, int]]
) -> Value | None:
    """How ``word`` computes what it does; None if that depends on other than registers."""
    if GUARD.of(word) != PT or any(kind is not Kind.REGISTER for kind, _ in reads):
        return None
    if len(reads) and not register_sources(word):
        return None  # POPC, VOTE
    inputs: list[Value] = []
    for field, count in register_sources(word):
        register = field.of(word)
        if register == RZ:
            continue
        for read in range(register, register + count):
            known = values.get((Kind.REGISTER, read))
            if known is None:
                return None
            inputs.append(known[0])
        word = field.set(word, 0)
    for field in _NOT_COMPUTED:
        word = field.set(word, 0)
    return word, tuple(inputs)


def _needed(words: Sequence[int]) -> list[int]:
    """A straight probe without what nothing in it uses; its first and its last word stay."""
    used: set[Resource] = set()
    out = [words[-1]]
    for word in reversed(words[1:-1]):
        found = operands(word)
        stays = found is None or (Kind.MEMORY, 0) in found.writes or bool(found.writes & used)
        if found is None or not stays:
            continue
        used -= found.surely
        used |= found.reads
        out.append(word)
    return [words[0], *reversed(out)]
