"""What probes/reads.bpf.c must count in launches of the demo's vecadd over ``size`` elements."""

from __future__ import annotations

import struct

BLOCK = 256
NAMES = ("read", "faults", "a", "b", "wild", "across", "cleared", "texts", "text_faults")


def expected(size: int, launches: int) -> dict[str, int]:
    """Every total; the workload's inputs are a[i] = (i % 1000) / 2 and b[i] = i % 77.

    ``size`` is such that the inputs do not end where the next allocation may begin.
    """
    threads = -(-size // BLOCK) * BLOCK
    a = struct.pack(f"<{size}f", *((i % 1000) * 0.5 for i in range(size)))
    b = struct.pack(f"<{size}f", *(float(i % 77) for i in range(size)))
    texts = [_length(a, 4 * i + 2, 5) for i in range(size)]
    once = {
        "read": size,
        "faults": threads,
        "a": sum(struct.unpack(f"<{size}I", a)),
        "b": sum(struct.unpack(f"<{size}I", b)),
        "wild": threads,
        "across": threads,
        "cleared": threads,
        "texts": sum(length for length in texts if length),
        "text_faults": texts.count(0),
    }
    return {name: launches * total for name, total in once.items()}


def _length(memory: bytes, at: int, room: int) -> int:
    """Bytes that a text takes with its NUL, 0 if it leaves the memory before it ends."""
    end = memory.find(b"\0", at, at + room - 1)
    if end >= 0:
        return end + 1 - at
    return room if at + room - 1 <= len(memory) else 0


def wrong_reads(report: dict, size: int, launches: int) -> list[str]:
    """Every total that is not as it must be."""
    found = {NAMES[row["key"]]: row["value"] for row in report["maps"]["seen"]}
    wanted = expected(size, launches)
    return [
        f"{name}: {found.get(name, 0)}, expected {total}"
        for name, total in wanted.items()
        if found.get(name, 0) != total
    ]
