"""What a run of the reference interpreter depends on beside its program: where it is, and maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from egpu.bpf.maptypes import THREAD_SLOTS, ring_bytes, traits
from egpu.bpf.program import MapSpec
from egpu.errors import UnsupportedError

_RECORD_HEADER = 8  # bytes of Linux's ring-buffer record header

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where on the device the one thread of the interpreter is; the defaults are a 1x1 launch."""

    block: Triple = (0, 0, 0)
    block_dim: Triple = (1, 1, 1)
    thread: Triple = (0, 0, 0)
    grid_dim: Triple = (1, 1, 1)
    sm: int = 0
    warp: int = 0
    lane: int = 0
    pid_tgid: int = 1 << 32 | 1
    uid_gid: int = 0
    comm: bytes = b"egpu"
    kernel: int = 0
    parameters: tuple[int, ...] = ()
    stack: int | None = None  # the number of the stack that launched
    callers: tuple[int, ...] = ()  # the addresses to which it returns, innermost first
    allocations: Mapping[int, bytes] = field(default_factory=dict)  # the workload's, by address
    seed: int = 1

    @property
    def number(self) -> int:
        """The thread's number in its launch, counted along x, then y, then z."""
        x, y, z = (
            block * size + thread
            for block, size, thread in zip(self.block, self.block_dim, self.thread, strict=True)
        )
        width, height = (self.grid_dim[axis] * self.block_dim[axis] for axis in (0, 1))
        return (z * height + y) * width + x


@dataclass(slots=True, eq=False)
class MapState:
    """The content of a map.

    A per-thread map has its values key by key, each for ``thread_slots`` threads.

    ``values`` holds arrays, each value padded to 8 bytes; ``table`` the entries of a hash map, each
    with memory of its own; ``items`` what a queue or stack holds, the oldest first; ``bits`` the
    numbers of a Bloom filter's set bits; ``records`` what was submitted to a ring
    buffer; ``used`` the bytes that its records take (nobody reads them during a run); ``dropped``
    how many did not fit.  A per-SM map has the one copy of the SM that runs the program.
    Raises UnsupportedError for map types without storage.
    """

    spec: MapSpec
    thread_slots: int = THREAD_SLOTS  # of a per-thread map
    values: bytearray = field(init=False)
    table: dict[bytes, bytearray] = field(default_factory=dict)
    items: list[bytes] = field(default_factory=list)
    bits: set[int] = field(default_factory=set)
    records: list[bytes] = field(default_factory=list)
    used: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        if traits(self.spec.type).storage is None:
            raise UnsupportedError(f"map type {self.spec.type.name} of map {self.spec.name!r}")
        entries = self.spec.max_entries if self.has_values(self.spec) else 0
        if traits(self.spec.type).per_thread:
            entries *= self.thread_slots
        self.values = bytearray(entries * self.stride)
        if self.spec.initial is not None:
            self.values[: len(self.spec.initial)] = self.spec.initial

    @staticmethod
    def has_values(spec: MapSpec) -> bool:
        """Whether the map is an array of values."""
        return traits(spec.type).indexed

    @property
    def stride(self) -> int:
        """Bytes from one value to the next."""
        return -(-self.spec.value_size // 8) * 8

    def value(self, entry: int) -> memoryview:
        """The bytes of value ``entry``, shared."""
        start = entry * self.stride
        return memoryview(self.values)[start : start + self.spec.value_size]

    @property
    def room(self) -> int:
        """Bytes of a ring."""
        return ring_bytes(self.spec.type, self.spec.max_entries, self.spec.value_size)

    def reserve(self, size: int) -> bool:
        """Take the room of a record, False if there is none."""
        needed = _RECORD_HEADER + -(-size // 8) * 8
        if size == 0 or self.used + needed > self.room:
            self.dropped += 1
            return False
        self.used += needed
        return True
