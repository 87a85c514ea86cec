"""Reading hash maps from Python."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.layout import HASH_CONTROL, HASH_FULL, HASH_STATE, MapPlace, hash_table
from egpu.maps.memory import Snapshot
from egpu.maps.view import MapCopy


class HashView(Mapping[Any, object]):
    """A hash map: keys and values decoded by the map's BTF types, bytes without BTF.

    Reads show the last snapshot: complete once the launches it covers have finished.  A snapshot
    that was copied while kernels ran has every 8-byte word whole, but an entry that was being
    replaced by another key's may show words of both.  Iterating, ``items()`` and ``to_dict()`` use
    one snapshot throughout; the order means nothing.

    A workload with several contexts has a table in each, read from ``copies()``.
    """

    def __init__(self, spec: MapSpec, copies: Sequence[MapCopy]) -> None:
        if traits(spec.type).storage is not Storage.HASH:
            raise InternalError(f"map {spec.name} ({spec.type.name}) is not a hash map")
        self._spec = spec
        self._copies = tuple(copies)

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def copies(self) -> tuple[HashView, ...]:
        """A view of each context's table, in the order in which the contexts appeared."""
        return tuple(HashView(self._spec, (copy,)) for copy in self._copies)

    def counter(self, name: str) -> int:
        """A counter of ``layout.HASH_CONTROL``, over all contexts: ``full`` counts insertions that
        a full map refused, ``busy`` updates and deletions that were given up."""
        offset, size = HASH_CONTROL[name]
        total = 0
        for copy in self._copies:
            start = copy.place.offset + offset
            total += int.from_bytes(copy.snapshot().data[start : start + size], "little")
        return total

    def to_dict(self) -> dict[Any, object]:
        """All entries of one snapshot."""
        if not self._copies:
            return {}
        if len(self._copies) > 1:
            raise InputError(
                f"exists {len(self._copies)} times, once per context",
                where=f"map {self._spec.name}",
                hint="read it from copies()",
            )
        copy = self._copies[0]
        spec, shape = self._spec, hash_table(self._spec)
        rows = _full_rows(copy.snapshot(), copy.place, spec)
        keys = rows[:, shape.key : shape.key + spec.key_size]
        values = rows[:, shape.value : shape.value + spec.value_size]
        return {
            self._decode(spec.key_type, key.tobytes()): self._decode(
                spec.value_type, value.tobytes()
            )
            for key, value in zip(keys, values, strict=True)
        }

    def __getitem__(self, key: Any) -> object:
        return self.to_dict()[key]

    def __len__(self) -> int:
        return len(self.to_dict())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_dict())

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


def _full_rows(snapshot: Snapshot, place: MapPlace, spec: MapSpec) -> NDArray[np.uint8]:
    """The slots that hold an entry, a row of bytes each."""
    shape = hash_table(spec)
    size = shape.slots * shape.stride
    slots = np.frombuffer(snapshot.data, np.uint8, size, place.offset + shape.table)
    rows = slots.reshape(shape.slots, shape.stride)
    full: NDArray[np.bool_] = rows[:, 0] & HASH_STATE == HASH_FULL
    found: NDArray[np.uint8] = rows[full]
    return found
