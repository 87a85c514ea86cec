"""compile_probe: a verified program as text that a splicer puts into a kernel."""

from __future__ import annotations

import enum
import hashlib
import re
from importlib.metadata import PackageNotFoundError, version

from egpu.bpf.helpers import HELPERS
from egpu.bpf.program import AttachKind, AttachPoint, Level
from egpu.codegen.arena import ARENA_HEADER, LAUNCH_BLOCK
from egpu.codegen.device_code import (
    DeviceCode,
    Launch,
    Relocation,
    RelocKind,
    Target,
    only_per_sm,
)
from egpu.codegen.lower import lower
from egpu.codegen.primitives import CHOSEN, SITE_MASK, Together
from egpu.codegen.ptx_text import KernelText, embed
from egpu.codegen.targets import PTX_ISA, Machine, emit_ptx
from egpu.errors import InputError, UnsupportedError
from egpu.verifier.verified import Policy, VerifiedProgram

_DISTRIBUTION = "warpbpf"
# Changes whenever the code that the same program compiles to changes within one version of egpu.
_REVISION = 13
_CONTEXT = "1"  # r1 of a probe: the context is virtual, its address only has to differ from null
_ENDING = frozenset(row.id for row in HELPERS.values() if row.body == "thread_exit")
_WHOLE_THREADS = (AttachKind.ENTRY, Level.THREAD)
_KINDS = frozenset({AttachKind.ENTRY, AttachKind.EXIT, AttachKind.INSTRUCTION})


def compile_probe(
    vp: VerifiedProgram,
    *,
    point: AttachPoint,
    target: Target = Target.PTX,
    launch: Launch = Launch.DIRECT,
    together: Together = Together.WARP,
) -> DeviceCode:
    """The probe ``vp`` for ``point``, one of its attach points, in kernels launched as ``launch``.

    ``together``: how many of the lanes that run it work together in a helper; where the level
    leaves one lane, one does.

    Raises TypeError for anything that the verifier did not make, InputError for a program that
    cannot be attached (there), UnsupportedError for what ``target`` cannot do.
    """
    _check(vp, point, target)
    program = vp.program
    lowered = lower(vp, Machine.NVPTX)
    start = (
        "define ptx_kernel void @egpu_probe() #0 {\n"
        f"{lowered.start(_CONTEXT, '0')}\n  ret void\n}}\n" + KERNEL_ATTRIBUTES
    )
    if point.level is not Level.THREAD:
        together = Together.ONE
    digest = _digest(vp, point, target, (launch, together))
    tag = f"e{digest[:8]}"
    ends = bool(vp.facts.helpers & _ENDING)
    made = emit_ptx(lowered.module(start, together=together))
    body = embed(made, tag, allowed=frozenset({"exit"} if ends else ()))
    parting = _parting(point, body)
    prologue, relocations = _prologue(_electing(point), parting, launch, body, tag)
    text = "\n".join(
        [
            *_registers(tag),
            *body.declarations,
            *prologue,
            *(_statement(line, parting, tag) for line in body.statements),
            *_epilogue(point, body, parting, tag),
        ]
    )
    used = dict.fromkeys((*relocations, *body.relocations))
    return DeviceCode(
        target=target,
        program=program.name,
        kind=point.kind,
        level=point.level,
        text=text + "\n",
        relocations=tuple(used),
        maps=program.maps,
        isa=PTX_ISA,
        digest=digest,
        launch=launch,
        ends_threads=ends,
        detail=point.detail,
    )


# Jump tables and lookup tables would be module-scope data, which a probe cannot bring along.
KERNEL_ATTRIBUTES = 'attributes #0 = { nounwind "no-jump-tables"="true" }\n'


def _check(vp: VerifiedProgram, point: AttachPoint, target: Target) -> None:
    if type(vp) is not VerifiedProgram:
        raise TypeError(f"compile_probe takes a VerifiedProgram, not {type(vp).__name__}")
    name = vp.program.name
    if vp.policy is Policy.EXECUTOR:
        raise InputError(
            "verified for execution only, it cannot be attached",
            where=f"program {name}",
            hint="verify it under Policy.PROBE",
        )
    if not vp.program.attach:
        raise InputError(
            "has no attach point",
            where=f"program {name}",
            hint='give it a section such as SEC("kprobe/<kernel>")',
        )
    if point not in vp.program.attach:
        raise InputError(f"{point} is none of its attach points", where=f"program {name}")
    if target is not Target.PTX:
        raise UnsupportedError(f"probes for target {target.value}", needs="target ptx")
    if point.kind not in _KINDS:
        raise UnsupportedError(
            f"program {name}: {point.kind.value} probes inside kernels",
            needs="an entry (kprobe), exit (kretprobe) or instruction (insn) attach point",
        )
    if vp.facts.helpers & _ENDING and (point.kind, point.level) != _WHOLE_THREADS:
        raise UnsupportedError(
            f"program {name}: ending threads in {point.kind.value} probes of {point.level.value}s",
            needs="an entry probe that every thread runs (kprobe)",
        )
    if point.level is Level.BLOCK and point.kind is AttachKind.EXIT and not vp.program.arrives:
        raise InputError(
            "does not say which exits of a block are the last",
            where=f"program {name}",
            hint="verify what egpu.bpf.block_exits.with_arrival makes of it",
        )
    reads_start = sorted(f for f in vp.facts.context_fields if f.startswith("start_"))
    if reads_start and point.kind is not AttachKind.EXIT:
        raise InputError(
            f"reads {', '.join(reads_start)} at kernel entry",
            where=f"program {name}",
            hint="start values exist in exit probes only",
        )


def _digest(
    vp: VerifiedProgram, point: AttachPoint, target: Target, manner: tuple[Launch, Together]
) -> str:
    """Names everything that the text depends on."""
    program, budget = vp.program, vp.facts.budget
    try:
        release = version(_DISTRIBUTION)
    except PackageNotFoundError:  # run from a source tree that is not installed
        release = "source"
    maps = [
        (spec.type, spec.key_size, spec.value_size, spec.max_entries, spec.read_only)
        for spec in program.maps
    ]
    where = (point.kind, point.level, point.detail)
    # Chosen by a limit that is no part of the program.
    turns = budget and (budget.turns, sorted(budget.loops), sorted(budget.calls))
    parts = (release, _REVISION, target, manner, where, program.code, program.cookie, maps, turns)
    on_device = tuple((spec.name, spec.stamped) for spec in program.maps if spec.on_device)
    return hashlib.sha256(repr(parts + on_device).encode()).hexdigest()


def _electing(point: AttachPoint) -> Level:
    """Of whom the prologue lets one go on.  The last group of a block to leave is found by the
    program itself (``egpu.bpf.block_exits``), in one lane of each group."""
    last = point.kind is AttachKind.EXIT and point.level is Level.BLOCK
    return Level.WARP if last else point.level


def _registers(tag: str) -> list[str]:
    return [
        f".reg .pred %{tag}_go;",
        f".reg .b32 %{tag}_g<4>;",
        f".reg .b64 %{tag}_gd0;",
    ]


class _Parting(enum.Enum):
    """How the lanes that a program does not run for are kept from it."""

    NEVER = enum.auto()  # all run it, without conditional branches
    BRANCH = enum.auto()  # they go around it, or lanes part inside; all meet behind it
    GUARD = enum.auto()  # they compute with the others, and only the chosen one's additions count


# What computes and does nothing else, as LLVM and the primitives write it.
_COMPUTING = re.compile(
    r"(?:mov|cvt|add|sub|mul|mad|and|or|xor|not|neg|shl|shr|min|max|popc|setp|selp|bfe|prmt)"
    r"\.[\w.]+ |\.reg |[{}]$"
)
_REDUCTION = "red."


def _parting(point: AttachPoint, body: KernelText) -> _Parting:
    """A branch around a few instructions, and the meeting behind it, cost more than they do."""
    if point.level is Level.THREAD:
        return _Parting.BRANCH if body.diverges else _Parting.NEVER
    short = len(body.statements) <= _GUARDED_MOST and all(
        _COMPUTING.match(line) or line.startswith(_REDUCTION) for line in body.statements
    )
    guarded = short and _electing(point) is Level.WARP and only_per_sm(body.relocations)
    return _Parting.GUARD if guarded else _Parting.BRANCH


_GUARDED_MOST = 64  # statements


def _statement(line: str, parting: _Parting, tag: str) -> str:
    line = line.replace(SITE_MASK, f"%{tag}_g0").replace(CHOSEN, f"%{tag}_g2")
    if parting is _Parting.GUARD and line.startswith(_REDUCTION):
        return f"@%{tag}_go {line}"
    return line


def _prologue(
    level: Level, parting: _Parting, launch: Launch, body: KernelText, tag: str
) -> tuple[list[str], tuple[Relocation, ...]]:
    """What runs before the program, the same branches for all lanes that are together.

    A captured launch asks the arena whether probes are on; then the level chooses who goes on.
    """
    go, word, wide = f"%{tag}_go", f"%{tag}_g", f"%{tag}_gd"
    relocations: tuple[Relocation, ...] = ()
    lines = []
    if parting is not _Parting.NEVER or _reads_mask(body):
        lines.append(f"activemask.b32 {word}0;")
    if launch is Launch.CAPTURED:
        arena = Relocation(RelocKind.LAUNCH, LAUNCH_BLOCK["device_arena"][0])
        relocations = (arena,)
        lines += [
            f"mov.b64 {wide}0, {arena.symbol};",
            f"ld.relaxed.gpu.global.b32 {word}1, [{wide}0+{ARENA_HEADER['enabled'][0]}];",
            f"setp.eq.b32 {go}, {word}1, 0;",
            f"@{go} bra {body.end};",
        ]
    match level:
        case Level.THREAD:
            if any(CHOSEN in line for line in body.statements):  # each lane works for itself
                lines.append(f"mov.b32 {word}2, 0;")
        case Level.WARP:  # the first of the lanes that are here together
            lines += [
                f"mov.u32 {word}2, %lanemask_lt;",
                f"and.b32 {word}2, {word}2, {word}0;",
            ]
            if parting is _Parting.GUARD:
                lines.append(f"setp.eq.b32 {go}, {word}2, 0;")
            else:
                lines += [f"setp.ne.b32 {go}, {word}2, 0;", f"@{go} bra {body.end};"]
        case Level.BLOCK:  # every thread enters exactly once, so thread (0, 0, 0) does
            lines += [
                f"mov.u32 {word}2, %tid.x;",
                f"mov.u32 {word}3, %tid.y;",
                f"or.b32 {word}2, {word}2, {word}3;",
                f"mov.u32 {word}3, %tid.z;",
                f"or.b32 {word}2, {word}2, {word}3;",
                f"setp.ne.b32 {go}, {word}2, 0;",
                f"@{go} bra {body.end};",
            ]
    return lines, relocations


def _reads_mask(body: KernelText) -> bool:
    return any(SITE_MASK in line for line in body.statements)


def _epilogue(point: AttachPoint, body: KernelText, parting: _Parting, tag: str) -> list[str]:
    """All lanes of a warp enter a kernel together, and it goes on when they have met again.

    To other sites they may come in groups, which can be in the program at the same time; the
    hardware can merge them there and let them wait for the lanes of one only
    (``egpu.codegen.rounds``).  Those leave for good, or meet again where the kernel's own branches
    do.
    """
    lines = [f"{body.end}:"]
    if point.kind is AttachKind.ENTRY and parting is not _Parting.NEVER:
        lines.append(f"bar.warp.sync %{tag}_g0;")
    return lines
