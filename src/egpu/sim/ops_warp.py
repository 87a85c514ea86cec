"""Warp-wide instructions (PTX ISA 9.0, 9.7.9.6 and 9.7.13): shfl, vote, match, redux, activemask.

The executor runs them only when every lane that their mask names, and that has not exited, executes
them together; so ``lanes.select`` holds whole groups.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from egpu.image.ptx.syntax import Instruction, Operand, Pair
from egpu.sim.lanes import WARP, Lanes
from egpu.sim.operands import Read, Run, Scope, Write, scalar, unsupported
from egpu.sim.ops_memory import full
from egpu.sim.types import B32, PREDICATE, TYPES, U32, Array, ScalarType

SHUFFLES = ("up", "down", "bfly", "idx")


def _two(scope: Scope, operand: Operand, type: ScalarType) -> tuple[Write, Write | None]:
    """The result and, after a bar, the predicate result."""
    if isinstance(operand, Pair):
        return scope.write(operand.first, type), scope.write(operand.second, PREDICATE)
    return scope.write(operand, type), None


def _source_lane(mode: str, lane: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """The lane to read and whether it lies in range (PTX ISA, shfl.sync, pseudo-code)."""
    clamp = (c & np.uint32(31)).astype(np.int64)
    segment = (c >> np.uint32(8) & np.uint32(31)).astype(np.int64)
    amount = (b & np.uint32(31)).astype(np.int64)
    most = (lane & segment) | (clamp & ~segment)
    least = lane & segment
    if mode == "up":
        source = lane - amount
        valid = source >= most
    elif mode == "down":
        source = lane + amount
        valid = source <= most
    elif mode == "bfly":
        source = lane ^ amount
        valid = source <= most
    else:
        source = least | (amount & ~segment)
        valid = source <= most
    return np.where(valid, source, lane), valid


def shuffle(scope: Scope, ins: Instruction) -> Run:
    """shfl.sync; a lane outside the mask gives the reader its own value (undefined in PTX)."""
    if len(ins.parts) != 4 or ins.parts[1] != "sync" or ins.parts[2] not in SHUFFLES:
        raise unsupported(ins, "" if "sync" in ins.parts else ": it needs the .sync form")
    mode = ins.parts[2]
    write, write_valid = _two(scope, ins.operands[0], B32)
    value, amount, bounds = (
        scope.read(operand, type)
        for operand, type in zip(ins.operands[1:4], (B32, U32, U32), strict=True)
    )

    def run(lanes: Lanes) -> None:
        threads = lanes.active()
        own = full(lanes, value(lanes))
        lane = lanes.lane[threads]
        source, valid = _source_lane(mode, lane, amount(lanes), bounds(lanes))
        place = np.full(lanes.count + WARP, -1, np.int64)
        place[threads] = np.arange(len(threads))
        partner = threads - lane + source
        # past a block's last, partial warp lie the threads of the next block
        same = lanes.warp[np.minimum(partner, lanes.count - 1)] == lanes.warp[threads]
        found = np.where(same, place[partner], -1)
        write(lanes, np.where(found >= 0, own[found], own))
        if write_valid is not None:
            write_valid(lanes, valid)

    return run


def vote(scope: Scope, ins: Instruction) -> Run:
    """vote.sync.all, any, uni, ballot."""
    if len(ins.parts) != 4 or ins.parts[1] != "sync":
        raise unsupported(ins, ": it needs the .sync form")
    mode = ins.parts[2]
    if mode not in ("all", "any", "uni", "ballot"):
        raise unsupported(ins)
    write = scope.write(ins.operands[0], B32 if mode == "ballot" else PREDICATE)
    predicate = scope.read(ins.operands[1], PREDICATE)
    mask = scope.read(ins.operands[2], U32)

    def run(lanes: Lanes) -> None:
        flags = full(lanes, predicate(lanes))
        wanted = mask(lanes)
        yes = lanes.ballot(flags) & wanted
        everyone = lanes.ballot(np.ones(len(flags), np.bool_)) & wanted
        match mode:
            case "ballot":
                write(lanes, yes)
            case "any":
                write(lanes, yes != 0)
            case "all":
                write(lanes, yes == everyone)
            case _:
                write(lanes, (yes == everyone) | (yes == 0))

    return run


def _matrix(lanes: Lanes, value: Array, fill: Array) -> tuple[Array, Array]:
    """Values as rows of 32 lanes per warp, and which of them execute."""
    threads = lanes.active()
    rows = np.full((lanes.warp_count, WARP), fill, value.dtype)
    present = np.zeros((lanes.warp_count, WARP), np.bool_)
    rows[lanes.warp[threads], lanes.lane[threads]] = value
    present[lanes.warp[threads], lanes.lane[threads]] = True
    return rows, present


def _members(lanes: Lanes, mask: Array, present: Array) -> Array:
    """Per executing lane, a row of 32: the lanes in its mask that execute with it."""
    threads = lanes.active()
    bits = (full(lanes, mask)[:, None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)
    result: Array = (bits != 0) & present[lanes.warp[threads]]
    return result


def match(scope: Scope, ins: Instruction) -> Run:
    """match.any.sync and match.all.sync."""
    if len(ins.parts) != 4 or ins.parts[1] not in ("any", "all") or ins.parts[2] != "sync":
        raise unsupported(ins)
    type = scalar(ins, ins.parts[3])
    write, write_all = _two(scope, ins.operands[0], B32)
    value, mask = scope.read(ins.operands[1], type), scope.read(ins.operands[2], U32)
    whole = ins.parts[1] == "all"
    weights = np.left_shift(np.uint64(1), np.arange(WARP, dtype=np.uint64))

    def run(lanes: Lanes) -> None:
        own = full(lanes, value(lanes))
        rows, present = _matrix(lanes, own, np.zeros((), own.dtype))
        members = _members(lanes, mask(lanes), present)
        equal = members & (rows[lanes.warp[lanes.active()]] == own[:, None])
        found = (equal @ weights).astype(np.uint32)
        if not whole:
            write(lanes, found)
            return
        agree = (equal == members).all(axis=1)
        write(lanes, np.where(agree, found, np.uint32(0)))
        if write_all is not None:
            write_all(lanes, agree)

    return run


# operation: (function, neutral element by type name)
# fmt: off
REDUCE: dict[str, tuple[Callable[..., Array], dict[str, int]]] = {
    "add": (np.add.reduce,         {"u32": 0, "s32": 0}),
    "min": (np.minimum.reduce,     {"u32": 0xFFFFFFFF, "s32": (1 << 31) - 1}),
    "max": (np.maximum.reduce,     {"u32": 0, "s32": -(1 << 31)}),
    "and": (np.bitwise_and.reduce, {"b32": 0xFFFFFFFF}),
    "or":  (np.bitwise_or.reduce,  {"b32": 0}),
    "xor": (np.bitwise_xor.reduce, {"b32": 0}),
}
# fmt: on


def reduce(scope: Scope, ins: Instruction) -> Run:
    """redux.sync of integers."""
    if len(ins.parts) != 4 or ins.parts[1] != "sync":
        raise unsupported(ins)
    function, neutral = REDUCE.get(ins.parts[2], (np.add.reduce, {}))
    if ins.parts[3] not in neutral:
        raise unsupported(ins)
    type = TYPES[ins.parts[3]]
    write = scope.write(ins.operands[0], type)
    value, mask = scope.read(ins.operands[1], type), scope.read(ins.operands[2], U32)
    start = np.array(neutral[type.name]).astype(type.native)

    def run(lanes: Lanes) -> None:
        own = full(lanes, value(lanes)).view(type.native)
        rows, present = _matrix(lanes, own, start)
        members = _members(lanes, mask(lanes), present)
        picked = np.where(members, rows[lanes.warp[lanes.active()]], start)
        write(lanes, function(picked, axis=1, dtype=type.native).view(type.raw))

    return run


def active_mask(scope: Scope, ins: Instruction) -> Run:
    """activemask.b32: the lanes of the warp that execute it at this moment."""
    write = scope.write(ins.operands[0], B32)
    return lambda lanes: write(lanes, lanes.ballot(np.ones(lanes.size(), np.bool_)))


def mask_operand(scope: Scope, ins: Instruction) -> Read:
    """The member mask, the last operand of every warp-wide instruction."""
    return scope.read(ins.operands[-1], U32)
