"""What programs can write to rings in one launch of the kernels that ran, against what rings hold
(P10 of docs/verifier.md): the verifier knows one block, the session the grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from egpu.agent.twin import KernelStats
from egpu.bpf.program import AttachKind, Level
from egpu.maps.layout import ArenaLayout
from egpu.session.attached import Attachment, ProbeSet

_WARP = 32
# Probes at instructions run as often as the kernel comes by, which nobody counts beforehand.
_ONCE = frozenset({AttachKind.ENTRY, AttachKind.EXIT})


@dataclass(frozen=True, slots=True)
class RingLoad:
    """A kernel whose mean launch may write more than the rings of a program hold.

    ``each``: bytes that one thread, warp or block (``level``) writes at most; ``writers``: how many
    of these a launch has; ``capacity``: bytes that the rings hold on all SMs together.
    """

    kernel: str
    program: str
    level: Level
    each: int
    writers: int
    capacity: int

    @property
    def bytes(self) -> int:
        """What all of them write at most."""
        return self.each * self.writers

    def __str__(self) -> str:
        unit = self.level.value
        less = {
            Level.THREAD: "write once a warp (kprobe.warp/), count in a map, or enlarge the ring",
            Level.WARP: "write once a block (kprobe.block/), count in a map, or enlarge the ring",
            Level.BLOCK: "count in a map, or enlarge the ring",
        }[self.level]
        return (
            f"{self.program} writes up to {self.each:,} bytes a {unit}, {self.bytes:,} in a launch "
            f"of {self.writers:,} {unit}s, and its rings hold {self.capacity:,}: "
            f"records are dropped that are not read at once; {less}"
        )


def ring_loads(
    kernels: Iterable[KernelStats], probes: ProbeSet, layouts: Sequence[ArenaLayout]
) -> tuple[RingLoad, ...]:
    """One row for each kernel and program whose rings are too small for a mean launch of it."""
    return tuple(load for row in kernels for load in _of_kernel(row, probes, layouts))


def _of_kernel(
    row: KernelStats, probes: ProbeSet, layouts: Sequence[ArenaLayout]
) -> Iterator[RingLoad]:
    launches = row.probed
    if not launches or not row.blocks_probed:
        return
    for attachment in probes.matching(row.name):
        each = attachment.program.cost.ring_bytes
        if not each or attachment.point.kind not in _ONCE:
            continue
        capacity = min((_capacity(attachment, layout) for layout in layouts), default=0)
        level = attachment.point.level
        writers = -(-_writers(row, level) // launches)
        if capacity and each * writers > capacity:
            name = attachment.program.program.name
            yield RingLoad(row.name, name, level, each, writers, capacity)


def _writers(row: KernelStats, level: Level) -> int:
    """Threads, warps or blocks of all probed launches; blocks are taken to have one size."""
    if level is Level.THREAD:
        return row.threads_probed
    if level is Level.BLOCK:
        return row.blocks_probed
    return row.blocks_probed * -(-row.threads_probed // (row.blocks_probed * _WARP))


def _capacity(attachment: Attachment, layout: ArenaLayout) -> int:
    rings = (layout.places[index].ring_size for index in attachment.program.facts.maps)
    return layout.sm_slots * sum(rings)
