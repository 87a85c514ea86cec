"""A map as the loader program sees it: bytes in, bytes out, Linux's error numbers.

Before the session there is what the loader wrote itself; then the session's view of the map.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from egpu.bpf.maptypes import traits
from egpu.bpf.program import BPF_F_RDONLY_PROG, MapSpec
from egpu.errors import MapError
from egpu.maps import (
    Changes,
    HashView,
    MapView,
    ThreadView,
    UpdateFlag,
    check_read,
    check_write,
)

if TYPE_CHECKING:
    from egpu.loader.linux import LinuxArray
    from egpu.maps import BloomView, OuterView, QueueView
    from egpu.session import Ring
    from egpu.session.stacks import StackView

    View: TypeAlias = (
        MapView | HashView | ThreadView | QueueView | BloomView | OuterView | StackView | Ring
    )

_ANY, _NOEXIST, _EXIST = range(3)  # Linux uapi, BPF_ANY and its like
_PADDING = bytes(8)


def possible_cpus() -> int:
    """How many values libbpf's ``libbpf_num_possible_cpus`` makes a per-CPU map's user expect."""
    with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
        last = file.read().strip().rpartition(",")[2].rpartition("-")[2]
    return int(last) + 1


@dataclass(slots=True)
class LoaderMap:
    """One map of a loader.  ``staged`` is what was written before a session has it."""

    number: int
    spec: MapSpec
    threads: int
    frozen: bool = False
    staged: dict[bytes, bytes] = field(default_factory=dict)
    shown: Callable[[], View] | None = None  # the session's, which has new copies as they appear
    linux: LinuxArray | None = None  # the copy of programs that Linux runs
    pending: list[bytes] = field(default_factory=list)  # records that did not fit an answer
    keys: list[bytes] = field(default_factory=list)  # the order that NEXT_KEY goes through
    _places: dict[bytes, int] = field(default_factory=dict)
    _kept: dict[bytes, bytes] | None = None  # entries of the last snapshot

    @property
    def view(self) -> View | None:
        """The session's view of the map as it is now, None before there is a session."""
        return None if self.shown is None else self.shown()

    @property
    def user_size(self) -> int:
        """Bytes of a value as user space sees it: one for each thread slot of a per-thread map, one
        for each CPU of a per-SM map."""
        kind = traits(self.spec.type)
        if not kind.has_values:
            return 0
        if kind.per_thread:
            return self.spec.value_size * self.threads
        if kind.per_sm:
            return -(-self.spec.value_size // 8) * 8 * possible_cpus()
        return self.spec.value_size

    @property
    def known(self) -> MapSpec:
        """The map as a session begins with it: with its contents if it is an array, which are known
        to the verifier if programs cannot change them (.rodata)."""
        if not self.staged or not self._plain:
            return self.spec
        constant = bool(self.spec.flags & BPF_F_RDONLY_PROG) and self.frozen
        stride = -(-self.spec.value_size // 8) * 8
        data = bytearray(stride * (1 + max(map(_index, self.staged))))
        for key, value in self.staged.items():
            data[_index(key) * stride : _index(key) * stride + len(value)] = value
        return replace(self.spec, read_only=constant, initial=bytes(data))

    def fill(self, view: View) -> None:
        """Give a session that is about to begin what was written, where ``known`` has it not;
        MapError if it cannot be."""
        if isinstance(view, Changes) and not self._plain:
            for key, value in self.staged.items():
                view.update(*self._changed(key, value))

    @property
    def _plain(self) -> bool:
        kind = traits(self.spec.type)
        return kind.indexed and not kind.per_sm and not kind.per_thread

    def lookup(self, key: bytes) -> bytes:
        """The value of ``key``; OSError ENOENT if there is none."""
        self._readable()
        if not traits(self.spec.type).has_values:
            raise OSError(errno.EOPNOTSUPP, f"map {self.spec.name} has records, no values")
        if traits(self.spec.type).indexed:
            found = self._element(self._checked(key, errno.ENOENT))
            return found if self.linux is None else self.linux.merged(key, found)
        value = self._entries().get(key)
        if value is None:
            raise OSError(errno.ENOENT, "no such key")
        return value

    def next_key(self, key: bytes) -> bytes:
        """The key after ``key`` (empty: the first); ENOENT after the last.  A key that is not there
        (any more) is followed by the first, as on Linux."""
        self._readable()
        if not traits(self.spec.type).has_values:
            raise OSError(errno.EOPNOTSUPP, f"map {self.spec.name} has records, no keys")
        if traits(self.spec.type).indexed:
            index = _index(key) + 1 if key and _index(key) < self.spec.max_entries else 0
            if index >= self.spec.max_entries:
                raise OSError(errno.ENOENT, "no further key")
            return index.to_bytes(4, "little")
        if key not in self._places:
            self.keys = sorted(self._entries())
            self._places = {each: place for place, each in enumerate(self.keys)}
        place = self._places.get(key, -1) + 1
        if place >= len(self.keys):
            raise OSError(errno.ENOENT, "no further key")
        return self.keys[place]

    def update(self, key: bytes, value: bytes, flag: int) -> None:
        """Set a value; OSError as Linux has it."""
        self._writable()
        if flag not in (_ANY, _NOEXIST, _EXIST):
            raise OSError(errno.EINVAL, f"unknown flags {flag}")
        if not traits(self.spec.type).has_values:
            raise OSError(errno.EOPNOTSUPP, f"map {self.spec.name} takes no values")
        if traits(self.spec.type).indexed:
            self._checked(key, errno.E2BIG)
            if flag == _NOEXIST:
                raise OSError(errno.EEXIST, "elements of arrays are always there")
        view = self.view
        if isinstance(view, Changes):
            with _linux_errors():
                view.update(*self._changed(key, value), UpdateFlag(flag))
            self.forget()
        else:
            self._stage(key, value, flag)
        if self.linux is not None:
            self.linux.update(key, value)

    def take(self, key: bytes) -> bytes:
        """The value of ``key``, which is then deleted."""
        self._writable()
        value = self.lookup(key)
        self.delete(key)
        return value

    def freeze(self) -> None:
        """Refuse every later change by the loader; EPERM the second time."""
        self._writable()
        self.frozen = True

    def delete(self, key: bytes) -> None:
        """Delete a key; EINVAL for an array."""
        self._writable()
        if traits(self.spec.type).indexed or not traits(self.spec.type).has_values:
            raise OSError(errno.EINVAL, "elements of arrays cannot be deleted")
        view = self.view
        if isinstance(view, Changes):
            with _linux_errors():
                view.delete(key)
            self.forget()
        elif self.staged.pop(key, None) is None:
            raise OSError(errno.ENOENT, "no such key")

    def records(self, most: int) -> bytes:
        """Records that are there, oldest first of each SM: a u64 size, then bytes padded to 8."""
        from egpu.session import Ring  # noqa: PLC0415

        view = self.view
        if isinstance(view, Ring):
            self.pending += [_bytes(record) for record in view]
        rows, size = [], 0
        while self.pending and size < most:
            record = self.pending.pop(0)
            rows += [len(record).to_bytes(8, "little"), record, _PADDING[: -len(record) % 8]]
            size += 16 + len(record)
        return b"".join(rows)

    def finish(self) -> None:
        """The workload has ended: the last records are there."""
        from egpu.session import Ring  # noqa: PLC0415

        view = self.view
        if isinstance(view, Ring):
            self.pending += [_bytes(record) for record in view.finish()]

    def _readable(self) -> None:
        with _linux_errors():
            check_read(self.spec)

    def _writable(self) -> None:
        with _linux_errors():
            check_write(self.spec)
        if self.frozen:
            raise OSError(errno.EPERM, f"map {self.spec.name} is frozen")

    def _changed(self, key: bytes, value: bytes) -> tuple[int | bytes, bytes | tuple[bytes, ...]]:
        """Key and value as views take them.  Of a per-SM map that is the total."""
        kind, size = traits(self.spec.type), self.spec.value_size
        name: int | bytes = _index(key) if kind.indexed else key
        if kind.per_thread:
            return name, tuple(value[at : at + size] for at in range(0, len(value), size))
        if kind.per_sm:
            rows = np.frombuffer(value, np.uint64).reshape(possible_cpus(), -1)
            return name, rows.sum(axis=0, dtype=np.uint64).tobytes()[:size]
        return name, value

    def _checked(self, key: bytes, number: int) -> int:
        index = _index(key)
        if index >= self.spec.max_entries:
            raise OSError(number, f"map {self.spec.name} has {self.spec.max_entries} elements")
        return index

    def _stage(self, key: bytes, value: bytes, flag: int) -> None:
        if not traits(self.spec.type).indexed:
            if flag == _NOEXIST and key in self.staged:
                raise OSError(errno.EEXIST, "the key is there already")
            if flag == _EXIST and key not in self.staged:
                raise OSError(errno.ENOENT, "no such key")
            if key not in self.staged and len(self.staged) >= self.spec.max_entries:
                raise OSError(errno.E2BIG, f"map {self.spec.name} is full")
        self.staged[key] = value

    def _element(self, index: int) -> bytes:
        """An element of the last context's array; what was written before there is one."""
        empty = self.staged.get(index.to_bytes(4, "little"), bytes(self.user_size))
        match self.view:
            case MapView() as view if traits(self.spec.type).per_sm:
                return self._by_cpu(view.per_sm(index)) if view.copies() else empty
            case MapView() as view:
                return _bytes(view.copies()[-1][index]) if view.copies() else empty
            case ThreadView() as view:
                return view.copies()[-1].raw(index) if view.copies() else empty
        return empty

    def forget(self) -> None:
        """There is a new snapshot."""
        self._kept = None

    def _entries(self) -> dict[bytes, bytes]:
        if self._kept is None or self.shown is None:
            self._kept = self._read_entries()
        return self._kept

    def _read_entries(self) -> dict[bytes, bytes]:
        view = self.view
        if not isinstance(view, HashView) or not view.copies():
            return self.staged
        last = view.copies()[-1]
        if traits(self.spec.type).per_sm:
            return {key: self._by_cpu(values) for key, values in last.parts().items()}
        return {key: _bytes(value) for key, value in last.to_dict().items()}

    def _by_cpu(self, values: Sequence[object]) -> bytes:
        """A value for each CPU.  There are more SMs than CPUs: the 8-byte words of those that share
        a place are added up, so that the total is right."""
        cpus, width = possible_cpus(), -(-self.spec.value_size // 8) * 8
        total = np.zeros((cpus, width // 8), np.uint64)
        for place, value in enumerate(values):
            total[place % cpus] += np.frombuffer(_bytes(value).ljust(width, b"\0"), np.uint64)
        return total.tobytes()


@contextmanager
def _linux_errors() -> Iterator[None]:
    try:
        yield
    except MapError as error:
        raise OSError(error.errno, str(error)) from error


def _bytes(value: object) -> bytes:
    """The maps of a loader have no BTF, so that every view gives bytes."""
    if not isinstance(value, bytes):
        raise TypeError(f"a map of a loader gave {type(value).__name__}, not bytes")
    return value


def _index(key: bytes) -> int:
    return int.from_bytes(key[:4], "little")
