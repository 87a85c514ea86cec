"""Maps in Python: arrays and per-SM arrays as mappings."""

from __future__ import annotations

from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from egpu.bpf.btf import Btf, BtfKind
from egpu.bpf.btf_encode import encode_value
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.access import check_read
from egpu.maps.changes import Changes, MapHost, Values
from egpu.maps.layout import MapPlace, round_up
from egpu.maps.memory import Snapshot

_BOOL = 4  # encoding bit of a BTF INT
_PER_SM = "read the parts with per_sm(key)"


@dataclass(frozen=True, slots=True)
class MapCopy:
    """One arena's copy of a map; ``snapshot`` gives the arena's last snapshot.

    ``spec`` is the map as the arena lays it out, None if that is as it was declared.
    """

    place: MapPlace
    sm_slots: int
    snapshot: Callable[[], Snapshot]
    spec: MapSpec | None = None


# Copies that there are, or what gives those there are when it is asked.
Copies = Sequence[MapCopy] | Callable[[], tuple[MapCopy, ...]]


def finder(copies: Copies) -> Callable[[], tuple[MapCopy, ...]]:
    """What gives the copies that there are now."""
    if callable(copies):
        return copies
    fixed = tuple(copies)
    return lambda: fixed


class MapView(Changes, Mapping[int, object]):
    """An array map: keys 0 to ``max_entries - 1``, values decoded by the map's BTF type.

    A value is an int, a namedtuple, a tuple or bytes, as the type says; bytes without BTF.  Reads
    show the last snapshot: complete once the launches it covers have finished, a lower bound for
    counters before.  Iterating, ``items()`` and ``to_dict()`` use one snapshot throughout.

    A value of a per-SM map is the sum over all SMs, field by field; each field wraps at its own
    width, as the additions on the device do.  ``per_sm(key)`` gives the parts, and is the only way
    to read one whose fields are not all integers.

    A workload with several contexts has a copy of each map in each: per-SM maps are summed over all
    of them, others are read from ``copies()``.  Global variables of a section map (".bss", ".data",
    ".rodata") are also found by name: ``view["counter"]``, and set by name.

    Before a workload has memory of its own it reads as what its programs will find.  Reading a map
    declared with BPF_F_WRONLY raises MapError EPERM.
    """

    def __init__(self, spec: MapSpec, copies: Copies, host: MapHost | None = None) -> None:
        storage = traits(spec.type).storage
        if storage not in (Storage.ARRAY, Storage.PER_SM_ARRAY):
            raise InternalError(f"map {spec.name} ({spec.type.name}) is not an array")
        self._spec = spec
        self._find = finder(copies)
        self._host = host
        self._per_sm = storage is Storage.PER_SM_ARRAY

    @property
    def _copies(self) -> tuple[MapCopy, ...]:
        return self._find()

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def copies(self) -> tuple[MapView, ...]:
        """A view of each context's copy, in the order in which the contexts appeared."""
        return tuple(
            MapView(self._spec, (copy,), None if self._host is None else self._host.part(number))
            for number, copy in enumerate(self._copies)
        )

    def per_sm(self, key: int) -> tuple[object, ...]:
        """The value of ``key`` on each SM slot; InputError if the map has one copy only."""
        if not self._per_sm:
            raise InputError("has no copy per SM", where=f"map {self._spec.name}")
        values: list[object] = []
        for data, copy in self._read():
            rows, spread = self._rows(data, copy, key), copy.place.spread
            for first in range(0, len(rows), spread):
                group = rows[first : first + spread]
                values.append(
                    self._decode(group[0].tobytes() if spread == 1 else sum_rows(self._spec, group))
                )
        return tuple(values)

    def raw(self) -> tuple[bytes, ...]:
        """The bytes of each context's copy of an array, values ``round_up(value_size, 8)`` apart.

        For maps with more values than one wants to decode; InputError for a per-SM map.
        """
        if self._per_sm:
            raise InputError("has a copy per SM", where=f"map {self._spec.name}", hint=_PER_SM)
        size = self._spec.max_entries
        return tuple(
            data[copy.place.offset : copy.place.offset + size * copy.place.entry_stride]
            for data, copy in self._read()
        )

    def raw_entries(self) -> list[tuple[bytes, Values]]:
        """Keys and values as bytes, of one context in one snapshot; a value for each SM slot."""
        read = self._read()
        if not read and self._host is not None:
            every, host = range(self._spec.max_entries), self._host
            return [(key.to_bytes(4, "little"), (self._initial(host, key),)) for key in every]
        ((data, copy),) = read
        spec, place = self._spec, copy.place
        found: list[tuple[bytes, Values]] = []
        for key in range(spec.max_entries):
            start = place.offset + key * place.entry_stride
            values: Values = (data[start : start + spec.value_size],)
            if self._per_sm:
                rows = self._rows(data, copy, key)
                groups = [rows[n : n + place.spread] for n in range(0, len(rows), place.spread)]
                values = tuple(
                    group[0].tobytes() if place.spread == 1 else sum_rows(spec, group)
                    for group in groups
                )
            found.append((key.to_bytes(4, "little"), values))
        return found

    def to_dict(self) -> dict[int, object]:
        """All entries of one snapshot."""
        read = self._read()
        return {key: self._value(read, key) for key in range(self._spec.max_entries)}

    def nonzero_keys(self) -> list[int]:
        """The keys whose values are not all zeros in some copy, in their order; much sooner found
        than by decoding every value."""
        spec, found = self._spec, np.zeros(self._spec.max_entries, np.bool_)
        read = self._read()
        if not read and self._host is not None:
            return self._initial_keys(self._host)
        for data, copy in read:
            place = copy.place
            each = place.stride if self._per_sm else len(found) * place.entry_stride
            copies = copy.sm_slots * place.spread if self._per_sm else 1
            for start in range(place.offset, place.offset + copies * each, each):
                whole = np.frombuffer(data, np.uint8, len(found) * place.entry_stride, start)
                rows = whole.reshape(len(found), place.entry_stride)
                found |= rows[:, : spec.value_size].any(axis=1)
        return [int(key) for key in np.flatnonzero(found)]

    def lookup_batch(self, keys: Iterable[int]) -> dict[int, object]:
        """The values of ``keys`` in one snapshot."""
        read = self._read()
        return {key: self._value(read, key) for key in keys}

    def __getitem__(self, key: int | str) -> object:
        if isinstance(key, str):
            return self._variable(key)
        return self._value(self._read(), key)

    def __setitem__(self, key: int | str, value: object) -> None:
        if not isinstance(key, str):
            self.update(key, value)
            return
        variable = variable_of(self._spec, key)
        data = variable.encode(value, f"{self._where()}, {key}")
        self._owner().patch(variable.offset, data)

    def __len__(self) -> int:
        return self._spec.max_entries

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._spec.max_entries))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int) and 0 <= key < self._spec.max_entries

    def items(self) -> ItemsView[int, object]:
        """(key, value) of one snapshot, in key order."""
        return self.to_dict().items()

    def values(self) -> ValuesView[object]:
        """The values of one snapshot, in key order."""
        return self.to_dict().values()

    def __repr__(self) -> str:
        return f"<MapView {self._spec.name} {self._spec.type.name} of {len(self)}>"

    def _read(self) -> list[tuple[bytes, MapCopy]]:
        check_read(self._spec)
        return [(copy.snapshot().data, copy) for copy in self._copies]

    def _value(self, read: list[tuple[bytes, MapCopy]], key: int) -> object:
        if self._per_sm:
            if not read and self._host is not None:
                self._check_key(key)
                return self._decode(self._initial(self._host, key))
            rows = [self._rows(data, copy, key) for data, copy in read]
            return self._decode(
                sum_rows(self._spec, np.concatenate(rows) if rows else self._no_rows())
            )
        self._check_key(key)
        if not read and self._host is not None:
            return self._decode(self._initial(self._host, key))
        if len(read) != 1:
            raise InputError(
                f"exists {len(read)} times, once per context",
                where=f"map {self._spec.name}",
                hint="read it from copies()",
            )
        data, copy = read[0]
        start = copy.place.offset + key * copy.place.entry_stride
        return self._decode(data[start : start + self._spec.value_size])

    def _rows(self, data: bytes, copy: MapCopy, key: int) -> NDArray[np.uint8]:
        """The bytes of ``key``'s value in every copy, a row each."""
        self._check_key(key)
        place, copies = copy.place, copy.sm_slots * copy.place.spread
        whole = np.frombuffer(data, np.uint8, copies * place.stride, place.offset)
        first = key * place.entry_stride
        return whole.reshape(copies, -1)[:, first : first + self._spec.value_size]

    def _no_rows(self) -> NDArray[np.uint8]:
        return np.zeros((0, self._spec.value_size), np.uint8)

    def _check_key(self, key: int) -> None:
        if not isinstance(key, int):
            raise TypeError(f"map {self._spec.name}: keys are integers, not {type(key).__name__}")
        if not 0 <= key < self._spec.max_entries:
            raise KeyError(
                f"map {self._spec.name} has the keys 0 to {self._spec.max_entries - 1}, not {key}"
            )

    def _decode(self, data: bytes) -> object:
        btf = self._spec.btf
        if btf is None or not self._spec.value_type:
            return data
        return btf.decode(self._spec.value_type, data)

    def _initial(self, host: MapHost, key: int) -> bytes:
        """The bytes of a value that no workload has yet."""
        found = host.initial().get(key.to_bytes(4, "little"))
        if found is not None:
            return found[0]
        whole, size = self._spec.initial or b"", self._spec.value_size
        start = key * round_up(size, 8)
        return whole[start : start + size].ljust(size, b"\0")

    def _initial_keys(self, host: MapHost) -> list[int]:
        """The keys whose values are not all zeros before any workload has the map."""
        spec, stride = self._spec, round_up(self._spec.value_size, 8)
        size, whole = spec.max_entries * stride, spec.initial or b""
        rows = np.frombuffer(whole[:size].ljust(size, b"\0"), np.uint8).reshape(-1, stride)
        found = np.zeros(spec.max_entries, np.bool_)
        found |= rows[:, : spec.value_size].any(axis=1)
        for key, values in host.initial().items():
            found[int.from_bytes(key, "little")] = any(values[0])
        return [int(key) for key in np.flatnonzero(found)]

    def _variable(self, name: str) -> object:
        variable = variable_of(self._spec, name)
        value = self[0]
        assert isinstance(value, tuple)
        return value[variable.position]


@dataclass(frozen=True, slots=True)
class Variable:
    """A global variable of a section map: its place in bytes, and among the variables."""

    btf: Btf
    type: int
    offset: int
    position: int

    def encode(self, value: object, where: str) -> bytes:
        """The bytes of a value of it; InputError as ``encode_value``."""
        return encode_value(self.btf, self.type, value, where)


def variable_of(spec: MapSpec, name: str) -> Variable:
    """The variable ``name`` of a section map; KeyError if there is none, or it is another map."""
    btf = spec.btf
    row = btf.resolve(spec.value_type) if btf is not None else None
    if btf is None or row is None or row.kind is not BtfKind.DATASEC:
        raise KeyError(f"map {spec.name} holds no global variables: its keys are integers")
    names = [btf.type_at(member.type).name for member in row.members]
    if name not in names:
        raise KeyError(f"map {spec.name} has no variable {name}; it has {', '.join(names)}")
    position = names.index(name)
    member = row.members[position]
    return Variable(btf, btf.type_at(member.type).type, member.offset, position)


def sum_rows(spec: MapSpec, rows: NDArray[np.uint8]) -> bytes:
    """The sum of values of ``spec``, a row of bytes each, field by field.

    Raises InputError if a field is no integer.
    """
    where = f"map {spec.name}"
    btf = spec.btf
    if btf is None or not spec.value_type:
        raise InputError("values without BTF cannot be summed", where=where, hint=_PER_SM)
    total = bytearray(spec.value_size)
    for offset, size in _integers(btf, spec.value_type, 0, where):
        column = np.ascontiguousarray(rows[:, offset : offset + size])
        if size <= 8:
            number = int(column.view(f"<u{size}").sum(dtype=np.uint64))
        else:
            number = sum(int.from_bytes(row.tobytes(), "little") for row in column)
        wrapped = number & ((1 << 8 * size) - 1)
        total[offset : offset + size] = wrapped.to_bytes(size, "little")
    return bytes(total)


def summable(spec: MapSpec) -> bool:
    """Whether the values of a map consist of integers only, so that copies can be added up."""
    if spec.btf is None or not spec.value_type:
        return False
    try:
        for _ in _integers(spec.btf, spec.value_type, 0, spec.name):
            pass
    except InputError:
        return False
    return True


def _integers(btf: Btf, type_id: int, base: int, where: str) -> Iterator[tuple[int, int]]:
    """(offset, size) of every integer in a type; InputError if anything else is in it."""
    row = btf.resolve(type_id)
    match row.kind:
        case BtfKind.INT if not row.encoding & _BOOL:
            yield base, row.size
        case BtfKind.STRUCT:
            for member in row.members:
                if member.bits or member.offset % 8:
                    raise InputError(
                        f"bit-field {member.name} cannot be summed", where=where, hint=_PER_SM
                    )
                yield from _integers(btf, member.type, base + member.offset // 8, where)
        case BtfKind.ARRAY:
            size = btf.size_of(row.type)
            for index in range(row.count):
                yield from _integers(btf, row.type, base + index * size, where)
        case kind:
            raise InputError(
                f"a {kind.name} ({row.name or 'no name'}) cannot be summed",
                where=where,
                hint=_PER_SM,
            )
