"""Helpers about the workload for the reference interpreter: what ``Place`` says of it."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egpu.bpf.interp import Machine

_STACK_FLAGS = 0x7FF  # frames to skip, and BPF_F_USER_STACK, _FAST_STACK_CMP, _REUSE_STACKID

_SKIPPED, _USER_STACK = 0xFF, 1 << 8  # BPF_F_SKIP_FIELD_MASK, BPF_F_USER_STACK
_FRAME = 8  # bytes


class ThreadEndedError(Exception):
    """The program ended the thread that runs it, however deep in calls."""


def _end(machine: Machine, args: Sequence[int]) -> int:
    raise ThreadEndedError


def _comm(machine: Machine, args: Sequence[int]) -> int:
    room = machine.space.view(args[0], args[1], write=True)
    room[:] = machine.place.comm[: args[1] - 1].ljust(args[1], b"\0")
    return 0


def _workload(machine: Machine, address: int) -> bytes:
    """What can be read of the workload's memory from ``address`` on."""
    for start, data in machine.place.allocations.items():
        if start <= address < start + len(data):
            return data[address - start :]
    return b""


def _probe_read(machine: Machine, args: Sequence[int]) -> int:
    if not args[1]:
        return 0  # as Linux: nothing is read or written, wherever the pointers lead
    found = _workload(machine, args[2])[: args[1]]
    good = len(found) == args[1]
    machine.space.view(args[0], args[1], write=True)[:] = found if good else bytes(args[1])
    return 0 if good else -errno.EFAULT


def _probe_read_text(machine: Machine, args: Sequence[int]) -> int:
    if not args[1]:
        return 0
    found, end, _ = _workload(machine, args[2])[: args[1] - 1].partition(b"\0")
    good = bool(end) or len(found) == args[1] - 1
    text = found if good else b""
    machine.space.view(args[0], args[1], write=True)[:] = text.ljust(args[1], b"\0")
    return len(found) + 1 if good else -errno.EFAULT


def _stackid(machine: Machine, args: Sequence[int]) -> int:
    """The stack's number, if frames are left behind those to skip (Linux: __bpf_get_stackid)."""
    place = machine.place
    if args[2] & ~_STACK_FLAGS:
        return -errno.EINVAL
    # A stack has a frame, whether or not its frames are known here.
    if place.stack is None or args[2] & _SKIPPED >= max(1, len(place.callers)):
        return -errno.EFAULT
    return place.stack


def _stack(machine: Machine, args: Sequence[int]) -> int:
    """The addresses that follow those to skip, then zeros (Linux: __bpf_get_stack).

    As there, skipping exactly all frames leaves none and is no error; bpf_get_stackid has one.
    """
    _, address, size, flags = args[:4]
    callers, skipped = machine.place.callers, flags & _SKIPPED
    room = machine.space.view(address, size, write=True) if size else memoryview(bytearray())
    room[:] = bytes(size)
    # A workload's frames have no build ids here.
    if flags & ~(_SKIPPED | _USER_STACK) or size % _FRAME:
        return -errno.EINVAL
    if not callers or len(callers) < skipped:
        return -errno.EFAULT
    kept = callers[skipped:][: size // _FRAME]
    room[: len(kept) * _FRAME] = struct.pack(f"<{len(kept)}Q", *kept)
    return len(kept) * _FRAME


def _cookie(machine: Machine, args: Sequence[int]) -> int:
    return machine.program.cookie


def _parameter(machine: Machine, args: Sequence[int]) -> int:
    if args[1] >= len(machine.place.parameters):
        return -errno.EINVAL
    machine.space.store(args[2], 8, machine.place.parameters[args[1]])
    return 0


WORKLOAD: Mapping[str, Callable[[Machine, Sequence[int]], int]] = {
    "bpf_get_current_comm": _comm,
    "bpf_probe_read": _probe_read,
    "bpf_probe_read_str": _probe_read_text,
    "bpf_probe_read_user": _probe_read,
    "bpf_probe_read_kernel": _probe_read,
    "bpf_probe_read_user_str": _probe_read_text,
    "bpf_probe_read_kernel_str": _probe_read_text,
    "bpf_get_stackid": _stackid,
    "bpf_get_stack": _stack,
    "bpf_get_attach_cookie": _cookie,
    "bpf_get_func_arg": _parameter,
    "bpf_cuda_exit": _end,
}
