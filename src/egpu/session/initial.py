"""What was set from outside, for contexts whose memory is still to come."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from egpu.bpf.maptypes import MapType, Storage, bloom_bits, traits
from egpu.bpf.mixing import bloom_places
from egpu.bpf.program import MapSpec
from egpu.errors import InputError
from egpu.maps import ArenaLayout, MapPlace, UpdateFlag, Values
from egpu.maps.layout import BLOOM_CONTROL_SIZE
from egpu.session.operators import Operators


class InitialContents:
    """Of each map the keys that were set, by bytes.  Not for use by several threads at once."""

    def __init__(
        self, maps: Sequence[MapSpec], known: Sequence[dict[bytes, Values]] | None = None
    ) -> None:
        """``known`` is what they begin with, which becomes this object's own."""
        self._maps = tuple(maps)
        self._set = [{} for _ in maps] if known is None else list(known)
        self._pushed: list[deque[bytes]] = [deque() for _ in maps]
        self._bits: dict[int, bytearray] = {}  # of Bloom filters to which something was pushed

    def of(self, index: int) -> Mapping[bytes, Values]:
        """What was set in map ``index``."""
        return self._set[index]

    def update(self, index: int, key: bytes, values: Values, flag: UpdateFlag) -> int:
        """Set a key; 0 or the error number."""
        spec, known = self._maps[index], self._set[index]
        if traits(spec.type).indexed:
            error = array_error(spec, key, flag)
            if not error:
                known[key] = values
            return error
        if key in known:
            if flag is UpdateFlag.NOEXIST:
                return errno.EEXIST
        elif flag is UpdateFlag.EXIST:
            return errno.ENOENT
        elif len(known) >= spec.max_entries:
            if not traits(spec.type).evicts:
                return errno.E2BIG
            known.pop(next(iter(known)))
        known.pop(key, None)  # the last one set is the last one used
        known[key] = values
        return 0

    def delete(self, index: int, key: bytes) -> int:
        """Forget a key; 0 or the error number."""
        if traits(self._maps[index].type).indexed:
            return errno.EINVAL
        return 0 if self._set[index].pop(key, None) is not None else errno.ENOENT

    def push(self, index: int, value: bytes, flag: UpdateFlag) -> int:
        """Push to a map without keys; 0 or the error number (Linux: queue_stack_map_push_elem,
        bloom_map_push_elem)."""
        spec, known = self._maps[index], self._pushed[index]
        if traits(spec.type).storage is Storage.BLOOM:
            if flag is not UpdateFlag.ANY:
                return errno.EINVAL
            bits, each = bloom_bits(spec.max_entries, spec.extra)
            filled = self._bits.setdefault(index, bytearray(bits // 8))
            for place in bloom_places(value, bits, each):
                filled[place >> 3] |= 1 << (place & 7)
            return 0
        if flag is UpdateFlag.NOEXIST:
            return errno.EINVAL
        if len(known) >= spec.max_entries:
            if flag is not UpdateFlag.EXIST:
                return errno.E2BIG
            known.popleft()
        known.append(value)
        return 0

    def pop(self, index: int) -> bytes | None:
        """Take the next value of a queue or stack; None if there is none."""
        known = self._pushed[index]
        if not known:
            return None
        return known.pop() if self._maps[index].type is MapType.STACK else known.popleft()

    def pushed(self, index: int) -> tuple[bytes, ...]:
        """Of a queue or stack its values in the order of popping, of a Bloom filter its bits."""
        spec = self._maps[index]
        if traits(spec.type).storage is Storage.BLOOM:
            return (bytes(self._bits[index]),) if index in self._bits else ()
        found = tuple(self._pushed[index])
        return found[::-1] if spec.type is MapType.STACK else found

    def fill(self, index: int, pushed: Sequence[bytes]) -> None:
        """Have a map without keys begin with what ``pushed`` gave."""
        spec = self._maps[index]
        if traits(spec.type).storage is Storage.BLOOM:
            self._bits.update((index, bytearray(bits)) for bits in pushed)
        else:
            self._pushed[index] = deque(
                reversed(pushed) if spec.type is MapType.STACK else iter(pushed)
            )

    def give(self, index: int, other: InitialContents, place: int) -> None:
        """Push to map ``place`` of ``other`` what was pushed to map ``index``; InputError if there
        is no room, because it goes on from a pin."""
        for value in self._pushed[index]:
            if other.push(place, value, UpdateFlag.ANY):
                name = self._maps[index].name
                raise InputError(
                    "what is pinned leaves no room for what was pushed",
                    where=f"map {name}",
                    hint=f"`egpu map unpin {name}` lets it begin anew",
                )
        if index in self._bits:
            known = other._bits.setdefault(place, bytearray(len(self._bits[index])))
            both = zip(known, self._bits[index], strict=True)
            other._bits[place] = bytearray(one | two for one, two in both)

    def patch(self, index: int, offset: int, data: bytes) -> None:
        """Set a part of the only value of a section map."""
        spec, key = self._maps[index], bytes(4)
        (value,) = self._set[index].get(key, ((spec.initial or b"").ljust(spec.value_size, b"\0"),))
        self._set[index][key] = (value[:offset] + data + value[offset + len(data) :],)

    def chunks(
        self, layout: ArenaLayout, operators: Operators, *, number: int
    ) -> Iterator[tuple[int, bytes]]:
        """What the device arena of the ``number``-th context begins with: (offset, bytes)."""
        for index, (spec, place) in enumerate(zip(self._maps, layout.places, strict=True)):
            known = self._set[index]
            any_ = UpdateFlag.ANY
            if self._pushed[index]:
                pushes = [operators.push(index, value, any_) for value in self._pushed[index]]
                yield from operators.chunks(index, layout, pushes)
            if index in self._bits:
                yield place.offset + BLOOM_CONTROL_SIZE, bytes(self._bits[index])
            if known and traits(spec.type).hashed:
                rows = [operators.update(index, key, each[0], any_) for key, each in known.items()]
                yield from operators.chunks(index, layout, rows)
                continue
            for key, values in known.items():
                yield from _element(spec, place, int.from_bytes(key, "little"), values, number)


def array_error(spec: MapSpec, key: bytes, flag: UpdateFlag) -> int:
    """What an update of an array refuses: 0 or the error number (Linux: array_map_update_elem)."""
    if int.from_bytes(key, "little") >= spec.max_entries:
        return errno.E2BIG
    return errno.EEXIST if flag is UpdateFlag.NOEXIST else 0


def _element(
    spec: MapSpec, place: MapPlace, key: int, values: Values, number: int
) -> Iterator[tuple[int, bytes]]:
    match traits(spec.type).storage:
        case Storage.PER_SM_ARRAY:
            # One value is what the sum over all SMs and contexts becomes.
            if number == 0 or len(values) > 1:
                start = place.offset + key * place.entry_stride
                step = place.stride * place.spread
                for slot, value in enumerate(values):
                    yield start + slot * step, value
        case Storage.PER_THREAD_ARRAY:
            start = place.offset + key * place.stride
            for thread, value in enumerate(values):
                yield start + thread * place.entry_stride, value
        case _:
            yield place.offset + key * place.entry_stride, values[0]
