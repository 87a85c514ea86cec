"""What was set from outside, for contexts whose memory is still to come."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence

from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import MapSpec
from egpu.maps import ArenaLayout, MapPlace, UpdateFlag, Values
from egpu.session.operators import Operators


class InitialContents:
    """Of each map the keys that were set, by bytes.  Not for use by several threads at once."""

    def __init__(
        self, maps: Sequence[MapSpec], known: Sequence[dict[bytes, Values]] | None = None
    ) -> None:
        """``known`` is what they begin with, which becomes this object's own."""
        self._maps = tuple(maps)
        self._set = [{} for _ in maps] if known is None else list(known)

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
            if not known:
                continue
            if traits(spec.type).hashed:
                yield from operators.chunks(index, layout, list(known.items()))
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
