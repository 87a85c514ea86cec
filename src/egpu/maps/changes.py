"""Changing maps from Python: flags and error numbers as on Linux, keys and values by BTF.

What a view needs from its owner is a ``MapHost``, which works on bytes; a view without one can only
be read.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from egpu.bpf.btf_encode import encode_value
from egpu.bpf.maptypes import traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, MapError


class UpdateFlag(enum.IntEnum):
    """When an update takes place (Linux uapi, BPF_ANY and its like)."""

    ANY = 0
    NOEXIST = 1  # only if the key is not there
    EXIST = 2  # only if it is


Values = tuple[bytes, ...]  # one, or one for each SM slot or thread slot


class MapHost(Protocol):
    """What owns a map's memory.  Keys and values are whole, of the map's sizes."""

    @property
    def frozen(self) -> bool:
        """Whether nothing but programs may change the map any more."""

    def freeze(self) -> None:
        """Make it so, for good."""

    def update(self, rows: Sequence[tuple[bytes, Values]], flag: UpdateFlag) -> list[int]:
        """Set every value; for each row 0 or the error number."""

    def delete(self, keys: Sequence[bytes]) -> list[int]:
        """Delete every key; for each 0 or the error number."""

    def patch(self, offset: int, data: bytes) -> None:
        """Write a part of the only value of a section map."""

    def initial(self) -> Mapping[bytes, Values]:
        """What was set for a workload that has no memory yet; keys never set are missing."""

    def part(self, number: int) -> MapHost:
        """The same for one context's memory alone."""


_TEXTS = {
    errno.EPERM: "it is frozen",
    errno.ENOENT: "the key is not there",
    errno.E2BIG: "it is full",
    errno.EBUSY: "others changed it all the time",
    errno.EEXIST: "the key is there already",
    errno.EINVAL: "arrays have no deletion",
    errno.ESTALE: "the process that had it has ended",
}


class Changes:
    """The changing half of a map view.

    Updates reach every context's memory of the map, those of contexts that appear later too, and
    are there when the method returns: launches that start afterwards see them, kernels that run
    see them at some later time or, of what they have cached, not at all.  A value of more than 8
    bytes may be seen half written by a kernel that runs.
    """

    _spec: MapSpec
    _host: MapHost | None

    @property
    def frozen(self) -> bool:
        """Whether the map was frozen."""
        return self._host is not None and self._host.frozen

    def freeze(self) -> None:
        """Refuse every later change from outside of programs (``BPF_MAP_FREEZE``).

        MapError EPERM if it is frozen already.
        """
        self._owner().freeze()

    def update(self, key: Any, value: object, flag: UpdateFlag = UpdateFlag.ANY) -> None:
        """Set the value of ``key``.

        On a per-SM map the value is what the sum over all SMs becomes; on a per-thread map it is a
        sequence with a value for each thread slot.  Raises MapError with Linux's error number:
        EEXIST, ENOENT, E2BIG (no such array element, or a full map), EPERM (frozen), ESTALE (the
        process has ended); InputError for a key or value of another type or range.
        """
        self.update_batch([(key, value)], flag)

    def update_batch(
        self,
        entries: Mapping[Any, object] | Iterable[tuple[Any, object]],
        flag: UpdateFlag = UpdateFlag.ANY,
    ) -> int:
        """Set many; gives how many.

        In no order, and not as one change.  If some are refused, the others are done, and MapError
        is raised for the first of those.
        """
        pairs = list(entries.items() if isinstance(entries, Mapping) else entries)
        rows = [(self._key(key), self._values(value)) for key, value in pairs]
        if len({key for key, _ in rows}) != len(rows):
            raise InputError("a key is given twice", where=self._where())
        if flag not in tuple(UpdateFlag):
            raise MapError(f"no such flag: {flag!r:.20}", errno=errno.EINVAL, where=self._where())
        results = self._owner().update(rows, UpdateFlag(flag)) if rows else []
        self._check([key for key, _ in pairs], results)
        return len(rows)

    def update_per_sm(self, key: Any, values: Sequence[object]) -> None:
        """Set the value of each SM slot of a per-SM array."""
        if not traits(self._spec.type).per_sm or traits(self._spec.type).hashed:
            raise InputError("is no per-SM array", where=self._where())
        encoded = tuple(self._encode(value) for value in values)
        results = self._owner().update([(self._key(key), encoded)], UpdateFlag.ANY)
        self._check([key], results)

    def delete(self, key: Any) -> None:
        """Delete ``key``; MapError as for ``update``, EINVAL on an array."""
        self.delete_batch([key])

    def delete_batch(self, keys: Iterable[Any]) -> int:
        """Delete many, as ``update_batch`` sets them; gives how many."""
        wanted = list(keys)
        encoded = [self._key(key) for key in wanted]
        results = self._owner().delete(encoded) if encoded else []
        self._check(wanted, results)
        return len(wanted)

    def __setitem__(self, key: Any, value: object) -> None:
        self.update(key, value)

    def __delitem__(self, key: Any) -> None:
        try:
            self.delete(key)
        except MapError as error:
            if error.errno == errno.ENOENT:
                raise KeyError(key) from error
            raise

    def _owner(self) -> MapHost:
        if self._host is None:
            raise InputError("can only be read here", where=self._where())
        return self._host

    def _where(self) -> str:
        return f"map {self._spec.name}"

    def _key(self, key: Any) -> bytes:
        spec = self._spec
        if traits(spec.type).indexed:
            if isinstance(key, bool) or not isinstance(key, int):
                raise TypeError(f"map {spec.name}: keys are integers, not {type(key).__name__}")
            if not 0 <= key < 1 << 32:
                raise MapError(f"has no element {key}", errno=errno.E2BIG, where=self._where())
            return key.to_bytes(4, "little")
        return self._bytes(spec.key_type, spec.key_size, key, "key")

    def _shown(self, key: Any) -> Any:
        """``key`` as iterating over a hash map shows it: text filled with zeros, a mapping as a
        tuple.  KeyError if no key of the map can be that."""
        spec = self._spec
        try:
            data = self._key(key)
        except InputError:
            raise KeyError(key) from None
        return (
            data if spec.btf is None or not spec.key_type else spec.btf.decode(spec.key_type, data)
        )

    def _values(self, value: object) -> Values:
        if not traits(self._spec.type).per_thread:
            return (self._encode(value),)
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise InputError(
                "a value is a sequence with one for each thread slot", where=self._where()
            )
        return tuple(self._encode(item) for item in value)

    def _encode(self, value: object) -> bytes:
        return self._bytes(self._spec.value_type, self._spec.value_size, value, "value")

    def _bytes(self, type_id: int, size: int, value: object, what: str) -> bytes:
        where = f"{self._where()}, {what}"
        if isinstance(value, (bytes, bytearray)) and len(value) == size:
            return bytes(value)
        btf = self._spec.btf
        if btf is None or not type_id:
            raise InputError(f"has no type: give {size} bytes", where=where)
        return encode_value(btf, type_id, value, where)

    def _check(self, keys: Sequence[Any], results: Sequence[int]) -> None:
        failed = [(key, number) for key, number in zip(keys, results, strict=True) if number]
        if not failed:
            return
        key, number = failed[0]
        text = _TEXTS.get(number, errno.errorcode.get(number, str(number)))
        if number == errno.E2BIG and traits(self._spec.type).indexed:
            text = f"it has {self._spec.max_entries} elements"
        if len(keys) > 1:
            text += f"; {len(failed)} of {len(keys)} were not done"
        raise MapError(f"key {key!r:.60}: {text}", errno=number, where=self._where())
