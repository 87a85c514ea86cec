"""Pushing to queues, stacks and Bloom filters from Python, and taking values from them.

As with ``changes``, a view has an owner, here a ``PushHost``, which works on bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from egpu.bpf.btf_encode import encode_value
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, MapError
from egpu.maps.access import check_read
from egpu.maps.changes import UpdateFlag


class PushHost(Protocol):
    """What owns the memory of a queue, stack or Bloom filter.  Values are whole."""

    @property
    def frozen(self) -> bool:
        """Whether nothing but programs may change the map any more."""

    def freeze(self) -> None:
        """Make it so, for good."""

    def push(self, values: Sequence[bytes], flag: UpdateFlag) -> list[int]:
        """Push every value, in order; for each 0 or the error number."""

    def pop(self) -> bytes | None:
        """The next value, which is then gone; None if there is none."""

    def pushed(self) -> Sequence[bytes]:
        """What a workload that has no memory yet begins with: values in the order of popping, or a
        filter's bits."""

    def part(self, number: int) -> PushHost:
        """The same for one context's memory alone."""


_TEXTS = {
    errno.E2BIG: "it is full",
    errno.EBUSY: "others changed it all the time",
    errno.EINVAL: "no such flag for it",
}


def encoded(spec: MapSpec, value: object) -> bytes:
    """The bytes of a value of a keyless map: as its BTF says, or those that it is already."""
    where = f"map {spec.name}"
    if isinstance(value, (bytes, bytearray)) and len(value) == spec.value_size:
        return bytes(value)
    if spec.btf is None or not spec.value_type:
        raise InputError(f"values are {spec.value_size} bytes, {value!r:.40} is not", where=where)
    return encode_value(spec.btf, spec.value_type, value, where)


class Pushes:
    """The pushing half of a view of a queue, stack or Bloom filter.

    What is pushed before there is a context is what every context begins with.  Later, a queue's or
    stack's values go to the contexts that there are, a filter's also to those to come.  When a
    method returns it is done; launches that start afterwards see it.
    """

    _spec: MapSpec
    _pusher: PushHost | None

    def push(self, value: object, flag: UpdateFlag = UpdateFlag.ANY) -> None:
        """Push a value: ``bpf_map_push_elem``.

        With ``UpdateFlag.EXIST`` a full queue or stack gives up its oldest value.  Raises MapError
        with Linux's error number: E2BIG (full), EINVAL (flag), EPERM (frozen), ESTALE (the process
        has ended); InputError for a value of another type or range.
        """
        self.push_batch([value], flag)

    def push_batch(self, values: Iterable[object], flag: UpdateFlag = UpdateFlag.ANY) -> int:
        """Push many, in order, but not as one change; gives how many.

        If some are refused, the others are pushed, and MapError is raised for the first of those.
        """
        rows = [encoded(self._spec, value) for value in values]
        if flag not in tuple(UpdateFlag):
            raise self._refused(errno.EINVAL)
        results = self._keeper().push(rows, UpdateFlag(flag)) if rows else []
        failed = [number for number in results if number]
        if failed:
            more = f"; {len(failed)} of {len(rows)} were not pushed" if len(rows) > 1 else ""
            raise self._refused(failed[0], more)
        return len(rows)

    def pop(self) -> Any:
        """The next value, which is then gone: ``bpf_map_pop_elem``.

        MapError: ENOENT (empty), EOPNOTSUPP (a Bloom filter), EPERM, ESTALE; InputError if the
        workload has several contexts, each of which has a queue of its own (see ``copies``).
        """
        spec = self._spec
        if traits(spec.type).storage is not Storage.DEQUE:
            raise MapError(
                f"nothing is popped from {spec.type.phrase}",
                errno=errno.EOPNOTSUPP,
                where=f"map {spec.name}",
            )
        check_read(spec)  # as well as written: Linux's BPF_MAP_LOOKUP_AND_DELETE_ELEM
        value = self._keeper().pop()
        if value is None:
            raise empty(spec)
        if spec.btf is None or not spec.value_type:
            return value
        return spec.btf.decode(spec.value_type, value)

    @property
    def frozen(self) -> bool:
        """Whether the map was frozen."""
        return self._pusher is not None and self._pusher.frozen

    def freeze(self) -> None:
        """Refuse every later change from outside of programs (``BPF_MAP_FREEZE``).

        MapError EPERM if it is frozen already.
        """
        self._keeper().freeze()

    def _keeper(self) -> PushHost:
        spec = self._spec
        if not traits(spec.type).keyless:
            raise MapError(
                f"{spec.type.phrase} has keys: it is set by them",
                errno=errno.EOPNOTSUPP,
                where=f"map {spec.name}",
            )
        if self._pusher is None:
            raise InputError("can only be read here", where=f"map {spec.name}")
        return self._pusher

    def _refused(self, number: int, more: str = "") -> MapError:
        text = _TEXTS.get(number, errno.errorcode.get(number, str(number)))
        return MapError(text + more, errno=number, where=f"map {self._spec.name}")


def empty(spec: MapSpec) -> MapError:
    """What taking from an empty queue raises."""
    return MapError("it is empty", errno=errno.ENOENT, where=f"map {spec.name}")
