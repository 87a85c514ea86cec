"""Changing the maps of a session from outside of kernels."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from egpu.agent.channel import WriteRow
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, MapError
from egpu.maps import UpdateFlag, Values, check_write
from egpu.session.initial import array_error

if TYPE_CHECKING:
    from egpu.session.arenas import Arena, Arenas

_DELETIONS = "run it with Options(map_deletions=True)"


class HostMap:
    """One map of a session over every context, or over one (``part``); a ``maps.MapHost``.

    A change of all contexts is also made to what later ones begin with.
    """

    def __init__(self, arenas: Arenas, index: int, only: Arena | None = None) -> None:
        self._arenas = arenas
        self._index = index
        self._only = only

    @property
    def _spec(self) -> MapSpec:
        return self._arenas.maps[self._index]

    @property
    def frozen(self) -> bool:
        return self._index in self._arenas.frozen

    def freeze(self) -> None:
        check_write(self._spec)
        with self._arenas.changing:
            if self.frozen:  # as Linux: its descriptor cannot write any more
                raise MapError("it is frozen", errno=errno.EPERM, where=f"map {self._spec.name}")
            self._arenas.frozen.add(self._index)

    def part(self, number: int) -> HostMap:
        return HostMap(self._arenas, self._index, self._arenas.all()[number])

    def initial(self) -> Mapping[bytes, Values]:
        with self._arenas.changing:
            found = dict(self._arenas.initial.of(self._index))
            return self._arenas.with_additions(self._index, found)

    def update(self, rows: Sequence[tuple[bytes, Values]], flag: UpdateFlag) -> list[int]:
        with self._arenas.changing:
            targets = self._targets()
            self._refuse_sizes(rows, targets)
            if targets is None:
                initial = self._arenas.initial
                return [initial.update(self._index, key, values, flag) for key, values in rows]
            results = worst(
                [self._update(arena, number, rows, flag) for number, arena in targets], len(rows)
            )
            done = [row for row, error in zip(rows, results, strict=True) if not error]
            for key, values in done:
                self._arenas.forget_addition(self._index, key)
                if self._only is None:
                    self._arenas.initial.update(self._index, key, values, UpdateFlag.ANY)
            return results

    def give(self, rows: Sequence[tuple[bytes, Values]], gone: Sequence[bytes]) -> None:
        """Set and delete what a program of the host has, whatever others may do; it is on the
        device then."""
        arenas, index = self._arenas, self._index
        with arenas.changing:
            for number, arena in enumerate(arenas.all()):
                if arena.writer.gone:
                    continue
                if rows:
                    self._update(arena, number, rows, UpdateFlag.ANY)
                if gone:
                    self._operate(arena, [arenas.operators.delete(index, key) for key in gone])
            for key, values in rows:
                arenas.initial.update(index, key, values, UpdateFlag.ANY)
            for key in gone:
                arenas.initial.delete(index, key)

    def restore(self, rows: Sequence[tuple[bytes, Values]]) -> None:
        """Begin with what was saved of the map, whatever it was declared with."""
        with self._arenas.changing:
            self._refuse_sizes(rows, None)
            for key, values in rows:
                self._arenas.initial.update(self._index, key, values, UpdateFlag.ANY)

    def delete(self, keys: Sequence[bytes]) -> list[int]:
        with self._arenas.changing:
            targets = self._targets()
            initial, index = self._arenas.initial, self._index
            if traits(self._spec.type).indexed:
                return [errno.EINVAL for _ in keys]
            if targets is None:
                return [initial.delete(index, key) for key in keys]
            self._need_deletions()
            operations = [self._arenas.operators.delete(index, key) for key in keys]
            results = worst([self._operate(arena, operations) for _, arena in targets], len(keys))
            if self._only is None:
                for key in keys:
                    initial.delete(index, key)
            return results

    def patch(self, offset: int, data: bytes) -> None:
        with self._arenas.changing:
            for _, arena in self._targets() or ():
                place = arena.layout.places[self._index]
                arena.writer.write([WriteRow(place.offset + offset, data)])
            self._arenas.forget_addition(self._index, bytes(4), slice(offset, offset + len(data)))
            if self._only is None:
                self._arenas.initial.patch(self._index, offset, data)

    def _targets(self) -> list[tuple[int, Arena]] | None:
        """The contexts to change with their numbers; None: none so far, but there may be."""
        spec = self._spec
        if self.frozen:
            raise MapError("it is frozen", errno=errno.EPERM, where=f"map {spec.name}")
        arenas = list(enumerate(self._arenas.all()))
        check_write(spec)
        if spec.read_only and self._arenas.compiled:
            raise MapError(
                "programs were compiled with what it holds",
                errno=errno.EPERM,
                where=f"map {spec.name}",
                hint="set it before the workload starts",
            )
        if self._only is not None:
            arenas = [item for item in arenas if item[1] is self._only]
        live = [(number, arena) for number, arena in arenas if not arena.writer.gone]
        if live:
            return live
        if self._only is not None or self._arenas.ended():
            raise MapError(
                "the process that had it has ended",
                errno=errno.ESTALE,
                where=f"map {spec.name}",
                hint="it can still be read",
            )
        return None

    def _refuse_sizes(
        self, rows: Sequence[tuple[bytes, Values]], targets: list[tuple[int, Arena]] | None
    ) -> None:
        """One value, or one for each slot there is."""
        spec, kind = self._spec, traits(self._spec.type)
        for _, values in rows:
            wanted = 1
            if kind.per_thread:
                wanted = self._arenas.thread_slots or len(values)
            elif len(values) > 1 and targets is None:
                raise InputError(
                    "how many SMs there are is known once a probed kernel was launched",
                    where=f"map {spec.name}",
                )
            elif len(values) != 1 and targets is not None:
                wanted = targets[0][1].layout.sm_slots
            if len(values) != wanted:
                raise InputError(f"{len(values)} values, {wanted} wanted", where=f"map {spec.name}")

    def _update(
        self, arena: Arena, number: int, rows: Sequence[tuple[bytes, Values]], flag: UpdateFlag
    ) -> list[int]:
        spec = self._spec
        if traits(spec.type).hashed:
            operators = self._arenas.operators
            if traits(spec.type).per_sm and flag is not UpdateFlag.NOEXIST:
                self._need_deletions()
            return self._operate(
                arena,
                [operators.update(self._index, key, value, flag) for key, (value, *_) in rows],
            )
        errors = [array_error(spec, key, flag) for key, _ in rows]
        writes = [
            row
            for (key, values), error in zip(rows, errors, strict=True)
            if not error
            for row in self._rows(arena, number, int.from_bytes(key, "little"), values)
        ]
        arena.writer.write(writes)
        return errors

    def _rows(self, arena: Arena, number: int, key: int, values: Values) -> list[WriteRow]:
        place, slots = arena.layout.places[self._index], arena.layout.sm_slots
        match traits(self._spec.type).storage:
            case Storage.PER_SM_ARRAY:
                zeros = (bytes(self._spec.value_size),)
                if len(values) == 1:  # the sum over all SMs and contexts
                    values = (values if number == 0 else zeros) + zeros * (slots - 1)
                copies = [part for value in values for part in (value, *zeros * (place.spread - 1))]
                start = place.offset + key * place.entry_stride
                return [WriteRow(start, b"".join(copies), len(copies), place.stride)]
            case Storage.PER_THREAD_ARRAY:
                start = place.offset + key * place.stride
                return [WriteRow(start, b"".join(values), len(values), place.entry_stride)]
            case _:
                return [WriteRow(place.offset + key * place.entry_stride, values[0])]

    def _operate(self, arena: Arena, operations: Sequence[bytes]) -> list[int]:
        results = arena.writer.operate(self._index, self._image(arena), operations)
        return [-result for result in results]

    def _image(self, arena: Arena) -> Callable[[], bytes]:
        """What makes the operator's image when it is needed."""
        operators, index = self._arenas.operators, self._index
        return lambda: operators.image(index, arena.layout, arena.device)

    def _need_deletions(self) -> None:
        if not self._arenas.operators.deletes(self._index):
            raise MapError(
                "its table is laid out for programs that never delete",
                errno=errno.EOPNOTSUPP,
                where=f"map {self._spec.name}",
                hint=_DELETIONS,
            )


def worst(results: Sequence[Sequence[int]], count: int) -> list[int]:
    """For each row the first error that a context gave."""
    return [next((each[row] for each in results if each[row]), 0) for row in range(count)]
