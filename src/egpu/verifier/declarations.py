"""Declarations of maps: what a program may name."""

from __future__ import annotations

from egpu.bpf.maptypes import EVENTS, PUSHED_MAXIMUM, MapType, Storage, traits
from egpu.bpf.program import NO_MAP, MapSpec
from egpu.verifier.report import Refusal

_KEY_SIZE = 4  # of arrays
_LARGEST_KEY = 256  # of tables
_LARGEST_VALUE = 1 << 29  # as for pointer offsets

# Types whose first value has a fixed address (.data, .bss, .rodata).
DIRECT_VALUES = frozenset(
    {
        MapType.ARRAY,
        MapType.GPU_ARRAY,
        MapType.GPU_HOST_ARRAY,
        MapType.GPU_KERNEL_SHARED_ARRAY,
    }
)


def check_map(spec: MapSpec) -> None:
    """A map that a program names must be of a type egpu has. Raises Refusal."""
    if traits(spec.type).storage is None:
        raise Refusal(
            "P2",
            f"map {spec.name}: type {spec.type.name} is not supported",
            hint="docs/guide.md lists the types there are",
        )
    if traits(spec.type).keyless:
        _check_keyless(spec)
    if spec.type in EVENTS:
        _check_events(spec)
    if traits(spec.type).storage is Storage.MAPS:
        _check_outer(spec)
    if not traits(spec.type).has_values:
        return
    # Device bodies read keys of 4 bytes and pointers stay within values: sizes must be as agreed.
    smallest, largest = (_KEY_SIZE, _KEY_SIZE) if traits(spec.type).indexed else (1, _LARGEST_KEY)
    if not smallest <= spec.key_size <= largest:
        needs = f"{smallest} to {largest}" if smallest < largest else str(smallest)
        raise Refusal(
            "P2",
            f"map {spec.name}: keys have {spec.key_size} bytes, must have {needs}",
            hint="change the type of its key",
        )
    if spec.max_entries < 1 or not 1 <= spec.value_size < _LARGEST_VALUE:
        raise Refusal(
            "P2",
            f"map {spec.name}: {spec.max_entries} values of {spec.value_size} bytes, "
            f"must be at least 1 of 1 to {_LARGEST_VALUE - 1}",
            hint="change its max_entries or the type of its value",
        )


def _check_keyless(spec: MapSpec) -> None:
    if spec.key_size:
        raise Refusal(
            "P2",
            f"map {spec.name}: keys have {spec.key_size} bytes, must have none",
            hint="leave its key out",
        )
    if spec.max_entries < 1 or not 1 <= spec.value_size <= PUSHED_MAXIMUM:
        raise Refusal(
            "P2",
            f"map {spec.name}: {spec.max_entries} values of {spec.value_size} bytes, "
            f"must be at least 1 of 1 to {PUSHED_MAXIMUM}",
            hint="change its max_entries or the type of its value",
        )


def _check_events(spec: MapSpec) -> None:
    perf = spec.type is MapType.PERF_EVENT_ARRAY
    right = spec.value_size == _KEY_SIZE if perf else spec.value_size > 0
    if spec.key_size != _KEY_SIZE or not right:
        raise Refusal(
            "P2",
            f"map {spec.name}: keys of {spec.key_size} bytes, values of {spec.value_size}",
            hint="both are int" if perf else "the key is an int, the value a record",
        )


def _check_outer(spec: MapSpec) -> None:
    if spec.key_size != _KEY_SIZE or all(index == NO_MAP for index in spec.inner):
        raise Refusal(
            "P2",
            f"map {spec.name}: keys of {spec.key_size} bytes, {len(spec.inner)} maps in it",
            hint="give it int keys and maps where it is declared: .values = {&a, &b}",
        )
