"""The session's end of ``egpu map``: shows its maps to the user's other processes, and changes
them when they ask."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egpu.errors import EgpuError, InputError
from egpu.maps import (
    BloomView,
    Changes,
    Contents,
    HashView,
    Kept,
    MapView,
    Pushes,
    QueueView,
    ThreadView,
    UpdateFlag,
    Values,
    check_read,
    contents_of,
    pack,
)
from egpu.session import talk
from egpu.session.host_maps import HostMap
from egpu.session.pins import LivePin, Pins, check_name, runtime_directory
from egpu.session.pushed_maps import PushedMap

if TYPE_CHECKING:
    from egpu.session.session import Session

_numbers = itertools.count()


class MapService:
    """Answers at a socket of its own until it is closed; pins are then given the maps' contents.

    Raises InputError if there is no place for the socket.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pins: dict[str, str] = {}  # by the name of the pin: the map
        self._replaced: dict[str, LivePin | Contents | None] = {}  # until the workload has started
        self._started = False
        self._lock = threading.Lock()
        self._closing = False
        folder = runtime_directory() / "sessions"
        talk.remove_stale(folder)
        self._listener = talk.Listener(folder / f"{os.getpid()}-{next(_numbers)}", self._do)

    @property
    def path(self) -> Path:
        """Its socket."""
        return self._listener.path

    def pin(self, map_name: str, name: str) -> None:
        """Pin a map; InputError if a running session has that pin, or this one has it for another
        map, or the map is a ring, or the session is closed."""
        self._view(map_name)
        if self._closing:
            raise InputError("its session is closed", where=f"map {map_name}")
        pins = Pins()
        with pins.locked():
            before = pins.find(check_name(name))
            if isinstance(before, LivePin) and before.socket != self.path and answers(before):
                raise InputError(
                    f"{name} is pinned by the session of process {before.pid}",
                    hint="choose another name",
                )
            own = self._pins.get(name, map_name)
            if own != map_name:
                raise InputError(
                    f"{name} is the pin of map {own} already", hint="choose another name"
                )
            pins.put(name, LivePin(self.path, map_name, os.getpid()))
            with self._lock:
                self._pins[name] = map_name
                if not self._started:
                    self._replaced.setdefault(name, before)

    def unpin(self, name: str) -> None:
        """Take a pin of this session away."""
        pins = Pins()
        with pins.locked(), self._lock:
            if name not in self._pins:
                raise InputError(f"this session has no pin {name}")
            del self._pins[name]
            pins.remove(name)

    def started(self) -> None:
        """The workload runs: what its maps hold is kept from now on."""
        with self._lock:
            self._started = True
            self._replaced.clear()

    def withdraw(self) -> None:
        """Stop answering; the pins are as they were before, unless the workload has started."""
        if self._started:  # and was interrupted right then
            self.close()
            return
        self._closing = True
        try:
            pins = Pins()
            with pins.locked(), self._lock:
                for name in self._pins:
                    before = self._replaced[name]
                    if before is None:
                        pins.remove(name)
                    else:
                        pins.put(name, before)
        finally:
            self._listener.close()

    def close(self) -> None:
        """Keep what pinned maps hold, and stop answering. May be called twice."""
        if self._closing:
            return
        self._closing = True
        try:
            self._keep()
        finally:
            self._listener.close()

    def _keep(self) -> None:
        with self._lock:
            wanted = dict(self._pins)
        if not wanted:
            return
        pins, failures = Pins(), []
        with pins.locked():
            for name, map_name in wanted.items():
                try:
                    pins.put(name, self._contents(map_name))
                except InputError as error:  # a full disk may have room for a smaller one
                    failures.append(error)
        if failures:
            raise failures[0]

    # ------------------------------------------------------------------ answering

    def _do(self, request: Mapping[str, Any], _asking: int) -> talk.Answer:
        acts: dict[str, Callable[[Mapping[str, Any]], talk.Answer]] = {
            "list": self._list,
            "read": self._read,
            "shape": self._shape,
            "update": self._update,
            "delete": self._delete,
            "patch": self._patch,
            "freeze": self._freeze,
            "push": self._push,
            "pop": self._pop,
            "contains": self._contains,
            "pin": self._pin,
            "unpin": self._unpin,
        }
        act = acts.get(str(request.get("do")))
        if act is None:
            raise InputError(f"no such request: {request.get('do')!r:.40}")
        try:
            return act(request)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"malformed request: {error!r:.100}") from error

    def _list(self, _request: Mapping[str, Any]) -> talk.Answer:
        with self._lock:
            pins = dict(self._pins)
        rows = [
            {
                "name": name,
                "type": view.spec.type.name,
                "key_size": view.spec.key_size,
                "value_size": view.spec.value_size,
                "max_entries": view.spec.max_entries,
                "frozen": isinstance(view, (Changes, Pushes)) and view.frozen,
                "pins": sorted(pin for pin, own in pins.items() if own == name),
            }
            for name, view in self._session.maps.items()
        ]
        return {"pid": os.getpid(), "workload": self._session.pid, "maps": rows}, b""

    def _read(self, request: Mapping[str, Any]) -> talk.Answer:
        name = request["map"]
        check_read(self._view(name).spec)
        return {}, pack(self._contents(name))

    def _shape(self, request: Mapping[str, Any]) -> talk.Answer:
        """The map as declared, without what it holds: that may be for programs only."""
        view = self._view(request["map"])
        return {}, pack(Contents(view.spec, (), {}, frozen=view.frozen))

    def _update(self, request: Mapping[str, Any]) -> talk.Answer:
        rows: list[tuple[bytes, Values]] = [
            (bytes.fromhex(key), tuple(bytes.fromhex(value) for value in values))
            for key, values in request["rows"]
        ]
        host, spec = self._host(request["map"]), self._keyed(request["map"]).spec
        for key, values in rows:
            if len(key) != spec.key_size or any(len(each) != spec.value_size for each in values):
                raise InputError("a key or value of another size", where=f"map {spec.name}")
        return {"results": host.update(rows, UpdateFlag(request["flag"]))}, b""

    def _delete(self, request: Mapping[str, Any]) -> talk.Answer:
        keys = [bytes.fromhex(key) for key in request["keys"]]
        spec = self._keyed(request["map"]).spec
        if any(len(key) != spec.key_size for key in keys):
            raise InputError("a key of another size", where=f"map {spec.name}")
        return {"results": self._host(request["map"]).delete(keys)}, b""

    def _patch(self, request: Mapping[str, Any]) -> talk.Answer:
        offset, data = int(request["offset"]), bytes.fromhex(request["data"])
        spec = self._keyed(request["map"]).spec
        if not 0 <= offset <= offset + len(data) <= spec.value_size or spec.max_entries != 1:
            raise InputError("a part that lies outside", where=f"map {spec.name}")
        self._host(request["map"]).patch(offset, data)
        return {}, b""

    def _freeze(self, request: Mapping[str, Any]) -> talk.Answer:
        self._host(request["map"]).freeze()
        return {}, b""

    def _push(self, request: Mapping[str, Any]) -> talk.Answer:
        values = [bytes.fromhex(value) for value in request["values"]]
        host, view = self._pushed(request["map"])
        if any(len(value) != view.spec.value_size for value in values):
            raise InputError("a value of another size", where=f"map {view.spec.name}")
        return {"results": host.push(values, UpdateFlag(request["flag"]))}, b""

    def _pop(self, request: Mapping[str, Any]) -> talk.Answer:
        host, view = self._pushed(request["map"])
        if not isinstance(view, QueueView):
            raise InputError("nothing is popped from it", where=f"map {view.spec.name}")
        value = host.pop()
        return {"value": None if value is None else value.hex()}, b""

    def _contains(self, request: Mapping[str, Any]) -> talk.Answer:
        _, view = self._pushed(request["map"])
        self._session.snapshot()
        return {"there": bytes.fromhex(request["value"]) in view}, b""

    def _pin(self, request: Mapping[str, Any]) -> talk.Answer:
        self.pin(request["map"], request["name"])
        return {}, b""

    def _unpin(self, request: Mapping[str, Any]) -> talk.Answer:
        self.unpin(request["name"])
        return {}, b""

    def _contents(self, name: str) -> Contents:
        session = self._session
        arenas = session.arenas.all()
        complete = bool(arenas) and all(arena.host.final for arena in arenas)
        if not complete:
            session.snapshot()
        spec, view = self._view(name).spec, session.maps.whole(name)
        return replace(contents_of(view, complete=complete, frozen=view.frozen), spec=spec)

    def _pushed(self, name: str) -> tuple[PushedMap, QueueView | BloomView]:
        view = self._session.maps.get(name)
        if not isinstance(view, (QueueView, BloomView)):
            raise InputError(f"the session has no queue, stack or Bloom filter {name!r:.60}")
        return PushedMap(self._session.arenas, list(self._session.maps).index(name)), view

    def _host(self, name: str) -> HostMap:
        if isinstance(self._view(name), (QueueView, BloomView)):
            return self._pushed(name)[0]
        return HostMap(self._session.arenas, list(self._session.maps).index(name))

    def _keyed(self, name: str) -> MapView | HashView | ThreadView:
        view = self._view(name)
        if isinstance(view, (QueueView, BloomView)):
            raise InputError(f"{view.spec.type.phrase} has no keys", where=f"map {name}")
        return view

    def _view(self, name: str) -> Kept:
        maps = self._session.maps
        if name not in maps:
            raise InputError(f"the session has no map {name!r:.60}")
        view = maps[name]
        if not isinstance(view, Kept):
            raise InputError(
                f"{view.spec.type.phrase} is for its session to read", where=f"map {name}"
            )
        return view


def answers(pin: LivePin) -> bool:
    """Whether the session of a pin is still there."""
    try:
        talk.connect(pin.socket).close()
    except EgpuError:
        return False
    return True
