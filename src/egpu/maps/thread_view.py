"""Per-thread arrays in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from egpu.bpf.maptypes import traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.access import check_read
from egpu.maps.changes import Changes, MapHost, Values
from egpu.maps.view import Copies, MapCopy, finder


class ThreadView(Changes, Mapping[int, tuple[object, ...]]):
    """A per-thread array: for each key, the value of every thread slot in the order of the threads'
    numbers (along x, then y, then z of the launch), decoded by the map's BTF type.

    Reads show the last snapshot.  A workload with several contexts has a copy in each, read from
    ``copies()``.
    """

    def __init__(self, spec: MapSpec, copies: Copies, host: MapHost | None = None) -> None:
        if not traits(spec.type).per_thread:
            raise InternalError(f"map {spec.name} ({spec.type.name}) is not per thread")
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

    def copies(self) -> tuple[ThreadView, ...]:
        """A view of each context's copy, in the order in which the contexts appeared."""
        return tuple(
            ThreadView(self._spec, (copy,), None if self._host is None else self._host.part(number))
            for number, copy in enumerate(self._copies)
        )

    def raw(self, key: int) -> bytes:
        """The values of ``key`` one after the other without padding, as bpftime's user space reads
        them: value_size bytes for each thread slot."""
        return b"".join(self._rows(key))

    def raw_entries(self) -> list[tuple[bytes, Values]]:
        """Keys and values as bytes; a value for each thread slot."""
        return [(key.to_bytes(4, "little"), tuple(self._rows(key))) for key in self]

    def lookup_batch(self, keys: Iterable[int]) -> dict[int, tuple[object, ...]]:
        """The values of ``keys``."""
        return {key: self[key] for key in keys}

    def __getitem__(self, key: int) -> tuple[object, ...]:
        btf, kind = self._spec.btf, self._spec.value_type
        rows = self._rows(key)
        if btf is None or not kind:
            return tuple(rows)
        return tuple(btf.decode(kind, row) for row in rows)

    def __len__(self) -> int:
        return self._spec.max_entries

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._spec.max_entries))

    def __repr__(self) -> str:
        return f"<ThreadView {self._spec.name} {self._spec.type.name} of {len(self)}>"

    def _rows(self, key: int) -> list[bytes]:
        check_read(self._spec)
        if not isinstance(key, int):
            raise TypeError(f"map {self._spec.name}: keys are integers, not {type(key).__name__}")
        if not 0 <= key < self._spec.max_entries:
            raise KeyError(
                f"map {self._spec.name} has the keys 0 to {self._spec.max_entries - 1}, not {key}"
            )
        if not self._copies and self._host is not None:
            return list(self._host.initial().get(key.to_bytes(4, "little"), ()))
        if len(self._copies) != 1:
            raise InputError(
                f"exists {len(self._copies)} times, once per context",
                where=f"map {self._spec.name}",
                hint="read it from copies()",
            )
        place, data = self._copies[0].place, self._copies[0].snapshot().data
        first = place.offset + key * place.stride
        return [
            data[start : start + self._spec.value_size]
            for start in range(first, first + place.stride, place.entry_stride)
        ]
