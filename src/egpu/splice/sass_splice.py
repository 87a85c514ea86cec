"""Probes' code behind a kernel's, and the jumps that lead there and back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from egpu.codegen.device_code import RelocKind
from egpu.errors import UnsupportedError
from egpu.image.cubin_kernel import Kernel
from egpu.splice.sass_closed import check_spliced
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    BRA,
    DESTINATION,
    GUARD,
    NOP,
    OPCODE,
    PT,
    RELATIVE,
    REUSE,
    SECOND_GUARD,
    SIZE,
    SR_CLOCK,
    SR_GLOBALTIMER,
    STALL,
    WAIT,
    branch,
    bytes_of,
    copy_register,
    distance_of,
    instruction,
    read_clock,
)
from egpu.splice.sass_encoding import EXIT as EXIT_OPCODE
from egpu.splice.sass_kernel import lowest_register_limit
from egpu.splice.sass_meeting import between_barriers
from egpu.splice.sass_numbers import free_numbers, renamed
from egpu.splice.sass_probe import (
    ProbeBlock,
    ProbeBlocks,
    joins,
    start_reads,
)
from egpu.splice.sass_rules import (
    Rule,
    after_everything,
    as_long,
    before_wait,
    jump_for_exit,
    nothing,
    register_count,
    settled,
    tracked,
    with_scoreboards,
    without_late_stack_pointer,
    without_meetings,
)
from egpu.splice.sass_uniform import Usage

_CODE_ALIGNMENT = 128
_CACHE_LINE = 128 // SIZE  # instructions
_REGISTER_LIMIT = 255
_SPECIALS = {RelocKind.START_TIME: SR_GLOBALTIMER, RelocKind.START_CLOCK: SR_CLOCK}


@dataclass(frozen=True, slots=True)
class Care:
    """What lanes that go on use while others are in the exit probe, the registers of functions that
    the kernel may call, and the rules."""

    around: Usage
    registers: int
    rules: frozenset[Rule]


class Splice:
    """One splice under way: the kernel's words, and what is appended to them."""

    def __init__(
        self,
        kernel: Kernel,
        code: Code,
        arch: int,
        blocks: ProbeBlocks,
        care: Care,
    ) -> None:
        self._arch = arch
        self._kernel = kernel
        self._blocks = blocks
        self._rules = care.rules
        self._around = care.around
        self._called = care.registers
        self._code = code
        self._added: list[int] = []
        self.exits = 0
        self._starts = self._start_registers()
        self.registers = self._registers()
        self._check_registers()

    def text(self) -> Code:
        """The kernel's section with everything in it."""
        changed: dict[int, int] = {}
        code = self._code
        if self._blocks.exit:
            code = with_scoreboards(code, self._rules)
            if self._blocks.exit.frame:
                code = without_late_stack_pointer(code, self._rules)
            changed |= self._redirect_exits(code, self._blocks.exit)
            self._added += self._leaving(self._blocks.exit)
        if self._blocks.entry or self._starts:
            changed[0] = self._redirect_entry(changed.get(0, code[0]), self._blocks.entry)
        return self._checked(_extended(code, changed, self._added), code)

    def function(self, code: Code) -> Code:
        """A function that the kernel may call, whose ways out lead to a copy of the exit probes."""
        block = self._blocks.exit
        if block is None:
            return code
        code = with_scoreboards(code, self._rules)
        changed = self._redirect_exits(code, block)
        return self._checked(_extended(code, changed, self._leaving(block)), code)

    def _checked(self, after: Code, before: Code) -> Code:
        check_spliced(before, after, self._arch)
        return after

    @property
    def _end(self) -> int:
        return len(self._code) + len(self._added)

    def _redirect_exits(self, code: Code, block: ProbeBlock) -> dict[int, int]:
        """Every EXIT becomes a jump to what is put behind the code."""
        begin = len(code) + block.start
        changed: dict[int, int] = {}
        for index in code.where(EXIT_OPCODE):
            distance = (begin - index - 1) * SIZE
            changed[index] = jump_for_exit(code[index], self._arch, distance, self._rules)
        self.exits += len(changed)
        return changed

    def _leaving(self, block: ProbeBlock) -> list[int]:
        """The exit probes as they are in this kernel."""
        starts = tuple(self._starts.items())
        return self._blocks.in_place(_exit_probe(block, self._around, starts, self._rules))

    def _redirect_entry(self, first: int, block: ProbeBlock | None) -> int:
        """What becomes of the first instruction: a jump; the probes end in it and jump back."""
        probe: list[int] = []
        if block:
            _check_single_exit(block.words[block.start :], self._kernel.name)
            probe = self._blocks.in_place(_entry_probe(block, self._arch, self._rules))
        # Every warp comes here: the fewer lines of the instruction cache it takes the better.
        self._added += [instruction(NOP, stall=0)] * (-self._end % _CACHE_LINE)
        begin = self._end
        tail = [read_clock(self._starts[kind], _SPECIALS[kind]) for kind in self._starts]
        if OPCODE.of(first) != NOP:
            tail.append(self._displaced(first, begin + len(probe) + len(tail)))
        back = begin + len(probe) + len(tail)
        tail.append(branch(self._arch, (1 - back - 1) * SIZE))
        tail[0] = after_everything(tail[0], self._rules)
        self._added += probe + tail
        return branch(self._arch, (begin - 1) * SIZE, wait=WAIT.of(first))

    def _displaced(self, word: int, index: int) -> int:
        """The kernel's first instruction at another place; an exit jump goes where it went."""
        word = REUSE.set(word, 0)
        if OPCODE.of(word) == BRA and self._blocks.exit:
            target = SIZE + distance_of(word, self._arch)
            jump = branch(
                self._arch,
                target - (index + 1) * SIZE,
                guard=GUARD.of(word),
                second=SECOND_GUARD.of(word),
                wait=WAIT.of(word),
            )
            return as_long(jump, word, self._rules)
        if OPCODE.of(word) in RELATIVE:
            raise UnsupportedError(
                f"{self._kernel.name}, whose first instruction depends on its place"
            )
        return word

    # Registers

    def _start_registers(self) -> dict[RelocKind, int]:
        """A pair above everything for each value that is kept from entry to exit."""
        block = self._blocks.exit
        above = max(self._kernel.registers, self._called, block.registers if block else 0)
        above += above % 2
        return {kind: above + 2 * number for number, kind in enumerate(self._blocks.starts)}

    def _registers(self) -> int:
        blocks = [each for each in (self._blocks.entry, self._blocks.exit) if each]
        count = max(self._kernel.registers, *(each.registers for each in blocks))
        if self._starts:
            count = max(count, register_count(max(self._starts.values()) + 1, self._rules))
        return count

    def _check_registers(self) -> None:
        name, was = self._kernel.name, self._kernel.registers
        if self.registers > _REGISTER_LIMIT:
            raise UnsupportedError(
                f"{name}, which would need {self.registers} registers of {_REGISTER_LIMIT}"
            )
        limit = lowest_register_limit(self._code)
        if limit is None:
            return
        if self.registers != was:
            raise UnsupportedError(
                f"{name}, which divides its registers between warps (setmaxnreg), with probes that "
                f"need {self.registers} instead of {was}"
            )
        block = self._blocks.exit
        if block and block.registers > limit:
            raise UnsupportedError(
                f"{name}, which keeps {limit} registers in some warps (setmaxnreg), with an exit "
                f"probe that needs {block.registers}"
            )


# Most kernels get the same probes, in registers that are the same: all of this is done once.
@functools.lru_cache(maxsize=256)
def _exit_probe(
    block: ProbeBlock,
    around: Usage,
    starts: tuple[tuple[RelocKind, int], ...],
    rules: frozenset[Rule],
) -> tuple[int, ...]:
    """Exit probes with numbers that the kernel does not use (``around``); ``starts`` are the
    registers of what is kept from entry to exit."""
    probe = list(without_meetings(block.words, rules))
    if Rule.OWN_UNIFORMS in rules:
        code_of_probe = tuple(probe)
        probe = list(renamed(code_of_probe, free_numbers(code_of_probe, around)))
    probe = [nothing(word) if joins(word) else word for word in probe]
    reads, registers = start_reads(probe), dict(starts)
    if reads:
        probe = list(settled(tuple(probe), rules))
    for index, kind, half in reads:
        word = probe[index]
        copied = copy_register(
            DESTINATION.of(word),
            registers[kind] + half,
            guard=GUARD.of(word),
            wait=WAIT.of(word),
            stall=STALL.of(word),
        )
        # The load came after all before it, too.
        probe[index] = after_everything(copied, rules)
    probe[block.start] = after_everything(probe[block.start], rules)
    return tuple(probe)


@functools.lru_cache(maxsize=256)
def _entry_probe(block: ProbeBlock, arch: int, rules: frozenset[Rule]) -> tuple[int, ...]:
    """Entry probes that lanes leave at their end, all together."""
    probe = [
        nothing(word) if joins(word) else word
        for word in tracked(block.words, rules)[block.start :]
    ]
    leaving = [index for index, word in enumerate(probe) if _leaves(word)]
    if leaving == [len(probe) - 1]:
        probe.pop()  # its EXIT is the last instruction: fall into what follows
    else:
        for index in leaving:
            distance = (len(probe) - index - 1) * SIZE
            probe[index] = jump_for_exit(probe[index], arch, distance, rules)
    if Rule.MEETING_AGAIN in rules:
        probe = list(between_barriers(probe, arch))
    if probe:  # the assembler counts on an EXIT there, which waits for nothing
        probe[-1] = before_wait(probe[-1], rules)
    return tuple(probe)


def _extended(code: Code, changed: dict[int, int], added: Sequence[int]) -> Code:
    """Changed code with more behind it, filled up to where a section ends."""
    padding = -(len(code) + len(added)) % (_CODE_ALIGNMENT // SIZE)
    return code.spliced(changed, bytes_of([*added, *[instruction(NOP, stall=0)] * padding]))


def _check_single_exit(words: tuple[int, ...], kernel: str) -> None:
    """All lanes must come out of an entry probe together."""
    leaving, whole = _ways_out(words)
    if leaving != 1 or whole != 1:
        raise UnsupportedError(
            f"an entry probe in {kernel} whose lanes leave it at {leaving} places"
        )


@functools.lru_cache(maxsize=256)
def _ways_out(words: tuple[int, ...]) -> tuple[int, int]:
    """How many instructions end a thread, and how many of them every thread."""
    leaving = [word for word in words if _leaves(word)]
    whole = [word for word in leaving if GUARD.of(word) == PT and SECOND_GUARD.of(word) == PT]
    return len(leaving), len(whole)


def _leaves(word: int) -> bool:
    return OPCODE.of(word) == EXIT_OPCODE
