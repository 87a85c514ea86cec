"""A probe's machine code: PTX with the kernel's parameter list, assembled, and its body lifted out.

The probe reads parameters at the places in the constant bank where the kernel has its own, and the
launch block behind them.  A probe that reads no parameters is assembled once for all kernels, in
one module with parameters of different sizes: where code for two of them differs is the place of
the launch block, and nothing else.  Code that is lifted is never stretched.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from egpu.bpf.program import AttachKind, Level
from egpu.codegen.device_code import DeviceCode, RelocKind
from egpu.errors import InternalError, UnsupportedError
from egpu.image.cubin import open_cubin
from egpu.image.cubin_edit import CubinParts, relocations_of, take_apart, with_symbols
from egpu.image.cubin_kernel import Kernel, open_kernel
from egpu.maps.layout import LAUNCH_BLOCK_SIZE, ArenaLayout
from egpu.splice.sass_closed import check_meetings, check_probe
from egpu.splice.sass_encoding import (
    BRA,
    CONSTANT_BANK,
    CONSTANT_OFFSET,
    DESTINATION,
    LDS,
    NO_SCOREBOARD,
    NOP,
    OPCODE,
    SHARED_OFFSET,
    SIZE,
    STACK_POINTER,
    WRITE_SCOREBOARD,
    constant_of,
    distance_of,
    words_of,
)
from egpu.splice.sass_ptx import (
    ENTRY,
    EXIT,
    JOINED_PLACE,
    LARGE_PARAMETERS,
    START_PLACES,
    Manner,
    Shape,
    probe_text,
    reads_parameters,
)
from egpu.splice.sass_schedule import SCHEDULED_ARCH, scheduled
from egpu.splice.sass_straight import straightened

# (PTX, "sm_90") to a cubin.  ptxas must get these options: constants of a probe's own would have
# to lie in a bank that the kernel may not have.
Assemble = Callable[[str, str], bytes]
ASSEMBLER_OPTIONS = ("--disable-optimizer-constants",)

_WORD = 8
_BANKS = re.compile(r"\.nv\.constant[1-9]")
_LIFTED = 256  # sets of probes, manners and layouts whose code is kept


@dataclass(frozen=True, slots=True)
class ProbeBlock:
    """Machine code of the probes at one kind of site.

    ``words`` from the kernel's first to its last; ``start`` is the index of the first that is to be
    executed; ``registers`` as the assembler counts them; ``frame``: bytes of stack.
    """

    words: tuple[int, ...]
    start: int
    registers: int
    frame: int


@dataclass(frozen=True, slots=True)
class ProbeSetting:
    """The probes that go into a kernel, and for what."""

    arch: int
    probes: tuple[DeviceCode, ...]
    layout: ArenaLayout
    assemble: Assemble


@dataclass(frozen=True, slots=True)
class ProbeBlocks:
    """The probes of one kernel, with the offset of the launch block among the parameters and the
    place of the first parameter in constant bank 0.

    Words are those of a small kernel where they are the same for all: ``reads`` are what reads of
    the launch block have in the bits of ``place_of``, and ``further`` is how many bytes further it
    lies in this kernel (``in_place``).
    """

    entry: ProbeBlock | None
    exit: ProbeBlock | None
    hidden_offset: int
    bank_offset: int
    starts: tuple[RelocKind, ...]
    reads: frozenset[int] = frozenset()
    further: int = 0

    def in_place(self, words: Sequence[int]) -> list[int]:
        """Words of these probes as they are in the kernel."""
        if not self.further:
            return list(words)
        by, moved = self.further << CONSTANT_OFFSET.at, list(words)
        for at in _reads_at(tuple(words), self.reads):
            moved[at] += by
        return moved


@functools.lru_cache(maxsize=256)
def _reads_at(words: tuple[int, ...], reads: frozenset[int]) -> tuple[int, ...]:
    return tuple(at for at, word in enumerate(words) if word & _PLACE in reads)


_PLACE = sum((1 << each.width) - 1 << each.at for each in (OPCODE, CONSTANT_OFFSET, CONSTANT_BANK))


def place_of(word: int) -> int:
    """What tells a read of a word in a constant bank from those of others, whatever registers it
    has by now and however long it waits."""
    return word & _PLACE


def assemble_probes(kernel: Kernel, setting: ProbeSetting, manner: Manner) -> ProbeBlocks:
    """The probes' machine code for ``kernel``, entry and exit probes in their orders."""
    shape = Shape(kernel.name, kernel.parameters, kernel.parameter_size)
    blocks = None
    many = shape.size + LAUNCH_BLOCK_SIZE > LARGE_PARAMETERS  # they may lie elsewhere in the bank
    if not many and not reads_parameters(setting.probes):
        blocks = _moved(shape.size, setting, manner)
    if blocks is None:
        (blocks,) = _lift((shape,), setting, manner)
    if kernel.bank_offset not in (None, blocks.bank_offset):
        raise _laid_out_otherwise(kernel.name)
    return blocks


def _laid_out_otherwise(kernel: str) -> UnsupportedError:
    return UnsupportedError(f"{kernel} with parameters that PTX lays out otherwise")


def _lift(
    shapes: Sequence[Shape],
    setting: ProbeSetting,
    manner: Manner,
) -> list[ProbeBlocks]:
    """The code for each of the shapes, which are assembled together: an assembler that is run
    takes longer to begin than for all of them."""
    arch, probes, layout = setting.arch, setting.probes, setting.layout
    made = [probe_text(shape, arch, probes, layout, manner) for shape in shapes]
    text = made[0].head + "".join(each.text for each in made)
    parts = with_symbols(take_apart(open_cubin(setting.assemble(text, f"sm_{arch}"))))
    banks = [each.name for each in parts.parts if _BANKS.match(each.name) and each.size]
    if banks:
        raise UnsupportedError(f"a probe with constants in {banks[0]}")
    return [
        _lifted(parts, shape, setting, each.starts)
        for shape, each in zip(shapes, made, strict=True)
    ]


def _lifted(
    parts: CubinParts,
    shape: Shape,
    setting: ProbeSetting,
    starts: tuple[RelocKind, ...],
) -> ProbeBlocks:
    """The code of the entries that were made for ``shape``."""
    arch, probes = setting.arch, setting.probes
    blocks: dict[str, ProbeBlock] = {}
    hidden, bank_offset = -(-shape.size // _WORD) * _WORD, None
    for name, kind in ((ENTRY, AttachKind.ENTRY), (EXIT, AttachKind.EXIT)):
        if not any(each.kind is kind for each in probes):
            continue
        lifted = open_kernel(parts, name + shape.mark)
        own = set(shape.parameters) if reads_parameters(probes) else set()
        alike = own <= set(lifted.parameters[:-1])
        if not alike or lifted.parameters[-1] != (hidden, LAUNCH_BLOCK_SIZE):
            raise _laid_out_otherwise(shape.name)
        bank_offset = lifted.bank_offset
        if relocations_of(parts, lifted.text):
            raise UnsupportedError("a probe whose machine code refers to something outside it")
        block = _block(words_of(parts.parts[lifted.text].data), arch, lifted)
        if all(each.level is not Level.BLOCK for each in probes if each.kind is kind):
            # Of a block's warps most go around what one does.
            words = straightened(block.words, arch)
            ordered = scheduled(words) if arch >= SCHEDULED_ARCH else words
            block = replace(block, words=ordered)
        if kind is AttachKind.EXIT:
            check_meetings(block.words, arch)
        _check_starts(block, starts if kind is AttachKind.EXIT else ())
        blocks[name] = block
    if bank_offset is None:
        raise InternalError("a twin without a probe")
    return ProbeBlocks(blocks.get(ENTRY), blocks.get(EXIT), hidden, bank_offset, starts)


# Sizes for which probes are assembled that go into kernels of any; their alignment to 16 bytes is
# the kernel's, for loads of more than one word.
_SMALL, _LARGE = 64, 64 + 1024
_ALIGNMENT = 16


def _moved(
    size: int,
    setting: ProbeSetting,
    manner: Manner,
) -> ProbeBlocks | None:
    """The code of probes that read no parameters, for a kernel with ``size`` bytes of them; None
    when it depends on more than the place of the launch block.  All kernels get the same words, so
    that what is found out about them is found out once."""
    begin = -(-size // _WORD) * _WORD
    offset = begin % _ALIGNMENT
    blocks, reads = _general(setting, manner)[offset // _WORD]
    if reads is None:
        return None
    return ProbeBlocks(
        entry=blocks.entry,
        exit=blocks.exit,
        hidden_offset=begin,
        bank_offset=blocks.bank_offset,
        starts=blocks.starts,
        reads=reads,
        further=begin - blocks.hidden_offset,
    )


@functools.lru_cache(maxsize=_LIFTED)
def _general(
    setting: ProbeSetting, manner: Manner
) -> tuple[tuple[ProbeBlocks, frozenset[int] | None], ...]:
    """The code for a small kernel, by the word of ``_ALIGNMENT`` in which its parameters end."""
    words = range(0, _ALIGNMENT, _WORD)
    sizes = [size + word for word in words for size in (_SMALL, _LARGE)]
    blocks = _lift([Shape("probe", (), size, f"_{size}") for size in sizes], setting, manner)
    return tuple(map(_with_reads, blocks[::2], blocks[1::2]))


def _with_reads(
    small: ProbeBlocks, large: ProbeBlocks
) -> tuple[ProbeBlocks, frozenset[int] | None]:
    """The small kernel's code, and ``place_of`` of the instructions that name a word of the launch
    block, None if that cannot be told."""
    entry = _differences(small.entry, large.entry)
    leaving = _differences(small.exit, large.exit)
    if entry is None or leaving is None:
        return small, None
    named: tuple[set[int], set[int]] = set(), set()  # other places, and the launch block's
    for block, places in ((small.entry, entry), (small.exit, leaving)):
        for at, word in enumerate(block.words if block else ()):
            named[at in places].add(place_of(word))
    return small, frozenset(named[1]) if named[0].isdisjoint(named[1]) else None


def _differences(small: ProbeBlock | None, large: ProbeBlock | None) -> frozenset[int] | None:
    """Instructions that differ by the distance of the launch blocks; None for any other."""
    if small is None or large is None:
        return frozenset() if small is large else None
    if replace(small, words=()) != replace(large, words=()) or len(small.words) != len(large.words):
        return None
    found: set[int] = set()
    for at, (one, other) in enumerate(zip(small.words, large.words, strict=True)):
        if one == other:
            continue
        place = constant_of(one)
        if place is None or place[0] != 0:
            return None
        # Where a register counts in, it counts from there.
        if CONSTANT_OFFSET.set(one, CONSTANT_OFFSET.of(one) + _LARGE - _SMALL) != other:
            return None
        found.add(at)
    return frozenset(found)


def _block(words: list[int], arch: int, kernel: Kernel) -> ProbeBlock:
    while words and OPCODE.of(words[-1]) == NOP:
        words.pop()
    if words and OPCODE.of(words[-1]) == BRA and distance_of(words[-1], arch) == -SIZE:
        words.pop()
    if not words:
        raise InternalError("a probe without machine code")
    check_probe(words, arch)
    first = words[0]
    skips = (
        kernel.frame == 0
        and DESTINATION.of(first) == STACK_POINTER
        and WRITE_SCOREBOARD.of(first) == NO_SCOREBOARD
    )
    return ProbeBlock(tuple(words), int(skips), kernel.registers, kernel.frame)


def _check_starts(block: ProbeBlock, starts: Sequence[RelocKind]) -> None:
    """Every load from shared memory is one that stands for a saved start, and each is there."""
    loads = sum(1 for word in block.words if OPCODE.of(word) == LDS)
    found = start_reads(block.words)
    found_all = len(found) + sum(1 for word in block.words if joins(word))
    if loads != found_all or {each[1] for each in found} != set(starts):
        raise InternalError("a probe whose reads of the saved start are not found again")


def joins(word: int) -> bool:
    """Whether it is the load that stands where ways meet, and is no part of the probe."""
    return OPCODE.of(word) == LDS and SHARED_OFFSET.of(word) == JOINED_PLACE


def start_reads(words: Sequence[int]) -> list[tuple[int, RelocKind, int]]:
    """(index, what, 0 or 1 for its low or high half) of the loads that stand for a saved start."""
    found = []
    for index, word in enumerate(words):
        if OPCODE.of(word) != LDS:
            continue
        at = SHARED_OFFSET.of(word)
        for kind, place in START_PLACES.items():
            if at in (place, place + 4):
                found.append((index, kind, (at - place) // 4))
    return found
