"""What maps may be declared like, before they are given a place."""

from __future__ import annotations

from egpu.bpf.maptypes import PUSHED_MAXIMUM, MapType, Storage, traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, UnsupportedError

HASH_KEY_MAXIMUM = 256  # bytes


def check_declaration(spec: MapSpec) -> None:
    """Raises UnsupportedError for a map type without storage and InputError for sizes that no map
    of the type has."""
    where = f"map {spec.name}"
    kind = traits(spec.type)
    if kind.storage is None:
        raise UnsupportedError(
            f"{where}: map type {spec.type.name}", needs="a type that docs/guide.md lists"
        )
    # libbpf sets the number of CPUs where a PERF_EVENT_ARRAY has none.
    if spec.max_entries < 1 and spec.type is not MapType.PERF_EVENT_ARRAY:
        raise InputError("max_entries is 0", where=where, hint="give it at least 1")
    if kind.has_values and spec.value_size < 1:
        raise InputError("value size is 0", where=where, hint="declare a value type")
    if kind.hashed and not 1 <= spec.key_size <= HASH_KEY_MAXIMUM:
        raise InputError(
            f"key size is {spec.key_size}", where=where, hint=f"1 to {HASH_KEY_MAXIMUM} bytes"
        )
    if kind.keyless and (spec.key_size or not 1 <= spec.value_size <= PUSHED_MAXIMUM):
        raise InputError(
            f"keys of {spec.key_size} bytes, values of {spec.value_size}",
            where=where,
            hint=f"no keys, and values of 1 to {PUSHED_MAXIMUM} bytes",
        )
    if kind.indexed and spec.key_size != 4:
        raise InputError(
            f"key size is {spec.key_size}", where=where, hint="arrays have keys of 4 bytes (u32)"
        )
    if spec.initial is not None and (
        kind.storage is not Storage.ARRAY
        or len(spec.initial) > spec.max_entries * (-(-spec.value_size // 8) * 8)
    ):
        raise InputError("initial contents do not fit an array of this size", where=where)
