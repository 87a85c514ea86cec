"""What probes/full_ring.bpf.c must leave behind: every record whole, once, and none uncounted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MIX, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


def torn(record: Sequence[int]) -> bool:
    """Whether a record is not what one thread wrote."""
    launch, thread, product, total = record
    return (product, total) != (
        (thread ^ launch << 40 & _WORD) * _MIX & _WORD,
        ((launch ^ thread << 20 & _WORD) + _MIX) & _WORD,
    )


def wrong_ring(
    records: Iterable[Sequence[int]], totals, threads: tuple[int, int], *, full: bool
) -> list[str]:
    """What differs: ``totals`` are the ring's, ``threads`` those that the probe and the agent
    counted, ``full``: some records must have found no room."""
    counted, launched = threads
    rows = [tuple(record) for record in records]
    broken = [row for row in rows if torn(row)]
    facts = {
        "threads": (counted, launched),
        "records": (len(rows), totals.received),
        "received and dropped": (totals.received + totals.dropped, launched),
        "claimed and never published": (totals.holes, 0),
        "discarded": (totals.discarded, 0),
        "torn": (broken[:3], []),
        "different ones": (len({row[:2] for row in rows}), len(rows)),
        "some dropped": (totals.dropped > 0, full),
    }
    return [f"{n}: {found}, expected {want}" for n, (found, want) in facts.items() if found != want]
