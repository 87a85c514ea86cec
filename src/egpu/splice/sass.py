"""Machine-code splicing: probes in a kernel of a cubin, whose own code stays as it was scheduled.

The probes' code is appended to the kernel's section.  The first instruction becomes a jump to the
entry probes, which end in it and jump back; every EXIT becomes a jump, taken by the same lanes, to
the one copy of the exit probes, which end in an EXIT.  Jumps are relative, so nothing else moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from egpu.bpf.program import AttachKind, Level
from egpu.codegen.device_code import DeviceCode, RelocKind, Target
from egpu.errors import InternalError, UnsupportedError
from egpu.image.cubin import open_cubin
from egpu.image.cubin_alone import alone
from egpu.image.cubin_contents import Contents, contents_of
from egpu.image.cubin_edit import put_together, take_apart
from egpu.image.cubin_kernel import Change, Kernel, change_kernel, open_kernel
from egpu.maps.layout import LAUNCH_BLOCK_SIZE, ArenaLayout
from egpu.splice.sass_carried import carried, localised
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    ARCHS,
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
    TRAP,
    WAIT,
    branch,
    bytes_of,
    copy_register,
    distance_of,
    instruction,
    read_clock,
)
from egpu.splice.sass_encoding import EXIT as EXIT_OPCODE
from egpu.splice.sass_globals import GlobalPatch, patches, share_globals
from egpu.splice.sass_kernel import check_kernel, code_around, lowest_register_limit
from egpu.splice.sass_probe import (
    Assemble,
    ProbeBlock,
    ProbeBlocks,
    ProbeSetting,
    assemble_probes,
    start_reads,
)
from egpu.splice.sass_ptx import Manner
from egpu.splice.sass_rules import (
    EVERY_RULE,
    Rule,
    after_everything,
    jump_for_exit,
    register_count,
    tracked,
    with_late_reads,
    without_yields,
)
from egpu.splice.sass_uniform import NOTHING, Usage, free_numbers, renamed

_CODE_ALIGNMENT = 128
_REGISTER_LIMIT = 255
_SPECIALS = {RelocKind.START_TIME: SR_GLOBALTIMER, RelocKind.START_CLOCK: SR_CLOCK}


@dataclass(frozen=True, slots=True)
class InstrumentedCubin:
    """A cubin in which one kernel has probes and one more parameter, the launch block.

    ``hidden_offset``: its byte offset among the parameters; ``parameters``: the kernel's own.
    ``globals``: before the image is loaded, the address that ``cuModuleGetGlobal`` gives for the
    ORIGINAL module's variable goes into each of these places.  ``registers``/``was_registers``:
    per thread, now and before.
    """

    kernel: str
    image: bytes
    hidden_offset: int
    parameters: int
    globals: tuple[GlobalPatch, ...]
    entry_sites: int
    exit_sites: int
    uncovered: tuple[str, ...]
    registers: int
    was_registers: int


def splice_sass(
    cubin: bytes | Contents,
    kernel: str,
    probes: Sequence[DeviceCode],
    layout: ArenaLayout,
    assemble: Assemble,
    *,
    rules: frozenset[Rule] = EVERY_RULE,
) -> InstrumentedCubin:
    """A cubin with ``kernel`` and ``probes`` in it; ``assemble`` turns PTX into one for "sm_90".

    InputError when the cubin is malformed or has no such kernel, or a probe reads a parameter that
    it has not; UnsupportedError, with the reason, when kernel or probe cannot be spliced.
    ``rules`` are for tests, which take one out.  Who splices several kernels of a cubin hands over
    its contents, read once.
    """
    contents = cubin if isinstance(cubin, Contents) else contents_of(open_cubin(cubin))
    arch = contents.parts.cubin.arch
    if arch not in ARCHS:
        raise UnsupportedError(f"machine code for sm_{arch}", needs="sm_80, sm_86, sm_89 or sm_90")
    _check_probes(probes)
    parts = take_apart(open_cubin(alone(contents, kernel)))
    target = open_kernel(parts, kernel)
    code = Code.of(parts.parts[target.text].data)
    check_kernel(parts, target, code, arch, probes)
    setting = ProbeSetting(arch, tuple(probes), layout, assemble)
    blocks = _assembled(target, setting, lowest_register_limit(code), rules)
    around = code_around(parts, target, code) if blocks.exit else NOTHING
    work = _Splice(target, code, arch, blocks, _Care(around, rules))
    text = work.text()
    change = Change(
        text=text.data(),
        registers=work.registers,
        frame=max(block.frame for block in (blocks.entry, blocks.exit) if block),
        hidden=(blocks.hidden_offset, LAUNCH_BLOCK_SIZE),
        parameter_size=blocks.hidden_offset + LAUNCH_BLOCK_SIZE,
        bank_offset=blocks.bank_offset,
        offsets={"EXIT_INSTR_OFFSETS": [index * SIZE for index in text.where(EXIT_OPCODE)]},
    )
    changed, shared = share_globals(change_kernel(parts, target, change), target)
    return InstrumentedCubin(
        kernel=kernel,
        image=put_together(changed),
        hidden_offset=blocks.hidden_offset,
        parameters=len(target.parameters),
        globals=patches(changed, shared),
        entry_sites=1 if blocks.entry else 0,
        exit_sites=work.exits,
        uncovered=_uncovered(code, blocks),
        registers=work.registers,
        was_registers=target.registers,
    )


def _check_probes(probes: Sequence[DeviceCode]) -> None:
    if not probes:
        raise InternalError("a twin without a probe")
    for code in probes:
        if code.target is not Target.PTX:
            raise InternalError(f"probe {code.program} is compiled for {code.target.value}")
        if code.kind not in (AttachKind.ENTRY, AttachKind.EXIT):
            raise UnsupportedError(
                f"probe {code.program}: {code.kind.value} probes in machine code"
            )
        if code.ends_threads:
            raise UnsupportedError(f"probe {code.program}: ending threads in machine code")
        if code.kind is AttachKind.EXIT and code.level is Level.BLOCK:
            raise UnsupportedError(
                f"probe {code.program}: one exit probe per block in machine code",
                needs="the warp level",
            )


def _uncovered(code: Code, blocks: ProbeBlocks) -> tuple[str, ...]:
    """What ends threads without an exit probe."""
    traps = code.where(TRAP) if blocks.exit else []
    return tuple(f"trap at {index * SIZE:#x}" for index in traps)


def _leaves(word: int) -> bool:
    return OPCODE.of(word) == EXIT_OPCODE


def _assembled(
    kernel: Kernel, setting: ProbeSetting, most: int | None, rules: frozenset[Rule]
) -> ProbeBlocks:
    """The probes' code, in as many registers as cost the kernel no resident block, if that can be.

    No uniform value lives where one group of leaving lanes could spoil it for another.
    """
    blocks = assemble_probes(kernel, setting, Manner())
    manner = _held(kernel, blocks, most)
    if manner != Manner():
        held = assemble_probes(kernel, setting, manner)
        if all(block.frame <= _SPILL_LIMIT for block in (held.entry, held.exit) if block):
            blocks = held
        else:
            manner = Manner()
    if Rule.NO_CARRIED_UNIFORMS not in rules:
        return blocks
    for each in (manner, replace(manner, apart=True)):
        blocks = assemble_probes(kernel, setting, each) if each.apart else blocks
        if not _carries(blocks, setting):
            return blocks
        blocks = _localised(blocks, setting)
        if not _carries(blocks, setting):
            return blocks
    leaving = [each for each in setting.probes if each.kind is AttachKind.EXIT]
    raise UnsupportedError(
        f"exit probes ({', '.join(each.program for each in leaving)}) with uniform values "
        "that live across branches"
    )


def _localised(blocks: ProbeBlocks, setting: ProbeSetting) -> ProbeBlocks:
    if blocks.exit is None:
        return blocks
    words = localised(blocks.exit.words, setting.arch)
    return replace(blocks, exit=replace(blocks.exit, words=words))


def _carries(blocks: ProbeBlocks, setting: ProbeSetting) -> bool:
    return blocks.exit is not None and bool(carried(blocks.exit.words, setting.arch))


_FREE_REGISTERS = 32  # a thread: that many let an SM hold all the threads that it can
_REGISTER_STEP = 8  # in which registers are given out
_SPILL_LIMIT = 128  # bytes of stack


def _held(kernel: Kernel, blocks: ProbeBlocks, most: int | None) -> Manner:
    """Limits for blocks that take more registers than the kernel has anyway; ``most``: what a warp
    may be left with at its exit (setmaxnreg)."""
    step = -(-kernel.registers // _REGISTER_STEP) * _REGISTER_STEP
    limit = max(_FREE_REGISTERS, step) if most is None else kernel.registers
    leaving = min(limit, most or limit)
    return Manner(
        entry=limit if blocks.entry and blocks.entry.registers > limit else 0,
        exit=leaving if blocks.exit and blocks.exit.registers > leaving else 0,
    )


@dataclass(frozen=True, slots=True)
class _Care:
    """What lanes that go on use while others are in the exit probe, and the rules."""

    around: Usage
    rules: frozenset[Rule]


class _Splice:
    """One splice under way: the kernel's words, and what is appended to them."""

    def __init__(
        self,
        kernel: Kernel,
        code: Code,
        arch: int,
        blocks: ProbeBlocks,
        care: _Care,
    ) -> None:
        self._arch = arch
        self._kernel = kernel
        self._blocks = blocks
        self._rules = care.rules
        self._around = care.around
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
            code = with_late_reads(code, self._rules)
            changed |= self._redirect_exits(code, self._blocks.exit)
        if self._blocks.entry or self._starts:
            changed[0] = self._redirect_entry(changed.get(0, code[0]), self._blocks.entry)
        size = len(code) + len(self._added)
        padding = -size % (_CODE_ALIGNMENT // SIZE)
        added = self._added + [instruction(NOP, stall=0)] * padding
        return code.with_words(changed).followed_by(Code.of(bytes_of(added)))

    @property
    def _end(self) -> int:
        return len(self._code) + len(self._added)

    def _redirect_exits(self, code: Code, block: ProbeBlock) -> dict[int, int]:
        begin = self._end + block.start
        changed: dict[int, int] = {}
        for index in code.where(EXIT_OPCODE):
            distance = (begin - index - 1) * SIZE
            changed[index] = jump_for_exit(code[index], self._arch, distance, self._rules)
        self.exits = len(changed)
        probe = without_yields(block.words, self._rules)
        if Rule.OWN_UNIFORMS in self._rules:
            code_of_probe = tuple(probe)
            probe = list(renamed(code_of_probe, free_numbers(code_of_probe, self._around)))
        for index, kind, half in start_reads(probe):
            word = probe[index]
            source = self._starts[kind] + half
            probe[index] = copy_register(
                DESTINATION.of(word), source, guard=GUARD.of(word), wait=WAIT.of(word)
            )
        probe[block.start] = after_everything(probe[block.start], self._rules)
        self._added += probe
        return changed

    def _redirect_entry(self, first: int, block: ProbeBlock | None) -> int:
        """What becomes of the first instruction: a jump; the probes end in it and jump back."""
        begin = self._end
        probe = list(block.words) if block else []
        start = block.start if block else 0
        if probe:
            _check_single_exit(probe, self._kernel.name)
            probe = tracked(probe, self._rules)
        leaving = [index for index, word in enumerate(probe) if _leaves(word)]
        if leaving == [len(probe) - 1]:
            probe.pop()  # its EXIT is the last instruction: fall into what follows
        else:
            for index in leaving:
                distance = (len(probe) - index - 1) * SIZE
                probe[index] = jump_for_exit(probe[index], self._arch, distance, self._rules)
        tail = [read_clock(self._starts[kind], _SPECIALS[kind]) for kind in self._starts]
        tail.append(self._displaced(first, begin + len(probe) + len(tail)))
        tail[0] = after_everything(tail[0], self._rules)
        back = begin + len(probe) + len(tail)
        tail.append(branch(self._arch, (1 - back - 1) * SIZE))
        self._added += probe + tail
        return branch(self._arch, (begin + start - 1) * SIZE, wait=WAIT.of(first))

    def _displaced(self, word: int, index: int) -> int:
        """The kernel's first instruction at another place; an exit jump goes where it went."""
        word = REUSE.set(word, 0)
        if OPCODE.of(word) == BRA and self._blocks.exit:
            target = SIZE + distance_of(word, self._arch)
            return branch(
                self._arch,
                target - (index + 1) * SIZE,
                guard=GUARD.of(word),
                second=SECOND_GUARD.of(word),
                wait=WAIT.of(word),
            )
        if OPCODE.of(word) in RELATIVE:
            raise UnsupportedError(
                f"{self._kernel.name}, whose first instruction depends on its place"
            )
        return word

    # Registers

    def _start_registers(self) -> dict[RelocKind, int]:
        """A pair above everything for each value that is kept from entry to exit."""
        block = self._blocks.exit
        above = max(self._kernel.registers, block.registers if block else 0)
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


def _check_single_exit(words: Sequence[int], kernel: str) -> None:
    """All lanes must come out of an entry probe together."""
    leaving = [word for word in words if _leaves(word)]
    whole = [word for word in leaving if GUARD.of(word) == PT and SECOND_GUARD.of(word) == PT]
    if len(leaving) != 1 or len(whole) != 1:
        raise UnsupportedError(
            f"an entry probe in {kernel} whose lanes leave it at {len(leaving)} places"
        )
