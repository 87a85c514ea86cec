"""The PTX of probes that become machine code: entries with the kernel's parameters.

What depends on the kernel alone in PTX (registers for the saved start) is marked by loads from a
place in shared memory that no kernel has, to be replaced in the machine code.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from egpu.bpf.program import AttachKind, Level
from egpu.codegen.device_code import DeviceCode, RelocKind
from egpu.errors import UnsupportedError
from egpu.image.ptx import parse
from egpu.maps.layout import LAUNCH_BLOCK_SIZE, ArenaLayout
from egpu.splice.ptx_names import AddedNames, added_names
from egpu.splice.ptx_relocate import Setting, needs, resolve
from egpu.splice.sass_lane import (
    ELECT_ARCH,
    added_by_one,
    elected,
    elects,
    for_one_lane,
    same_in_all,
)

ENTRY, EXIT = "egpu_entry", "egpu_exit"
# PTX ISA versions that know a target, and the first that takes more than 4352 bytes of parameters.
_VERSIONS = {80: (7, 0), 86: (7, 1), 89: (7, 8), 90: (8, 0)}
LARGE_PARAMETERS, _LARGE_VERSION = 4352, (8, 1)
# Bytes of shared memory that no kernel has, as far as an LDS reaches (24 bits, signed): where the
# saved start is "read".
START_PLACES = {RelocKind.START_TIME: 0x697000, RelocKind.START_CLOCK: 0x697010}
JOINED_PLACE = 0x697020
_WORD = 8
_GAP = "gap"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the text depends on in a kernel: where its parameters lie, and how long they are.

    ``mark`` is put behind the entries' names, so that one module can have those of several kernels.
    """

    name: str
    parameters: tuple[tuple[int, int], ...]
    size: int
    mark: str = ""


class Apart(enum.Enum):
    """What an exit probe is assembled with as if it differed by lane, so that the assembler keeps
    it in ordinary registers.  Each costs instructions."""

    NOTHING = enum.auto()
    MASKS = enum.auto()  # the masks of active lanes
    EVERYTHING = enum.auto()  # and what comes from the launch
    # Nothing; but all of it is behind a branch that no lane takes, as far as the assembler knows
    # some do: so it keeps uniform values for a few instructions only, as where lanes have parted.
    BRANCHED = enum.auto()
    EVERYTHING_BRANCHED = enum.auto()
    # Behind such a branch, and the launch block is read from a place that seems to differ by lane:
    # the assembler loads it into ordinary registers, not into uniform ones for an instruction.
    LOADED = enum.auto()
    # The same, and the grid's registers are chosen by a predicate, as one in a uniform register
    # cannot be.
    ALL_LOADED = enum.auto()


# For kernels that leave enough uniform registers.
AMPLE: tuple[Apart, ...] = tuple(
    each for each in Apart if each not in (Apart.LOADED, Apart.ALL_LOADED)
)


@dataclass(frozen=True, slots=True)
class Manner:
    """How probes are assembled; ``entry``, ``exit``: most registers, 0 for as many as the assembler
    likes; ``joined``: entry probes have something at their end that the assembler does not copy, so
    that all lanes leave them in one place."""

    entry: int = 0
    exit: int = 0
    apart: Apart = Apart.NOTHING
    joined: bool = False


@dataclass(frozen=True, slots=True)
class ProbeText:
    """PTX of the entries ``ENTRY`` and ``EXIT``, as far as there are such probes, behind ``head``,
    what a module begins with; and the starts that exit probes read."""

    head: str
    text: str
    starts: tuple[RelocKind, ...]


def reads_parameters(probes: Sequence[DeviceCode]) -> bool:
    """Whether the text depends on where the parameters lie, beside their size."""
    return any(
        needs(probes, kind)
        for kind in (RelocKind.PARAMETER, RelocKind.PARAM_BYTES, RelocKind.PARAM_SIZE)
    )


def probe_text(
    shape: Shape,
    arch: int,
    probes: Sequence[DeviceCode],
    layout: ArenaLayout,
    manner: Manner,
) -> ProbeText:
    """What is assembled; InputError when a probe reads a parameter that is not there."""
    parameters = _parameter_list(shape, probes)
    version = max(_VERSIONS[arch], *(each.isa for each in probes))
    if shape.size + LAUNCH_BLOCK_SIZE > LARGE_PARAMETERS:
        version = max(version, _LARGE_VERSION)
    head = f".version {version[0]}.{version[1]}\n.target sm_{arch}\n.address_size 64\n"
    names = added_names("")
    launch = f".param .align 8 .b8 {names.launch}[{LAUNCH_BLOCK_SIZE}]"
    plain = parse(f"{head}.visible .entry k({parameters.rstrip(', ')})\n{{\nret;\n}}\n").entry("k")
    own = tuple(each for each in plain.parameters if not each.name.startswith(_GAP))
    setting = Setting(replace(plain, name=shape.name, parameters=own), layout, names)
    out = []
    for name, kind, most in (
        (ENTRY, AttachKind.ENTRY, manner.entry),
        (EXIT, AttachKind.EXIT, manner.exit),
    ):
        chosen = [each for each in probes if each.kind is kind]
        if not chosen:
            continue
        # Several exit probes share a mask of lanes of which most have ended; and of one lane all
        # values are uniform.
        simple = len(chosen) == 1 and manner.apart is Apart.NOTHING
        electing = arch >= ELECT_ARCH and (kind is AttachKind.ENTRY or simple)
        bodies = []
        for each in chosen:
            body = resolve(each, setting).strip()
            if electing and same_in_all(each, body):
                bodies.append(added_by_one(kind, body))
            elif electing and elects(body):
                bodies.append(elected(body))
            else:
                bodies.append(for_one_lane(each, body, names))
        if kind is AttachKind.EXIT:
            text = _leaving(chosen, bodies, manner.apart)
            text = _apart(text, manner.apart, names)
        else:
            text = "".join(f"{{\n{body}\n}}\n" for body in bodies)
            text += f"{{\n{_JOINED}}}\n" if manner.joined else ""
        text = _with_starts(text, names)
        held = f" .maxnreg {most}" if most else ""
        entry = f".visible .entry {name}{shape.mark}({parameters}{launch}){held}"
        out.append(f"{entry}\n{{\n{text}ret;\n}}\n")
    leaving = [each for each in probes if each.kind is AttachKind.EXIT]
    starts = tuple(each for each in START_PLACES if needs(leaving, each))
    return ProbeText(head, "".join(out), starts)


# A zero of which the assembler does not know it, nor that it is the same in all lanes.
_ZERO = """.reg .b32 %egpu_none, %egpu_above;
.reg .b64 %egpu_none64;
mov.u32 %egpu_none, %lanemask_lt;
mov.u32 %egpu_above, %lanemask_gt;
and.b32 %egpu_none, %egpu_none, %egpu_above;
cvt.u64.u32 %egpu_none64, %egpu_none;
"""
_BLOCK = """.reg .pred %egpu_known;
.reg .b64 %egpu_block;
setp.eq.b32 %egpu_known, %egpu_none, 0;
mov.b64 %egpu_block, {launch};
add.s64 %egpu_block, %egpu_block, %egpu_none64;
"""
# What comes from the launch: parameters, which are loaded into 64 bits, and the grid's registers.
_GRID = r"%(?:n?ctaid|ntid|nsmid|smid|nwarpid|warpid|gridid)\b[.xyz]*"
_SAME_FOR_ALL = re.compile(
    r"(?:(?P<load>ld\.param\.\w+)|mov\.[bu]32)\s+(?P<into>[%$\w]+), "
    rf"(?:\[[^]]*\]|{_GRID});"
)
_OF_THE_GRID = re.compile(rf"mov\.[bu]32\s+(?P<into>[%$\w]+), {_GRID};")


def _differing(match: re.Match[str]) -> str:
    width, zero = ("64", "%egpu_none64") if match["load"] else ("32", "%egpu_none")
    return f"{match[0]} or.b{width} {match['into']}, {match['into']}, {zero};"


def _apart(text: str, apart: Apart, names: AddedNames) -> str:
    """The text of exit probes, of which what is the same in all lanes does not seem to be."""
    if apart in _ALL_APART:
        return _ZERO + _SAME_FOR_ALL.sub(_differing, text)
    if apart not in _LOADED:
        return text
    block = rf"(ld\.param\.\w+\s+[%$\w]+, \[){re.escape(names.launch)}\b"
    text = re.sub(block, r"\1%egpu_block", text)
    if apart is Apart.ALL_LOADED:
        text = _OF_THE_GRID.sub(r"\g<0> selp.b32 \g<into>, \g<into>, 0, %egpu_known;", text)
    return _ZERO + _BLOCK.format(launch=names.launch) + text


def _leaving(probes: Sequence[DeviceCode], bodies: Sequence[str], apart: Apart) -> str:
    """The text of exit probes, in which no lane waits for another.

    Where one lane does all the work, the others end before any of it.  Otherwise those that a
    program does not run for go on to the next, and all know who left together with them.
    """
    masks = _vector_mask if apart in (Apart.MASKS, Apart.ALL_LOADED, *_ALL_APART) else str
    bodies = [_LAST_SYNC.sub("", body) for body in bodies]
    for probe, body in zip(probes, bodies, strict=True):
        if _TOGETHER.search(body):
            raise UnsupportedError(
                f"an exit probe ({probe.program}) in which lanes of a warp work together"
            )
    around = _AROUND if apart in _BEHIND_A_BRANCH else ("", "")
    if len(probes) == 1:
        return f"{around[0]}{{\n{masks(bodies[0])}\n}}\n{around[1]}"
    alone = all(each.level is not Level.THREAD for each in probes)
    group = masks(_GROUP + (_ONE_LANE if alone else ""))
    same = [_ACTIVE_MASK.sub(r"mov.b32 \1, %egpu_group;", body, count=1) for body in bodies]
    return around[0] + group + "".join(f"{{\n{body}\n}}\n" for body in same) + around[1]


_ALL_APART = (Apart.EVERYTHING, Apart.EVERYTHING_BRANCHED)
_LOADED = (Apart.LOADED, Apart.ALL_LOADED)
_BEHIND_A_BRANCH = (Apart.BRANCHED, Apart.EVERYTHING_BRANCHED, *_LOADED)
# A load stands where the ways meet, so that they do; it is no instruction of the machine code's.
_JOINED = f"""\
.reg .b32 %egpu_place, %egpu_joined;
mov.b32 %egpu_place, {JOINED_PLACE};
ld.volatile.shared.b32 %egpu_joined, [%egpu_place];
"""
_AROUND = (
    """.reg .b32 %egpu_own;
.reg .pred %egpu_never;
mov.u32 %egpu_own, %lanemask_eq;
setp.eq.b32 %egpu_never, %egpu_own, 0;
@%egpu_never bra $egpu_joined;
""",
    f"$egpu_joined:\n{_JOINED}",
)
_LAST_SYNC = re.compile(r"bar\.warp\.sync\s+[%$\w]+\s*;\s*\Z")
_TOGETHER = re.compile(r"\b(?:bar\.warp|match\.\w+|shfl|vote|redux)\.sync\b")
_ACTIVE_MASK = re.compile(r"activemask\.b32\s+([%$\w]+)\s*;")
_GROUP = """.reg .b32 %egpu_group;
activemask.b32 %egpu_group;
"""
# The lowest lane stays, as a probe at the warp level chooses it, too.
_ONE_LANE = """.reg .b32 %egpu_below;
.reg .pred %egpu_others;
mov.u32 %egpu_below, %lanemask_lt;
and.b32 %egpu_below, %egpu_below, %egpu_group;
setp.ne.b32 %egpu_others, %egpu_below, 0;
@%egpu_others exit;
"""


def _vector_mask(body: str) -> str:
    """Active masks in ordinary registers.

    The assembler may keep one in a uniform register for long.  At an exit several groups of a
    warp's lanes can be inside the probe, and each needs its own; so something is added to it that
    differs by lane as far as the assembler knows, and is nothing.
    """
    return _ACTIVE_MASK.sub(
        r"{ .reg .b32 %egpu_lanes, %egpu_over; mov.u32 %egpu_lanes, %lanemask_lt; "
        r"mov.u32 %egpu_over, %lanemask_gt; and.b32 %egpu_lanes, %egpu_lanes, %egpu_over; "
        r"activemask.b32 \1; or.b32 \1, \1, %egpu_lanes; }",
        body,
    )


def _with_starts(text: str, names: AddedNames) -> str:
    for kind, register in (
        (RelocKind.START_TIME, names.start_time),
        (RelocKind.START_CLOCK, names.start_clock),
    ):
        text = _with_start(text, register, START_PLACES[kind])
    return text


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


def _parameter_list(shape: Shape, probes: Sequence[DeviceCode]) -> str:
    """Declarations that lie where the kernel's parameters lie, each followed by a comma.

    Probes that read none get one of the same size: so all kernels of that size share their code.

    Larger alignments count from the bank's beginning, not from the first parameter's: so gaps are
    parameters of their own.
    """
    if not reads_parameters(probes):
        return f".param .align {_WORD} .b8 p0[{shape.size}], " if shape.size else ""
    lines = []
    end = 0
    for number, (offset, size) in enumerate(shape.parameters):
        if offset > end:
            lines.append(f".param .align 1 .b8 {_GAP}{number}[{offset - end}], ")
        align = _WORD
        while offset % align:
            align //= 2
        lines.append(f".param .align {align} .b8 p{number}[{size}], ")
        end = offset + size
    return "".join(lines)
