"""Bytes of the arenas: the one place that knows them (design.md section 8).

C and device code get their copies generated from these tables.  Changing anything here raises
``LAYOUT_VERSION``.

Launch block: the hidden kernel parameter, 32 bytes by value.

Device arena (one per process and device)::

    0      header (ARENA_HEADER)
    4096   maps, each aligned to 256 bytes, in the order of the MapSpec tuple

    ARRAY         max_entries x round_up(value_size, 8)
    PERCPU_ARRAY  sm_slots x spread copies, each
                  round_up(max_entries x round_up(value_size, 8), 128); slot s has the copies from
                  s x spread on
    per thread    (GPU_PER_THREAD_ARRAY and its like) for each key, thread_slots x
                  round_up(value_size, 8)
    RINGBUF       sm_slots control blocks of 128 bytes (RING_CONTROL)
    HASH          a control block of 128 bytes (HASH_CONTROL), then ``hash_table(spec).slots``
                  times a slot header (HASH_SLOT), key and value, each rounded up to 8 bytes
    PERCPU_HASH   the same without the values; then, from ``hash_table(spec).values`` on, sm_slots
                  copies of round_up(slots x round_up(value_size, 8), 128) with a value for each
                  slot; all copies are zero when a key appears, but for the inserting SM's

    QUEUE, STACK  a control block of 128 bytes (DEQUE_CONTROL), then max_entries cells: a state of 8
                  bytes and round_up(value_size, 8) bytes
    ARRAY_OF_MAPS, HASH_OF_MAPS  for each key the offset of a map in the arena, 0 if it has none
    BLOOM_FILTER  128 unused bytes, then ``bloom_bits`` bits

Behind ``device_size``, and in no snapshot, lie the rings that are written to device memory
(``MapSpec.on_device``): the records of all of them as in the host arena, then their flags, 16 bits
for every RING_FLAG_SPAN bytes of records.

Host arena (a memfd)::

    0      control page (HOST_CONTROL)
    4096   ring readers: per ring map, per SM slot, a RING_READER, 64 bytes apart
    ...    ring records: per ring map, per SM slot, ``ring_size`` bytes (a power of two), from a
           page on
    ...    of rings in device memory, per ring map: copies of their flags and control blocks, and
           ``ring_zeros`` zero bytes
    ...    command area: what the session wants written to maps, COMMAND_SIZE bytes from a page on
    ...    snapshot area: an image of the device arena, page aligned

Ring: positions are byte counts that never wrap; byte ``p`` lies at ``p % ring_size``.  A claim is a
group::

    0   u32 size    bytes of one record, unpadded
    4   u32 count   records in the group; PAD_COUNT marks filler up to the ring's end
    8   u64 commit  0 while being written; position + 1 once published, | DISCARD if dropped
    16  count x round_up(size, 8) bytes, the whole rounded up to 16

Hash: a key's hash names its home slot; the key lies in one of the HASH_WINDOW slots from there on
(the table is a circle).  A slot's ``state`` is::

    bits 0-1    FREE, CLAIMED (one thread writes key and value), ENTERING (they are complete, but
                the key may be entering elsewhere too) or FULL (an entry)
    bits 2-23   of the key's hash; when FREE 0, or 1 if the slot is not used again
    bits 24-63  incarnation: counts how often the slot was freed

Its ``home`` word is about the keys whose home it is, wherever they lie: how many slots from here
such keys may occupy, which only grows.  Whoever looks for a key stops there.  ``pins``, in tables
whose entries can go (``MapSpec.deletes``, or a map that evicts), counts threads that are copying a
value into the entry; a FREE slot with pins is not given out.  In other tables the slot of an entry
that the session deletes is not used again.  ``used`` is there in LRU maps only.
``egpu.codegen.hashes`` has the protocol and the argument why a key is never there twice.

Queue and stack: the values lie in a circle of cells.  ``place`` holds the number of the oldest's
cell (low half) and how many there are (high half).  A cell's state is EMPTY, FILLING, FULL or
TAKING in bits 0-1 and counts how often it was emptied above them.  ``egpu.codegen.deques`` has the
protocol.

A producer claims by compare-and-swap on ``head`` in HBM, never waits, and counts ``dropped``
records when the group does not fit between ``head`` and ``tail``.  It writes the records, then
releases size, count and ``commit`` with system scope, in this order or all at once.  The reader
acquires ``commit``, checks it against its position, comes back if size and count are still 0,
clears what it read (so a group's first words are 0 until it is published) and advances its own
position in the host arena; the agent copies reader positions to ``tail`` in HBM.

``egpu.maps.ring_table`` has the protocol of rings in device memory.  Those of a map with
``MapSpec.stamped`` have slots instead of groups, ``stamped_stride`` bytes each, a power of two of
them in a ring, numbered without an end; slot ``n`` lies at ``n`` modulo their number.  A slot is::

    0   u32 bits    bit i: the lowest bit of the record's i-th word
    4   u32 stamp   the slot's number + 1, modulo 2^32
    8   the record's words of 8 bytes, the lowest bit of each replaced by 1 in even laps, 0 in odd
        ones, the whole rounded up to 16
"""

from __future__ import annotations

from dataclasses import dataclass

from egpu.bpf.maptypes import Storage, table_slots, traits
from egpu.bpf.program import MapSpec

LAYOUT_VERSION = 8

LAUNCH_BLOCK_SIZE = 32
# fmt: off
LAUNCH_BLOCK: dict[str, tuple[int, int]] = {  # name: (offset, size)
    "device_arena": (0, 8),    # device address
    "host_arena":   (8, 8),    # device address of the mapped host arena
    "launch_id":    (16, 8),
    "kernel_id":    (24, 4),
    "flags":        (28, 4),   # LaunchFlag bits; bits 24-31 hold LAYOUT_VERSION
}
LAUNCH_FLAG_CAPTURED = 1       # launched from a graph: the launch id is the node's
LAUNCH_STACK_SHIFT = 1         # from this bit on: the number of the launching stack plus 1, 0: none
LAUNCH_STACK_MASK = 0x7FFFFF
STACKS_LIMIT = 1 << 14         # different stacks of one process

ARENA_MAGIC = 0x414E5241_55504745   # "EGPUARNA"
ARENA_HEADER: dict[str, tuple[int, int]] = {
    "magic":    (0, 8),
    "version":  (8, 4),
    "sm_slots": (12, 4),
    "size":     (16, 8),
    "pid":      (24, 4),       # of the workload, what bpf_get_current_pid_tgid gives as tgid
    "uid":      (32, 4),       # what bpf_get_current_uid_gid gives
    "gid":      (36, 4),
    "comm":     (40, 16),      # what bpf_get_current_comm gives
    "enabled":  (64, 4),       # tested by probes of captured launches; 0 = do nothing
    "cut_short": (128, 8),     # runs of programs that their budget ended or kept from turning on
    "clock":    (72, 8),       # added to %globaltimer it gives CLOCK_MONOTONIC, modulo 2^64
}
ARENA_HEADER_SIZE = 4096
MAP_ALIGNMENT = 256

# Per ring map and SM slot, in the device arena; head and tail are read with one load.
RING_CONTROL: dict[str, tuple[int, int]] = {
    "head":    (0, 8),         # bytes claimed
    "tail":    (8, 8),         # bytes the reader is done with, as last copied by the agent
    "dropped": (16, 8),        # records not written: the ring was full
    "produced": (24, 8),       # records claimed
}
RING_CONTROL_SIZE = 128
# Per ring map and SM slot, in the host arena.
RING_READER: dict[str, tuple[int, int]] = {
    "position": (0, 8),        # bytes that the session is done with
    # of rings in device memory:
    "limit":  (8, 8),          # up to where the session may look
    "copied": (16, 8),         # bytes that are in the host arena
    "missing": (24, 8),        # 1 + where the session waits for a slot that was not whole; else 0
}
RING_GRANULE = 16                   # groups begin at multiples of it
# Of a group in device memory, which has the flag of the span that it begins in; 0: there never was
# one.  bits 0-7 its granules, bit 8 whether it begins in the span's second granule, bits 9-15 the
# number of the lap.
RING_FLAG_SPAN = 32                 # two groups never begin in it in one lap
RING_FLAG_SIZE = 2                  # bytes of a flag
RING_FLAG_FILLER = 1                # instead of granules: filler up to the ring's end
RING_FLAG_LARGE = 255               # instead of granules: size and count tell them
RING_FLAG_SECOND = 1 << 8
RING_FLAG_LAP = 9                   # bits from here on: the lap, modulo RING_LAPS
RING_LAPS = 128
RING_CLEARED_LAPS = 64              # flags of the last one of so many laps are cleared
RING_ZEROS = 1 << 16                # bytes of flags that are cleared at once, at most
RING_GROUP_HEADER = 16
RING_PAD_COUNT = 0xFFFFFFFF
RING_DISCARD = 1 << 63
# Slots of rings in device memory, and their word ``head``: the slots that were asked for in bits
# 0-39, how many more there are room for in bits 40-63, negative if more were asked for.
RING_STAMP = 8                      # bytes before the record
RING_STAMPED_MOST = 256             # bytes of a record
RING_ROOM = 40                      # bits from here on
RING_STAMPED_SLOTS = 1 << 22        # of a ring, at most

HASH_CONTROL: dict[str, tuple[int, int]] = {   # per hash map, in the device arena
    "count":  (0, 4),          # entries
    "entering": (4, 4),        # insertions that may still become entries; one word with ``count``
    "full":   (8, 8),          # insertions refused because the map was full
    "evicted": (24, 8),        # entries that an LRU map gave up
    "busy":   (16, 8),         # updates given up: others were at it all the time
    "claiming": (32, 8),       # insertions under way; in LRU maps only
}
HASH_CONTROL_SIZE = 128
HASH_SLOT: dict[str, tuple[int, int]] = {
    "state":  (0, 8),
    "home":   (8, 8),
    "pins":   (16, 8),         # in tables whose entries can go
    "used":   (24, 8),         # %globaltimer of the last use; in LRU maps only
}
HASH_SLOT_ALIGNMENT = 16            # state and home are read with one load
HASH_FREE, HASH_CLAIMED, HASH_ENTERING, HASH_FULL = 0, 1, 2, 3
HASH_STATE, HASH_TAG_BITS = 0b11, 22
HASH_INCARNATION = 1 << 24

DEQUE_CONTROL: dict[str, tuple[int, int]] = {  # per queue or stack, in the device arena
    "place":  (0, 8),
    "full":   (8, 8),          # values refused because the map was full
    "busy":   (16, 8),         # operations given up: others were at it all the time
    "dropped": (24, 8),        # values given up for new ones (BPF_EXIST)
}
DEQUE_CONTROL_SIZE = 128
DEQUE_CELL = 8                      # bytes of a cell before its value
DEQUE_EMPTY, DEQUE_FILLING, DEQUE_FULL, DEQUE_TAKING = 0, 1, 2, 3
DEQUE_STATE, DEQUE_INCARNATION = 0b11, 1 << 2
BLOOM_CONTROL_SIZE = 128

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
    "commands":      (64, 8),  # byte offset of the command area
    "commands_size": (72, 8),
    "clock_sample": (80, 8),   # where the device writes its clock while it is compared
    "clock_offset": (88, 8),   # as ARENA_HEADER's clock
    "clock_error":  (96, 8),   # ns by which that may be wrong; 0: never compared
    "clock_drift":  (104, 8),  # ns, signed: how far the clocks went apart until the process ended
    "clock_span":   (112, 8),  # ns in which they did; 0: not compared again
}
HOST_CONTROL_SIZE = 4096
COMMAND_SIZE = 256 << 10            # bytes of the command area
READER_STRIDE = 64
PAGE = 4096
SM_COPY_ALIGNMENT = 128             # an L2 line: copies of two SMs never share one
SPREAD_MAXIMUM = 8                  # copies per SM of a map that is only added to
SPREAD_LIMIT = 64 << 20             # bytes of such a map
RING_MINIMUM = 4096                 # bytes of one SM's ring
RING_MAXIMUM = 1 << 30
# fmt: on


@dataclass(frozen=True, slots=True)
class MapPlace:
    """Where one map lies; offsets and sizes in bytes."""

    offset: int  # in the device arena
    stride: int  # between copies (per-SM maps, ring control) or keys (per-thread maps), else 0
    entry_stride: int  # between values of one copy
    ring_data: int = 0  # in the host arena
    ring_size: int = 0  # of one SM's ring: a power of two, of stamped slots so many of them
    ring_readers: int = 0  # offset of the RING_READERs in the host arena
    spread: int = 1  # copies per SM slot of a per-SM map
    # Of a ring in device memory, else 0: offsets in the device arena of its records and flags, and
    # in the host arena of the copies of its flags and control blocks.
    ring_device: int = 0
    ring_flags: int = 0
    host_flags: int = 0
    host_controls: int = 0
    ring_stamped: int = 0  # bytes of a record, if the ring has stamped slots

    @property
    def ring_slots(self) -> int:
        """Stamped slots of one SM's ring."""
        return self.ring_size // stamped_stride(self.ring_stamped)


@dataclass(frozen=True, slots=True)
class HashTable:
    """The table of a hash map: what depends on its declaration only; offsets from the map's."""

    slots: int  # a power of two
    stride: int  # bytes of a slot
    key: int  # offset of the key in a slot
    value: int  # offset of the value in a slot (of nothing in a per-SM map)
    value_stride: int  # bytes of a value, rounded up
    pinned: bool  # whether slots have pins
    table: int  # offset of slot 0
    values: int  # offset of the first copy of a per-SM map's values
    size: int  # bytes up to there


def hash_table(spec: MapSpec) -> HashTable:
    """The table of ``spec``."""
    slots = table_slots(spec.max_entries)
    kind = traits(spec.type)
    pinned = spec.deletes or kind.evicts
    last = "used" if kind.evicts else "pins" if pinned else "home"
    key = sum(HASH_SLOT[last])
    value, value_stride = key + round_up(spec.key_size, 8), round_up(spec.value_size, 8)
    stride = round_up(value if kind.per_sm else value + value_stride, HASH_SLOT_ALIGNMENT)
    size = HASH_CONTROL_SIZE + slots * stride
    return HashTable(
        slots,
        stride,
        key=key,
        value=value,
        value_stride=value_stride,
        pinned=pinned,
        table=HASH_CONTROL_SIZE,
        values=round_up(size, SM_COPY_ALIGNMENT),
        size=size,
    )


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Both arenas for a tuple of maps on a device of ``sm_slots`` SMs."""

    sm_slots: int
    places: tuple[MapPlace, ...]
    device_size: int
    host_size: int
    snapshot: int  # offset of the snapshot area in the host arena
    commands: int  # offset of the command area in the host arena
    device_rings: int = 0  # bytes of rings in device memory, from ``device_size`` on

    @property
    def device_bytes(self) -> int:
        """Bytes of the device arena with the rings in it."""
        return self.device_size + self.device_rings

    @property
    def flags_base(self) -> int:
        """Where a group at address ``g`` has its flag: at this, plus the device arena's address
        less its 16th part, plus the 16th part of ``g``."""
        records = self.device_rings // (RING_GRANULE + 1) * RING_GRANULE
        return self.device_size + records - self.device_size // RING_GRANULE


def copy_stride(spec: MapSpec) -> int:
    """Bytes between the copies of a map that has one for each SM slot, 0 for others."""
    match traits(spec.type).storage:
        case Storage.PER_SM_ARRAY:
            return round_up(spec.max_entries * round_up(spec.value_size, 8), SM_COPY_ALIGNMENT)
        case Storage.RING:
            return RING_CONTROL_SIZE
        case Storage.PER_SM_HASH:
            table = hash_table(spec)
            return round_up(table.slots * table.value_stride, SM_COPY_ALIGNMENT)
        case _:
            return 0


def stamped_stride(record: int) -> int:
    """Bytes of a stamped slot for records of ``record`` bytes."""
    return round_up(RING_STAMP + record, RING_GRANULE)


def ring_zeros(place: MapPlace) -> int:
    """Bytes behind the copies of a map's control blocks that stay zero."""
    return min(place.ring_size // RING_GRANULE, RING_ZEROS)


def round_up(value: int, alignment: int) -> int:
    """The least multiple of ``alignment`` that is not below ``value``."""
    return -(-value // alignment) * alignment
