"""Helpers that call a function of the program back: how often at most, and with what."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from egpu.bpf.budget import LINUX_TURNS
from egpu.bpf.helpers import HELPERS, Arg, Helper
from egpu.verifier.report import Refusal
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.setting import Setting
from egpu.verifier.state import Pointer, State, Value
from egpu.verifier.structure import Step
from egpu.verifier.verified import Region

MOST_CALLS = LINUX_TURNS  # above which bpf_loop fails, with -E2BIG
_LOOP = "loop"  # the body of bpf_loop


@dataclass(frozen=True, slots=True)
class Calls:
    """Up to ``most`` calls of the function at ``start`` with r1 to r5 as ``arguments`` cover them.

    ``result`` is r0 after them; ``fewer`` says what to change if they are too many.  ``open``: how
    many there are is bounded by the budget of the run only."""

    helper: str
    start: int
    most: int
    arguments: tuple[Value, ...]
    result: Scalar
    fewer: str
    open: bool = False


def _up_to(greatest: int) -> Scalar:
    return S64.from_range(0, greatest)


def _open(setting: Setting, helper: Helper, start: int, context: Value) -> Calls:
    """The calls of a bpf_loop whose number is not known: as many as any budget allows."""
    most = min(setting.limits.cost, MOST_CALLS)
    result = S64.from_signed(-errno.E2BIG, most)
    arguments = (_up_to(most - 1), context, None, None, None)
    return Calls(helper.name, start, most, arguments, result, "do less in the callback", open=True)


def calls_of(setting: Setting, state: State, step: Step) -> Calls:
    """The calls that the helper call ``step`` makes from ``state``. Raises Refusal.

    To be asked before the call is applied, whose arguments are checked apart.
    """
    helper = HELPERS[step.imm]
    registers = state.frame.registers
    by_kind = {kind: registers[index + 1] for index, kind in enumerate(helper.args)}
    flags, function = registers[len(helper.args)], by_kind[Arg.CALLBACK]
    context = by_kind[Arg.CALLBACK_CONTEXT]
    if isinstance(flags, Scalar) and flags.constant() != 0:
        register = len(helper.args)
        raise Refusal(
            "P2", f"r{register} of {helper.name}, its flags, must be 0", hint="pass the constant 0"
        )
    # Whatever is wrong with the other arguments, checking the call refuses with a better text.
    start = function.owner if isinstance(function, Pointer) else -1
    target = registers[1]
    if helper.body == _LOOP:
        most = S64.truncate(target, 32).umax if isinstance(target, Scalar) else 0
        if most > MOST_CALLS and isinstance(target, Scalar) and target.constant() is None:
            return _open(setting, helper, start, context)
        if most > MOST_CALLS:
            raise Refusal(
                "P4",
                f"{helper.name} may call its callback {most} times, "
                f"at most {MOST_CALLS} are allowed",
                hint="limit r1, as in if (n > 100) n = 100",
            )
        index = _up_to(max(0, most - 1))
        fewer = "limit r1, as in if (n > 100) n = 100, or do less in the callback"
        return Calls(
            helper.name, start, most, (index, context, None, None, None), _up_to(most), fewer
        )
    owner = target.owner if isinstance(target, Pointer) else -1
    most = setting.map(owner).max_entries if owner >= 0 else 0
    arguments = (
        Pointer(Region.MAP_POINTER, owner),
        Pointer(Region.MAP_KEY, owner),
        Pointer(Region.MAP_VALUE, owner),
        context,
        None,
    )
    fewer = "give the map fewer entries (max_entries), or do less in the callback"
    return Calls(helper.name, start, most, arguments, _up_to(most), fewer)
