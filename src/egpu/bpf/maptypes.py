"""Map types: the one table (Linux uapi enum bpf_map_type; 1501-1527 are bpftime's numbers)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MapType(enum.IntEnum):
    """Map type numbers as they stand in object files."""

    __hash__ = int.__hash__  # equal as numbers; Enum's own is written in Python and slow

    HASH = 1
    ARRAY = 2
    PERF_EVENT_ARRAY = 4
    PERCPU_HASH = 5
    PERCPU_ARRAY = 6
    STACK_TRACE = 7
    LRU_HASH = 9
    LRU_PERCPU_HASH = 10
    ARRAY_OF_MAPS = 12
    HASH_OF_MAPS = 13
    QUEUE = 22
    STACK = 23
    RINGBUF = 27
    BLOOM_FILTER = 30
    GPU_HASH = 1501
    GPU_PER_THREAD_ARRAY = 1502
    GPU_ARRAY = 1503
    GPU_KERNEL_SHARED_ARRAY = 1504
    GPU_PER_THREAD_HOST_ARRAY = 1512
    GPU_HOST_ARRAY = 1513
    GPU_RINGBUF = 1527

    @property
    def phrase(self) -> str:
        """Its name with the article, for messages."""
        return f"{'an' if self.name[0] in 'AEIOU' else 'a'} {self.name}"


class Storage(enum.Enum):
    """How the memory of a map is laid out (design.md section 8)."""

    ARRAY = "one copy in the device arena"
    PER_SM_ARRAY = "a copy per SM slot in the device arena"
    PER_THREAD_ARRAY = "a slot per thread of a launch for each key, in the device arena"
    RING = "control in the device arena, records in the host arena"
    HASH = "an open-addressed table in the device arena"
    DEQUE = "a circle of values in the device arena, taken from one end"
    BLOOM = "bits in the device arena"
    MAPS = "for each key where another map lies, in the device arena"
    STACKS = "kept by the agent: the stacks of launches, by number"
    PER_SM_HASH = "the same with a value per SM slot for each key"


@dataclass(frozen=True, slots=True)
class MapTraits:
    """What holds for every map of a type.

    ``storage`` is None where egpu has no such map yet: such an object is refused by name.
    """

    storage: Storage | None
    has_values: bool = True  # bpf_map_lookup_elem gives a pointer to value_size bytes
    per_sm: bool = False
    per_thread: bool = False  # programs reach the running thread's own value only
    evicts: bool = False  # a full map gives up its least recently used entry for a new one
    probes: int = 0  # slots in which a key may lie, 0 if there is no table

    @property
    def insertion_probes(self) -> int:
        """Slots that an insertion may have to look at: for the key, a free slot, rivals (twice),
        the key again in a full map, and what to evict."""
        return self.probes * (6 if self.evicts else 5)

    @property
    def keyless(self) -> bool:
        """Whether values are pushed and peeked at, without keys."""
        return self.storage in (Storage.DEQUE, Storage.BLOOM)

    @property
    def hashed(self) -> bool:
        """Whether keys are looked up in a table."""
        return self.storage in (Storage.HASH, Storage.PER_SM_HASH)

    @property
    def indexed(self) -> bool:
        """Whether keys are the numbers from 0 to max_entries - 1."""
        return self.storage in (Storage.ARRAY, Storage.PER_SM_ARRAY, Storage.PER_THREAD_ARRAY)


# Slots from its first place on in which a key may lie.  With two slots for each entry, a row of
# so many occupied slots comes up once in about 10^10 insertions into a full table.
HASH_WINDOW = 128


def table_slots(max_entries: int) -> int:
    """Slots of the table of a hash map: at least two for each entry, never less than a window."""
    return max(HASH_WINDOW, 1 << (2 * max_entries - 1).bit_length())


EVENTS = frozenset({MapType.PERF_EVENT_ARRAY, MapType.GPU_RINGBUF})  # a ring for each CPU or thread
BPF_F_CURRENT_CPU = 0xFFFFFFFF  # flags of bpf_perf_event_output
GPU_RING_FULL = 2  # what bpftime's gives
EVENT_RING = 256 << 10  # bytes of one SM's ring of a PERF_EVENT_ARRAY
_THREADS = 2048  # resident on an SM


def ring_bytes(map_type: MapType, max_entries: int, value_size: int) -> int:
    """Bytes asked for: of a RINGBUF in all, of maps in EVENTS for one SM.

    bpftime's map has ``max_entries`` records for each thread; an SM gets as much for the threads
    that it holds at a time, within 64 KiB and 1 MiB.
    """
    match map_type:
        case MapType.PERF_EVENT_ARRAY:
            return EVENT_RING
        case MapType.GPU_RINGBUF:
            wanted = max_entries * (-(-value_size // 8) * 8) * _THREADS
            return max(1 << 16, min(1 << 20, wanted))
        case _:
            return max_entries


PUSHED_MAXIMUM = 1024  # bytes of a value of a queue, stack or Bloom filter
BLOOM_BITS = 5  # of a value, where map_extra does not say


def bloom_bits(max_entries: int, extra: int) -> tuple[int, int]:
    """(bits of a Bloom filter, a power of two; bits of a value), sized as on Linux."""
    each = extra & 15 or BLOOM_BITS
    wanted = max_entries * each * 7 // 5
    return max(64, min(1 << 32, 1 << (wanted - 1).bit_length())), each


# Slots of a per-thread array where nobody says how many (bpftime's default).
THREAD_SLOTS = 1024

# fmt: off
MAP_TRAITS: dict[MapType, MapTraits] = {
    MapType.HASH:         MapTraits(Storage.HASH, probes=HASH_WINDOW),
    MapType.PERCPU_HASH:  MapTraits(Storage.PER_SM_HASH, per_sm=True, probes=HASH_WINDOW),
    MapType.ARRAY:        MapTraits(Storage.ARRAY),
    MapType.PERCPU_ARRAY: MapTraits(Storage.PER_SM_ARRAY, per_sm=True),
    MapType.STACK_TRACE:  MapTraits(Storage.STACKS, has_values=False),
    MapType.RINGBUF:      MapTraits(Storage.RING, has_values=False),
    MapType.PERF_EVENT_ARRAY: MapTraits(Storage.RING, has_values=False),
    MapType.GPU_RINGBUF:  MapTraits(Storage.RING, has_values=False),
    MapType.LRU_HASH:     MapTraits(Storage.HASH, evicts=True, probes=HASH_WINDOW),
    MapType.LRU_PERCPU_HASH: MapTraits(
        Storage.PER_SM_HASH, per_sm=True, evicts=True, probes=HASH_WINDOW
    ),
    MapType.QUEUE:        MapTraits(Storage.DEQUE, has_values=False),
    MapType.STACK:        MapTraits(Storage.DEQUE, has_values=False),
    MapType.BLOOM_FILTER: MapTraits(Storage.BLOOM, has_values=False),
    MapType.ARRAY_OF_MAPS: MapTraits(Storage.MAPS, has_values=False),
    MapType.HASH_OF_MAPS: MapTraits(Storage.MAPS, has_values=False),
    MapType.GPU_HASH:     MapTraits(Storage.HASH, probes=HASH_WINDOW),
    MapType.GPU_ARRAY:    MapTraits(Storage.ARRAY),
    MapType.GPU_HOST_ARRAY:            MapTraits(Storage.ARRAY),
    MapType.GPU_KERNEL_SHARED_ARRAY:   MapTraits(Storage.ARRAY),
    MapType.GPU_PER_THREAD_ARRAY:      MapTraits(Storage.PER_THREAD_ARRAY, per_thread=True),
    MapType.GPU_PER_THREAD_HOST_ARRAY: MapTraits(Storage.PER_THREAD_ARRAY, per_thread=True),
}
# fmt: on


# Whose maps can be inside another: all that a helper needs of them follows from where they lie.
INNER = frozenset({Storage.ARRAY, Storage.PER_SM_ARRAY, Storage.HASH, Storage.PER_SM_HASH})


_NO_TRAITS = MapTraits(None)


def traits(map_type: MapType) -> MapTraits:
    """The traits of ``map_type``; types without a row have no storage."""
    return MAP_TRAITS.get(map_type, _NO_TRAITS)
