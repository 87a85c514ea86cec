"""Maps of other processes: pinned ones, and those of sessions that run."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from egpu.bpf.maptypes import traits
from egpu.errors import AgentError, EgpuError, InputError, MapError
from egpu.maps import Changes, Contents, UpdateFlag, Values, unpack
from egpu.maps.contents import decode, value_of
from egpu.maps.view import variable_of
from egpu.session import talk
from egpu.session.initial import InitialContents
from egpu.session.pins import LivePin, Pins, runtime_directory


@dataclass(frozen=True, slots=True)
class ListedMap:
    """A map that this user can reach.

    ``reference`` is what ``open_map`` takes.  ``state``: "live" while its session runs, "saved"
    afterwards, "stale" if the session was killed.  ``pid``: the session's process, 0 once saved.
    """

    reference: str
    name: str
    type: str
    state: str
    pid: int = 0
    key_size: int = 0
    value_size: int = 0
    max_entries: int = 0
    frozen: bool = False
    pinned: bool = False


def list_maps() -> list[ListedMap]:
    """Every pinned map, and every map of a running session of this user."""
    pins, rows = Pins(), []
    live: list[ListedMap] = []
    for path in sorted((runtime_directory() / "sessions").iterdir()):
        try:
            head, _ = talk.ask(path, {"do": "list"})
        except AgentError:
            continue  # it has ended, or was killed
        for row in head["maps"]:
            shape = {name: row[name] for name in ("key_size", "value_size", "max_entries")}
            plain = ListedMap(
                f"{head['pid']}:{row['name']}",
                row["name"],
                row["type"],
                "live",
                head["pid"],
                frozen=row["frozen"],
                **shape,
            )
            live.append(plain)
            rows += [replace(plain, reference=pin, pinned=True) for pin in row["pins"]]
    known = {row.reference for row in rows}
    for name in pins.names():
        if name not in known:
            rows.append(_saved(pins, name))
    return rows + [row for row in live if not _has_pin(row, rows)]


def _has_pin(row: ListedMap, pinned: Sequence[ListedMap]) -> bool:
    return any(each.pid == row.pid and each.name == row.name for each in pinned)


def _saved(pins: Pins, name: str) -> ListedMap:
    try:
        found = pins.read(name)
    except InputError:
        return ListedMap(name, "", "", "damaged", pinned=True)
    if isinstance(found, LivePin):
        return ListedMap(name, found.map, "", "stale", found.pid, pinned=True)
    spec = found.spec
    return ListedMap(
        name,
        spec.name,
        spec.type.name,
        "saved",
        0,
        spec.key_size,
        spec.value_size,
        spec.max_entries,
        found.frozen,
        pinned=True,
    )


class PinnedMap(Changes, Mapping[Any, object]):
    """A map of another process, or of a session that has ended.

    Every read is of the map as it is then: ``to_dict()`` and ``items()`` of one snapshot.  Keys and
    values are those of the session's own view, changes too.  InputError when it is gone.
    """

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._owner_host = _Host(reference)
        self._host = self._owner_host
        self._spec = self.contents().spec

    @property
    def reference(self) -> str:
        """What it was opened by."""
        return self._reference

    @property
    def spec(self) -> Any:
        """The map as declared."""
        return self._spec

    def contents(self) -> Contents:
        """The map as it is now, as bytes."""
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

    def __getitem__(self, key: Any) -> object:
        if isinstance(key, str) and traits(self._spec.type).indexed:
            variable = variable_of(self._spec, key)
            value = self.to_dict()[0]
            assert isinstance(value, tuple)
            return value[variable.position]
        return self.to_dict()[key]

    def __setitem__(self, key: Any, value: object) -> None:
        if isinstance(key, str) and traits(self._spec.type).indexed:
            variable = variable_of(self._spec, key)
            data = variable.encode(value, f"{self._where()}, {key}")
            self._owner_host.patch(variable.offset, data)
        else:
            self.update(key, value)

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
    _Host(name).unpin()


class _Host:
    """The ``maps.MapHost`` of a pin: its session, or what was saved."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._name = f"map {reference}"

    @property
    def frozen(self) -> bool:
        return self.contents().frozen

    def freeze(self) -> None:
        found = self._find()
        if isinstance(found, LivePin):
            self._ask(found, {"do": "freeze"})
        else:
            self._rewrite(lambda contents: (replace(contents, frozen=True), []))

    def update(self, rows: Sequence[tuple[bytes, Values]], flag: UpdateFlag) -> list[int]:
        found = self._find()
        if isinstance(found, LivePin):
            wanted = [[key.hex(), [value.hex() for value in values]] for key, values in rows]
            head, _ = self._ask(found, {"do": "update", "rows": wanted, "flag": int(flag)})
            return [int(number) for number in head["results"]]
        return self._rewrite(lambda contents: _updated(contents, rows, flag))

    def delete(self, keys: Sequence[bytes]) -> list[int]:
        found = self._find()
        if isinstance(found, LivePin):
            wanted = [key.hex() for key in keys]
            head, _ = self._ask(found, {"do": "delete", "keys": wanted})
            return [int(number) for number in head["results"]]
        return self._rewrite(lambda contents: _deleted(contents, keys))

    def patch(self, offset: int, data: bytes) -> None:
        found = self._find()
        if isinstance(found, LivePin):
            self._ask(found, {"do": "patch", "offset": offset, "data": data.hex()})
        else:
            self._rewrite(lambda contents: (_patched(contents, offset, data), []))

    def initial(self) -> Mapping[bytes, Values]:
        return {}

    def part(self, number: int) -> _Host:
        raise InputError("is changed in all contexts from here", where=self._name)

    def contents(self) -> Contents:
        found = self._find()
        if not isinstance(found, LivePin):
            return found
        _, data = self._ask(found, {"do": "read"})
        return unpack(data, self._name)

    def pin(self, name: str) -> None:
        found = self._find()
        if not isinstance(found, LivePin):
            raise InputError("its session has ended", where=self._name)
        self._ask(found, {"do": "pin", "name": name})

    def unpin(self) -> None:
        if ":" in self._reference:
            raise InputError("is no pin", where=self._name)
        pins = Pins()
        # A damaged pin, or one whose session is gone: the file is all there is.
        with contextlib.suppress(AgentError, InputError):
            found = pins.read(self._reference)
            if isinstance(found, LivePin):
                self._ask(found, {"do": "unpin", "name": self._reference})
                return
        with pins.locked():
            pins.remove(self._reference)

    def _find(self) -> LivePin | Contents:
        pid, colon, name = self._reference.partition(":")
        if not colon:
            return Pins().read(self._reference)
        for path in (runtime_directory() / "sessions").iterdir():
            if path.name.partition("-")[0] == pid:
                head, _ = talk.ask(path, {"do": "list"})
                if name in (row["name"] for row in head["maps"]):
                    return LivePin(path, name, int(pid))
        raise InputError(
            f"no session of process {pid} has a map {name!r:.60}",
            hint="`egpu map list` shows what there is",
        )

    def _ask(self, pin: LivePin, head: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        try:
            answer, data = talk.ask(pin.socket, {**head, "map": pin.map})
        except AgentError as error:
            again = None if ":" in self._reference else Pins().find(self._reference)
            if isinstance(again, Contents):
                raise AgentError(f"{self._name} was saved meanwhile", hint="try again") from error
            raise AgentError(
                f"{self._name}: its session (process {pin.pid}) is gone and has not saved it",
                hint=f"`egpu map unpin {self._reference}` removes what is left",
            ) from error
        if "error" in answer:
            raise _received(answer["error"])
        return answer, data

    def _rewrite(self, change: Any) -> list[int]:
        pins = Pins()
        with pins.locked():
            found = pins.read(self._reference)
            if isinstance(found, LivePin):
                raise AgentError(f"{self._name} is a new session's now", hint="try again")
            if found.frozen:
                raise MapError("it is frozen", errno=errno.EPERM, where=self._name)
            contents, results = change(found)
            pins.put(self._reference, contents)
            return list(results)


def _received(told: Mapping[str, Any]) -> EgpuError:
    message, hint = str(told.get("message")), str(told.get("hint", ""))
    if "errno" in told:
        return MapError(message, errno=int(told["errno"]), hint=hint)
    if told.get("kind") == "InputError":
        return InputError(message, hint=hint)
    return AgentError(message, hint=hint)


def _updated(
    contents: Contents, rows: Sequence[tuple[bytes, Values]], flag: UpdateFlag
) -> tuple[Contents, list[int]]:
    spec, kind = contents.spec, traits(contents.spec.type)
    copies, results = [], [0] * len(rows)
    for number, copy in enumerate(contents.copies):
        slots = max((len(values) for values in copy.values()), default=1)
        table = InitialContents([spec], [dict(copy)])
        for row, (key, values) in enumerate(rows):
            whole = values
            if kind.per_sm and len(values) == 1:
                zero = bytes(spec.value_size)
                first = zero if number and kind.indexed else values[0]
                whole = (first, *[zero] * (slots - 1))
            if len(whole) != slots and not (kind.hashed and not copy):
                raise InputError(f"{len(values)} values, {slots} wanted", where=f"map {spec.name}")
            results[row] = results[row] or table.update(0, key, whole, flag)
        copies.append(dict(table.of(0)))
    return replace(contents, copies=tuple(copies)), results


def _patched(contents: Contents, offset: int, data: bytes) -> Contents:
    copies = []
    for copy in contents.copies:
        table = InitialContents([contents.spec], [dict(copy)])
        table.patch(0, offset, data)
        copies.append(dict(table.of(0)))
    return replace(contents, copies=tuple(copies))


def _deleted(contents: Contents, keys: Sequence[bytes]) -> tuple[Contents, list[int]]:
    copies, results = [], [0] * len(keys)
    for copy in contents.copies:
        table = InitialContents([contents.spec], [dict(copy)])
        for row, key in enumerate(keys):
            results[row] = results[row] or table.delete(0, key)
        copies.append(dict(table.of(0)))
    return replace(contents, copies=tuple(copies)), results
