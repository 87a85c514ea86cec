"""How a kernel's probes are assembled: in which registers, and without uniform values that lanes
could spoil for each other."""

from __future__ import annotations

import functools
from dataclasses import replace

from egpu.bpf.program import AttachKind
from egpu.errors import InternalError, UnsupportedError
from egpu.image.cubin_kernel import Kernel
from egpu.splice.occupancy import free_registers
from egpu.splice.sass_carried import carried, localised
from egpu.splice.sass_encoding import COLLECTIVES, EXIT, OPCODE, UNIFORM_REGISTERS
from egpu.splice.sass_numbers import free_numbers
from egpu.splice.sass_packed import packed
from egpu.splice.sass_probe import (
    ProbeBlocks,
    ProbeSetting,
    assemble_probes,
)
from egpu.splice.sass_ptx import AMPLE, Apart, Manner
from egpu.splice.sass_rules import EVERY_RULE, Rule, register_count, without_meetings
from egpu.splice.sass_uniform import Usage


def assembled(
    kernel: Kernel,
    setting: ProbeSetting,
    most: int | None,
    around: Usage,
    rules: frozenset[Rule],
) -> ProbeBlocks:
    """The probes' code, in as many registers as cost the kernel no resident block, if that can be.

    ``most``: what a warp may be left with at its exit (setmaxnreg).  No uniform value lives where
    one group of leaving lanes could spoil it for another, and what lanes share finds numbers that
    the kernel does not use (``around``).  Probes that do not do so are assembled with more of their
    values in ordinary registers; then what is left in uniform ones is packed into those that the
    kernel leaves.  UnsupportedError when nothing helps.
    """
    blocks = _held_blocks(kernel, setting, most, Manner())
    joined = blocks.entry is not None and _ways_out(blocks.entry.words) > 1
    if joined:
        blocks = _held_blocks(kernel, setting, most, Manner(joined=True))
    if blocks.exit is None or Rule.NO_CARRIED_UNIFORMS not in rules:
        return blocks
    reason: UnsupportedError | None = None
    for apart in AMPLE:
        if apart is not Apart.NOTHING:
            manner = Manner(apart=apart, joined=joined)
            blocks = _held_blocks(kernel, setting, most, manner)
        for each in (blocks, _localised(blocks, setting)):
            found = _objection(each, setting, around, rules)
            if found is None:
                return each
            reason = found  # the last: of manners that cost more and more, what none gets around
    if reason is None:
        raise InternalError("exit probes that nothing speaks against")
    free = frozenset(range(UNIFORM_REGISTERS)) - around.registers
    for way in Apart:
        manner = Manner(apart=way, joined=joined)
        blocks = _held_blocks(kernel, setting, most, manner)
        tight = _packed(blocks, setting, free, rules)
        if tight is not None and _objection(tight, setting, around, rules) is None:
            return tight
    raise reason


@functools.lru_cache(maxsize=256)
def _ways_out(words: tuple[int, ...]) -> int:
    return sum(1 for word in words if OPCODE.of(word) == EXIT)


@functools.lru_cache(maxsize=256)
def _works_together(words: tuple[int, ...]) -> bool:
    return any(OPCODE.of(word) in COLLECTIVES for word in words)


def _held_blocks(
    kernel: Kernel,
    setting: ProbeSetting,
    most: int | None,
    manner: Manner,
) -> ProbeBlocks:
    """The probes assembled in this manner, in registers that the kernel has anyway if they fit."""
    natural = assemble_probes(kernel, setting, manner)
    held = _held(kernel, natural, most, manner)
    return natural if held == manner else assemble_probes(kernel, setting, held)


def _objection(
    blocks: ProbeBlocks, setting: ProbeSetting, around: Usage, rules: frozenset[Rule]
) -> UnsupportedError | None:
    """Why the exit probes cannot go into the kernel like this."""
    if blocks.exit is None:
        return None
    words = blocks.exit.words
    exits = [each for each in setting.probes if each.kind is AttachKind.EXIT]
    leaving = [each.program for each in exits]
    if Rule.NO_MEETING in rules and _works_together(words):
        return UnsupportedError(
            f"exit probes ({', '.join(leaving)}) in which lanes of a warp work together"
        )
    if carried(words, setting.arch):
        return UnsupportedError(
            f"exit probes ({', '.join(leaving)}) with uniform values that live across branches"
        )
    try:
        free_numbers(without_meetings(words, rules), around)
    except UnsupportedError as error:
        return error
    return None


def _localised(blocks: ProbeBlocks, setting: ProbeSetting) -> ProbeBlocks:
    if blocks.exit is None:
        return blocks
    words = localised(blocks.exit.words, setting.arch)
    if words == blocks.exit.words:
        return blocks
    return replace(blocks, exit=replace(blocks.exit, words=words))


def _packed(
    blocks: ProbeBlocks, setting: ProbeSetting, free: frozenset[int], rules: frozenset[Rule]
) -> ProbeBlocks | None:
    if blocks.exit is None:
        return blocks
    words = packed(blocks.exit.words, setting.arch, free, rules)
    return None if words is None else replace(blocks, exit=replace(blocks.exit, words=words))


def _held(kernel: Kernel, blocks: ProbeBlocks, most: int | None, manner: Manner) -> Manner:
    """Limits for blocks that take more registers than the kernel has anyway; ``most``: what a warp
    may be left with at its exit (setmaxnreg).  Saved starts lie above the exit probes' registers
    and the kernel's: below them there is room where the kernel leaves some."""
    limit = free_registers(kernel.registers) if most is None else kernel.registers
    leaving = min(limit, most or limit)
    if blocks.starts:
        below = limit - register_count(2 * len(blocks.starts) - 1, EVERY_RULE)
        leaving = below if kernel.registers <= below < leaving else leaving
    return replace(
        manner,
        entry=limit if blocks.entry and blocks.entry.registers > limit else 0,
        exit=leaving if blocks.exit and blocks.exit.registers > leaving else 0,
    )
