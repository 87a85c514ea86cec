"""PTX splicing: the twin of one kernel, with probes at its entry and its exits.

The twin's text holds that kernel, what it reaches, and one more parameter: the launch block.  The
kernel's own text stays as it is, character by character, except at sites, where it names module
variables (see ``ptx_globals``), and for line information, which is dropped with its tables.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from egpu.bpf.program import AttachKind
from egpu.codegen.device_code import DeviceCode, RelocKind, Target
from egpu.errors import InputError, InternalError, UnsupportedError
from egpu.image.ptx.syntax import Directive, Function, Instruction, Module, Span, Variable
from egpu.maps.layout import LAUNCH_BLOCK_SIZE, ArenaLayout
from egpu.splice.edits import Edit, apply_edits
from egpu.splice.instrumented import InstrumentedImage
from egpu.splice.ptx_globals import Placement, place_variables, rewrite_globals
from egpu.splice.ptx_instructions import (
    TRACE_STUB,
    InstructionSites,
    find_instructions,
    line_bytes,
    stub_calls,
)
from egpu.splice.ptx_names import AddedNames, added_names
from egpu.splice.ptx_reach import Reach, reach
from egpu.splice.ptx_relocate import Setting, needs, parameter_bytes, parameters_used, resolve
from egpu.splice.ptx_sites import Sites, find_sites, leaves_from
from egpu.splice.ptx_walk import instructions, line_of, names_inside, statements

_KINDS = frozenset({AttachKind.ENTRY, AttachKind.EXIT, AttachKind.INSTRUCTION})
MINIMUM_TARGET = 70  # independent thread scheduling, which every probe relies on
# Parameter bytes that a kernel can have (PTX ISA 9.0, section 11.2.1; measured with ptxas 13.0).
_LARGE_PARAMETERS = (8, 1)
_PARAMETER_LIMIT = 4352
_LARGE_PARAMETER_LIMIT = 32764
_TARGET = re.compile(r"sm_([0-9]+)[af]?")


@dataclass(frozen=True, slots=True)
class _Twin:
    """What one splice works with."""

    module: Module
    kernel: Function
    found: Reach
    names: AddedNames
    setting: Setting
    entry: tuple[DeviceCode, ...]
    exit: tuple[DeviceCode, ...]
    instruction: tuple[tuple[DeviceCode, InstructionSites], ...]
    stubs: tuple[Instruction, ...]  # calls of bpftime's trace stub: where entry probes go instead


def splice_ptx(
    module: Module, kernel: str, probes: Sequence[DeviceCode], layout: ArenaLayout
) -> InstrumentedImage:
    """The twin of ``kernel`` with ``probes``, in their order, each in a scope of its own.

    InputError when the module has no such kernel or a probe reads a parameter that it has not;
    UnsupportedError, with the reason, when the kernel or a probe cannot be spliced.
    """
    if not probes:
        raise InternalError("a twin without a probe")
    return _spliced(module, kernel, probes, layout)


def kernel_alone(module: Module, kernel: str, layout: ArenaLayout) -> str:
    """The text of ``kernel`` in a module of its own, as twins are, but without a probe: what its
    twins' registers are compared with.  Raises as :func:`splice_ptx`."""
    return _spliced(module, kernel, (), layout).text


def _spliced(
    module: Module, kernel: str, probes: Sequence[DeviceCode], layout: ArenaLayout
) -> InstrumentedImage:
    twin = _prepared(module, kernel, probes, layout)
    sites = find_sites(module, twin.kernel, twin.found.bodies)
    placement = place_variables(twin.found)
    version = max((module.version, *(each.isa for each in probes)))
    hidden = _hidden_offset(twin.kernel, version)
    edits = _kernel_edits(twin, sites)
    for function in twin.found.bodies:
        edits += rewrite_globals(module, function, placement, twin.names)
        edits += _without_lines(function)
    return InstrumentedImage(
        kernel=kernel,
        text=_text(twin, placement, version, edits),
        target=module.target,
        hidden_offset=hidden,
        parameters=len(twin.kernel.parameters),
        globals=tuple(each.name for each in placement.aliased),
        globals_table=twin.names.globals if placement.aliased else "",
        entry_sites=len(twin.stubs) or 1 if twin.entry else 0,
        exit_sites=len(sites.exits) + (sites.end is not None) if twin.exit else 0,
        instruction_sites=sum(len(each.instructions) for _, each in twin.instruction),
        uncovered=_uncovered(twin, sites),
    )


def _uncovered(twin: _Twin, sites: Sites) -> tuple[str, ...]:
    inside = (text for _, each in twin.instruction for text in each.uncovered)
    ended = [f"threads that {code.program} ends" for code in twin.entry if code.ends_threads]
    leaving = (*sites.uncovered, *ended) if twin.exit else ()
    return (*leaving, *dict.fromkeys(inside))


def _prepared(
    module: Module, name: str, probes: Sequence[DeviceCode], layout: ArenaLayout
) -> _Twin:
    target = _TARGET.fullmatch(module.target)
    if target is None or int(target[1]) < MINIMUM_TARGET:
        raise UnsupportedError(f"PTX for {module.target}", needs=f"sm_{MINIMUM_TARGET} or later")
    if module.address_size != 64:
        raise UnsupportedError(f"PTX with {module.address_size}-bit addresses")
    try:
        kernel = module.entry(name)
    except KeyError:
        defined = ", ".join(each.name for each in module.functions if each.is_entry and each.body)
        raise InputError(
            f"no kernel {name}; it has {defined or 'none'}", where="PTX module"
        ) from None
    for code in probes:
        _check_probe(code)
    found = reach(module, kernel)
    names = added_names(module.text)
    twin = _Twin(
        module=module,
        kernel=kernel,
        found=found,
        names=names,
        setting=Setting(kernel, layout, names),
        entry=tuple(each for each in probes if each.kind is AttachKind.ENTRY),
        exit=tuple(each for each in probes if each.kind is AttachKind.EXIT),
        instruction=tuple(
            (each, find_instructions(kernel, found.bodies, each.detail))
            for each in probes
            if each.kind is AttachKind.INSTRUCTION
        ),
        stubs=stub_calls(kernel),
    )
    _check_kernel(twin)
    for code in probes:
        if code.ends_threads:
            _check_ending(twin, code)
    return twin


def _check_probe(code: DeviceCode) -> None:
    if code.target is not Target.PTX:
        raise InternalError(f"probe {code.program} is compiled for {code.target.value}")
    if code.kind not in _KINDS:
        raise UnsupportedError(f"probe {code.program}: {code.kind.value} probes in PTX")


# What threads of a block or a warp do together: those that have ended would be waited for.
_TOGETHER = frozenset(
    {"bar", "barrier", "mbarrier", "shfl", "vote", "match", "redux", "elect", "activemask", "wmma",
     "mma", "wgmma", "tcgen05", "ldmatrix", "stmatrix", "movmatrix", "griddepcontrol"}
)  # fmt: skip


def _check_ending(twin: _Twin, code: DeviceCode) -> None:
    """A probe may end threads only of a kernel in which none waits for another."""
    for function in twin.found.bodies:
        for instruction in instructions(function):
            if instruction.parts[0] in _TOGETHER:
                raise UnsupportedError(
                    f"probe {code.program} ends threads, and those of {twin.kernel.name} work "
                    f"together: {instruction.opcode} at line "
                    f"{line_of(twin.module, instruction.span.start)}"
                )


def _check_kernel(twin: _Twin) -> None:
    kernel = twin.kernel
    if twin.exit:
        for function in twin.found.bodies:
            leaving = None if function is kernel else leaves_from(function)
            if leaving is not None:
                raise UnsupportedError(
                    f"an exit probe on {kernel.name}: {function.name} ends the thread at line "
                    f"{line_of(twin.module, leaving.span.start)}"
                )
    if twin.entry:
        for function in twin.found.bodies:
            if function is not kernel and (calls := stub_calls(function)):
                raise UnsupportedError(
                    f"an entry probe on {kernel.name}: {function.name} calls {TRACE_STUB} at line "
                    f"{line_of(twin.module, calls[0].span.start)}, outside the kernel itself"
                )
    inside = tuple(code for code, _ in twin.instruction)
    used = parameters_used((*twin.entry, *twin.exit, *inside), kernel)
    if kernel.body is not None and (again := sorted(used & names_inside(kernel.body))):
        raise UnsupportedError(f"{kernel.name} declares its parameter {again[0]} again")
    if percent := sorted(each for each in used if each.startswith("%")):
        raise UnsupportedError(f"{kernel.name} has a parameter with a register's name {percent[0]}")


def _hidden_offset(kernel: Function, version: tuple[int, int]) -> int:
    """Where the launch block lies; UnsupportedError when there is no room for it."""
    offset = -(-parameter_bytes(kernel.parameters) // 8) * 8
    limit = _LARGE_PARAMETER_LIMIT if version >= _LARGE_PARAMETERS else _PARAMETER_LIMIT
    if offset + LAUNCH_BLOCK_SIZE > limit:
        raise UnsupportedError(
            f"{kernel.name} with {offset} bytes of parameters: {LAUNCH_BLOCK_SIZE} more do not fit "
            f"into {limit}"
        )
    return offset


# Edits


def _kernel_edits(twin: _Twin, sites: Sites) -> list[Edit]:
    edits = [
        _hidden_parameter(twin, each)
        for each in twin.found.functions
        if each.name == twin.kernel.name  # a declaration before the kernel must agree with it
    ]
    entry = [_scope(resolve(each, twin.setting)) for each in twin.entry]
    if twin.entry and twin.stubs:
        for number, call in enumerate(twin.stubs):
            probe, end = "".join(entry), call.span.end
            edits.append(Edit(call.span.start, end, _guarded(twin, call, probe, "", f"c{number}")))
        entry = []
    # Saved after the entry probes: what they cost is not the kernel's time.
    entry += _saved_start(twin)
    if entry:
        edits.append(Edit(sites.entry, sites.entry, "".join(entry)))
    edits += _instruction_edits(twin)
    if twin.exit:
        probe = "".join(_scope(resolve(each, twin.setting)) for each in twin.exit)
        for number, instruction in enumerate(sites.exits):
            edits.append(_exit(twin, instruction, probe, number))
        if sites.end is not None:
            edits.append(Edit(sites.end, sites.end, f"{probe}ret;\n"))
    return edits


def _instruction_edits(twin: _Twin) -> list[Edit]:
    """Probes before the instructions that they are for, only for threads that execute these."""
    probes: dict[int, list[str]] = defaultdict(list)
    at: dict[int, Instruction] = {}
    for code, found in twin.instruction:
        for each in found.instructions:
            setting = replace(twin.setting, line=line_bytes(twin.module, each))
            probes[each.span.start].append(_scope(resolve(code, setting)))
            at[each.span.start] = each
    edits: list[Edit] = []
    for number, (start, texts) in enumerate(sorted(probes.items())):
        probe = "".join(texts)
        edits.append(Edit(start, start, _guarded(twin, at[start], probe, "", f"i{number}")))
    return edits


def _hidden_parameter(twin: _Twin, entry: Function) -> Edit:
    declaration = f".param .align 8 .b8 {twin.names.launch}[{LAUNCH_BLOCK_SIZE}]"
    span = entry.parameters_span
    if span.start == span.end:
        return Edit(span.start, span.start, f"({declaration})")
    comma = ",\n" if entry.parameters else "\n"
    # The list may end in a line comment, which has its line end before the parenthesis.
    return Edit(span.end - 1, span.end - 1, f"{comma}{declaration}\n")


def _saved_start(twin: _Twin) -> list[str]:
    lines: list[str] = []
    if needs(twin.exit, RelocKind.START_TIME):
        name = twin.names.start_time
        lines.append(f".reg .b64 {name};\nmov.u64 {name}, %globaltimer;\n")
    if needs(twin.exit, RelocKind.START_CLOCK):
        name = twin.names.start_clock
        lines.append(f".reg .b64 {name};\nmov.u64 {name}, %clock64;\n")
    return lines


def _scope(text: str) -> str:
    return f"{{\n{text.strip()}\n}}\n"


def _exit(twin: _Twin, instruction: Instruction, probe: str, number: int) -> Edit:
    """Probe and exit in one place: threads that leave never wait for others at a shared block,
    where a later barrier of the kernel could not count them as gone."""
    start, end = instruction.span.start, instruction.span.end
    if instruction.guard is None:
        return Edit(start, start, probe)
    return Edit(
        start, end, _guarded(twin, instruction, probe, f"{instruction.opcode};\n", str(number))
    )


def _guarded(twin: _Twin, instruction: Instruction, probe: str, then: str, place: str) -> str:
    """``probe`` and ``then`` for the threads that execute ``instruction``."""
    if instruction.guard is None:
        return f"{probe}{then}"
    stay = twin.names.stay(place)
    inverse = "" if instruction.guard_negated else "!"
    return f"@{inverse}{instruction.guard} bra {stay};\n{probe}{then}{stay}:\n"


def _without_lines(function: Function) -> list[Edit]:
    """The ``.loc`` directives away: the files and sections they refer to are not in the twin."""
    if function.body is None:
        return []
    return [
        Edit(each.span.start, each.span.end, "")
        for each in statements(function.body)
        if isinstance(each, Directive) and each.name == ".loc"
    ]


# Text


def _text(
    twin: _Twin, placement: Placement, version: tuple[int, int], edits: Sequence[Edit]
) -> str:
    module, found = twin.module, twin.found
    options = [each for each in module.options if each != "debug"]  # needs the debug sections
    lines = [
        f".version {version[0]}.{version[1]}",
        f".target {', '.join((module.target, *options))}",
        f".address_size {module.address_size}",
    ]
    if placement.aliased:
        count = len(placement.aliased)
        lines.append(f".visible .const .align 8 .b64 {twin.names.globals}[{count}];")
    pragmas = [each for each in module.directives if each.name == ".pragma"]
    items: tuple[Directive | Function | Variable, ...] = (
        *placement.kept,
        *found.functions,
        *found.aliases,
        *pragmas,
    )
    for span in sorted({_key(each) for each in items}):
        inside = [each for each in edits if span[0] <= each.start and each.end <= span[1]]
        lines.append(apply_edits(module.text, inside, within=Span(*span)))
    # Only comments can hold bytes that are not text; assemblers get none of them.
    return ("\n".join(lines) + "\n").encode("utf-8", "replace").decode()


def _key(item: Directive | Function | Variable) -> tuple[int, int]:
    return (item.span.start, item.span.end)
