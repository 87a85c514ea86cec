"""Every map that this user can reach: pinned ones, and those of sessions that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from egpu.errors import AgentError, InputError
from egpu.session import talk
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
