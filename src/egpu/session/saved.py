"""Changes of what was saved of a pinned map, as they would be made to the map itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from egpu.bpf.maptypes import traits
from egpu.errors import InputError
from egpu.maps import Contents, UpdateFlag, Values
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


def deleted(contents: Contents, keys: Sequence[bytes]) -> tuple[Contents, list[int]]:
    """Without these keys in any context; for each 0 or the error number."""
    copies, results = [], [0] * len(keys)
    for copy in contents.copies:
        table = InitialContents([contents.spec], [dict(copy)])
        for row, key in enumerate(keys):
            results[row] = results[row] or table.delete(0, key)
        copies.append(dict(table.of(0)))
    return replace(contents, copies=tuple(copies)), results
