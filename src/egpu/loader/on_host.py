"""A directly run program on this machine: the reference interpreter, one thread after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from egpu.bpf import MapState, Place, run
from egpu.bpf.context import CONTEXT_SIZE
from egpu.bpf.maptypes import traits
from egpu.bpf.own_maps import PRINT_RING, SPECS, with_own_maps
from egpu.bpf.program import Object
from egpu.loader.directly import Shape
from egpu.verifier import Limits, Policy, verify

_WARP = 32


@dataclass(frozen=True, slots=True)
class HostRun:
    """What the threads left: the object's maps by name, and the lines that they printed."""

    maps: dict[str, MapState]
    prints: tuple[str, ...]


def run_on_host(made: Object, shape: Shape, *, policy: Policy, limits: Limits) -> HostRun:
    """Run the one program of ``made`` (see ``directly_run``) in every thread of ``shape``.

    Raises VerifierError, as on a device; DeviceFault or UnsupportedError from the interpreter.
    """
    program = with_own_maps(made.programs[0])
    verify(program, policy=policy, limits=limits)
    gx, gy, gz = shape.grid
    bx, by, bz = shape.block
    slots = gx * gy * gz * bx * by * bz
    states = [MapState(spec, slots) for spec in program.maps]
    for _ in range(shape.count):
        for place in _places(shape):
            run(program, context=bytes(CONTEXT_SIZE), maps=states, place=place)
    named = {state.spec.name: state for state in states}
    printed = named[PRINT_RING].records if PRINT_RING in named else []
    return HostRun(
        {name: state for name, state in named.items() if name not in SPECS},
        tuple(record.decode("utf-8", "replace") for record in printed),
    )


def _places(shape: Shape) -> Iterator[Place]:
    """Every thread, along x first; a block is on SM 0 and its warps are numbered from 0."""
    pid = os.getpid() << 32 | os.getpid()
    along = [range(size) for size in (*reversed(shape.grid), *reversed(shape.block))]
    for bz, by, bx, z, y, x in product(*along):
        number = (z * shape.block[1] + y) * shape.block[0] + x
        yield Place(
            block=(bx, by, bz),
            block_dim=shape.block,
            thread=(x, y, z),
            grid_dim=shape.grid,
            warp=number // _WARP,
            lane=number % _WARP,
            pid_tgid=pid,
        )


def entries(state: MapState) -> list[tuple[object, object]]:
    """(key, value) of what an array or hash map holds, decoded by its types; without zeros of an
    array.  Of a per-thread map the key is (key, thread)."""
    spec = state.spec
    kind = traits(spec.type)
    if kind.hashed:
        return [
            (_decoded(state, spec.key_type, key), _decoded(state, spec.value_type, bytes(value)))
            for key, value in sorted(state.table.items())
        ]
    if not kind.indexed:
        return []
    slots = state.thread_slots if kind.per_thread else 1
    rows = []
    for entry in range(spec.max_entries * slots):
        value = bytes(state.value(entry))
        if any(value):
            key: object = divmod(entry, slots) if kind.per_thread else entry
            rows.append((key, _decoded(state, spec.value_type, value)))
    return rows


def _decoded(state: MapState, type_id: int, data: bytes) -> object:
    btf = state.spec.btf
    return data if btf is None or not type_id else btf.decode(type_id, data)
