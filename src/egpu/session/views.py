"""The maps of a session by name, each by the view of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.own_maps import PRINT_RING, SPECS
from egpu.bpf.program import BPF_F_WRONLY, MapSpec
from egpu.maps import (
    BloomView,
    HashView,
    Kept,
    MapCopy,
    MapHost,
    MapView,
    OuterView,
    PushHost,
    QueueView,
    ThreadView,
)
from egpu.session.arenas import Arenas
from egpu.session.pushed_maps import PushedMap
from egpu.session.ring import Ring
from egpu.session.stacks import StackView

View = Kept | OuterView | StackView | Ring


def view_of(
    spec: MapSpec, copies: Callable[[], tuple[MapCopy, ...]], host: MapHost, pusher: PushHost
) -> Kept:
    """The view of a map that is no ring."""
    if traits(spec.type).hashed:
        return HashView(spec, copies, host)
    if traits(spec.type).per_thread:
        return ThreadView(spec, copies, host)
    if traits(spec.type).storage is Storage.DEQUE:
        return QueueView(spec, copies, pusher)
    if traits(spec.type).storage is Storage.BLOOM:
        return BloomView(spec, copies, pusher)
    return MapView(spec, copies, host)


class Maps(Mapping[str, View]):
    """The maps of a session by name: ``MapView`` for arrays, ``HashView`` for hash maps,
    ``ThreadView`` for per-thread arrays, ``QueueView`` for queues and stacks, ``BloomView`` for
    Bloom filters, ``OuterView`` for maps of maps (its values are the inner maps' views),
    ``StackView`` for stack traces, ``Ring`` for ring buffers."""

    def __init__(self, arenas: Arenas) -> None:
        self._arenas = arenas
        self._specs = dict(zip(arenas.names, enumerate(arenas.maps), strict=True))
        self._rings: dict[str, Ring] = {}

    def __getitem__(self, name: str) -> View:
        if name not in self._specs:
            known = ", ".join(self._specs) or "none"
            raise KeyError(f"no map {name!r}; the session's maps are: {known}")
        index, spec = self._specs[name]
        if traits(spec.type).storage is Storage.RING:
            number = sum(
                traits(other.type).storage is Storage.RING
                for place, other in self._specs.values()
                if place < index
            )
            return self._rings.setdefault(name, Ring(self._arenas, number, spec))
        if traits(spec.type).storage is Storage.MAPS:
            return OuterView(spec, tuple(self._specs), self)
        if traits(spec.type).storage is Storage.STACKS:
            return StackView(spec, self._arenas.stacks)
        return self._plain(index, spec)

    def whole(self, name: str) -> Kept:
        """A view that shows what a map holds even if only programs may read it (BPF_F_WRONLY), for
        what is kept of pinned maps."""
        index, spec = self._specs[name]
        return self._plain(index, replace(spec, flags=spec.flags & ~BPF_F_WRONLY))

    def _plain(self, index: int, spec: MapSpec) -> Kept:
        host = PushedMap(self._arenas, index)
        return view_of(spec, partial(self._arenas.copies, index), host, host)

    def rings(self) -> tuple[Ring, ...]:
        """Every ring map."""
        found = (self[name] for name in self._specs)
        return tuple(item for item in found if isinstance(item, Ring))

    def print_ring(self) -> Ring | None:
        """The ring of bpf_printk's lines, which is no map of a program; None if nothing prints."""
        found = self[PRINT_RING] if PRINT_RING in self._specs else None
        return found if isinstance(found, Ring) else None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._specs if name not in SPECS)

    def __len__(self) -> int:
        return sum(1 for _ in self)
