"""Bytes of the arenas: the one place that knows them (design.md section 8).

C and device code get their copies generated from these tables.  Changing anything here raises
``LAYOUT_VERSION``.

Launch block: the hidden kernel parameter, 32 bytes by value.

Device arena (one per process and device)::

    0      header (ARENA_HEADER)
    4096   maps, each aligned to 256 bytes, in the order of the MapSpec tuple

    ARRAY         max_entries x round_up(value_size, 8)
    PERCPU_ARRAY  sm_slots copies, each round_up(max_entries x round_up(value_size, 8), 128)
    RINGBUF       sm_slots control blocks of 128 bytes (RING_CONTROL)

Host arena (a memfd)::

    0      control page (HOST_CONTROL)
    4096   ring reader positions: per ring map, per SM slot, a u64, 64 bytes apart
    ...    ring records: per ring map, per SM slot, ``ring_size`` bytes (a power of two), page aligned
    ...    snapshot area: an image of the device arena, page aligned

Ring: positions are byte counts that never wrap; byte ``p`` lies at ``p % ring_size``.  A claim is a
group::

    0   u32 size    bytes of one record, unpadded
    4   u32 count   records in the group; PAD_COUNT marks filler up to the ring's end
    8   u64 commit  0 while being written; position + 1 once published, | DISCARD if dropped
    16  count x round_up(size, 8) bytes, the whole rounded up to 16

A producer claims by compare-and-swap on ``head`` in HBM, never waits, and counts ``dropped`` records
when the group does not fit between ``head`` and ``tail``.  It writes payload, size and count, then
releases ``commit`` with system scope.  The reader acquires ``commit``, checks it against its
position, and advances its own position in the host arena; the agent copies reader positions to
``tail`` in HBM.
"""

from __future__ import annotations

from dataclasses import dataclass

LAYOUT_VERSION = 1

LAUNCH_BLOCK_SIZE = 32
# fmt: off
LAUNCH_BLOCK: dict[str, tuple[int, int]] = {  # name: (offset, size)
    "device_arena": (0, 8),    # device address
    "host_arena":   (8, 8),    # device address of the mapped host arena
    "launch_id":    (16, 8),
    "kernel_id":    (24, 4),
    "flags":        (28, 4),   # LaunchFlag bits; bits 24-31 hold LAYOUT_VERSION
}
LAUNCH_FLAG_CAPTURED = 1       # launched from a graph: test the arena's enable word first

ARENA_MAGIC = 0x414E5241_55504745   # "EGPUARNA"
ARENA_HEADER: dict[str, tuple[int, int]] = {
    "magic":    (0, 8),
    "version":  (8, 4),
    "sm_slots": (12, 4),
    "size":     (16, 8),
    "pid":      (24, 4),       # of the workload, what bpf_get_current_pid_tgid gives as tgid
    "enabled":  (64, 4),       # tested by probes of captured launches; 0 = do nothing
}
ARENA_HEADER_SIZE = 4096
MAP_ALIGNMENT = 256

RING_CONTROL: dict[str, tuple[int, int]] = {   # per ring map and SM slot, in the device arena
    "head":    (0, 8),         # bytes claimed
    "tail":    (8, 8),         # bytes the reader is done with, as last copied by the agent
    "dropped": (16, 8),        # records not written: the ring was full
    "produced": (24, 8),       # records claimed
}
RING_CONTROL_SIZE = 128
RING_GROUP_HEADER = 16
RING_PAD_COUNT = 0xFFFFFFFF
RING_DISCARD = 1 << 63

HOST_MAGIC = 0x54534F48_55504745    # "EGPUHOST"
HOST_CONTROL: dict[str, tuple[int, int]] = {
    "magic":         (0, 8),
    "version":       (8, 4),
    "sm_slots":      (12, 4),
    "size":          (16, 8),
    "snapshot":      (24, 8),  # byte offset of the snapshot area
    "snapshot_size": (32, 8),
    "sequence":      (40, 8),  # snapshots completed; odd while one is being copied
    "snapshot_time": (48, 8),  # CLOCK_MONOTONIC ns of the last complete snapshot
    "final":         (56, 4),  # 1: the workload made its last snapshot
}
HOST_CONTROL_SIZE = 4096
READER_STRIDE = 64
PAGE = 4096
# fmt: on


@dataclass(frozen=True, slots=True)
class MapPlace:
    """Where one map lies; offsets and sizes in bytes."""

    offset: int  # in the device arena
    stride: int  # between SM copies (per-SM maps, ring control), else 0
    entry_stride: int  # between values of one copy
    ring_data: int = 0  # in the host arena
    ring_size: int = 0  # of one SM's ring
    ring_readers: int = 0  # offset of the reader positions in the host arena


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Both arenas for a tuple of maps on a device of ``sm_slots`` SMs."""

    sm_slots: int
    places: tuple[MapPlace, ...]
    device_size: int
    host_size: int
    snapshot: int  # offset of the snapshot area in the host arena
