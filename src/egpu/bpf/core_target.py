"""The types that CO-RE relocations are resolved against.

A kernel's BTF for what the kernel defines; for the context of probes, which begins like x86-64's
``struct pt_regs`` on every machine, the context's own fields.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from egpu.bpf.btf import Btf, BtfKind, BtfMember, BtfType
from egpu.bpf.context import CONTEXT_SIZE, FIELDS, PT_REGS, PT_REGS_SIZE, Source
from egpu.bpf.core_spec import ENUMS, essential


@dataclass(frozen=True, slots=True)
class CoreTarget:
    """Types under a name for messages (a path), found by name without flavour."""

    btf: Btf
    name: str
    index: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, btf: Btf, name: str) -> CoreTarget:
        """Index the types of ``btf``."""
        index: dict[str, list[int]] = {}
        for row in btf.types:
            if row.name and row.kind in _FINDABLE:
                index.setdefault(essential(row.name), []).append(row.id)
        return cls(btf, name, {key: tuple(found) for key, found in index.items()})

    def named(self, name: str) -> tuple[int, ...]:
        """Ids of the types called ``name``, or so with a flavour."""
        return self.index.get(name, ())


Provider = Callable[[], CoreTarget]
"""Gives the kernel's types when they are first needed: reading them takes a second."""

_FINDABLE = ENUMS | {
    BtfKind.INT,
    BtfKind.STRUCT,
    BtfKind.UNION,
    BtfKind.FWD,
    BtfKind.TYPEDEF,
    BtfKind.FLOAT,
}


@functools.cache
def context_target() -> CoreTarget:
    """``struct pt_regs`` and ``struct egpu_ctx`` as probes get them."""
    types = [BtfType(0, BtfKind.VOID)]

    def add(row: BtfType) -> int:
        types.append(replace(row, id=len(types)))
        return len(types) - 1

    def struct(name: str, size: int, members: Iterable[BtfMember]) -> int:
        return add(BtfType(0, BtfKind.STRUCT, name, size, members=tuple(members)))

    words = {size: add(BtfType(0, BtfKind.INT, f"u{8 * size}", size)) for size in (1, 2, 4, 8)}
    registers = struct(
        "pt_regs",
        PT_REGS_SIZE,
        (BtfMember(name, words[8], 64 * place) for place, name in enumerate(PT_REGS)),
    )
    fields = [BtfMember("regs", registers, 0)]
    for row in FIELDS:
        if row.offset < PT_REGS_SIZE:
            continue
        kind = words.get(row.size, 0)
        if row.source is Source.PARAM_BYTES:
            kind = add(BtfType(0, BtfKind.ARRAY, type=words[1], count=row.size))
        fields.append(BtfMember(row.name, kind, 8 * row.offset))
    struct("egpu_ctx", CONTEXT_SIZE, fields)
    return CoreTarget.of(Btf(tuple(types), b"\0"), "egpu's context")
