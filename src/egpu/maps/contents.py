"""The contents of a map as bytes: what is kept of a pinned map, and what another process reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from egpu.bpf.btf_json import dump_types, load_types
from egpu.bpf.maptypes import MapType, Storage, bloom_bits, traits
from egpu.bpf.mixing import bloom_places
from egpu.bpf.program import MapSpec
from egpu.errors import InputError
from egpu.maps.changes import Values
from egpu.maps.hash_view import HashView
from egpu.maps.pushed_view import BloomView, QueueView
from egpu.maps.thread_view import ThreadView
from egpu.maps.view import MapView, sum_rows

FORMAT = 2
_NUMBERS = ("key_size", "value_size", "max_entries", "flags")
_COUNTERS = ("full", "evicted", "busy")
_HEAD_LIMIT = 16 << 20
_NUMBER_SIZE = 4  # bytes of a number in a queue or stack
_BITS_KEY = bytes(_NUMBER_SIZE)  # what a filter's bits are kept under


@dataclass(frozen=True, slots=True)
class Contents:
    """A map in every context: of each its keys with a value for each slot, of a queue or stack its
    values by their number in the order of popping; of a Bloom filter, which cannot list what is in
    it, its bits.

    ``counters`` are those of hash maps; ``complete``: the workload had ended and its last snapshot
    was whole; ``frozen``: it may not be changed.
    """

    spec: MapSpec
    copies: tuple[Mapping[bytes, Values], ...]
    counters: Mapping[str, int]
    complete: bool = False
    frozen: bool = False

    def decoded(self, number: int) -> dict[Any, object]:
        """One context's entries as values; those of a per-SM map are summed over SMs.

        InputError if they cannot be summed (``parts`` has them by SM then), or of a Bloom filter.
        """
        if self.spec.type is MapType.BLOOM_FILTER:
            raise InputError(
                "a Bloom filter cannot list what is in it", where=f"map {self.spec.name}"
            )
        return {
            self._key(key): value_of(self.spec, values)
            for key, values in self.copies[number].items()
        }

    def parts(self, number: int) -> dict[Any, tuple[object, ...]]:
        """One context's entries with a value for each slot."""
        return {
            self._key(key): tuple(
                decode(self.spec, self.spec.value_type, value) for value in values
            )
            for key, values in self.copies[number].items()
        }

    def pushed(self, number: int) -> tuple[bytes, ...]:
        """What one context's queue or stack holds in the order of popping, or a filter's bits."""
        return tuple(values[0] for values in self.copies[number].values())

    def has(self, value: bytes) -> bool:
        """Whether a Bloom filter may have the value, in any context."""
        bits, each = bloom_bits(self.spec.max_entries, self.spec.extra)
        places = list(bloom_places(value, bits, each))
        return any(
            all(copy[_BITS_KEY][0][place >> 3] >> (place & 7) & 1 for place in places)
            for copy in self.copies
        )

    def fill(self) -> float:
        """The largest share of bits that are set in a context's Bloom filter."""
        bits = bloom_bits(self.spec.max_entries, self.spec.extra)[0]
        counts = (int.from_bytes(copy[_BITS_KEY][0]).bit_count() for copy in self.copies)
        return max(counts, default=0) / bits

    def _key(self, key: bytes) -> Any:
        if traits(self.spec.type).indexed or traits(self.spec.type).keyless:
            return int.from_bytes(key, "little")
        return decode(self.spec, self.spec.key_type, key)


def decode(spec: MapSpec, type_id: int, data: bytes) -> Any:
    """A key or value by its type; bytes without one."""
    return data if spec.btf is None or not type_id else spec.btf.decode(type_id, data)


def value_of(spec: MapSpec, values: Values) -> object:
    """What the values of a key are together: their sum, a value for each thread, or the one."""
    kind = traits(spec.type)
    if kind.per_thread:
        return tuple(decode(spec, spec.value_type, value) for value in values)
    if not kind.per_sm or len(values) == 1:
        return decode(spec, spec.value_type, values[0])
    return decode(spec, spec.value_type, summed(spec, values))


def summed(spec: MapSpec, values: Values) -> bytes:
    """The sum of the values of a key; InputError if a field is no integer."""
    rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), spec.value_size)
    return sum_rows(spec, rows)


Kept = MapView | HashView | ThreadView | QueueView | BloomView


def contents_of(view: Kept, *, complete: bool, frozen: bool) -> Contents:
    """What ``view`` has now, of each context in one snapshot; before there is one, what the first
    will begin with."""
    counters = {}
    if isinstance(view, HashView):
        counters = {name: view.counter(name) for name in _COUNTERS}
    copies = tuple(_entries(copy) for copy in view.copies() or (view,))
    return Contents(view.spec, copies, counters, complete, frozen)


def _entries(view: Kept) -> dict[bytes, Values]:
    if isinstance(view, QueueView):
        return numbered(view.raw_values())
    if isinstance(view, BloomView):
        return numbered([view.raw_bits()])
    return dict(view.raw_entries())


def numbered(values: Iterable[bytes]) -> dict[bytes, Values]:
    """Values of a keyless map as ``Contents`` has them: by their number in the order of popping."""
    return {
        number.to_bytes(_NUMBER_SIZE, "little"): (value,) for number, value in enumerate(values)
    }


def _value_size(spec: MapSpec) -> int:
    """Bytes of a value that is kept: of a Bloom filter all its bits."""
    if traits(spec.type).storage is Storage.BLOOM:
        return bloom_bits(spec.max_entries, spec.extra)[0] // 8
    return spec.value_size


def pack(contents: Contents) -> bytes:
    """``contents`` as bytes: the size of a JSON head, the head, keys and values."""
    spec = contents.spec
    head: dict[str, Any] = {"format": FORMAT, "name": spec.name, "type": int(spec.type)}
    head |= {name: getattr(spec, name) for name in (*_NUMBERS, "extra")}
    head |= {"complete": contents.complete, "frozen": contents.frozen}
    head["counters"] = dict(contents.counters)
    if spec.btf is not None:
        wanted = (spec.key_type, spec.value_type)
        head["types"], (head["key_type"], head["value_type"]) = dump_types(spec.btf, wanted)
    head["copies"], parts = [], []
    for copy in contents.copies:
        slots = len(next(iter(copy.values()), ()))
        head["copies"].append([len(copy), slots])
        for key, values in copy.items():
            parts += [key, *values]
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def unpack(data: bytes, where: str) -> Contents:
    """The inverse of ``pack``; InputError that names ``where`` if it is something else."""
    size = int.from_bytes(data[:4], "little")
    try:
        if not 0 < size <= min(len(data), _HEAD_LIMIT):
            raise ValueError("its head is cut short")
        head = json.loads(data[4 : 4 + size])
        if head["format"] != FORMAT:
            raise ValueError(f"it has format {head['format']}, this is format {FORMAT}")
        spec = _spec(head)
        copies = tuple(dict(rows) for rows in _copies(head, spec, data[4 + size :]))
        counters = {str(name): int(value) for name, value in head["counters"].items()}
        return Contents(spec, copies, counters, bool(head["complete"]), bool(head["frozen"]))
    except RecursionError:
        raise InputError("is no map of egpu: it nests too deep", where=where) from None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        InputError,
    ) as error:
        raise InputError(f"is no map of egpu: {error}", where=where) from error


def _spec(head: Mapping[str, Any]) -> MapSpec:
    key_size, value_size, entries, flags = (int(head[name]) for name in _NUMBERS)
    kind = MapType(head["type"])
    if min(key_size, value_size, entries) < 0:
        raise ValueError("its sizes are negative")
    extra = int(head["extra"])
    spec = MapSpec(str(head["name"]), kind, key_size, value_size, entries, flags, extra=extra)
    if "types" not in head:
        return spec
    key, value = int(head["key_type"]), int(head["value_type"])
    btf = load_types(head["types"])
    if not (0 <= key < len(btf.types) and 0 <= value < len(btf.types)):
        raise ValueError("its types are not there")
    for type_id, size in ((key, key_size), (value, value_size)):
        if type_id and btf.size_of(type_id) > size:
            raise ValueError(f"a type of {btf.size_of(type_id)} bytes for {size}")
    return replace(spec, btf=btf, key_type=key, value_type=value)


def _copies(
    head: Mapping[str, Any], spec: MapSpec, data: bytes
) -> Iterator[list[tuple[bytes, Values]]]:
    key_size = _NUMBER_SIZE if traits(spec.type).keyless else spec.key_size
    at, size = 0, _value_size(spec)
    for count, slots in head["copies"]:
        stride = key_size + slots * size
        if count < 0 or slots < 0 or len(data) - at < count * stride:
            raise ValueError("it is cut short")
        if count and not 0 < slots <= len(data):
            raise ValueError(f"it has {slots} values for each key")
        if traits(spec.type).storage is Storage.BLOOM and (count, slots) != (1, 1):
            raise ValueError("it has no bits, or too many")
        rows = []
        for start in range(at, at + count * stride, stride or 1):
            first = start + key_size
            values = tuple(data[first + n * size : first + (n + 1) * size] for n in range(slots))
            rows.append((data[start:first], values))
        if traits(spec.type).keyless and [key for key, _ in rows] != list(numbered([b""] * count)):
            raise ValueError("its values are not numbered in their order")
        yield rows
        at += count * stride
    if at != len(data):
        raise ValueError(f"it has {len(data) - at} bytes too many")
