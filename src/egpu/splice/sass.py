"""Machine-code splicing: probes in a kernel of a cubin, whose own code stays as it was scheduled.

The probes' code is appended to the kernel's section.  The first instruction becomes a jump to the
entry probes, which end in it and jump back; every EXIT becomes a jump, taken by the same lanes, to
the one copy of the exit probes, which end in an EXIT.  Jumps are relative, so nothing else moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egpu.bpf.program import AttachKind
from egpu.codegen.device_code import DeviceCode, Target
from egpu.errors import InternalError, UnsupportedError
from egpu.image.cubin import open_cubin
from egpu.image.cubin_alone import alone
from egpu.image.cubin_contents import Contents, contents_of
from egpu.image.cubin_edit import put_together, read_symbols
from egpu.image.cubin_kernel import Change, change_kernel, open_kernel
from egpu.maps.layout import LAUNCH_BLOCK_SIZE, ArenaLayout
from egpu.splice.occupancy import free_registers
from egpu.splice.sass_choice import assembled
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    ARCHS,
    SIZE,
    TRAP,
)
from egpu.splice.sass_encoding import EXIT as EXIT_OPCODE
from egpu.splice.sass_functions import called_registers, with_functions
from egpu.splice.sass_globals import GlobalPatch, patches, share_globals
from egpu.splice.sass_kept import with_kept_address
from egpu.splice.sass_kernel import check_kernel, code_around, lowest_register_limit
from egpu.splice.sass_probe import (
    Assemble,
    ProbeBlocks,
    ProbeSetting,
)
from egpu.splice.sass_rules import (
    EVERY_RULE,
    Rule,
)
from egpu.splice.sass_schedule import SCHEDULED_ARCH
from egpu.splice.sass_splice import Care, Splice
from egpu.splice.sass_uniform import NOTHING

_TWICE = 100  # from this architecture on cubins describe their code twice


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

    @property
    def costs_blocks(self) -> bool:
        """Whether fewer of its blocks may be resident on an SM, for the registers it takes."""
        return self.registers > free_registers(self.was_registers)


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
        raise unknown_machine_code(arch)
    _check_probes(probes)
    parts = alone(contents, kernel)
    target = open_kernel(parts, kernel)
    code = Code.of(parts.parts[target.text].data)
    check_kernel(parts, target, code, arch, probes)
    setting = ProbeSetting(arch, tuple(probes), layout, assemble)
    leaving = any(each.kind is AttachKind.EXIT for each in probes)
    around = code_around(parts, target, code) if leaving else NOTHING
    most, called = lowest_register_limit(code), called_registers(parts)
    blocks = assembled(target, setting, most, around, rules)
    if most is None and arch >= SCHEDULED_ARCH and target.attribute("EXTERNS") is None:
        # Which registers the driver's own functions (vprintf) take is not in the cubin.
        blocks = with_kept_address(blocks, probes, target, called, rules)
    work = Splice(target, code, arch, blocks, Care(around, called, rules))
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
    changed = change_kernel(parts, target, change)
    if blocks.exit:
        changed = with_functions(changed, work.function)
    changed, shared = share_globals(changed, target, read_symbols(parts), text)
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


def unknown_machine_code(arch: int) -> UnsupportedError:
    """What is said of machine code whose encoding is not in the tables."""
    known = ", ".join(f"sm_{each}" for each in ARCHS[:-1]) + f" or sm_{ARCHS[-1]}"
    why = ", which describes its code twice (.nv.capmerc)" if arch >= _TWICE else ""
    return UnsupportedError(f"machine code for sm_{arch}{why}", needs=f"PTX, or {known}")


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


def _uncovered(code: Code, blocks: ProbeBlocks) -> tuple[str, ...]:
    """What ends threads without an exit probe."""
    traps = code.where(TRAP) if blocks.exit else []
    return tuple(f"trap at {index * SIZE:#x}" for index in traps)
