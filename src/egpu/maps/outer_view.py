"""Maps of maps in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import NO_MAP, MapSpec
from egpu.errors import InternalError


class OuterView(Mapping[int, Any]):
    """A map of maps: for each key that has a map, the view of that map.

    ``names`` are its owner's maps by index, ``views`` the owner's views by name.  Which maps are in
    it is fixed where it is declared.
    """

    def __init__(self, spec: MapSpec, names: Sequence[str], views: Mapping[str, Any]) -> None:
        if traits(spec.type).storage is not Storage.MAPS:
            raise InternalError(f"map {spec.name} ({spec.type.name}) is no map of maps")
        self._spec = spec
        self._views = views
        self._inner = {key: names[index] for key, index in enumerate(spec.inner) if index != NO_MAP}

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def names(self) -> dict[int, str]:
        """For each key that has a map, that map's name among its owner's."""
        return dict(self._inner)

    def __getitem__(self, key: int) -> Any:
        return self._views[self._inner[key]]

    def __contains__(self, key: object) -> bool:
        return key in self._inner

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[int]:
        return iter(self._inner)

    def __repr__(self) -> str:
        return f"<OuterView {self._spec.name} {self._spec.type.name} of {len(self)}>"
