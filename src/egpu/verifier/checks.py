"""P2, P3 and P9: what must hold for an access to memory. Nothing here changes a state."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from egpu.bpf import isa
from egpu.bpf.context import (
    FIELDS,
    LINE_FIELDS,
    LINE_SIZE,
    PT_REGS_SIZE,
    Field,
    Source,
    field_at,
)
from egpu.bpf.program import MapSpec
from egpu.verifier.report import Refusal, describe
from egpu.verifier.scalar import Scalar
from egpu.verifier.setting import Setting, alignment
from egpu.verifier.state import (
    EMPTY_SLOT,
    INVALID,
    SLOT,
    Pointer,
    Slot,
    State,
    Value,
    stack_slots,
)
from egpu.verifier.verified import Region


class Access(enum.Enum):
    """What an instruction does to memory."""

    __hash__ = object.__hash__  # members are single; Enum's own is written in Python and slow

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"


_WRITABLE = frozenset({Region.STACK, Region.MAP_VALUE, Region.RECORD, Region.MEMORY})
_READABLE = _WRITABLE | {Region.CONTEXT, Region.MAP_KEY}
_ALLOWED = {
    Access.READ: _READABLE,
    Access.WRITE: _WRITABLE,
    Access.ATOMIC: frozenset({Region.STACK, Region.MAP_VALUE, Region.MEMORY}),
}
_SHOWN_FIELDS = 4
# struct pt_regs of x86-64 (Linux arch/x86/include/asm/ptrace.h), 8 bytes each.
_PT_REGS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx"),
    *("rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss"),
)
# What to do where memory cannot be reached in the way tried.
_INSTEAD = {
    Region.CONTEXT: "the context is only read: keep values on the stack or in a map",
    Region.MAP_KEY: "keys are only read: copy it, or update the map",
    Region.MAP_POINTER: "look an element up first",
    Region.INNER_MAP: "look an element up first",
    Region.FUNCTION: "give it to bpf_loop or bpf_for_each_map_elem",
    Region.RECORD: "nobody else sees a record before it is submitted: use plain stores",
}
_LIMIT = 1 << 29  # Linux's BPF_MAX_VAR_OFF: no valid offset is as large
CONTEXT_OFFSET = "context fields are read at constant offsets only"
CONTEXT_HINT = "name the field; for one of several, branch and read each"


# Looking a member up in its class takes longer than comparing with it.
_STACK, _MAP_VALUE, _MAP_KEY, _MEMORY = (
    Region.STACK,
    Region.MAP_VALUE,
    Region.MAP_KEY,
    Region.MEMORY,
)
_READ, _ATOMIC = Access.READ, Access.ATOMIC
_STACK_SIZE = isa.STACK_SIZE


def initialised(setting: Setting, value: Value, register: int) -> Scalar | Pointer:
    """The value of a register that is read."""
    if value is None:
        raise Refusal("P2", f"r{register} is not initialised", hint="give it a value on every way")
    return value


def scalar(setting: Setting, value: Value, register: int, what: str) -> Scalar:
    """The value of a register that must not be a pointer: P9, where it would leak."""
    known = initialised(setting, value, register)
    if isinstance(known, Pointer):
        raise Refusal(
            "P9",
            f"{what}: r{register} is a pointer ({describe(known, setting.program)})",
            hint="use what it points to, or a number that was never a pointer",
        )
    return known


def span(pointer: Pointer) -> tuple[int, int]:
    """The least and greatest offset of a pointer from the start of its region."""
    base = pointer.offset
    if pointer.variable is None:
        return base, base
    return base + pointer.variable.smin, base + pointer.variable.smax


def region_size(setting: Setting, pointer: Pointer) -> int:
    """Bytes of the memory that a pointer points into."""
    if pointer.region is _MAP_VALUE:
        return setting.map(pointer.owner).value_size
    if pointer.region is _MAP_KEY:
        return setting.map(pointer.owner).key_size
    return pointer.size


def dereferenced(setting: Setting, value: Value, register: int, access: Access) -> Pointer:
    """The pointer through which memory is reached: not null, of a kind that allows the access."""
    if type(value) is Pointer and access is _READ and not value.null and value.region in _READABLE:
        if value.region is _MAP_VALUE:
            _allowed_by_flags(setting, value.owner, access)
        return value  # as most are
    pointer = initialised(setting, value, register)
    if isinstance(pointer, Scalar):
        raise Refusal(
            "P13" if pointer.mask else "P2",
            f"r{register} is a number, not a pointer ({describe(pointer, setting.program)})",
            hint="device and host addresses cannot be dereferenced"
            + ("; bpf_probe_read reads there" if access is Access.READ else ""),
        )
    if pointer.null:
        text = describe(pointer, setting.program)
        raise Refusal("P2", f"r{register} may be null ({text})", hint="test it against 0 first")
    if pointer.region not in _ALLOWED[access]:
        text = describe(pointer, setting.program)
        raise Refusal(
            "P14" if (access, pointer.region) == (Access.ATOMIC, Region.RECORD) else "P2",
            f"{access.value} of {text} through r{register} is not allowed",
            hint=_INSTEAD.get(pointer.region, "use the stack or a map"),
        )
    if pointer.region is _MAP_VALUE:
        _allowed_by_flags(setting, pointer.owner, access)
    return pointer


def _allowed_by_flags(setting: Setting, index: int, access: Access) -> None:
    """The map was declared with flags that let programs do this (Linux: check_map_access_type)."""
    spec = setting.map(index)
    if access is not Access.WRITE and not spec.readable:
        raise Refusal(
            "P2",
            f"map {spec.name} is not to be read by programs",
            hint="declare it without BPF_F_WRONLY_PROG",
        )
    if access is not _READ:
        written(spec)


def written(spec: MapSpec) -> None:
    """Programs may change the map."""
    if not spec.writable:
        raise Refusal("P2", f"map {spec.name} is read-only", hint="write to a map or to .data")


def in_bounds(setting: Setting, pointer: Pointer, size: int) -> None:
    """``size`` bytes from ``pointer`` lie inside the region."""
    low, high = (pointer.offset,) * 2 if pointer.variable is None else span(pointer)
    if pointer.region is _STACK:
        first, end = -_STACK_SIZE, 0
    else:
        first, end = 0, region_size(setting, pointer)
    if first <= low and high + size <= end:
        return
    place = f"offset {low}" if low == high else f"an offset from {low} to {high}"
    where = "its frame (-512 to 0)" if pointer.region is _STACK else f"its {end} bytes"
    target = describe(pointer._replace(offset=0, variable=None), setting.program)
    raise Refusal(
        "P2",
        f"{size}-byte access to {target} at {place} is outside {where}",
        hint=_inside(pointer, fixed=low == high),
    )


def _inside(pointer: Pointer, *, fixed: bool) -> str:
    """What to do where an access leaves its region."""
    if not fixed:
        return "compare the index with its limit first"
    if pointer.region is _STACK:
        return "stay inside local variables; a frame has 512 bytes, maps hold more"
    return "it is smaller: check the type that it is accessed by"


def aligned(setting: Setting, pointer: Pointer, size: int, access: Access) -> None:
    """P3: natural alignment, which a device demands; plain accesses to test memory are split."""
    # As in Linux, the stack is aligned whatever the policy: its bytes are tracked by slots.
    proven = alignment(pointer)
    if proven >= size:
        return
    free = not setting.strict and pointer.region is not _STACK
    if access is not _ATOMIC and (free or pointer.region is _MEMORY):
        return
    raise Refusal(
        "P3",
        f"{size}-byte {access.value} of {describe(pointer, setting.program)} "
        f"is only known to be aligned to {proven}",
        hint=f"align the address to {size}, or access single bytes",
    )


def context_field(setting: Setting, pointer: Pointer, size: int) -> Field:
    """The context field that a load reads."""
    if pointer.variable is not None:
        raise Refusal("P2", CONTEXT_OFFSET, hint=CONTEXT_HINT)
    place = pointer.offset
    found = field_at(place, size, setting.fields)
    if found is None:
        what = f"no context field holds {size} bytes at offset {place}"
        if setting.fields is LINE_FIELDS:
            raise Refusal("P2", what, hint=f"the instruction's text has bytes 0 to {LINE_SIZE - 1}")
        if 0 <= place < PT_REGS_SIZE:
            what = f"{_PT_REGS[place // 8]} of pt_regs (offset {place}) has no meaning in a kernel"
            if field_at(place // 8 * 8, 8) is not None:
                what = f"{size} bytes at offset {place} are not inside one context field"
        raise Refusal("P2", what, hint=f"valid are {', '.join(_nearest(place))}")
    if found.exit_only and not setting.exit_probe:
        raise Refusal(
            "P2",
            f"context field {found.name} exists in exit probes only",
            hint="attach the program with kretprobe/ only",
        )
    aligned(setting, pointer, size, _READ)
    return found


def _nearest(offset: int) -> Iterable[str]:
    """The fields that someone who read at ``offset`` may have meant."""
    if offset < PT_REGS_SIZE:
        rows = sorted((row for row in FIELDS if row.source is Source.PARAMETER), key=_name)
    else:
        near = sorted(FIELDS, key=lambda row: abs(row.offset - offset))[:_SHOWN_FIELDS]
        rows = sorted(near, key=lambda row: row.offset)
    return (f"{row.name} at {row.offset} ({row.size} bytes)" for row in rows)


def _name(row: Field) -> str:
    return row.name


def stack_readable(state: State, pointer: Pointer, size: int) -> None:
    """Every byte that may be read is initialised and none belongs to a spilled pointer."""
    low, high = span(pointer)
    frame = state.frames[pointer.owner]
    for number, at, count in stack_slots(frame, low, high - low + size):
        slot = frame.slots.get(number, EMPTY_SLOT)
        bad = slot.kinds.find(INVALID, at, at + count)
        if bad >= 0:
            raise Refusal(
                "P9",
                f"stack byte at r10{number * 8 + bad:+d} is not initialised",
                hint="clear the whole variable, padding included, before it is read",
            )
        _no_pointer(slot, number, at, count, "read in part or as data")


def stack_writable(state: State, pointer: Pointer, size: int) -> None:
    """Nothing that may be written cuts a spilled pointer."""
    low, high = span(pointer)
    frame = state.frames[pointer.owner]
    for number, at, count in stack_slots(frame, low, high - low + size):
        slot = frame.slots.get(number, EMPTY_SLOT)
        if low != high or count < SLOT:
            _no_pointer(slot, number, at, count, "overwritten in part")


def _no_pointer(slot: Slot, number: int, at: int, count: int, what: str) -> None:
    for spill in slot.spills:
        overlaps = spill.at < at + count and at < spill.at + spill.size
        if overlaps and isinstance(spill.value, Pointer):
            raise Refusal(
                "P9",
                f"the pointer spilled at r10{number * 8:+d} is {what}",
                hint="load and store all 8 bytes of it, or clear the slot with a whole store first",
            )


def offset_fits(setting: Setting, pointer: Pointer) -> None:
    """Pointer arithmetic stays where no bound check can wrap."""
    low, high = span(pointer)
    if low > -_LIMIT and high < _LIMIT:
        return
    raise Refusal(
        "P2",
        f"pointer arithmetic with an unbounded number ({describe(pointer, setting.program)})",
        hint="compare the number with its limit first, or mask it",
    )
