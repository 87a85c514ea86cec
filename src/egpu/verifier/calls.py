"""Helper calls: which may be made, and what they leave behind."""

from __future__ import annotations

from typing import assert_never

from egpu.bpf.helpers import HELPERS, REFUSED, Arg, Helper, Ret
from egpu.bpf.isa import CallSrc
from egpu.bpf.maptypes import table_slots, traits
from egpu.bpf.program import MISSING_HELPER, NO_MAP
from egpu.verifier import checks, cost
from egpu.verifier.arguments import Arguments
from egpu.verifier.memory import clobber_stack, overwrite_somewhere
from egpu.verifier.report import Refusal
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import Pointer, State
from egpu.verifier.structure import Step
from egpu.verifier.verified import Policy, Region

_CORE_HINT = "test for it first: bpf_core_field_exists() and its like"
_CONTROL_HINT = "allow it with --allow-control"
_EXECUTOR_HINT = "there is none when one thread runs alone; egpu exec --executor interp runs it"
_ERRNO_LIMIT = 4095
_FORMAT_ARGUMENTS = 2  # before the values that a format shows


def find_helper(setting: Setting, number: int) -> Helper:
    """The row of a helper that this program may call. Raises Refusal."""
    helper = HELPERS.get(number)
    missing = setting.program.missing
    if 0 <= number - MISSING_HELPER < len(missing):
        raise Refusal("P2", missing[number - MISSING_HELPER], hint=_CORE_HINT)
    if helper is None:
        known = REFUSED.get(number)
        if known is None:
            what, hint = f"helper {number} does not exist", "egpu.bpf.h has the helpers there are"
            raise Refusal("P2", what, hint=hint)
        what = f"helper {number}, {known.name}: {known.why}"
        raise Refusal("P5" if known.waits else "P2", what, hint=known.instead)
    if helper.control and setting.policy is not Policy.CONTROL:
        what = f"helper {helper.name} changes the workload, which a probe may not"
        probe = setting.policy is Policy.PROBE
        raise Refusal("P6", what, hint=_CONTROL_HINT if probe else _EXECUTOR_HINT)
    if not helper.body and not (helper.host and setting.on_host):
        reason = helper.missing or "it has no device body yet"
        raise Refusal(
            "P2",
            f"helper {helper.name} is not available: {reason}",
            hint="egpu.bpf.h has the helpers there are",
        )
    return helper


def call(setting: Setting, recorder: Recorder, state: State, step: Step) -> int:
    """Check a helper call and apply it.

    Gives what it spends beyond its row's cost (packed): ring-buffer bytes, slots looked at.
    """
    assert step.src == CallSrc.HELPER, "local calls are exploration's"
    helper = find_helper(setting, step.imm)
    recorder.helpers.add(helper.id)
    made = Arguments(setting, recorder, state, step, helper)
    registers = state.frame.registers
    for position, kind in enumerate(helper.args):
        register = position + 1
        if kind is Arg.PRINTED:
            made.prints.value(position - _FORMAT_ARGUMENTS, register, registers[register])
            continue
        value = checks.initialised(setting, registers[register], register)
        recorder.seen(step.pc, register, value, len(state.frames) - 1)
        made.argument(position, kind, value)
    return _applied(made)


def _applied(made: Arguments) -> int:
    """Apply the call: memory written, records released, r0 to r5."""
    if made.helper.control and made.state.references:
        raise Refusal(
            "P2",
            f"{made.helper.name} ends the thread while it holds a record",
            hint="submit or discard the record first",
        )
    for pointer, size in made.outputs:
        if pointer.region is Region.STACK:
            frame = made.state.frames[pointer.owner]
            if pointer.variable is None:
                clobber_stack(frame, pointer.offset, size)
            else:
                overwrite_somewhere(frame, pointer, size, S64.unknown)
    if made.released:
        made.state.release(made.released)
    registers = made.state.frame.registers
    registers[1:6] = [None] * 5
    registers[0] = _result(made)
    if made.helper.body == "print":
        made.ring_bytes += made.prints.finish()
    spent = cost.ring(made.ring_bytes)
    if made.map < 0:
        return spent
    if Arg.KEY in made.helper.args:
        kind = traits(made.setting.map(made.map).type)
        inserts = Arg.VALUE in made.helper.args
        spent += cost.probes(kind.insertion_probes if inserts else kind.probes)
    if Arg.CALLBACK in made.helper.args:
        spec = made.setting.map(made.map)
        # Every slot of a table is looked at, whether it has an entry or not.
        spent += cost.probes(table_slots(spec.max_entries) if traits(spec.type).hashed else 0)
    return spent


def _result(made: Arguments) -> Scalar | Pointer | None:
    match made.helper.ret:
        case Ret.SCALAR:
            if made.helper.counts:  # Linux: do_refine_retval_range
                return S64.from_signed(-_ERRNO_LIMIT, made.written)
            maximum = made.helper.maximum
            return S64.unknown if maximum is None else S64.from_range(0, maximum)
        case Ret.MAP_VALUE_OR_NULL if made.setting.map(made.map).inner:
            shape = next(n for n in made.setting.map(made.map).inner if n != NO_MAP)
            return Pointer(Region.INNER_MAP, shape, null=made.state.new_link())
        case Ret.MAP_VALUE_OR_NULL:
            return Pointer(Region.MAP_VALUE, made.map, null=made.state.new_link())
        case Ret.RECORD_OR_NULL:
            link = made.state.new_link()
            made.state.references = (*made.state.references, link)
            return Pointer(Region.RECORD, null=link, reference=link, size=made.record_size)
        case Ret.VOID:
            return None
        case _:
            assert_never(made.helper.ret)
