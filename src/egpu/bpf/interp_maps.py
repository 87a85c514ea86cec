"""Helpers of arrays, tables, queues, stacks and Bloom filters for the reference interpreter."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from egpu.bpf.interp_state import MapState
from egpu.bpf.maptypes import MapType, Storage, bloom_bits, traits
from egpu.bpf.mixing import bloom_places
from egpu.bpf.program import NO_MAP
from egpu.errors import DeviceFault

if TYPE_CHECKING:
    from egpu.bpf.interp import Machine

BPF_NOEXIST = 1
BPF_EXIST = 2


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


MAPS: Mapping[str, Callable[[Machine, Sequence[int]], int]] = {
    "bpf_map_lookup_elem": _lookup,
    "bpf_map_update_elem": _update,
    "bpf_map_delete_elem": _delete,
    "bpf_map_push_elem": _push,
    "bpf_map_pop_elem": _pop,
    "bpf_map_peek_elem": _peek,
}
