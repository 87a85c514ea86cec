"""The threads that run together: a chunk of blocks, and the selection of its lanes that executes.

Every per-thread value of a chunk is an array over all its threads, block after block, threads of a
block in linear order.  ``select`` is ``slice(None)`` when all of them execute, else an index array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from egpu.sim.memory import DeviceMemory, Views, typed_views
from egpu.sim.types import Array

Dimensions: TypeAlias = tuple[int, int, int]
Select: TypeAlias = "slice | Array"
WARP = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one launch; sizes in bytes. ``grid_id`` counts launches of the machine."""

    grid: Dimensions
    block: Dimensions
    shared: int
    local: int
    dynamic_shared: int
    sm_count: int
    grid_id: int

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


class Lanes:
    """State of a chunk of ``blocks`` blocks that starts at linear block ``first``."""

    def __init__(
        self,
        shape: Shape,
        memory: DeviceMemory,
        *,
        first: int,
        blocks: int,
        params: bytes,
        start: int,
    ) -> None:
        self.shape = shape
        self.memory = memory
        self.printed: list[str] = []
        count = blocks * shape.threads
        self.count = count
        # a thread's clock is start + its warp's age, and in a running group + elapsed
        self.start = start
        self.elapsed = 0
        self.select: Select = slice(None)
        self.registers: list[Array] = []
        thread = np.arange(count, dtype=np.int64)
        self.thread = thread
        self.block = thread // shape.threads  # in the chunk
        self.linear = thread % shape.threads  # in the block
        self.lane = self.linear % WARP
        self.warps_per_block = -(-shape.threads // WARP)
        self.warp = self.block * self.warps_per_block + self.linear // WARP
        self.warp_count = blocks * self.warps_per_block
        self.age: Array = np.zeros(self.warp_count, np.int64)
        self.first = first
        self.block_count = blocks
        self.special = _special(self)
        self.shared_stride = -(-max(shape.shared, 1) // 16) * 16
        self.local_stride = -(-max(shape.local, 1) // 16) * 16
        self.shared = typed_views(np.zeros(blocks * self.shared_stride, np.uint8))
        self.local = typed_views(np.zeros(count * self.local_stride, np.uint8))
        padded = params + bytes(-len(params) % 8 + 8)
        self.params: Views = typed_views(np.frombuffer(padded, np.uint8).copy())
        self.param_size = len(params)

    def active(self) -> Array:
        """Indices of the executing threads."""
        return self.thread[self.select]

    def size(self) -> int:
        """How many threads execute."""
        return self.count if isinstance(self.select, slice) else len(self.select)

    def now(self) -> Array:
        """The clocks of the executing threads."""
        ticks: Array = self.age[self.warp[self.select]] + (self.start + self.elapsed)
        return ticks.view(np.uint64)

    def ballot(self, flags: Array) -> Array:
        """Per executing thread: the lane mask of the executing lanes of its warp with a true flag.

        Lanes have distinct bits, so a sum of them is their union, exact in float64.
        """
        threads = self.active()
        bits = np.where(flags, np.left_shift(np.int64(1), self.lane[threads]), 0)
        union = np.bincount(self.warp[threads], bits, self.warp_count)
        result: Array = union.astype(np.int64)[self.warp[threads]].astype(np.uint32)
        return result


def _special(lanes: Lanes) -> dict[str, Array]:
    """The special registers that do not change while a thread runs (PTX ISA, chapter 10)."""
    return {**_of_warps(lanes), **_of_launch(lanes), **_places(lanes)}


def _of_warps(lanes: Lanes) -> dict[str, Array]:
    lane = lanes.lane.astype(np.uint64)
    one = np.left_shift(np.uint64(1), lane)
    return {
        "%laneid": lanes.lane.astype(np.uint32),
        "%warpid": (lanes.linear // WARP).astype(np.uint32),
        "%nwarpid": _full(lanes, 64),
        "%lanemask_eq": one.astype(np.uint32),
        "%lanemask_lt": (one - np.uint64(1)).astype(np.uint32),
        "%lanemask_le": (one + one - np.uint64(1)).astype(np.uint32),
        "%lanemask_gt": (~(one + one - np.uint64(1))).astype(np.uint32),
        "%lanemask_ge": (~(one - np.uint64(1))).astype(np.uint32),
    }


def _of_launch(lanes: Lanes) -> dict[str, Array]:
    shape = lanes.shape
    return {
        "%smid": ((lanes.block + lanes.first) % shape.sm_count).astype(np.uint32),
        "%nsmid": _full(lanes, shape.sm_count),
        "%gridid": np.full(lanes.count, shape.grid_id, np.uint64),
        "%dynamic_smem_size": _full(lanes, shape.dynamic_shared),
        "%total_smem_size": _full(lanes, shape.shared),
        # a launch without clusters has clusters of one block (PTX ISA 10.14 to 10.20)
        "%cluster_ctarank": _full(lanes, 0),
        "%cluster_nctarank": _full(lanes, 1),
        "%is_explicit_cluster": np.zeros(lanes.count, np.bool_),
    }


def _places(lanes: Lanes) -> dict[str, Array]:
    """Thread and block, and how many there are, by axis; w is always 0."""
    table = {f"{name}.w": _full(lanes, 0) for name in ("%tid", "%ntid", "%ctaid", "%nctaid")}
    for name, sizes in (("%ntid", lanes.shape.block), ("%nctaid", lanes.shape.grid)):
        for axis, size in zip("xyz", sizes, strict=True):
            table[f"{name}.{axis}"] = _full(lanes, size)
    for name, linear, sizes in (
        ("%tid", lanes.linear, lanes.shape.block),
        ("%ctaid", lanes.block + lanes.first, lanes.shape.grid),
    ):
        x, y, _ = sizes
        for axis, part in zip("xyz", (linear % x, linear // x % y, linear // (x * y)), strict=True):
            table[f"{name}.{axis}"] = part.astype(np.uint32)
    return table


def _full(lanes: Lanes, value: int) -> Array:
    return np.full(lanes.count, value, np.uint32)


# name: (width in bits, shift of the clock, which the interpreter reads at that moment)
CLOCKS = {
    "%clock": (32, 0),
    "%clock_hi": (32, 32),
    "%clock64": (64, 0),
    "%globaltimer": (64, 0),
    "%globaltimer_lo": (32, 0),
    "%globaltimer_hi": (32, 32),
}
