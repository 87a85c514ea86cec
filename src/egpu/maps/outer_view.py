"""Maps of maps in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import NO_MAP, MapSpec
from egpu.errors import InternalError


class OuterView(Mapping[int, str]):
    """A map of maps: for each key that has a map, the name of that map among its owner's.

    ``names`` are the owner's maps by index.  What is in it is fixed where it is declared.
    """

    def __init__(self, spec: MapSpec, names: Sequence[str]) -> None:
        if traits(spec.type).storage is not Storage.MAPS:
            raise InternalError(f"map {spec.name} ({spec.type.name}) is no map of maps")
        self._spec = spec
        self._inner = {key: names[index] for key, index in enumerate(spec.inner) if index != NO_MAP}

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def __getitem__(self, key: int) -> str:
        return self._inner[key]

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[int]:
        return iter(self._inner)

    def __repr__(self) -> str:
        return f"<OuterView {self._spec.name} {self._spec.type.name} of {len(self)}>"
