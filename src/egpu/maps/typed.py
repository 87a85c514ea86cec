"""Types of maps for type checkers: what modules that ``egpu gen`` writes say of their maps.

They are protocols that the views fulfil, with the types of keys and values; nothing is made of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from egpu.maps.changes import UpdateFlag

K = TypeVar("K")
V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)


class TypedMap(Protocol[K, V]):
    """A map with keys K and values V; see ``MapView`` and ``HashView``."""

    def __getitem__(self, key: K) -> V: ...
    def __setitem__(self, key: K, value: V) -> None: ...
    def __delitem__(self, key: K) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[K]: ...
    def __len__(self) -> int: ...
    def to_dict(self) -> dict[K, V]:
        """All entries of one snapshot."""

    def lookup_batch(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those of ``keys`` that are there, in one snapshot."""

    def update(self, key: K, value: V, flag: UpdateFlag = UpdateFlag.ANY) -> None:
        """Set the value of a key."""

    def update_batch(
        self, entries: Mapping[K, V] | Iterable[tuple[K, V]], flag: UpdateFlag = UpdateFlag.ANY
    ) -> int:
        """Set many."""

    def delete(self, key: K) -> None:
        """Delete a key."""

    def delete_batch(self, keys: Iterable[K]) -> int:
        """Delete many."""

    def freeze(self) -> None:
        """Refuse every later change from outside of programs."""

    @property
    def frozen(self) -> bool:
        """Whether it was frozen."""


class TypedPerSmArray(TypedMap[int, V], Protocol[V]):
    """A per-SM array: values are summed over SMs."""

    def per_sm(self, key: int) -> tuple[V, ...]:
        """The value on each SM slot."""

    def update_per_sm(self, key: int, values: Sequence[V]) -> None:
        """Set the value of each SM slot."""


class TypedPerSmHash(TypedMap[K, V], Protocol[K, V]):
    """A per-SM hash map: values are summed over SMs."""

    def parts(self) -> dict[K, tuple[V, ...]]:
        """All entries with the value on each SM slot."""


class TypedRing(Protocol[R_co]):
    """A ring buffer; iterating gives the records that are there now."""

    def __iter__(self) -> Iterator[R_co]: ...
