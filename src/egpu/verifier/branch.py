"""Conditional jumps: which ways are possible and what each one says."""

from __future__ import annotations

from egpu.bpf.isa import JmpOp
from egpu.verifier import checks
from egpu.verifier.refine import ways
from egpu.verifier.report import Refusal, describe
from egpu.verifier.scalar import Scalar
from egpu.verifier.setting import Setting
from egpu.verifier.state import Pointer, State
from egpu.verifier.structure import Step
from egpu.verifier.verified import Region

_EQUALITY = frozenset({JmpOp.JEQ, JmpOp.JNE})
# Never null, but Linux walks both ways of such a test, and so do we.
_UNDECIDED = frozenset({Region.STACK, Region.CONTEXT})


def decide(setting: Setting, state: State, step: Step) -> tuple[State | None, State | None]:
    """The states of the way that falls through and of the way that jumps; None is impossible.

    ``state`` itself is reused for one of them.
    """
    if step.op is JmpOp.JCOND:
        return state, state.copy()  # whether a run's budget is used up
    registers = state.frames[-1].registers
    left = registers[step.dst]
    right = registers[step.src] if step.register else step.constant
    if type(left) is Scalar and type(right) is Scalar:
        assert isinstance(step.op, JmpOp), "the form of a jump has a JmpOp"
        return _numbers(state, step, step.op, left, right)
    left = checks.initialised(setting, left, step.dst)
    return _pointers(setting, state, step, left, checks.initialised(setting, right, step.src))


def _numbers(
    state: State, step: Step, op: JmpOp, left: Scalar, right: Scalar
) -> tuple[State | None, State | None]:
    low = step.width == 32
    fallen, taken = ways(op, low, left, right)
    if taken is None:
        return state, None
    if fallen is None:
        return None, state
    jumping = state.copy()
    _apply(state, step, left, right, fallen)
    _apply(jumping, step, left, right, taken)
    return state, jumping


def _apply(
    state: State, step: Step, left: Scalar, right: Scalar, narrowed: tuple[Scalar, Scalar]
) -> None:
    registers = state.frames[-1].registers
    if step.register and step.dst != step.src and right[1]:
        registers[step.src] = narrowed[1]
        if right[10]:
            state.narrow(right, narrowed[1])
    link = left[10]
    if left[1] and not (link and link == right[10] and step.register):
        registers[step.dst] = narrowed[0]
        if link:
            state.narrow(left, narrowed[0])


def _pointers(
    setting: Setting,
    state: State,
    step: Step,
    left: Scalar | Pointer,
    right: Scalar | Pointer,
) -> tuple[State | None, State | None]:
    if isinstance(left, Scalar):
        left, right = right, left
    assert isinstance(left, Pointer), "one operand is a pointer"
    if isinstance(right, Pointer):
        if step.width == 64 and left.region is right.region and left.owner == right.owner:
            return state, state.copy()
    elif step.width == 64 and step.op in _EQUALITY and right.constant() == 0:
        return _null_test(state, step.op is JmpOp.JEQ, left)
    raise Refusal(
        "P9",
        f"comparison of a pointer ({describe(left, setting.program)}) "
        f"with {describe(right, setting.program)}",
        hint="compare pointers with 0 or with pointers into the same memory, in 64 bits",
    )


def _null_test(
    state: State, jumps_if_null: bool, pointer: Pointer
) -> tuple[State | None, State | None]:
    if not pointer.null and pointer.region in _UNDECIDED:
        return state, state.copy()
    if not pointer.null:
        return (state, None) if jumps_if_null else (None, state)
    other = state.copy()
    state.decide_null(pointer.null, is_null=not jumps_if_null)
    other.decide_null(pointer.null, is_null=jumps_if_null)
    return state, other
