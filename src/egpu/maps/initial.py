"""What a device arena holds before its first launch."""

from __future__ import annotations

from collections.abc import Sequence

from egpu.bpf.program import NO_MAP, MapSpec
from egpu.maps.layout import (
    ARENA_HEADER,
    ARENA_HEADER_SIZE,
    ARENA_MAGIC,
    LAYOUT_VERSION,
    ArenaLayout,
)


def initial_chunks(
    layout: ArenaLayout, maps: Sequence[MapSpec], pid: int
) -> list[tuple[int, bytes]]:
    """What a zero-filled device arena gets before its first launch: (offset, bytes) in order.

    The header (probes enabled, ``pid`` as the workload's) and the contents of .rodata and .data.
    """
    header = bytearray(ARENA_HEADER_SIZE)
    values = {
        "magic": ARENA_MAGIC,
        "version": LAYOUT_VERSION,
        "sm_slots": layout.sm_slots,
        "size": layout.device_size,
        "pid": pid,
        "enabled": 1,
    }
    for name, value in values.items():
        offset, size = ARENA_HEADER[name]
        header[offset : offset + size] = value.to_bytes(size, "little")
    chunks = [(0, bytes(header))]
    for spec, place in zip(maps, layout.places, strict=True):
        if spec.initial is not None:
            chunks.append((place.offset, spec.initial))
        if spec.inner:
            inner = (0 if n == NO_MAP else layout.places[n].offset for n in spec.inner)
            table = b"".join(offset.to_bytes(8, "little") for offset in inner)
            chunks.append((place.offset, table))
    return chunks
