"""Loads and stores (PTX ISA 9.0, 9.7.9.8 and on) in every state space.

Order and scope modifiers change nothing here: every access of the simulated device happens in one
total order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from egpu.image.ptx.syntax import Instruction, Operand, Vector
from egpu.sim.faults import FaultKind, LaneFault
from egpu.sim.lanes import Lanes
from egpu.sim.memory import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    WINDOW_MASK,
    Place,
    Views,
    require_aligned,
)
from egpu.sim.operands import Read, Run, Scope, scalar, unsupported
from egpu.sim.types import Array, ScalarType

SPACES = frozenset({"global", "const", "shared", "local", "param"})
# Modifiers without an effect on the result: order, scope, caching, eviction (PTX ISA, ld)
# fmt: off
IGNORED = frozenset((
    "weak", "volatile", "relaxed", "acquire", "release", "acq_rel",
    "cta", "cluster", "gpu", "sys", "mmio",
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last",
    "L1::no_allocate", "L2::evict_normal", "L2::evict_first", "L2::evict_last",
    "L2::64B", "L2::128B", "L2::256B",
))
# fmt: on


def places(lanes: Lanes, space: str, address: Array, size: int, width: int) -> Iterator[Place]:
    """Where the accesses of the executing lanes lie; ``space`` "" for generic addresses."""
    match space:
        case "global" | "const":
            return lanes.memory.places(address, size, width)
        case "shared":
            views, limit, name = lanes.shared, lanes.shape.shared, "shared"
            start = lanes.block[lanes.select] * lanes.shared_stride
        case "local":
            views, limit, name = lanes.local, lanes.shape.local, "local"
            start = lanes.thread[lanes.select] * lanes.local_stride
        case "param":
            views, limit, name = lanes.params, lanes.param_size, "parameter"
            start = np.zeros(len(address), np.int64)
        case _:
            return _generic(lanes, address, size, width)
    return _window(views, address, start, limit=limit, size=size, width=width, name=name)


def _window(
    views: Views,
    address: Array,
    start: Array,
    *,
    limit: int,
    size: int,
    width: int,
    name: str,
) -> Iterator[Place]:
    require_aligned(address, width)
    outside = address > np.uint64(max(limit - width, 0))
    if limit < width:
        outside[:] = True
    if outside.any():
        lane = int(np.flatnonzero(outside)[0])
        raise LaneFault(
            FaultKind.ILLEGAL_ADDRESS,
            f"{width} bytes at {int(address[lane]):#x} leave the {limit} bytes of {name} memory",
            lane,
        )
    yield Place(views[size], (start + address.astype(np.int64)) // size, slice(None))


def _generic(lanes: Lanes, address: Array, size: int, width: int) -> Iterator[Place]:
    if int(address.max()) < SHARED_WINDOW:
        yield from lanes.memory.places(address, size, width)
        return
    window = address & ~np.uint64(WINDOW_MASK)
    known = {SHARED_WINDOW: "shared", LOCAL_WINDOW: "local", PARAM_WINDOW: "param", 0: "global"}
    before, threads = lanes.select, lanes.active()
    for base in np.unique(window):
        members = np.flatnonzero(window == base)
        space = known.get(int(base), "global")  # an address past the windows is not allocated
        part = address[members] & np.uint64(WINDOW_MASK) if int(base) in known else address[members]
        lanes.select = threads[members]
        try:
            found = list(places(lanes, space, part, size, width))
        except LaneFault as fault:
            raise LaneFault(fault.kind, fault.message, int(members[fault.lane])) from None
        finally:
            lanes.select = before
        for place in found:
            yield Place(place.view, place.index, members[place.lanes])


def full(lanes: Lanes, value: Array) -> Array:
    """One value per executing lane."""
    count = lanes.size()
    return value if len(value) == count else np.broadcast_to(value, (count,)).copy()


def _parse(ins: Instruction) -> tuple[str, int, ScalarType]:
    """Space ("" for generic), vector length and type."""
    space, vector = "", 1
    for part in ins.parts[1:-1]:
        plain = part.partition("::")[0]
        if plain in SPACES:
            if part == "shared::cluster":
                raise unsupported(ins)
            space = plain
        elif part in ("v2", "v4", "v8"):
            vector = int(part[1:])
        elif part not in IGNORED:
            raise unsupported(ins, f" (modifier .{part})")
    type = scalar(ins, ins.parts[-1])
    return space, vector, type


def target(scope: Scope, ins: Instruction, operand: Operand, space: str) -> tuple[Read, str]:
    """Address reader and space: a parameter of a ``.func`` lies in local memory."""
    read, variable = scope.address(operand)
    if space == "param" and variable == "local":
        return read, "local"
    if space == "" and variable in ("shared", "local", "param"):
        raise unsupported(ins, ": the address of a variable is not generic")
    return read, space


def _items(operand: Operand, vector: int, ins: Instruction) -> tuple[Operand, ...]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != vector:
        raise unsupported(ins)
    return items


def load(scope: Scope, ins: Instruction) -> Run:
    """ld, ld.global.nc, ldu."""
    space, vector, type = _parse(ins)
    if len(ins.operands) != 2:
        raise unsupported(ins)
    read, space = target(scope, ins, ins.operands[1], space)
    writes = [scope.write(item, type) for item in _items(ins.operands[0], vector, ins)]
    size = type.size
    width = size * vector

    def run(lanes: Lanes) -> None:
        found = list(places(lanes, space, full(lanes, read(lanes)), size, width))
        count = lanes.size()
        for k, write in enumerate(writes):
            if len(found) == 1:
                write(lanes, found[0].view[found[0].index + k])
                continue
            value = np.empty(count, type.raw)
            for place in found:
                value[place.lanes] = place.view[place.index + k]
            write(lanes, value)

    return run


def store(scope: Scope, ins: Instruction) -> Run:
    """st; of several lanes that store to one address the last one is seen."""
    space, vector, type = _parse(ins)
    if len(ins.operands) != 2:
        raise unsupported(ins)
    read, space = target(scope, ins, ins.operands[0], space)
    reads = [scope.read(item, type) for item in _items(ins.operands[1], vector, ins)]
    if space in ("const", "param"):
        raise unsupported(ins)
    size = type.size
    width = size * vector

    def run(lanes: Lanes) -> None:
        found = list(places(lanes, space, full(lanes, read(lanes)), size, width))
        for k, value in enumerate(reads):
            bits = value(lanes)
            for place in found:
                part = bits if len(bits) == 1 else bits[place.lanes]
                place.view[place.index + k] = part

    return run


def nothing(scope: Scope, ins: Instruction) -> Run:
    """Fences, prefetches, hints: all accesses are in order already."""
    return lambda lanes: None
