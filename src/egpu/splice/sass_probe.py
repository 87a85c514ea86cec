"""A probe's machine code: PTX with the kernel's parameter list, assembled, and its body lifted out.

The probe reads parameters at the places in the constant bank where the kernel has its own, and the
launch block behind them.  What depends on the kernel alone in PTX (registers for the saved start)
is marked by loads from a place in shared memory that no kernel has, and replaced in the machine
code, one instruction by one: code that is lifted is never stretched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from egpu.bpf.program import AttachKind, Level
from egpu.codegen.device_code import DeviceCode, RelocKind
from egpu.errors import InternalError, UnsupportedError
from egpu.image.cubin import open_cubin
from egpu.image.cubin_attributes import CODES, Attribute, parameter
from egpu.image.cubin_edit import relocations_of, take_apart
from egpu.image.cubin_kernel import Kernel, open_kernel
from egpu.image.ptx import parse
from egpu.maps.layout import LAUNCH_BLOCK_SIZE, ArenaLayout
from egpu.splice.ptx_names import added_names
from egpu.splice.ptx_relocate import Setting, needs, resolve
from egpu.splice.sass_encoding import (
    BRA,
    DESTINATION,
    LDS,
    NO_SCOREBOARD,
    NOP,
    OPCODE,
    SHARED_OFFSET,
    SIZE,
    WRITE_SCOREBOARD,
    distance_of,
    words_of,
)

# (PTX, "sm_90") to a cubin.  ptxas must get these options: constants of a probe's own would have
# to lie in a bank that the kernel may not have.
Assemble = Callable[[str, str], bytes]
ASSEMBLER_OPTIONS = ("--disable-optimizer-constants",)

ENTRY, EXIT = "egpu_entry", "egpu_exit"
# PTX ISA versions that know a target, and the first that takes more than 4352 bytes of parameters.
_VERSIONS = {80: (7, 0), 86: (7, 1), 89: (7, 8), 90: (7, 8)}
_LARGE_PARAMETERS, _LARGE_VERSION = 4352, (8, 1)
_STACK_POINTER = 1
# Bytes of shared memory that no kernel has, as far as an LDS reaches (24 bits, signed): where the
# saved start is "read".
START_PLACES = {RelocKind.START_TIME: 0x697000, RelocKind.START_CLOCK: 0x697010}
_BANKS = re.compile(r"\.nv\.constant[1-9]")


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
class ProbeBlocks:
    """The probes of one kernel, with what the hidden parameter looks like to the driver."""

    entry: ProbeBlock | None
    exit: ProbeBlock | None
    hidden: Attribute
    hidden_offset: int
    bank_offset: int
    starts: tuple[RelocKind, ...]


@dataclass(frozen=True, slots=True)
class Manner:
    """How probes are assembled.

    ``vector_masks``: keep the active masks of exit probes in ordinary registers.  ``limits``: most
    registers by entry name, 0 or nothing for as many as the assembler likes.
    """

    vector_masks: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)


def assemble_probes(
    kernel: Kernel,
    arch: int,
    probes: Sequence[DeviceCode],
    layout: ArenaLayout,
    assemble: Assemble,
    *,
    manner: Manner,
) -> ProbeBlocks:
    """Machine code for ``probes`` in ``kernel``, entry and exit probes in their orders."""
    text, starts = probe_text(kernel, arch, probes, layout, manner=manner)
    parts = take_apart(open_cubin(assemble(text, f"sm_{arch}")))
    banks = [each.name for each in parts.parts if _BANKS.match(each.name) and each.size]
    if banks:
        raise UnsupportedError(f"a probe with constants in {banks[0]}")
    blocks: dict[str, ProbeBlock] = {}
    hidden: tuple[Attribute, int, int] | None = None
    for name, kind in ((ENTRY, AttachKind.ENTRY), (EXIT, AttachKind.EXIT)):
        if not any(each.kind is kind for each in probes):
            continue
        lifted = open_kernel(parts, name)
        place = kernel.bank_offset in (None, lifted.bank_offset)
        if lifted.bank_offset is None or not place or not _same(kernel, lifted, probes):
            raise UnsupportedError(f"{kernel.name} with parameters that PTX lays out otherwise")
        hidden = _hidden(kernel, lifted), lifted.parameters[-1][0], lifted.bank_offset
        if relocations_of(parts, lifted.text):
            raise UnsupportedError("a probe whose machine code refers to something outside it")
        block = _lifted(words_of(parts.parts[lifted.text].data), arch, lifted)
        _check_starts(block, starts if kind is AttachKind.EXIT else ())
        blocks[name] = block
    if hidden is None:
        raise InternalError("a twin without a probe")
    return ProbeBlocks(blocks.get(ENTRY), blocks.get(EXIT), *hidden, starts)


def _hidden(kernel: Kernel, lifted: Kernel) -> Attribute:
    """What describes the launch block, as the parameter behind the kernel's own."""
    last = len(lifted.parameters) - 1
    record = next(
        each
        for each in lifted.attributes
        if each.code == CODES["KPARAM_INFO"] and parameter(each)[0] == last
    )
    payload = bytearray(record.payload)
    payload[4:6] = len(kernel.parameters).to_bytes(2, "little")  # its ordinal
    return replace(record, payload=bytes(payload))


def probe_text(
    kernel: Kernel,
    arch: int,
    probes: Sequence[DeviceCode],
    layout: ArenaLayout,
    *,
    manner: Manner,
) -> tuple[str, tuple[RelocKind, ...]]:
    """The PTX module that is assembled, and which starts its exit probes read."""
    parameters = _parameter_list(kernel, probes)
    size = kernel.parameter_size + LAUNCH_BLOCK_SIZE
    version = max(_VERSIONS[arch], *(each.isa for each in probes))
    if size > _LARGE_PARAMETERS:
        version = max(version, _LARGE_VERSION)
    head = f".version {version[0]}.{version[1]}\n.target sm_{arch}\n.address_size 64\n"
    names = added_names("")
    launch = f".param .align 8 .b8 {names.launch}[{LAUNCH_BLOCK_SIZE}]"
    plain = parse(f"{head}.visible .entry k({parameters.rstrip(', ')})\n{{\nret;\n}}\n").entry("k")
    own = tuple(each for each in plain.parameters if not each.name.startswith(_GAP))
    setting = Setting(replace(plain, name=kernel.name, parameters=own), layout, names)
    out = [head]
    for name, kind in ((ENTRY, AttachKind.ENTRY), (EXIT, AttachKind.EXIT)):
        chosen = [each for each in probes if each.kind is kind]
        if not chosen:
            continue
        bodies = [resolve(each, setting).strip() for each in chosen]
        if kind is AttachKind.EXIT:
            text = _leaving(chosen, bodies, vector_masks=manner.vector_masks)
        else:
            text = "".join(f"{{\n{body}\n}}\n" for body in bodies)
        for start, register in (
            (RelocKind.START_TIME, names.start_time),
            (RelocKind.START_CLOCK, names.start_clock),
        ):
            text = _with_start(text, register, START_PLACES[start])
        most = f" .maxnreg {manner.limits[name]}" if manner.limits.get(name) else ""
        out.append(f".visible .entry {name}({parameters}{launch}){most}\n{{\n{text}ret;\n}}\n")
    leaving = [each for each in probes if each.kind is AttachKind.EXIT]
    starts = tuple(each for each in START_PLACES if needs(leaving, each))
    return "".join(out), starts


def _leaving(probes: Sequence[DeviceCode], bodies: Sequence[str], *, vector_masks: bool) -> str:
    """The text of exit probes.  Threads that end need not wait for each other; and where one lane
    does all the work, the others end before any of it."""
    bodies = [*bodies[:-1], _LAST_SYNC.sub("", bodies[-1])]
    if len(probes) > 1 and all(each.level is Level.WARP for each in probes):
        bodies = [
            _LAST_SYNC.sub("", _ACTIVE_MASK.sub(r"mov.b32 \1, %egpu_group;", body, count=1))
            for body in bodies
        ]
        return _ONE_LANE + "".join(f"{{\n{body}\n}}\n" for body in bodies)
    if vector_masks:
        bodies = [_vector_mask(each) for each in bodies]
    return "".join(f"{{\n{body}\n}}\n" for body in bodies)


_LAST_SYNC = re.compile(r"bar\.warp\.sync\s+[%$\w]+\s*;\s*\Z")
_ACTIVE_MASK = re.compile(r"activemask\.b32\s+([%$\w]+)\s*;")
# The lowest lane stays, as a probe at the warp level chooses it, too.
_ONE_LANE = """.reg .b32 %egpu_group, %egpu_below;
.reg .pred %egpu_others;
activemask.b32 %egpu_group;
mov.u32 %egpu_below, %lanemask_lt;
and.b32 %egpu_below, %egpu_below, %egpu_group;
setp.ne.b32 %egpu_others, %egpu_below, 0;
@%egpu_others exit;
"""


def _vector_mask(body: str) -> str:
    """Active masks in ordinary registers.

    The assembler may keep one in a uniform register for long.  At an exit several groups of a
    warp's lanes can be inside the probe, and each needs its own; so the instruction gets a guard
    that differs by lane as far as the assembler knows, but always holds.
    """
    return _ACTIVE_MASK.sub(
        r"{ .reg .pred %egpu_here; .reg .b32 %egpu_lanes; mov.u32 %egpu_lanes, %lanemask_lt; "
        r"setp.ne.b32 %egpu_here, %egpu_lanes, -1; mov.b32 \1, 0; "
        r"@%egpu_here activemask.b32 \1; }",
        body,
    )


def _with_start(text: str, register: str, place: int) -> str:
    return re.sub(
        rf"mov\.b64\s+([%$\w]+)\s*,\s*{re.escape(register)}\s*;",
        lambda match: (
            "{ .reg .b32 %egpu_at, %egpu_low, %egpu_high; "
            f"mov.b32 %egpu_at, {place}; "
            "ld.volatile.shared.b32 %egpu_low, [%egpu_at]; "
            "ld.volatile.shared.b32 %egpu_high, [%egpu_at+4]; "
            f"mov.b64 {match[1]}, {{%egpu_low, %egpu_high}}; }}"
        ),
        text,
    )


def _parameter_list(kernel: Kernel, probes: Sequence[DeviceCode]) -> str:
    """Declarations that lie where the kernel's parameters lie, each followed by a comma.

    Probes that read none get one of the same size: so all kernels of that size share their code.

    Larger alignments count from the bank's beginning, not from the first parameter's: so gaps are
    parameters of their own.
    """
    if not _reads_parameters(probes):
        size = kernel.parameter_size
        return f".param .align {_WORD} .b8 p0[{size}], " if size else ""
    lines = []
    end = 0
    for number, (offset, size) in enumerate(kernel.parameters):
        if offset > end:
            lines.append(f".param .align 1 .b8 {_GAP}{number}[{offset - end}], ")
        align = _WORD
        while offset % align:
            align //= 2
        lines.append(f".param .align {align} .b8 p{number}[{size}], ")
        end = offset + size
    return "".join(lines)


def _reads_parameters(probes: Sequence[DeviceCode]) -> bool:
    return needs(probes, RelocKind.PARAMETER) or needs(probes, RelocKind.PARAM_BYTES)


_GAP = "gap"
_WORD = 8


def _same(kernel: Kernel, lifted: Kernel, probes: Sequence[DeviceCode]) -> bool:
    """Whether every parameter lies where the kernel has it, and the launch block behind them."""
    *found, launch = lifted.parameters
    end = -(-kernel.parameter_size // _WORD) * _WORD
    alike = not _reads_parameters(probes) or set(kernel.parameters) <= set(found)
    return alike and launch == (end, LAUNCH_BLOCK_SIZE)


def _lifted(words: list[int], arch: int, kernel: Kernel) -> ProbeBlock:
    while words and OPCODE.of(words[-1]) == NOP:
        words.pop()
    if words and OPCODE.of(words[-1]) == BRA and distance_of(words[-1], arch) == -SIZE:
        words.pop()
    if not words:
        raise InternalError("a probe without machine code")
    first = words[0]
    skips = (
        kernel.frame == 0
        and DESTINATION.of(first) == _STACK_POINTER
        and WRITE_SCOREBOARD.of(first) == NO_SCOREBOARD
    )
    return ProbeBlock(tuple(words), int(skips), kernel.registers, kernel.frame)


def _check_starts(block: ProbeBlock, starts: Sequence[RelocKind]) -> None:
    """Every load from shared memory is one that stands for a saved start, and each is there."""
    loads = sum(1 for word in block.words if OPCODE.of(word) == LDS)
    found = start_reads(block.words)
    if loads != len(found) or {each[1] for each in found} != set(starts):
        raise InternalError("a probe whose reads of the saved start are not found again")


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
