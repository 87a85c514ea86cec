"""The maps of an object, which follow it into and out of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from egpu.maps import UpdateFlag, Values
from egpu.session.pushed_maps import PushedMap
from egpu.session.views import View


class ObjectMaps(Mapping[str, View]):
    """The maps of the object ``owner`` by name; ``view`` gives the view of one by its index."""

    def __init__(self, owner: str, names: Sequence[str], view: Callable[[int], View]) -> None:
        self._owner = owner
        self._index = {name: index for index, name in enumerate(names)}
        self._view = view

    def __getitem__(self, name: str) -> View:
        if name not in self._index:
            known = ", ".join(self._index) or "none"
            raise KeyError(f"no map {name!r}; the maps of {self._owner} are: {known}")
        return self._view(self._index[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


class FollowingHost:
    """The ``maps.MapHost`` and ``maps.PushHost`` of wherever the object is now."""

    def __init__(self, find: Callable[[], PushedMap]) -> None:
        self._find = find

    @property
    def frozen(self) -> bool:
        return self._find().frozen

    def freeze(self) -> None:
        self._find().freeze()

    def update(self, rows: Sequence[tuple[bytes, Values]], flag: UpdateFlag) -> list[int]:
        return self._find().update(rows, flag)

    def delete(self, keys: Sequence[bytes]) -> list[int]:
        return self._find().delete(keys)

    def patch(self, offset: int, data: bytes) -> None:
        self._find().patch(offset, data)

    def initial(self) -> Mapping[bytes, Values]:
        return self._find().initial()

    def part(self, number: int) -> PushedMap:
        return self._find().part(number)

    def push(self, values: Sequence[bytes], flag: UpdateFlag) -> list[int]:
        return self._find().push(values, flag)

    def pop(self) -> bytes | None:
        return self._find().pop()

    def pushed(self) -> Sequence[bytes]:
        return self._find().pushed()
