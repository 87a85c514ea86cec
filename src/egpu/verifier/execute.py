"""What one instruction does to a state: everything but conditional jumps and helper calls."""

from __future__ import annotations

from collections.abc import Callable

from egpu.bpf import isa
from egpu.bpf.isa import Kind
from egpu.bpf.program import PseudoSrc
from egpu.verifier import arithmetic, checks, declarations, memory
from egpu.verifier.report import Refusal
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import Frame, Pointer, State, Value
from egpu.verifier.structure import Step
from egpu.verifier.verified import Region


def first_state(setting: Setting) -> State:
    """What a program starts with: the context, or the memory block of tests and its size."""
    arguments: list[Value] = [None] * 5
    if setting.attached:
        arguments[0] = Pointer(Region.CONTEXT)
    else:
        size = setting.memory_size
        arguments[0] = Pointer(Region.MEMORY, size=size) if size else S64.zero
        arguments[1] = S64.constant(size)
    return State([Frame.entered(0, arguments, -1)], (), 0)


def apply(setting: Setting, recorder: Recorder, state: State, step: Step) -> int | None:
    """Execute anything but a conditional jump or a helper call; the next pc, None at the end."""
    kind = step.kind
    if kind is _ALU:
        arithmetic.execute(setting, state, step)
    elif kind in ACCESSES:
        ACCESSES[kind](setting, recorder, state, step)
    elif kind is _LOAD_IMM64:
        state.frames[-1].registers[step.dst] = _constant(setting, recorder, step)
    elif kind is _JUMP_ALWAYS:
        return step.target
    elif kind is Kind.EXIT:
        return _leave(setting, state)
    elif kind is Kind.CALL:
        return _enter(state, step)
    elif kind is Kind.BYTE_ORDER:
        arithmetic.swap(setting, state, step)
    else:
        raise AssertionError(f"{kind} is handled by the walk")
    return step.following


_ALU, _LOAD_IMM64, _JUMP_ALWAYS = Kind.ALU, Kind.LOAD_IMM64, Kind.JUMP_ALWAYS
ACCESSES: dict[Kind, Callable[[Setting, Recorder, State, Step], None]] = {
    Kind.LOAD: memory.load,
    Kind.LOAD_SIGNED: memory.load,
    Kind.STORE_REG: memory.store,
    Kind.STORE_IMM: memory.store,
    Kind.ATOMIC: memory.atomic,
}


def _constant(setting: Setting, recorder: Recorder, step: Step) -> Scalar | Pointer:
    """LD_IMM64: a number, a map, the first value of a map or a function."""
    value = setting.constants.get(step.pc)
    if value is None:
        value = setting.constants[step.pc] = _made(setting, step)
    if type(value) is Pointer and value.region is not Region.FUNCTION:
        recorder.maps.add(value.owner)
    return value


def _made(setting: Setting, step: Step) -> Scalar | Pointer:
    low, high = step.imm, setting.program.code[step.pc + 1].imm
    match PseudoSrc(step.src):
        case PseudoSrc.CONST:
            return S64.constant((high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF)
        case PseudoSrc.MAP_INDEX:
            declarations.check_map(setting.map(low))
            return Pointer(Region.MAP_POINTER, low)
        case PseudoSrc.MAP_INDEX_VALUE:
            spec = setting.map(low)
            declarations.check_map(spec)
            if spec.type not in declarations.DIRECT_VALUES:
                raise Refusal(
                    "P2",
                    f"map {spec.name} of type {spec.type.name} has no first value",
                    hint="look an element up instead",
                )
            if spec.max_entries != 1:
                raise Refusal(
                    "P2",
                    f"map {spec.name} has {spec.max_entries} values, "
                    "only a single one is reached directly",
                    hint="look an element up instead",
                )
            if not 0 <= high < spec.value_size:
                raise Refusal(
                    "P2",
                    f"offset {high} is outside the {spec.value_size} bytes of {spec.name}",
                    hint="the variable is smaller: check its type",
                )
            return Pointer(Region.MAP_VALUE, low, offset=high)
        case PseudoSrc.CODE:
            return Pointer(Region.FUNCTION, step.pc + 1 + low)
        case other:
            raise Refusal("P2", _UNRESOLVED[other], hint="load the program from its object file")


_UNRESOLVED = {
    PseudoSrc.MAP_FD: "a map is named by a file descriptor, which means nothing here",
    PseudoSrc.MAP_FD_VALUE: "a map is named by a file descriptor, which means nothing here",
    PseudoSrc.VARIABLE: "kernel variables do not exist on a device",
}


def _enter(state: State, step: Step) -> int:
    """A local call: r1 to r5 go along, r0 to r5 are lost to the caller."""
    if len(state.frames) >= isa.MAX_CALL_DEPTH:
        raise Refusal(
            "P1", f"calls nest more than {isa.MAX_CALL_DEPTH} deep", hint="nest fewer functions"
        )
    registers = state.frame.registers
    callee = Frame.entered(len(state.frames), registers[1:6], step.pc, step.target)
    registers[0:6] = [None] * 6
    state.frames.append(callee)
    return step.target


def _leave(setting: Setting, state: State) -> int | None:
    """EXIT: back to the caller, or the end of the program."""
    value = state.frame.registers[0]
    if len(state.frames) > 1:
        if isinstance(value, Pointer) and value.region is Region.STACK:
            raise Refusal(
                "P9",
                "a function returns a pointer to a stack",
                hint="let the caller pass the variable that it fills",
            )
        site = state.frames.pop().call_site
        state.frame.registers[0] = value
        forget_frame(state)
        return setting.structure.step(site).following
    checks.scalar(setting, value, 0, "the program returns a pointer")
    if state.references:
        raise Refusal(
            "P10",
            "a reserved ring-buffer record is neither submitted nor discarded",
            hint="call bpf_ringbuf_submit or bpf_ringbuf_discard on every way",
        )
    return None


def forget_frame(state: State) -> None:
    """Pointers into the frame that is gone must not survive in what remains."""
    gone = len(state.frames)
    for frame in state.frames:
        for slot in frame.slots.values():
            for spill in slot.spills:
                value = spill.value
                if isinstance(value, Pointer) and (value.region, value.owner) == (
                    Region.STACK,
                    gone,
                ):
                    raise Refusal(
                        "P9",
                        "a pointer to the stack of a function outlives it",
                        hint="keep the variable in the calling function",
                    )
