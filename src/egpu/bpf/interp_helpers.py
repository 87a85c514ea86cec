"""Bodies of the helpers for the reference interpreter.

The clock is the number of instructions executed and the random sequence is fixed, so that a run
depends on nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from egpu.bpf import interp_prints
from egpu.bpf.arith import MASK64
from egpu.bpf.helpers import HELPERS
from egpu.bpf.interp_maps import MAPS
from egpu.bpf.interp_rings import RINGS
from egpu.bpf.interp_state import Place, Triple
from egpu.bpf.interp_workload import WORKLOAD
from egpu.errors import InternalError

if TYPE_CHECKING:
    from egpu.bpf.interp import Machine


def _clock(machine: Machine, args: Sequence[int]) -> int:
    return machine.steps


def _random(machine: Machine, args: Sequence[int]) -> int:
    # splitmix64's finaliser over seed and step: well mixed and without state of its own.
    value = (machine.place.seed << 32) + machine.steps * 0x9E3779B97F4A7C15 & MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK64
    return (value ^ value >> 31) & 0xFFFFFFFF


def _atomic_max(machine: Machine, args: Sequence[int]) -> int:
    place, value = args[:2]
    machine.space.store(place, 8, max(machine.space.load(place, 8), value))
    return 0


def _log2(machine: Machine, args: Sequence[int]) -> int:
    return max(args[0].bit_length() - 1, 0)


def _triple(choose: Callable[[Place], Triple]) -> Callable[[Machine, Sequence[int]], int]:
    def body(machine: Machine, args: Sequence[int]) -> int:
        for address, value in zip(args, choose(machine.place), strict=False):
            machine.space.store(address, 8, value)
        return 0

    return body


def _place(choose: Callable[[Place], int]) -> Callable[[Machine, Sequence[int]], int]:
    return lambda machine, args: choose(machine.place)


def _entered(machine: Machine, args: Sequence[int]) -> int:
    raise InternalError("the machine itself enters callbacks")


_BY_NAME: dict[str, Callable[[Machine, Sequence[int]], int]] = {
    **WORKLOAD,
    **MAPS,
    **RINGS,
    "bpf_for_each_map_elem": _entered,
    "bpf_loop": _entered,
    "bpf_ktime_get_ns": _clock,
    "bpf_trace_printk": interp_prints.trace_printk,
    "bpf_trace_vprintk": interp_prints.trace_vprintk,
    "ebpf_puts": interp_prints.puts,
    "bpf_get_prandom_u32": _random,
    "bpf_get_smp_processor_id": _place(lambda place: place.sm),
    "bpf_get_current_pid_tgid": _place(lambda place: place.pid_tgid),
    "bpf_get_current_uid_gid": _place(lambda place: place.uid_gid),
    "bpf_ktime_get_boot_ns": _clock,
    "bpf_ktime_get_coarse_ns": _clock,
    "bpf_get_func_ip": _place(lambda place: place.kernel),
    "bpf_get_globaltimer": _clock,
    "bpf_get_block_idx": _triple(lambda place: place.block),
    "bpf_get_block_dim": _triple(lambda place: place.block_dim),
    "bpf_get_thread_idx": _triple(lambda place: place.thread),
    "bpf_gpu_membar": lambda machine, args: 0,  # one thread sees its own stores
    "bpf_get_grid_dim": _triple(lambda place: place.grid_dim),
    "bpf_get_sm_id": _place(lambda place: place.sm),
    "bpf_get_warp_id": _place(lambda place: place.warp),
    "bpf_get_lane_id": _place(lambda place: place.lane),
    "egpu_atomic_max": _atomic_max,
    "egpu_log2": _log2,
}

BODIES: Mapping[int, Callable[[Machine, Sequence[int]], int]] = {
    id: _BY_NAME[helper.name] for id, helper in HELPERS.items() if helper.name in _BY_NAME
}
