"""Pushing to the queues, stacks and Bloom filters of a session from outside of kernels."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from egpu.bpf.maptypes import Storage, traits
from egpu.errors import InputError, MapError
from egpu.maps import UpdateFlag
from egpu.session.host_maps import HostMap, worst


class PushedMap(HostMap):
    """One map without keys over every context, or over one; a ``maps.PushHost`` too."""

    def part(self, number: int) -> PushedMap:
        return PushedMap(self._arenas, self._index, self._arenas.all()[number])

    def push(self, values: Sequence[bytes], flag: UpdateFlag) -> list[int]:
        with self._arenas.changing:
            targets = self._targets()
            initial, index = self._arenas.initial, self._index
            if targets is None:
                return [initial.push(index, value, flag) for value in values]
            operations = [self._arenas.operators.push(index, value, flag) for value in values]
            filters = traits(self._spec.type).storage is Storage.BLOOM
            # One after the other: threads that push together do so in no order.
            parts = [operations] if filters else [[each] for each in operations]
            results = worst(
                [
                    [error for part in parts for error in self._operate(arena, part)]
                    for _, arena in targets
                ],
                len(values),
            )
            if filters and self._only is None:
                for value, error in zip(values, results, strict=True):
                    if not error:
                        initial.push(index, value, UpdateFlag.ANY)
            return results

    def pop(self) -> bytes | None:
        with self._arenas.changing:
            targets = self._targets()
            if targets is None:
                return self._arenas.initial.pop(self._index)
            if len(targets) > 1:
                raise InputError(
                    f"exists {len(targets)} times, once per context",
                    where=f"map {self._spec.name}",
                    hint="pop from one of copies()",
                )
            ((_, arena),) = targets
            operation = self._arenas.operators.pop(self._index)
            result, data = arena.writer.take(self._index, self._image(arena), operation)
            if result == -errno.ENOENT:
                return None
            if result:
                raise MapError(
                    "others changed it all the time", errno=-result, where=f"map {self._spec.name}"
                )
            return self._arenas.operators.popped(self._index, data)

    def pushed(self) -> Sequence[bytes]:
        with self._arenas.changing:
            return self._arenas.initial.pushed(self._index)
