"""Helpers that say who runs and when: all from the launch block and the arena's header."""

from __future__ import annotations

from egpu.codegen.arena import ARENA_HEADER, LAUNCH_STACK_MASK, LAUNCH_STACK_SHIFT
from egpu.codegen.device_code import RelocKind
from egpu.codegen.helper_call import Call, argument_place
from egpu.codegen.ir import GLOBAL
from egpu.codegen.memory import Place
from egpu.errors import InternalError

_EFAULT, _EINVAL = -14, -22  # uapi/asm-generic/errno-base.h
# BPF_F_SKIP_FIELD_MASK, BPF_F_USER_STACK, BPF_F_FAST_STACK_CMP, BPF_F_REUSE_STACKID
_STACK_FLAGS = 0xFF | 1 << 8 | 1 << 9 | 1 << 10
COMM = 16  # bytes of Linux's TASK_COMM_LEN


def _header(call: Call, name: str) -> str:
    """A field of the arena's header, 64 bits; it never changes while probes run."""
    scope, body = call.scope, call.scope.body
    offset, size = ARENA_HEADER[name]
    address = body.add(scope.launch("device_arena"), offset)
    return body.resize(body.load(f"i{8 * size}", GLOBAL, body.pointer(address), size), 8 * size, 64)


def _pair(call: Call, high: str, low: str) -> str:
    body = call.scope.body
    upper = body.binary("shl", "i64", _header(call, high), "32")
    return body.binary("or", "i64", upper, _header(call, low))


def pid_tgid(call: Call) -> str:
    """The workload's pid twice: device threads belong to no thread of it."""
    return _pair(call, "pid", "pid")


def uid_gid(call: Call) -> str:
    return _pair(call, "gid", "uid")


def ktime_get_ns(call: Call) -> str:
    """The device's clock, moved to the host's CLOCK_MONOTONIC by what the agent measured."""
    body = call.scope.body
    return body.binary("add", "i64", body.call("i64", "egpu.globaltimer"), _header(call, "clock"))


def comm(call: Call) -> str:
    """The workload's name behind r1: as many bytes as there is room for, the last one 0."""
    scope, body = call.scope, call.scope.body
    room = scope.operand(call.pc, 2).value
    if room is None:
        raise InternalError(f"instruction {call.pc}: {call.helper.name} of no constant size")
    place = argument_place(call, 1, room)
    start = body.add(scope.launch("device_arena"), ARENA_HEADER["comm"][0])
    for at in range(room):
        value = "0"
        if at < min(room, COMM) - 1:
            value = body.load("i8", GLOBAL, body.pointer(body.add(start, at)), 1)
        _store_byte(call, place, at, value)
    return "0"


def _store_byte(call: Call, place: Place, at: int, value: str) -> None:
    body = call.scope.body
    pointer = body.value(f"getelementptr i8, {place.space} {place.pointer}, i64 {at}")
    body.store("i8", value, place.space, pointer, 1)


def func_ip(call: Call) -> str:
    """Which kernel it is: the number that records and reports have."""
    return call.scope.launch("kernel_id")


def stackid(call: Call) -> str:
    """The number of the stack that launched, the same for all threads of a launch.

    Whose stack it is, how many frames to skip and how to compare (flags) make no difference to the
    number; other flags are -EINVAL, as in Linux, and a launch without a stack gives -EFAULT.
    """
    scope, body = call.scope, call.scope.body
    known = body.binary("lshr", "i64", scope.launch("flags"), str(LAUNCH_STACK_SHIFT))
    number = body.binary("and", "i64", known, str(LAUNCH_STACK_MASK))
    none = body.compare("eq", "i64", number, "0")
    result = body.select(none, "i64", str(_EFAULT), body.add(number, -1))
    others = body.binary("and", "i64", scope.get(3), str(~_STACK_FLAGS))
    wrong = body.compare("ne", "i64", others, "0")
    return body.select(wrong, "i64", str(_EINVAL), result)


def attach_cookie(call: Call) -> str:
    """The number that the program was attached with."""
    cookie = call.scope.unit.verified.program.cookie
    return call.scope.body.value(f"add i64 {cookie - (1 << 64) if cookie >> 63 else cookie}, 0")


def func_arg(call: Call) -> str:
    """Parameter number r2 of the kernel behind r3, zero-extended."""
    scope, body = call.scope, call.scope.body
    number = scope.operand(call.pc, 2).value
    if number is None:
        raise InternalError(f"instruction {call.pc}: {call.helper.name} of no constant number")
    place = argument_place(call, 3, 8)
    value = scope.symbol(RelocKind.PARAMETER, number)
    body.store("i64", value, place.space, place.pointer, place.align)
    return "0"
