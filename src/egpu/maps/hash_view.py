"""Hash maps in Python."""

from __future__ import annotations

import contextlib
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egpu.bpf.maptypes import traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.access import check_read
from egpu.maps.changes import Changes, MapHost, Values
from egpu.maps.layout import HASH_CONTROL, HASH_FULL, HASH_STATE, MapPlace, hash_table
from egpu.maps.memory import Snapshot
from egpu.maps.view import Copies, MapCopy, finder, sum_rows


class HashView(Changes, Mapping[Any, object]):
    """A hash map: keys and values decoded by the map's BTF types, bytes without BTF.

    Reads show the last snapshot: complete once the launches it covers have finished.  A snapshot
    that was copied while kernels ran has every 8-byte word whole, but an entry that was being
    replaced by another key's may show words of both.  Iterating, ``items()`` and ``to_dict()`` use
    one snapshot throughout; the order means nothing.

    A value of a per-SM map is the sum over all SMs, field by field; ``parts()`` has the value on
    each SM slot, and is the only way to read values whose fields are not all integers.

    A workload with several contexts has a table in each, read from ``copies()``.
    """

    def __init__(self, spec: MapSpec, copies: Copies, host: MapHost | None = None) -> None:
        if not traits(spec.type).hashed:
            raise InternalError(f"map {spec.name} ({spec.type.name}) is not a hash map")
        self._spec = spec
        self._find = finder(copies)
        self._host = host

    @property
    def _copies(self) -> tuple[MapCopy, ...]:
        return self._find()

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def copies(self) -> tuple[HashView, ...]:
        """A view of each context's table, in the order in which the contexts appeared."""
        return tuple(
            HashView(self._spec, (copy,), None if self._host is None else self._host.part(number))
            for number, copy in enumerate(self._copies)
        )

    def counter(self, name: str) -> int:
        """A counter of ``layout.HASH_CONTROL``, over all contexts.

        ``full`` counts insertions that a full map refused, ``evicted`` entries that an LRU map gave
        up, ``busy`` updates and deletions that were given up.
        """
        offset, size = HASH_CONTROL[name]
        total = 0
        for copy in self._copies:
            start = copy.place.offset + offset
            total += int.from_bytes(copy.snapshot().data[start : start + size], "little")
        return total

    def to_dict(self) -> dict[Any, object]:
        """All entries of one snapshot."""
        return {key: self._total(values) for key, values in self._read()}

    def raw_entries(self) -> list[tuple[bytes, Values]]:
        """Keys and values (one, or one for each SM slot) as bytes, of one snapshot."""
        return [
            (key, tuple(value.tobytes() for value in values)) for key, values in self._raw_read()
        ]

    def parts(self) -> dict[Any, tuple[object, ...]]:
        """All entries of one snapshot with the value on each SM slot; InputError if the map has
        one value for each key."""
        spec = self._spec
        if not traits(spec.type).per_sm:
            raise InputError("has no value per SM", where=f"map {spec.name}")
        return {
            key: tuple(self._decode(spec.value_type, value.tobytes()) for value in values)
            for key, values in self._read()
        }

    def _total(self, values: NDArray[np.uint8]) -> object:
        spec = self._spec
        data = sum_rows(spec, values) if traits(spec.type).per_sm else values[0].tobytes()
        return self._decode(spec.value_type, data)

    def _read(self) -> Iterator[tuple[Any, NDArray[np.uint8]]]:
        """Each key and its values, a row of bytes for each copy."""
        for key, values in self._raw_read():
            yield self._decode(self._spec.key_type, key), values

    def _raw_read(self) -> Iterator[tuple[bytes, NDArray[np.uint8]]]:
        check_read(self._spec)
        if not self._copies:
            yield from self._initial()
            return
        if len(self._copies) > 1:
            raise InputError(
                f"exists {len(self._copies)} times, once per context",
                where=f"map {self._spec.name}",
                hint="read it from copies()",
            )
        copy = self._copies[0]
        spec = copy.spec or self._spec  # the table depends on who deletes
        shape, shot = hash_table(spec), copy.snapshot()
        numbers, rows = _full_rows(shot, copy.place, spec)
        keys = rows[:, shape.key : shape.key + spec.key_size]
        values = rows[:, None, shape.value : shape.value + spec.value_size]
        if traits(spec.type).per_sm:
            values = _per_sm_rows(shot, copy, spec)[numbers]
        for key, own in zip(keys, values, strict=True):
            yield key.tobytes(), own

    def _initial(self) -> Iterator[tuple[bytes, NDArray[np.uint8]]]:
        """What was set for a workload that has no memory yet."""
        spec = self._spec
        for key, values in self._host.initial().items() if self._host is not None else ():
            own = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), spec.value_size)
            yield key, own

    def lookup_batch(self, keys: Iterable[Any]) -> dict[Any, object]:
        """The values of those of ``keys`` that are there, in one snapshot."""
        entries, found = self.to_dict(), {}
        for key in keys:
            with contextlib.suppress(KeyError):
                found[key] = entries[self._shown(key)]
        return found

    def __getitem__(self, key: Any) -> object:
        return self.to_dict()[self._shown(key)]

    def __len__(self) -> int:
        return sum(1 for _ in self._read())

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, _ in self._read()])

    def items(self) -> ItemsView[Any, object]:
        """(key, value) of one snapshot."""
        return self.to_dict().items()

    def values(self) -> ValuesView[object]:
        """The values of one snapshot."""
        return self.to_dict().values()

    def __repr__(self) -> str:
        spec = self._spec
        return f"<HashView {spec.name} {spec.type.name} of at most {spec.max_entries}>"

    def _decode(self, type_id: int, data: bytes) -> Any:
        btf = self._spec.btf
        return data if btf is None or not type_id else btf.decode(type_id, data)


def _full_rows(
    snapshot: Snapshot, place: MapPlace, spec: MapSpec
) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
    """The numbers of the slots that hold an entry, and a row of bytes for each."""
    shape = hash_table(spec)
    size = shape.slots * shape.stride
    slots = np.frombuffer(snapshot.data, np.uint8, size, place.offset + shape.table)
    rows = slots.reshape(shape.slots, shape.stride)
    numbers = np.flatnonzero(rows[:, 0] & HASH_STATE == HASH_FULL)
    return numbers, rows[numbers]


def _per_sm_rows(snapshot: Snapshot, copy: MapCopy, spec: MapSpec) -> NDArray[np.uint8]:
    """The values of each slot of a per-SM map: by slot, then by SM slot."""
    shape, place = hash_table(spec), copy.place
    size, first = copy.sm_slots * place.stride, place.offset + shape.values
    copies = np.frombuffer(snapshot.data, np.uint8, size, first).reshape(copy.sm_slots, -1)
    values = copies[:, : shape.slots * shape.value_stride]
    by_slot = values.reshape(copy.sm_slots, shape.slots, shape.value_stride).swapaxes(0, 1)
    return by_slot[:, :, : spec.value_size]
