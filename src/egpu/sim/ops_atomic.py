"""atom and red (PTX ISA 9.0, 9.7.13).

The executing lanes act one after another in lane order, whatever the scope and order modifiers say.
``fetch`` functions give each lane the value that it found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from egpu.image.ptx.syntax import Instruction
from egpu.sim.lanes import Lanes
from egpu.sim.operands import Run, Scope, scalar, unsupported
from egpu.sim.ops_memory import IGNORED, SPACES, full, places, target
from egpu.sim.types import Array, Kind, ScalarType

# (view, index, operand, second operand) -> old values; the view is changed
Fetch: TypeAlias = Callable[[Array, Array, Array, Array], Array]


def _groups(index: Array) -> tuple[Array, Array]:
    """A stable order that puts equal addresses together, and where each group starts in it."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return order, starts


def _spread(starts: Array, count: int) -> Array:
    """The start of its group, for each place in the order."""
    return np.repeat(starts, np.diff(np.append(starts, count)))


def _add(view: Array, index: Array, value: Array, _: Array) -> Array:
    """Integers wrap, so a prefix sum over everything minus the sum before the group is exact."""
    order, starts = _groups(index)
    ordered = value[order]
    before = np.cumsum(ordered, dtype=ordered.dtype) - ordered
    base = _spread(starts, len(order))
    old = np.empty_like(value)
    old[order] = view[index[order]] + (before - before[base])
    np.add.at(view, index, value)
    return old


def _scan(function: Callable[[Array, Array], Array]) -> Fetch:
    """For associative functions: a segmented scan by doubling."""

    def fetch(view: Array, index: Array, value: Array, _: Array) -> Array:
        order, starts = _groups(index)
        count = len(order)
        base = _spread(starts, count)
        position = np.arange(count)
        # place i first holds what the lane before it brought, a group's first what memory held
        found = np.empty_like(value)
        found[1:] = value[order][:-1]
        found[starts] = view[index[order][starts]]
        step = 1
        while step < count:
            reach = position - step >= base
            joined = function(found[:-step], found[step:])
            found[step:] = np.where(reach[step:], joined, found[step:])
            step *= 2
        ends = np.append(starts[1:], count) - 1
        view[index[order][ends]] = function(found[ends], value[order][ends])
        old = np.empty_like(value)
        old[order] = found
        return old

    return fetch


def _exchange(view: Array, index: Array, value: Array, _: Array) -> Array:
    order, starts = _groups(index)
    ordered = value[order]
    found = np.empty_like(value)
    found[1:] = ordered[:-1]
    found[starts] = view[index[order][starts]]
    ends = np.append(starts[1:], len(order)) - 1
    view[index[order][ends]] = ordered[ends]
    old = np.empty_like(value)
    old[order] = found
    return old


def _float_add(view: Array, index: Array, value: Array, _: Array) -> Array:
    """Rounded after each addition, in lane order: accumulate does exactly that."""
    order, starts = _groups(index)
    ends = np.append(starts[1:], len(order))
    old = np.empty_like(value)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        members = order[start:end]
        place = index[members[0]]
        steps = np.add.accumulate(np.concatenate((view[place : place + 1], value[members])))
        old[members] = steps[:-1]
        view[place] = steps[-1]
    return old


def _one_by_one(function: Callable[[int, int, int], int]) -> Fetch:
    """For what is not associative: lane after lane."""

    def fetch(view: Array, index: Array, value: Array, second: Array) -> Array:
        unique, inverse = np.unique(index, return_inverse=True)
        state = view[unique].tolist()
        old = []
        for slot, a, b in zip(inverse.tolist(), value.tolist(), second.tolist(), strict=True):
            found = state[slot]
            old.append(found)
            state[slot] = function(found, a, b)
        view[unique] = np.array(state, view.dtype)
        return np.array(old, view.dtype)

    return fetch


# fmt: off
INTEGER: dict[str, Fetch] = {
    "add":  _add,
    "and":  _scan(np.bitwise_and),
    "or":   _scan(np.bitwise_or),
    "xor":  _scan(np.bitwise_xor),
    "min":  _scan(np.minimum),
    "max":  _scan(np.maximum),
    "exch": _exchange,
    "inc":  _one_by_one(lambda old, limit, _: 0 if old >= limit else old + 1),
    "dec":  _one_by_one(lambda old, limit, _: limit if old == 0 or old > limit else old - 1),
    "cas":  _one_by_one(lambda old, compare, new: new if old == compare else old),
}
# operation: types that the ISA gives it
ALLOWED = {
    "add":  frozenset(("u32", "s32", "u64", "s64", "f32", "f64")),
    "and":  frozenset(("b32", "b64")),
    "or":   frozenset(("b32", "b64")),
    "xor":  frozenset(("b32", "b64")),
    "min":  frozenset(("u32", "s32", "u64", "s64")),
    "max":  frozenset(("u32", "s32", "u64", "s64")),
    "exch": frozenset(("b32", "b64")),
    "inc":  frozenset(("u32",)),
    "dec":  frozenset(("u32",)),
    "cas":  frozenset(("b16", "b32", "b64")),
}
# fmt: on


def atomic(scope: Scope, ins: Instruction) -> Run:
    """atom and red, in global, shared and generic memory."""
    type = scalar(ins, ins.parts[-1])
    space, name = "", ""
    for part in ins.parts[1:-1]:
        if part in ALLOWED:
            name = part
        elif part.partition("::")[0] in SPACES and part != "shared::cluster":
            space = part.partition("::")[0]
        elif part not in IGNORED:
            raise unsupported(ins, f" (modifier .{part})")
    if type.name not in ALLOWED.get(name, frozenset()):
        raise unsupported(ins)
    return _build(scope, ins, name, type, space)


def _build(scope: Scope, ins: Instruction, name: str, type: ScalarType, space: str) -> Run:
    fetches = ins.parts[0] == "atom"
    operands = ins.operands[1:] if fetches else ins.operands
    if len(operands) != (3 if name == "cas" else 2):
        raise unsupported(ins)
    read, space = target(scope, ins, operands[0], space)
    first = scope.read(operands[1], type)
    second = scope.read(operands[2], type) if name == "cas" else first
    write = scope.write(ins.operands[0], type) if fetches else None
    fetch = _float_add if type.kind is Kind.FLOAT else INTEGER[name]
    size = type.size

    def run(lanes: Lanes) -> None:
        address = full(lanes, read(lanes))
        a, b = full(lanes, first(lanes)), full(lanes, second(lanes))
        old = np.empty(len(address), type.raw)
        for place in places(lanes, space, address, size, size):
            view = place.view.view(type.native)
            found = fetch(
                view,
                place.index,
                a[place.lanes].view(type.native),
                b[place.lanes].view(type.native),
            )
            old[place.lanes] = found.view(type.raw)
        if write is not None:
            write(lanes, old)

    return run
