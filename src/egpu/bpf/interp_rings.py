"""Helpers of ring buffers and perf event arrays for the reference interpreter."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from egpu.bpf.interp_state import MapState
from egpu.bpf.maptypes import BPF_F_CURRENT_CPU, GPU_RING_FULL, MapType, Storage, traits
from egpu.errors import DeviceFault

if TYPE_CHECKING:
    from egpu.bpf.interp import Machine

_RING_FLAGS = 3  # BPF_RB_NO_WAKEUP, BPF_RB_FORCE_WAKEUP


def _ring(machine: Machine, handle: int) -> MapState:
    state = machine.maps[machine.map_index(handle)]
    if traits(state.spec.type).storage is not Storage.RING:
        raise DeviceFault(f"map {state.spec.name} is not a ring buffer")
    return state


def _output(machine: Machine, args: Sequence[int]) -> int:
    state = _ring(machine, args[0])
    if args[3] > _RING_FLAGS:
        return -errno.EINVAL
    data = bytes(machine.space.view(args[1], args[2]))
    if not state.reserve(len(data)):
        return -errno.EAGAIN
    state.records.append(data)
    return 0


def _perf_output(machine: Machine, args: Sequence[int]) -> int:
    state, flags = _ring(machine, args[1]), args[2]
    spec = state.spec
    if spec.type is MapType.PERF_EVENT_ARRAY:
        cpu = flags & BPF_F_CURRENT_CPU
        if flags >> 32:
            return -errno.EINVAL
        if cpu not in (BPF_F_CURRENT_CPU, machine.place.sm):
            beyond = 0 < spec.max_entries <= cpu
            return -errno.E2BIG if beyond else -errno.EOPNOTSUPP
    data = bytes(machine.space.view(args[3], args[4]))
    if spec.type is MapType.GPU_RINGBUF and len(data) > spec.value_size:
        return -errno.E2BIG
    if not state.reserve(len(data)):
        return GPU_RING_FULL if spec.type is MapType.GPU_RINGBUF else -errno.ENOSPC
    state.records.append(data)
    return 0


def _reserve(machine: Machine, args: Sequence[int]) -> int:
    state = _ring(machine, args[0])
    if args[2]:
        return 0
    return machine.add_record(state, args[1]) if state.reserve(args[1]) else 0


def _submit(machine: Machine, args: Sequence[int]) -> int:
    state, data = machine.take_record(args[0])
    state.records.append(data)
    return 0


def _discard(machine: Machine, args: Sequence[int]) -> int:
    machine.take_record(args[0])
    return 0


def _query(machine: Machine, args: Sequence[int]) -> int:
    state = _ring(machine, args[0])
    # BPF_RB_AVAIL_DATA, BPF_RB_RING_SIZE, BPF_RB_CONS_POS, BPF_RB_PROD_POS
    answers = (state.used, state.spec.max_entries, 0, state.used)
    return answers[args[1]] if args[1] < len(answers) else 0


RINGS: Mapping[str, Callable[[Machine, Sequence[int]], int]] = {
    "bpf_perf_event_output": _perf_output,
    "bpf_ringbuf_output": _output,
    "bpf_ringbuf_reserve": _reserve,
    "bpf_ringbuf_submit": _submit,
    "bpf_ringbuf_discard": _discard,
    "bpf_ringbuf_query": _query,
}
