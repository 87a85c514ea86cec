"""Changes of what was saved of a pinned map, as they would be made to the map itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from egpu.bpf.maptypes import traits
from egpu.errors import InputError
from egpu.maps import Contents, UpdateFlag, Values
from egpu.maps.contents import numbered
from egpu.session.initial import InitialContents


def updated(
    contents: Contents, rows: Sequence[tuple[bytes, Values]], flag: UpdateFlag
) -> tuple[Contents, list[int]]:
    """With every row set in every context; for each row 0 or the error number.

    InputError for a row with another number of values than there are slots.
    """
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


def patched(contents: Contents, offset: int, data: bytes) -> Contents:
    """With a part of a section map's value set in every context."""
    copies = []
    for copy in contents.copies:
        table = InitialContents([contents.spec], [dict(copy)])
        table.patch(0, offset, data)
        copies.append(dict(table.of(0)))
    return replace(contents, copies=tuple(copies))


def pushed(
    contents: Contents, values: Sequence[bytes], flag: UpdateFlag
) -> tuple[Contents, list[int]]:
    """With values pushed to the queue, stack or filter of every context; for each 0 or the error
    number."""
    copies, results = [], [0] * len(values)
    for number in range(len(contents.copies)):
        table = _keyless(contents, number)
        for row, value in enumerate(values):
            results[row] = results[row] or table.push(0, value, flag)
        copies.append(numbered(table.pushed(0)))
    return replace(contents, copies=tuple(copies)), results


def popped(contents: Contents) -> tuple[Contents, bytes | None]:
    """Without the next value of a queue or stack, and that value, None if there is none.

    InputError if there are several contexts, each of which has a queue of its own.
    """
    if len(contents.copies) != 1:
        raise InputError(
            f"exists {len(contents.copies)} times, once per context",
            where=f"map {contents.spec.name}",
        )
    table = _keyless(contents, 0)
    value = table.pop(0)
    return replace(contents, copies=(numbered(table.pushed(0)),)), value


def _keyless(contents: Contents, number: int) -> InitialContents:
    table = InitialContents([contents.spec])
    table.fill(0, contents.pushed(number))
    return table


def deleted(contents: Contents, keys: Sequence[bytes]) -> tuple[Contents, list[int]]:
    """Without these keys in any context; for each 0 or the error number."""
    copies, results = [], [0] * len(keys)
    for copy in contents.copies:
        table = InitialContents([contents.spec], [dict(copy)])
        for row, key in enumerate(keys):
            results[row] = results[row] or table.delete(0, key)
        copies.append(dict(table.of(0)))
    return replace(contents, copies=tuple(copies)), results
