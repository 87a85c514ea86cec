"""Maps of other processes: pinned ones, and those of sessions that run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from egpu.bpf.maptypes import MapType, traits
from egpu.errors import InputError
from egpu.maps import (
    Changes,
    Contents,
    Pushes,
    Values,
)
from egpu.maps.contents import decode, value_of
from egpu.maps.pushes import empty, encoded
from egpu.maps.view import variable_of
from egpu.session.pinned_host import PinnedHost


class PinnedMap(Changes, Pushes, Mapping[Any, object]):
    """A map of another process, or of a session that has ended.

    A queue or stack is a mapping from the numbers in the order of popping to values; of a Bloom
    filter only ``value in map`` says something.

    Every read is of the map as it is then: ``to_dict()`` and ``items()`` of one snapshot.  Keys and
    values are those of the session's own view, changes too.  InputError when it is gone.
    """

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._owner_host = PinnedHost(reference)
        self._host = self._owner_host
        self._pusher = self._owner_host
        self._spec = self._owner_host.shape().spec

    @property
    def reference(self) -> str:
        """What it was opened by."""
        return self._reference

    @property
    def spec(self) -> Any:
        """The map as declared."""
        return self._spec

    def contents(self) -> Contents:
        """The map as it is now, as bytes; MapError EPERM if only programs may read it."""
        return self._owner_host.contents()

    def copies(self) -> tuple[dict[Any, object], ...]:
        """The entries of each context of the workload."""
        found = self.contents()
        return tuple(found.decoded(number) for number in range(len(found.copies)))

    def to_dict(self) -> dict[Any, object]:
        """All entries now.

        InputError if the workload has several contexts, unless it is a per-SM array, which is
        summed over them.
        """
        found, spec = self.contents(), self._spec
        if len(found.copies) == 1:
            return found.decoded(0)
        if traits(spec.type).per_sm and traits(spec.type).indexed:
            together: dict[bytes, Values] = {}
            for copy in found.copies:
                for key, values in copy.items():
                    together[key] = together.get(key, ()) + values
            return {
                int.from_bytes(key, "little"): value_of(spec, values)
                for key, values in together.items()
            }
        raise InputError(
            f"exists {len(found.copies)} times, once per context",
            where=self._where(),
            hint="read it from copies()",
        )

    def parts(self, key: Any) -> tuple[object, ...]:
        """The value of ``key`` on each SM slot or thread slot; KeyError if it is not there."""
        wanted, spec = self._key(key), self._spec
        found = [copy[wanted] for copy in self.contents().copies if wanted in copy]
        if not found:
            raise KeyError(key)
        return tuple(decode(spec, spec.value_type, value) for values in found for value in values)

    def per_sm(self, key: Any) -> tuple[object, ...]:
        """The value of ``key`` on each SM slot; InputError if the map has one copy only, KeyError
        if the key is not there."""
        if not traits(self._spec.type).per_sm:
            raise InputError("has no copy per SM", where=self._where())
        return self.parts(key)

    def lookup_batch(self, keys: Iterable[Any]) -> dict[Any, object]:
        """The values of ``keys`` in one snapshot; of a hash map, of those that are there."""
        entries, hashed = self.to_dict(), traits(self._spec.type).hashed
        if not hashed:
            return {key: entries[key] for key in keys}
        found = {}
        for key in keys:
            with contextlib.suppress(KeyError):
                found[key] = entries[self._shown(key)]
        return found

    def __getitem__(self, key: Any) -> object:
        if isinstance(key, str) and traits(self._spec.type).indexed:
            variable = variable_of(self._spec, key)
            value = self.to_dict()[0]
            assert isinstance(value, tuple)
            return value[variable.position]
        return self.to_dict()[self._shown(key) if traits(self._spec.type).hashed else key]

    def __setitem__(self, key: Any, value: object) -> None:
        if isinstance(key, str) and traits(self._spec.type).indexed:
            variable = variable_of(self._spec, key)
            data = variable.encode(value, f"{self._where()}, {key}")
            self._owner_host.patch(variable.offset, data)
        else:
            self.update(key, value)

    def _key(self, key: Any) -> bytes:
        kind = self._spec.type
        if traits(kind).keyless:
            raise InputError(
                f"{kind.phrase} has no keys", where=self._where(), hint="values are pushed to it"
            )
        return super()._key(key)

    def __contains__(self, key: object) -> bool:
        if self._spec.type is MapType.BLOOM_FILTER:
            return self._owner_host.contains(encoded(self._spec, key))
        return super().__contains__(key)

    def peek(self) -> object:
        """The value that a queue or stack would give next; MapError ENOENT if there is none."""
        values = self.to_dict()
        if not values:
            raise empty(self._spec)
        return values[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def items(self) -> Any:
        """(key, value) of one snapshot."""
        return self.to_dict().items()

    def values(self) -> Any:
        """The values of one snapshot."""
        return self.to_dict().values()

    def pin(self, name: str) -> None:
        """Pin it as ``name`` too; it must be a running session's."""
        self._owner_host.pin(name)

    def unpin(self) -> None:
        """Take the pin away; what was saved is lost."""
        self._owner_host.unpin()

    def __repr__(self) -> str:
        return f"<PinnedMap {self._reference} {self._spec.type.name}>"


def open_map(reference: str) -> PinnedMap:
    """A map by the name of its pin, or "PID:MAP" for one of a running session.

    Raises InputError if there is none, or its session was killed.
    """
    return PinnedMap(reference)


def remove_pin(name: str) -> None:
    """Take a pin away, whatever became of its session; InputError if there is none."""
    PinnedHost(name).unpin()
