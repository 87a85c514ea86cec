"""Bodies of the helpers for the reference interpreter, and its maps.

The clock is the number of instructions executed and the random sequence is fixed, so that a run
depends on nothing but its arguments.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from egpu.bpf import interp_prints
from egpu.bpf.arith import MASK64
from egpu.bpf.helpers import HELPERS
from egpu.bpf.interp_workload import WORKLOAD
from egpu.bpf.maptypes import (
    BPF_F_CURRENT_CPU,
    GPU_RING_FULL,
    THREAD_SLOTS,
    MapType,
    Storage,
    bloom_bits,
    ring_bytes,
    traits,
)
from egpu.bpf.mixing import bloom_places
from egpu.bpf.program import NO_MAP, MapSpec
from egpu.errors import DeviceFault, InternalError, UnsupportedError

if TYPE_CHECKING:
    from egpu.bpf.interp import Machine

BPF_NOEXIST = 1
BPF_EXIST = 2
_RING_FLAGS = 3  # BPF_RB_NO_WAKEUP, BPF_RB_FORCE_WAKEUP
_RECORD_HEADER = 8  # bytes of Linux's ring-buffer record header

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where on the device the one thread of the interpreter is; the defaults are a 1x1 launch."""

    block: Triple = (0, 0, 0)
    block_dim: Triple = (1, 1, 1)
    thread: Triple = (0, 0, 0)
    grid_dim: Triple = (1, 1, 1)
    sm: int = 0
    warp: int = 0
    lane: int = 0
    pid_tgid: int = 1 << 32 | 1
    uid_gid: int = 0
    comm: bytes = b"egpu"
    kernel: int = 0
    parameters: tuple[int, ...] = ()
    stack: int | None = None  # the number of the stack that launched
    callers: tuple[int, ...] = ()  # the addresses to which it returns, innermost first
    allocations: Mapping[int, bytes] = field(default_factory=dict)  # the workload's, by address
    seed: int = 1

    @property
    def number(self) -> int:
        """The thread's number in its launch, counted along x, then y, then z."""
        x, y, z = (
            block * size + thread
            for block, size, thread in zip(self.block, self.block_dim, self.thread, strict=True)
        )
        width, height = (self.grid_dim[axis] * self.block_dim[axis] for axis in (0, 1))
        return (z * height + y) * width + x


@dataclass(slots=True, eq=False)
class MapState:
    """The content of a map.

    A per-thread map has its values key by key, each for ``thread_slots`` threads.

    ``values`` holds arrays, each value padded to 8 bytes; ``table`` the entries of a hash map, each
    with memory of its own; ``items`` what a queue or stack holds, the oldest first; ``bits`` the
    numbers of a Bloom filter's set bits; ``records`` what was submitted to a ring
    buffer; ``used`` the bytes that its records take (nobody reads them during a run); ``dropped``
    how many did not fit.  A per-SM map has the one copy of the SM that runs the program.
    Raises UnsupportedError for map types without storage.
    """

    spec: MapSpec
    thread_slots: int = THREAD_SLOTS  # of a per-thread map
    values: bytearray = field(init=False)
    table: dict[bytes, bytearray] = field(default_factory=dict)
    items: list[bytes] = field(default_factory=list)
    bits: set[int] = field(default_factory=set)
    records: list[bytes] = field(default_factory=list)
    used: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        if traits(self.spec.type).storage is None:
            raise UnsupportedError(f"map type {self.spec.type.name} of map {self.spec.name!r}")
        entries = self.spec.max_entries if self.has_values(self.spec) else 0
        if traits(self.spec.type).per_thread:
            entries *= self.thread_slots
        self.values = bytearray(entries * self.stride)
        if self.spec.initial is not None:
            self.values[: len(self.spec.initial)] = self.spec.initial

    @staticmethod
    def has_values(spec: MapSpec) -> bool:
        """Whether the map is an array of values."""
        return traits(spec.type).indexed

    @property
    def stride(self) -> int:
        """Bytes from one value to the next."""
        return -(-self.spec.value_size // 8) * 8

    def value(self, entry: int) -> memoryview:
        """The bytes of value ``entry``, shared."""
        start = entry * self.stride
        return memoryview(self.values)[start : start + self.spec.value_size]

    @property
    def room(self) -> int:
        """Bytes of a ring."""
        return ring_bytes(self.spec.type, self.spec.max_entries, self.spec.value_size)

    def reserve(self, size: int) -> bool:
        """Take the room of a record, False if there is none."""
        needed = _RECORD_HEADER + -(-size // 8) * 8
        if size == 0 or self.used + needed > self.room:
            self.dropped += 1
            return False
        self.used += needed
        return True


def _ring(machine: Machine, handle: int) -> MapState:
    state = machine.maps[machine.map_index(handle)]
    if traits(state.spec.type).storage is not Storage.RING:
        raise DeviceFault(f"map {state.spec.name} is not a ring buffer")
    return state


def _inner(machine: Machine, state: MapState, address: int) -> int:
    """The map that a map of maps has under a key."""
    key = int.from_bytes(machine.space.view(address, state.spec.key_size), "little")
    index = state.spec.inner[key] if key < len(state.spec.inner) else NO_MAP
    return 0 if index == NO_MAP else machine.map_handle(index)


def _lookup(machine: Machine, args: Sequence[int]) -> int:
    outer = machine.maps[machine.map_index(args[0])]
    if traits(outer.spec.type).storage is Storage.MAPS:
        return _inner(machine, outer, args[1])
    index, state, key = _keyed(machine, args)
    if traits(state.spec.type).hashed:
        value = state.table.get(key)
        _touch(state, key)
        return 0 if value is None else machine.entry_address(index, value)
    number = _number(machine, state, key)
    return 0 if number is None else machine.value_address(index, number)


def _number(machine: Machine, state: MapState, key: bytes) -> int | None:
    """Which value of an array ``key`` and the running thread have, None if none."""
    number = int.from_bytes(key, "little")
    if number >= state.spec.max_entries:
        return None
    if not traits(state.spec.type).per_thread:
        return number
    thread = machine.place.number
    return number * state.thread_slots + thread if thread < state.thread_slots else None


def _keyed(machine: Machine, args: Sequence[int]) -> tuple[int, MapState, bytes]:
    """Index and content of the map that the first argument names, and the key behind the second."""
    index = machine.map_index(args[0])
    state = machine.maps[index]
    if not traits(state.spec.type).has_values:
        raise DeviceFault(f"map {state.spec.name} has no keys")
    return index, state, bytes(machine.space.view(args[1], state.spec.key_size))


def _update(machine: Machine, args: Sequence[int]) -> int:
    _, state, key = _keyed(machine, args)
    value = bytes(machine.space.view(args[2], state.spec.value_size))
    if args[3] > BPF_EXIST:
        return -errno.EINVAL
    if traits(state.spec.type).hashed:
        return _update_table(state, key, value, args[3])
    number = _number(machine, state, key)
    if number is None:
        return -errno.E2BIG
    if args[3] == BPF_NOEXIST:
        return -errno.EEXIST
    state.value(number)[:] = value
    return 0


def _touch(state: MapState, key: bytes) -> None:
    """Note that an entry was used: a table's order is from the least recently used on."""
    if traits(state.spec.type).evicts and key in state.table:
        state.table[key] = state.table.pop(key)


def _update_table(state: MapState, key: bytes, value: bytes, flags: int) -> int:
    entry = state.table.get(key)
    if entry is not None:
        if flags == BPF_NOEXIST:
            return -errno.EEXIST
        entry[:] = value
        _touch(state, key)
        return 0
    if flags == BPF_EXIST:
        return -errno.ENOENT
    if len(state.table) >= state.spec.max_entries:
        if not traits(state.spec.type).evicts:
            return -errno.E2BIG
        del state.table[next(iter(state.table))]
    state.table[key] = bytearray(value)
    return 0


def _delete(machine: Machine, args: Sequence[int]) -> int:
    _, state, key = _keyed(machine, args)
    if not traits(state.spec.type).hashed:
        return -errno.EINVAL  # elements of arrays cannot be deleted
    return -errno.ENOENT if state.table.pop(key, None) is None else 0


def _pushed(machine: Machine, args: Sequence[int]) -> tuple[MapState, int]:
    """A map without keys, and the address of the value given."""
    state = machine.maps[machine.map_index(args[0])]
    if not traits(state.spec.type).keyless:
        raise DeviceFault(f"nothing is pushed to map {state.spec.name}")
    return state, args[1]


def _push(machine: Machine, args: Sequence[int]) -> int:
    state, address = _pushed(machine, args)
    spec, flags = state.spec, args[2]
    value = bytes(machine.space.view(address, spec.value_size))
    if traits(spec.type).storage is Storage.BLOOM:
        if flags:
            return -errno.EINVAL
        state.bits.update(bloom_places(value, *bloom_bits(spec.max_entries, spec.extra)))
        return 0
    if flags not in (0, BPF_EXIST):
        return -errno.EINVAL
    if len(state.items) == spec.max_entries:
        if not flags:
            return -errno.E2BIG
        del state.items[0]
    state.items.append(value)
    return 0


def _next_item(machine: Machine, args: Sequence[int]) -> tuple[MapState, int]:
    """Write the value that comes next, zeros if there is none; (the map, its number or -1)."""
    state, address = _pushed(machine, args)
    number = len(state.items) - 1 if state.spec.type is MapType.STACK or not state.items else 0
    value = state.items[number] if state.items else bytes(state.spec.value_size)
    machine.space.view(address, state.spec.value_size)[:] = value
    return state, number


def _pop(machine: Machine, args: Sequence[int]) -> int:
    state, number = _next_item(machine, args)
    if number < 0:
        return -errno.ENOENT
    del state.items[number]
    return 0


def _peek(machine: Machine, args: Sequence[int]) -> int:
    state, address = _pushed(machine, args)
    spec = state.spec
    if traits(spec.type).storage is Storage.BLOOM:
        value = bytes(machine.space.view(address, spec.value_size))
        places = bloom_places(value, *bloom_bits(spec.max_entries, spec.extra))
        return 0 if state.bits.issuperset(places) else -errno.ENOENT
    return 0 if _next_item(machine, args)[1] >= 0 else -errno.ENOENT


def _clock(machine: Machine, args: Sequence[int]) -> int:
    return machine.steps


def _random(machine: Machine, args: Sequence[int]) -> int:
    # splitmix64's finaliser over seed and step: well mixed and without state of its own.
    value = (machine.place.seed << 32) + machine.steps * 0x9E3779B97F4A7C15 & MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK64
    return (value ^ value >> 31) & 0xFFFFFFFF


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
    "bpf_map_lookup_elem": _lookup,
    "bpf_map_update_elem": _update,
    "bpf_map_delete_elem": _delete,
    "bpf_map_push_elem": _push,
    "bpf_map_pop_elem": _pop,
    "bpf_map_peek_elem": _peek,
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
    "bpf_perf_event_output": _perf_output,
    "bpf_ringbuf_output": _output,
    "bpf_ringbuf_reserve": _reserve,
    "bpf_ringbuf_submit": _submit,
    "bpf_ringbuf_discard": _discard,
    "bpf_ringbuf_query": _query,
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
