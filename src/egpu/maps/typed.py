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
V_contra = TypeVar("V_contra", contravariant=True)


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


class _TypedPushes(Protocol[V_contra]):
    """What values can be pushed to."""

    def push(self, value: V_contra, flag: UpdateFlag = UpdateFlag.ANY) -> None:
        """Push a value."""

    def push_batch(self, values: Iterable[V_contra], flag: UpdateFlag = UpdateFlag.ANY) -> int:
        """Push many."""

    def freeze(self) -> None:
        """Refuse every later change from outside of programs."""

    @property
    def frozen(self) -> bool:
        """Whether it was frozen."""


class TypedQueue(_TypedPushes[V], Protocol[V]):
    """A queue or stack, whose values come in the order of popping; see ``QueueView``."""

    def pop(self) -> V:
        """The next value, which is then gone."""

    def peek(self) -> V:
        """The value that would be popped next."""

    def __getitem__(self, number: int) -> V: ...
    def __iter__(self) -> Iterator[V]: ...
    def __len__(self) -> int: ...


class TypedBloom(_TypedPushes[V_contra], Protocol[V_contra]):
    """A Bloom filter; see ``BloomView``."""

    def __contains__(self, value: object) -> bool: ...
    def fill(self) -> float:
        """The largest share of bits that are set in a context."""


class TypedFrame(Protocol):
    """One caller in a stack; see ``StackFrame``."""

    @property
    def path(self) -> str:
        """The file of its code."""

    @property
    def offset(self) -> int:
        """Where in the file it goes on after the call."""

    @property
    def function(self) -> str:
        """The function that this is in."""


class TypedStacks(Protocol):
    """The stacks from which kernels were launched, by number; see ``StackView``."""

    def __getitem__(self, number: int) -> tuple[TypedFrame, ...]: ...
    def __contains__(self, number: object) -> bool: ...
    def __iter__(self) -> Iterator[int]: ...
    def __len__(self) -> int: ...
    def items(self) -> Iterable[tuple[int, tuple[TypedFrame, ...]]]:
        """(number, frames) of every stack."""


class TypedOuter(Protocol[R_co]):
    """A map of maps: for each key that has one, a map; see ``OuterView``."""

    def names(self) -> dict[int, str]:
        """For each key that has a map, its name."""

    def __getitem__(self, key: int) -> R_co: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[int]: ...
    def __len__(self) -> int: ...
