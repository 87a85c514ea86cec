"""What is behind a pin: a session that runs and is asked, or what one left in a file."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from egpu.errors import AgentError, InputError, MapError
from egpu.maps import (
    Contents,
    UpdateFlag,
    Values,
    check_read,
    check_write,
    unpack,
)
from egpu.session import talk
from egpu.session.pins import LivePin, Pins, runtime_directory
from egpu.session.saved import deleted, patched, popped, pushed, updated

_Result = TypeVar("_Result")


class PinnedHost:
    """The ``maps.MapHost`` of a pin: its session, or what was saved."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._name = f"map {reference}"

    @property
    def frozen(self) -> bool:
        return self.shape().frozen

    def freeze(self) -> None:
        found = self._find()
        if isinstance(found, LivePin):
            self._ask(found, {"do": "freeze"})
        else:
            self._rewrite(lambda contents: (replace(contents, frozen=True), None))

    def push(self, values: Sequence[bytes], flag: UpdateFlag) -> list[int]:
        found = self._find()
        if not isinstance(found, LivePin):
            return self._rewrite(lambda contents: pushed(contents, values, flag))
        wanted = [value.hex() for value in values]
        head, _ = self._ask(found, {"do": "push", "values": wanted, "flag": int(flag)})
        return [int(number) for number in head["results"]]

    def pop(self) -> bytes | None:
        found = self._find()
        if not isinstance(found, LivePin):
            return self._rewrite(popped)
        head, _ = self._ask(found, {"do": "pop"})
        return None if head["value"] is None else bytes.fromhex(head["value"])

    def pushed(self) -> Sequence[bytes]:
        return ()

    def contains(self, value: bytes) -> bool:
        """Whether a Bloom filter has the value."""
        found = self._find()
        if not isinstance(found, LivePin):
            check_read(found.spec)
            return found.has(value)
        head, _ = self._ask(found, {"do": "contains", "value": value.hex()})
        return bool(head["there"])

    def _live(self) -> LivePin:
        found = self._find()
        if not isinstance(found, LivePin):
            raise InputError("its session has ended", where=self._name)
        return found

    def update(self, rows: Sequence[tuple[bytes, Values]], flag: UpdateFlag) -> list[int]:
        found = self._find()
        if isinstance(found, LivePin):
            wanted = [[key.hex(), [value.hex() for value in values]] for key, values in rows]
            head, _ = self._ask(found, {"do": "update", "rows": wanted, "flag": int(flag)})
            return [int(number) for number in head["results"]]
        return self._rewrite(lambda contents: updated(contents, rows, flag))

    def delete(self, keys: Sequence[bytes]) -> list[int]:
        found = self._find()
        if isinstance(found, LivePin):
            wanted = [key.hex() for key in keys]
            head, _ = self._ask(found, {"do": "delete", "keys": wanted})
            return [int(number) for number in head["results"]]
        return self._rewrite(lambda contents: deleted(contents, keys))

    def patch(self, offset: int, data: bytes) -> None:
        found = self._find()
        if isinstance(found, LivePin):
            self._ask(found, {"do": "patch", "offset": offset, "data": data.hex()})
        else:
            self._rewrite(lambda contents: (patched(contents, offset, data), None))

    def initial(self) -> Mapping[bytes, Values]:
        return {}

    def part(self, number: int) -> PinnedHost:
        raise InputError("is changed in all contexts from here", where=self._name)

    def contents(self) -> Contents:
        found = self._find()
        if not isinstance(found, LivePin):
            check_read(found.spec)
            return found
        _, data = self._ask(found, {"do": "read"})
        return unpack(data, self._name)

    def shape(self) -> Contents:
        """The map as declared, and whether it is frozen; what it holds may be missing."""
        found = self._find()
        if not isinstance(found, LivePin):
            return found
        _, data = self._ask(found, {"do": "shape"})
        return unpack(data, self._name)

    def pin(self, name: str) -> None:
        self._ask(self._live(), {"do": "pin", "name": name})

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
            raise talk.received(answer["error"])
        return answer, data

    def _rewrite(self, change: Callable[[Contents], tuple[Contents, _Result]]) -> _Result:
        pins = Pins()
        with pins.locked():
            found = pins.read(self._reference)
            if isinstance(found, LivePin):
                raise AgentError(f"{self._name} is a new session's now", hint="try again")
            if found.frozen:
                raise MapError("it is frozen", errno=errno.EPERM, where=self._name)
            check_write(found.spec)
            contents, result = change(found)
            pins.put(self._reference, contents)
            return result
