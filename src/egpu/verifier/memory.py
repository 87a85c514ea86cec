"""What loads, stores and atomics do: the value that arrives, the stack bytes that change."""

from __future__ import annotations

from egpu.bpf.context import Field, Source
from egpu.bpf.isa import AtomicOp, Kind
from egpu.verifier import checks
from egpu.verifier.arithmetic import linked
from egpu.verifier.checks import Access
from egpu.verifier.report import Refusal
from egpu.verifier.scalar import ANY, S64, Scalar
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import (
    EMPTY_SLOT,
    MISC,
    SLOT,
    SPILL,
    ZERO,
    Frame,
    Pointer,
    Slot,
    State,
    read_stack,
    stack_slots,
    write_stack,
)
from egpu.verifier.structure import Step
from egpu.verifier.verified import Region

# Memory that ends with a call.
_PASSING = {Region.STACK: "stack", Region.MAP_KEY: "map key"}


# Looking a member up in its class takes longer than comparing with it.
_STACK, _MAP_VALUE, _CONTEXT = Region.STACK, Region.MAP_VALUE, Region.CONTEXT
_READ, _WRITE, _LOAD_SIGNED, _STORE_REG = (
    Access.READ,
    Access.WRITE,
    Kind.LOAD_SIGNED,
    Kind.STORE_REG,
)
_PARAMETER = Source.PARAMETER


def load(setting: Setting, recorder: Recorder, state: State, step: Step) -> None:
    """LDX, zero- or sign-extending."""
    registers = state.frames[-1].registers
    base, size = registers[step.src], step.width // 8
    depth = len(state.frames) - 1
    if type(base) is Pointer and recorder.has_seen(step.pc, step.src, base, depth):
        pointer = base.at(step.off)
    else:
        base = checks.dereferenced(setting, base, step.src, _READ)
        recorder.seen(step.pc, step.src, base, depth, step.off)
        pointer = base.at(step.off)
        if pointer.region is not _CONTEXT:
            checks.in_bounds(setting, pointer, size)
            checks.aligned(setting, pointer, size, _READ)
            _note_place(setting, recorder, state, pointer)
    value: Scalar | Pointer
    if pointer.region is _CONTEXT:
        found = checks.context_field(setting, pointer, size)
        recorder.context_fields.add(found.name)
        if found.source is _PARAMETER:
            recorder.parameters.add(int(found.detail))
        value = _field_value(found, pointer.offset - found.offset, size)
    else:
        value = _loaded(setting, state, pointer, size)
    if step.kind is _LOAD_SIGNED:
        number = checks.scalar(setting, value, step.src, "sign-extending load of a pointer")
        value = S64.sign_extend(number, step.width)
    registers[step.dst] = value


def _note_place(setting: Setting, recorder: Recorder, state: State, pointer: Pointer) -> None:
    """What the facts say of memory that is reached."""
    if pointer.region is _MAP_VALUE:
        recorder.maps.add(pointer.owner)
    elif pointer.region is _STACK:
        touch_stack(setting, recorder, state, pointer)


def _field_value(found: Field, skipped: int, size: int) -> Scalar:
    """What is known of a context field; a narrower load at its start keeps a bound that fits it."""
    limit = (1 << 8 * size) - 1
    if found.maximum is not None and not skipped:
        return S64.from_range(0, min(found.maximum, limit))
    return ANY[8 * size]


def _loaded(setting: Setting, state: State, pointer: Pointer, size: int) -> Scalar | Pointer:
    if pointer.region is _STACK:
        return _loaded_from_stack(state, pointer, size)
    if pointer.region is _MAP_VALUE:
        constant = _known_content(setting, pointer, size)
        if constant is not None:
            return S64.constant(constant)
    return ANY[8 * size]


def _known_content(setting: Setting, pointer: Pointer, size: int) -> int | None:
    """Read-only data of one value is as the object gave it, for ever."""
    spec = setting.map(pointer.owner)
    if not spec.read_only or spec.max_entries != 1 or pointer.variable is not None:
        return None
    content = (spec.initial or b"").ljust(spec.value_size, b"\0")
    place = pointer.offset
    return int.from_bytes(content[place : place + size], "little")


def touch_stack(setting: Setting, recorder: Recorder, state: State, pointer: Pointer) -> None:
    """Note how deep the frame that ``pointer`` points into reaches."""
    function = setting.structure.function_of[state.frames[pointer.owner].start]
    recorder.stack(function, checks.span(pointer)[0])


def _loaded_from_stack(state: State, pointer: Pointer, size: int) -> Scalar | Pointer:
    frame = state.frames[pointer.owner]
    if pointer.variable is None:
        place = pointer.offset
        for spill in frame.slots.get(place // SLOT, EMPTY_SLOT).spills:
            if spill.size == size and spill.at == place % SLOT:
                return spill.value  # as it was stored
        checks.stack_readable(state, pointer, size)
        value = read_stack(frame, place, size)
        assert value is not None, "stack_readable refused uninitialised bytes"
        return value
    checks.stack_readable(state, pointer, size)
    return ANY[8 * size]


def _is_caller(state: State, pointer: Pointer) -> bool:
    """Whether ``pointer`` points into the frame of a function that waits."""
    return pointer.region is _STACK and pointer.owner != len(state.frames) - 1


def store(setting: Setting, recorder: Recorder, state: State, step: Step) -> None:
    """ST and STX."""
    registers = state.frames[-1].registers
    base, size = registers[step.dst], step.width // 8
    depth = len(state.frames) - 1
    if type(base) is Pointer and recorder.has_seen(step.pc, step.dst, base, depth):
        pointer = base.at(step.off)
    else:
        base = checks.dereferenced(setting, base, step.dst, _WRITE)
        recorder.seen(step.pc, step.dst, base, depth, step.off)
        pointer = base.at(step.off)
        checks.in_bounds(setting, pointer, size)
        checks.aligned(setting, pointer, size, _WRITE)
        _note_place(setting, recorder, state, pointer)
    value: Scalar | Pointer = step.constant
    if step.kind is _STORE_REG:
        value = checks.initialised(setting, linked(state, state.frame, step.src), step.src)
    if pointer.region is not _STACK:
        if type(value) is not Scalar:
            what = f"store to {pointer.region.value} leaks a pointer"
            checks.scalar(setting, value, step.src, what)
        return
    if isinstance(value, Pointer) and (size < SLOT or pointer.variable is not None):
        raise Refusal(
            "P9",
            f"r{step.src} is a pointer and only stored in part or at a variable offset",
            hint="spill pointers with 8-byte stores at constant offsets",
        )
    # The memory of a key ends with the call that got it, as that of a frame does.
    if isinstance(value, Pointer) and value.region in _PASSING and _is_caller(state, pointer):
        raise Refusal(  # as in Linux, whichever of the two frames it points into
            "P9",
            f"a pointer to a {_PASSING[value.region]} is stored in the stack of a calling function",
            hint="give the function what it points to",
        )
    if size < SLOT or pointer.variable is not None:
        checks.stack_writable(state, pointer, size)  # a whole slot cuts nothing
    frame = state.frames[pointer.owner]
    if pointer.variable is None:
        write_stack(frame, pointer.offset, size, value)
    else:
        overwrite_somewhere(frame, pointer, size, value)


def overwrite_somewhere(frame: Frame, pointer: Pointer, size: int, value: Scalar | Pointer) -> None:
    """A store at a variable offset: each byte it may hit is the old one or the new one."""
    low, high = checks.span(pointer)
    zero = isinstance(value, Scalar) and not value.umax
    for number, at, count in stack_slots(frame, low, high - low + size):
        slot = frame.slots.get(number, EMPTY_SLOT)
        for byte in range(at, at + count):
            kind = slot.kinds[byte]
            # An uninitialised byte stays so: the store may have missed it.
            if kind == SPILL or (kind == ZERO and not zero):
                slot = slot.written(byte, 1, MISC)
        frame.slots[number] = slot


def clobber_stack(frame: Frame, offset: int, size: int) -> None:
    """Bytes at a constant offset that something else writes: initialised, of unknown value."""
    for number, at, count in stack_slots(frame, offset, size):
        slot: Slot = frame.slots.get(number, EMPTY_SLOT)
        frame.slots[number] = slot.written(at, count, MISC)


def atomic(setting: Setting, recorder: Recorder, state: State, step: Step) -> None:
    """Atomics: read, write, and the old value where it is fetched."""
    registers = state.frames[-1].registers
    base = checks.dereferenced(setting, registers[step.dst], step.dst, Access.ATOMIC)
    recorder.seen(step.pc, step.dst, base, len(state.frames) - 1, step.off)
    pointer = base.at(step.off)
    size = step.width // 8
    checks.scalar(setting, registers[step.src], step.src, "atomic operand leaks a pointer")
    if step.imm == AtomicOp.CMPXCHG:
        checks.scalar(setting, registers[0], 0, "compared value leaks a pointer")
    checks.in_bounds(setting, pointer, size)
    checks.aligned(setting, pointer, size, Access.ATOMIC)
    _note_place(setting, recorder, state, pointer)
    if pointer.region is _STACK:
        checks.stack_readable(state, pointer, size)
        frame = state.frames[pointer.owner]
        if pointer.variable is None:
            clobber_stack(frame, pointer.offset, size)
        else:
            overwrite_somewhere(frame, pointer, size, S64.unknown)
    fetched = ANY[step.width]
    if step.imm == AtomicOp.CMPXCHG:
        registers[0] = fetched
    elif step.imm & 1:  # the FETCH bit
        registers[step.src] = fetched
