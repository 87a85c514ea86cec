"""What moves and arithmetic do to registers: numbers by their domain, pointers by an offset."""

from __future__ import annotations

from egpu.bpf.isa import AluOp
from egpu.verifier import checks
from egpu.verifier.report import Refusal, describe
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.setting import Setting
from egpu.verifier.state import Frame, Pointer, State, Value
from egpu.verifier.structure import Step
from egpu.verifier.verified import Region

# Regions whose pointers are taken as they are, and what to do instead.
_RIGID = {
    Region.MAP_POINTER: "look an element up instead",
    Region.INNER_MAP: "look an element up instead",
    Region.FUNCTION: "pass the function as it is",
}


def linked(state: State, frame: Frame, register: int) -> Value:
    """The value of a register for a copy: an unknown number gets a link that both share."""
    value = frame.registers[register]
    if type(value) is Scalar and value[1] and not value[10]:
        value = value.linked(state.new_link())
        frame.registers[register] = value
    return value


# Looking a member up in its class takes longer than comparing with it.
_MOV, _NEG, _ADD, _SUB = AluOp.MOV, AluOp.NEG, AluOp.ADD, AluOp.SUB
_DIVISIONS = frozenset({AluOp.DIV, AluOp.MOD})
_CONTEXT = Region.CONTEXT


def execute(setting: Setting, state: State, step: Step) -> None:
    """One ALU or ALU64 instruction."""
    registers = state.frames[-1].registers
    op = step.op
    if op is _MOV:
        if not step.register:
            registers[step.dst] = step.constant
            return
        value = registers[step.src]
        if type(value) is Pointer and step.width == 64 and not step.off:
            registers[step.dst] = value
        else:
            registers[step.dst] = _moved(setting, state, step)
        return
    number = registers[step.dst]
    other = registers[step.src] if step.register else step.constant
    if type(number) is Scalar and type(other) is Scalar and op is not _NEG:
        assert isinstance(op, AluOp), "the form of an ALU instruction has an AluOp"
        signed = bool(step.off) and op in _DIVISIONS
        operation = S64.alu if step.width == 64 else S64.alu_low
        registers[step.dst] = operation(op, number, other, signed=signed)
        return
    left = checks.initialised(setting, registers[step.dst], step.dst)
    if op is _NEG:
        number = checks.scalar(setting, left, step.dst, "negation")
        operation = S64.alu if step.width == 64 else S64.alu_low
        registers[step.dst] = operation(AluOp.SUB, S64.zero, number)
        return
    right: Scalar | Pointer
    if step.register:
        right = checks.initialised(setting, registers[step.src], step.src)
    else:
        right = step.constant
    registers[step.dst] = _pointer(setting, step, left, right)


def _moved(setting: Setting, state: State, step: Step) -> Scalar | Pointer:
    """MOV of a register, MOVSX and their 32-bit forms."""
    value = checks.initialised(setting, linked(state, state.frames[-1], step.src), step.src)
    if step.width == 64 and not step.off:
        return value
    number = checks.scalar(setting, value, step.src, "a part of a pointer is copied")
    if step.off:
        return S64.sign_extend(number, step.off, to_low=step.width == 32)
    return S64.truncate(number, 32)


def _pointer(
    setting: Setting, step: Step, left: Scalar | Pointer, right: Scalar | Pointer
) -> Pointer:
    """Pointer plus or minus a number, in 64 bits; everything else would make a number of it."""
    if step.width == 64 and step.op is _ADD and isinstance(left, Scalar):
        left, right = right, left
    if (
        step.width != 64
        or step.op not in (_ADD, _SUB)
        or isinstance(left, Scalar)
        or isinstance(right, Pointer)
    ):
        pointer = left if isinstance(left, Pointer) else right
        name = step.op.name.lower() if step.op is not None else ""
        raise Refusal(
            "P9",
            f"{step.width}-bit {name} on a pointer ({describe(pointer, setting.program)})",
            hint="only a number may be added to or subtracted from a pointer, in 64 bits",
        )
    return _advanced(setting, left, right, -1 if step.op is _SUB else 1)


def _advanced(setting: Setting, pointer: Pointer, number: Scalar, sign: int) -> Pointer:
    """``pointer`` plus ``sign`` times ``number``."""
    if pointer.null or pointer.region in _RIGID or sign < 0:
        _check_advance(setting, pointer, sign)
    if not number.mask:
        moved = pointer.at(sign * number.smin)
    elif pointer.region is _CONTEXT:
        raise Refusal("P2", checks.CONTEXT_OFFSET, hint=checks.CONTEXT_HINT)
    else:
        op = _SUB if sign < 0 else _ADD
        variable = S64.alu(op, pointer.variable or S64.zero, number)
        if variable.mask:
            moved = pointer._replace(variable=variable)
        else:
            moved = pointer._replace(offset=pointer.offset + variable.smin, variable=None)
    checks.offset_fits(setting, moved)
    return moved


def _check_advance(setting: Setting, pointer: Pointer, sign: int) -> None:
    text = describe(pointer, setting.program)
    if pointer.null:
        raise Refusal(
            "P2",
            f"arithmetic on a pointer that may be null ({text})",
            hint="test it against 0 first",
        )
    if pointer.region in _RIGID:
        raise Refusal("P2", f"arithmetic on {text}", hint=_RIGID[pointer.region])
    if pointer.region is Region.STACK and sign < 0:
        raise Refusal(  # as in Linux
            "P2", f"subtraction from {text}", hint="add a negative number instead"
        )


def swap(setting: Setting, state: State, step: Step) -> None:
    """To little endian, to big endian, unconditional byte swap; the machine is little-endian."""
    registers = state.frame.registers
    number = checks.scalar(setting, registers[step.dst], step.dst, "byte swap")
    if not step.swaps:
        registers[step.dst] = S64.truncate(number, step.imm)
    else:
        registers[step.dst] = S64.byte_swap(number, step.imm // 8)
