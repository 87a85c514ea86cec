"""Queues, stacks and Bloom filters in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from egpu.bpf.maptypes import MapType, Storage, bloom_bits, traits
from egpu.bpf.mixing import bloom_places
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.access import check_read
from egpu.maps.layout import (
    BLOOM_CONTROL_SIZE,
    DEQUE_CELL,
    DEQUE_CONTROL,
    DEQUE_CONTROL_SIZE,
    DEQUE_FULL,
    DEQUE_STATE,
)
from egpu.maps.pushes import Pushes, PushHost, empty, encoded
from egpu.maps.view import Copies, MapCopy, finder


class QueueView(Pushes, Sequence[object]):
    """What a queue or stack holds, in the order in which it would be popped, decoded by BTF.

    Reads show the last snapshot.  One that was copied while kernels ran may lack values that were
    being pushed or taken.  A workload with several contexts has a map in each, read from
    ``copies()``.  Before it has memory of its own a view shows what was pushed for it.
    """

    def __init__(self, spec: MapSpec, copies: Copies, host: PushHost | None = None) -> None:
        if traits(spec.type).storage is not Storage.DEQUE:
            raise InternalError(f"map {spec.name} ({spec.type.name}) is no queue or stack")
        self._spec = spec
        self._find = finder(copies)
        self._pusher = host

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def copies(self) -> tuple[QueueView, ...]:
        """A view of each context's map, in the order in which the contexts appeared."""
        host = self._pusher
        return tuple(
            QueueView(self._spec, (copy,), None if host is None else host.part(number))
            for number, copy in enumerate(self._find())
        )

    def peek(self) -> object:
        """The value that would be popped next; MapError ENOENT if there is none."""
        values = self.raw_values()
        if not values:
            raise empty(self._spec)
        return _decode(self._spec, values[0])

    def raw_values(self) -> list[bytes]:
        """The values as bytes, in the order of popping."""
        check_read(self._spec)
        copy = _only(self._spec, self._find())
        if copy is None:
            return [] if self._pusher is None else list(self._pusher.pushed())
        spec, data, stride = self._spec, copy.snapshot().data, copy.place.entry_stride
        start = copy.place.offset
        first, count = (
            int.from_bytes(data[start + at : start + at + 4], "little") for at in (0, 4)
        )
        found: list[bytes] = []
        for number in range(count):
            cell = start + DEQUE_CONTROL_SIZE + (first + number) % spec.max_entries * stride
            if data[cell] & DEQUE_STATE == DEQUE_FULL:
                found.append(data[cell + DEQUE_CELL : cell + DEQUE_CELL + spec.value_size])
        return found[::-1] if spec.type is MapType.STACK else found

    def counter(self, name: str) -> int:
        """A counter of ``layout.DEQUE_CONTROL``, over all contexts: ``full`` values that a full map
        refused, ``dropped`` those it gave up for new ones, ``busy`` operations given up."""
        offset, size = DEQUE_CONTROL[name]
        total = 0
        for copy in self._find():
            start = copy.place.offset + offset
            total += int.from_bytes(copy.snapshot().data[start : start + size], "little")
        return total

    @overload
    def __getitem__(self, number: int) -> object: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[object]: ...
    def __getitem__(self, number: int | slice) -> object:
        return self._values()[number]

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        spec = self._spec
        return f"<QueueView {spec.name} {spec.type.name} of at most {spec.max_entries}>"

    def _values(self) -> list[object]:
        return [_decode(self._spec, value) for value in self.raw_values()]


class BloomView(Pushes):
    """A Bloom filter: ``value in view`` is False for what was never pushed in any context, True for
    what was, and seldom True for something else.  A value is of the map's BTF type, or its bytes.
    """

    def __init__(self, spec: MapSpec, copies: Copies, host: PushHost | None = None) -> None:
        if traits(spec.type).storage is not Storage.BLOOM:
            raise InternalError(f"map {spec.name} ({spec.type.name}) is no Bloom filter")
        self._spec = spec
        self._find = finder(copies)
        self._pusher = host

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def copies(self) -> tuple[BloomView, ...]:
        """A view of each context's filter, in the order in which the contexts appeared."""
        host = self._pusher
        return tuple(
            BloomView(self._spec, (copy,), None if host is None else host.part(number))
            for number, copy in enumerate(self._find())
        )

    def __contains__(self, value: object) -> bool:
        spec = self._spec
        bits, each = bloom_bits(spec.max_entries, spec.extra)
        places = list(bloom_places(encoded(spec, value), bits, each))
        return any(
            all(data[place >> 3] >> (place & 7) & 1 for place in places) for data in self._bits()
        )

    def raw_bits(self) -> bytes:
        """The filter's bits, of one context."""
        size = bloom_bits(self._spec.max_entries, self._spec.extra)[0] // 8
        _only(self._spec, self._find())
        return next(iter(self._bits()), bytes(size))

    def fill(self) -> float:
        """The largest share of bits that are set in a context: near 1 the filter says yes to
        everything."""
        size = bloom_bits(self._spec.max_entries, self._spec.extra)[0]
        return max((int.from_bytes(data).bit_count() / size for data in self._bits()), default=0.0)

    def __repr__(self) -> str:
        return f"<BloomView {self._spec.name} of {self._spec.max_entries}>"

    def _bits(self) -> list[bytes]:
        check_read(self._spec)
        size = bloom_bits(self._spec.max_entries, self._spec.extra)[0] // 8
        copies = self._find()
        if not copies and self._pusher is not None:
            return list(self._pusher.pushed())
        found = []
        for copy in copies:
            start = copy.place.offset + BLOOM_CONTROL_SIZE
            found.append(copy.snapshot().data[start : start + size])
        return found


def _only(spec: MapSpec, copies: tuple[MapCopy, ...]) -> MapCopy | None:
    if len(copies) > 1:
        raise InputError(
            f"exists {len(copies)} times, once per context",
            where=f"map {spec.name}",
            hint="read it from copies()",
        )
    return copies[0] if copies else None


def _decode(spec: MapSpec, data: bytes) -> object:
    return (
        data if spec.btf is None or not spec.value_type else spec.btf.decode(spec.value_type, data)
    )
