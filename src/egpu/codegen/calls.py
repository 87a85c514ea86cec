"""Helper calls: one row per device body named in ``egpu.bpf.helpers``.

A body reads r1-r5 and gives r0 (None for helpers without a result).  What takes more than a few
instructions is a function of the device library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from egpu.bpf.helpers import HELPERS, Helper
from egpu.codegen.arena import ARENA_HEADER, RING_CONTROL, RING_GROUP_HEADER, round_up
from egpu.codegen.device_code import RelocKind
from egpu.codegen.ir import GLOBAL
from egpu.codegen.library import DISCARD
from egpu.codegen.memory import Place, load_from, place_of
from egpu.codegen.scope import STATE_MAPS, Scope
from egpu.errors import UnsupportedError

# Linux's errno values as helpers give them (uapi/asm-generic/errno-base.h).
_E2BIG, _EAGAIN, _EEXIST, _EINVAL = -7, -11, -17, -22
_BPF_NOEXIST, _BPF_EXIST = 1, 2  # flags of bpf_map_update_elem
_RING_FLAGS = 3  # BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP: nobody sleeps, so both do nothing
_LARGEST_RECORD = 1 << 30  # bytes, no ring is larger
_UNROLLED = 256  # bytes up to which a copy is straight code


@dataclass(frozen=True, slots=True)
class Call:
    """A helper call being lowered."""

    scope: Scope
    pc: int
    helper: Helper


def lower_helper(scope: Scope, pc: int, number: int) -> None:
    """Call helper ``number``. Raises UnsupportedError by name if it has no body."""
    helper = HELPERS.get(number)
    if helper is None or not helper.body or helper.body not in _BODIES:
        name = f"helper {number}" + (f" ({helper.name})" if helper else "")
        raise UnsupportedError(
            f"program {scope.unit.verified.program.name}, instruction {pc}: {name}",
            needs=helper.missing if helper and helper.missing else "a helper that has a body",
        )
    result = _BODIES[helper.body](Call(scope, pc, helper))
    if result is not None:
        scope.set(0, result)


def _argument_place(call: Call, register: int, size: int) -> Place:
    """Where a memory argument of ``size`` bytes points."""
    place = place_of(call.scope, call.pc, register, 0, size)
    return Place(place.pointer, place.space, min(place.align, 8), place.shared)


# --- identity and time


def _register(name: str, bits: int = 32) -> Callable[[Call], str]:
    def build(call: Call) -> str:
        body = call.scope.body
        return body.resize(body.call(f"i{bits}", f"egpu.{name}"), bits, 64)

    return build


def _sm(call: Call) -> str:
    return call.scope.sm()


def _pid_tgid(call: Call) -> str:
    """The workload's pid twice: device threads belong to no thread of it."""
    scope, body = call.scope, call.scope.body
    offset, size = ARENA_HEADER["pid"]
    address = body.add(scope.launch("device_arena"), offset)
    pid = body.load(f"i{8 * size}", GLOBAL, body.pointer(address), size)
    pid = body.resize(pid, 8 * size, 64)
    return body.binary("or", "i64", body.binary("shl", "i64", pid, "32"), pid)


def _three(name: str) -> Callable[[Call], str]:
    """Write x, y and z of a special register through r1-r3."""

    def build(call: Call) -> str:
        body = call.scope.body
        for register, axis in enumerate("xyz", 1):
            value = body.resize(body.call("i32", f"egpu.{name}_{axis}"), 32, 64)
            place = _argument_place(call, register, 8)
            body.store("i64", value, place.space, place.pointer, place.align)
        return "0"

    return build


def _fence(call: Call) -> str:
    call.scope.body.call_void("egpu.fence_sys")
    return "0"


# --- arrays


def _key(call: Call) -> str:
    """The u32 key behind r2, 64 bits."""
    place = _argument_place(call, 2, 4)
    return call.scope.body.resize(load_from(call.scope, place, 32), 32, 64)


def _entry(call: Call, key: str) -> tuple[str, str]:
    """(whether ``key`` is in range, address of its value) for the map of r1."""
    scope, body = call.scope, call.scope.body
    index, spec = scope.map_at(call.pc, 1)
    inside = body.compare("ult", "i64", key, str(spec.max_entries))
    skip = body.binary("mul", "i64", key, str(round_up(spec.value_size, 8)))
    return inside, body.binary("add", "i64", scope.map_base(index), skip)


def _map_lookup(call: Call) -> str:
    body = call.scope.body
    inside, address = _entry(call, _key(call))
    # An arena is never at 0: said so that the program's null check folds into the range check.
    present = body.compare("ne", "i64", address, "0")
    body.line(f"call void @llvm.assume(i1 {present})")
    return body.select(inside, "i64", address, "0")


def _map_update(call: Call) -> str:
    """As Linux's array_map_update_elem: flags first, then the key, then BPF_NOEXIST."""
    scope, body = call.scope, call.scope.body
    _, spec = scope.map_at(call.pc, 1)
    flags = scope.get(4)
    bad_flags = body.compare("ugt", "i64", flags, str(_BPF_EXIST))
    exists = body.compare("eq", "i64", flags, str(_BPF_NOEXIST))
    inside, address = _entry(call, _key(call))
    error = body.select(exists, "i64", str(_EEXIST), "0")
    error = body.select(inside, "i64", error, str(_E2BIG))
    error = body.select(bad_flags, "i64", str(_EINVAL), error)
    source = _argument_place(call, 3, spec.value_size)
    write, done = body.fresh("write"), body.fresh("done")
    body.branch_if(body.compare("eq", "i64", error, "0"), write, done)
    body.label(write)
    _copy(call, address, source, spec.value_size)
    body.branch(done)
    body.label(done)
    return error


def _map_delete(_call: Call) -> str:
    return str(_EINVAL)  # array elements cannot be deleted


def _copy(call: Call, address: str, source: Place, size: int) -> None:
    """Copy ``size`` bytes to the 8-byte aligned ``address`` in words, so that no word is ever seen
    half-written."""
    scope, body = call.scope, call.scope.body
    if size > _UNROLLED:
        _copy_loop(call, address, source, str(size))
        return
    offset = 0
    while offset < size:
        step = next(width for width in (8, 4, 2, 1) if width <= size - offset)
        pointer = source.pointer
        if offset:
            pointer = body.value(f"getelementptr i8, {source.space} {pointer}, i64 {offset}")
        align = math.gcd(source.align, offset) if offset else source.align
        piece = Place(pointer, source.space, min(align, 8), source.shared)
        value = load_from(scope, piece, 8 * step)
        target = body.pointer(body.add(address, offset))
        body.store(f"i{8 * step}", value, GLOBAL, target, step)
        offset += step


def _copy_loop(call: Call, address: str, source: Place, size: str) -> None:
    """Copy a number of bytes that is large or known at run time only: words, then the rest."""
    body = call.scope.body
    words = body.binary("and", "i64", size, "-8")
    _loop(call, address, source, ("0", words, 8))
    _loop(call, address, source, (words, size, 1))


def _loop(call: Call, address: str, source: Place, piece: tuple[str, str, int]) -> None:
    scope, body = call.scope, call.scope.body
    start, end, step = piece
    test, step_label, after = body.fresh("copy"), body.fresh("step"), body.fresh("copied")
    counter = body.variable(body.fresh("at"), "i64")
    body.store("i64", start, "ptr", counter, 8)
    body.branch(test)
    body.label(test)
    offset = body.load("i64", "ptr", counter, 8)
    body.branch_if(body.compare("ult", "i64", offset, end), step_label, after)
    body.label(step_label)
    pointer = body.value(f"getelementptr i8, {source.space} {source.pointer}, i64 {offset}")
    align = min(source.align, step)
    value = load_from(scope, Place(pointer, source.space, align, source.shared), 8 * step)
    target = body.pointer(body.binary("add", "i64", address, offset))
    body.store(f"i{8 * step}", value, GLOBAL, target, step)
    body.store("i64", body.add(offset, step), "ptr", counter, 8)
    body.branch(test)
    body.label(after)


# --- ring buffers


@dataclass(frozen=True, slots=True)
class _Ring:
    """This SM's ring of a map: 64-bit values."""

    control: str
    data: str
    size: str
    state: str  # pointer to the word that holds the end of the last reserved group


def _ring_records(scope: Scope, index: int) -> str:
    """Where the records of ring map ``index`` begin: SM slot 0's ring."""
    return scope.body.binary(
        "add", "i64", scope.launch("host_arena"), scope.symbol(RelocKind.RING_DATA, index)
    )


def _ring(call: Call) -> _Ring:
    scope, body = call.scope, call.scope.body
    index, _ = scope.map_at(call.pc, 1)
    control = body.binary(
        "add", "i64", scope.launch("device_arena"), scope.symbol(RelocKind.MAP, index)
    )
    size = scope.symbol(RelocKind.RING_SIZE, index)
    skip = body.binary("mul", "i64", scope.slot(), size)
    data = body.binary("add", "i64", _ring_records(scope, index), skip)
    return _Ring(scope.of_slot(control, index), data, size, scope.state(STATE_MAPS + 8 * index))


def _ring_arguments(ring: _Ring, size: str) -> tuple[str, str, str, str]:
    return f"i64 {ring.control}", f"i64 {ring.data}", f"i64 {ring.size}", f"i64 {size}"


def _unless_oversize(call: Call, ring: _Ring, size: str, labels: tuple[str, str]) -> None:
    """Go on in block ``labels[0]`` if a record of ``size`` bytes fits an empty ring; else count it
    as dropped and go to ``labels[1]``."""
    body = call.scope.body
    claim, done = labels
    small = body.compare("ule", "i64", size, str(_LARGEST_RECORD))  # so that the sum cannot wrap
    group = body.binary("and", "i64", body.add(size, RING_GROUP_HEADER + 15), "-16")
    fits = body.binary("and", "i1", small, body.compare("ule", "i64", group, ring.size))
    oversize = body.fresh("oversize")
    body.branch_if(fits, claim, oversize)
    body.label(oversize)
    dropped = body.add(ring.control, RING_CONTROL["dropped"][0])
    body.call_void("egpu.add_gpu", f"i64 {dropped}", "i64 1")
    body.branch(done)
    body.label(claim)


def _ring_output(call: Call) -> str:
    scope, body = call.scope, call.scope.body
    ring = _ring(call)
    known = scope.operand(call.pc, 3).value
    size = str(known) if known is not None else scope.get(3)
    result = body.variable(body.fresh("output"), "i64")
    flags = body.compare("ugt", "i64", scope.get(4), str(_RING_FLAGS))
    empty = body.compare("eq", "i64", size, "0")
    wrong = body.binary("or", "i1", flags, empty)
    first = body.select(wrong, "i64", str(_EINVAL), str(_E2BIG))
    body.store("i64", first, "ptr", result, 8)
    claim, write, done = body.fresh("claim"), body.fresh("write"), body.fresh("done")
    right = body.fresh("right")
    body.branch_if(wrong, done, right)
    body.label(right)
    _unless_oversize(call, ring, size, (claim, done))
    arguments = _ring_arguments(ring, size)
    kind = "{ i64, i64, i32 }"
    begun = body.call(
        kind, "egpu.output_begin", *arguments, f"i1 {'true' if known is not None else 'false'}"
    )
    record = body.value(f"extractvalue {kind} {begun}, 0")
    body.store("i64", str(_EAGAIN), "ptr", result, 8)
    body.branch_if(body.compare("eq", "i64", record, "0"), done, write)
    body.label(write)
    source = _argument_place(call, 2, known or 1)
    if known is not None:
        _copy(call, record, source, known)
    else:
        _copy_loop(call, record, source, size)
    position = body.value(f"extractvalue {kind} {begun}, 1")
    mask = body.value(f"extractvalue {kind} {begun}, 2")
    body.call_void("egpu.output_end", *arguments[1:], f"i64 {position}", f"i32 {mask}")
    body.store("i64", "0", "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)


def _ring_reserve(call: Call) -> str:
    scope, body = call.scope, call.scope.body
    ring = _ring(call)
    size = scope.get(2)
    result = body.variable(body.fresh("record"), "i64")
    body.store("i64", "0", "ptr", result, 8)
    claim, done = body.fresh("claim"), body.fresh("done")
    right = body.fresh("right")
    body.branch_if(body.compare("eq", "i64", scope.get(3), "0"), right, done)  # as Linux
    body.label(right)
    _unless_oversize(call, ring, size, (claim, done))
    record = body.call("i64", "egpu.reserve", *_ring_arguments(ring, size), f"ptr {ring.state}")
    body.store("i64", record, "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)


def _ring_commit(flag: int) -> Callable[[Call], None]:
    def build(call: Call) -> None:
        scope = call.scope
        index, _ = scope.map_at(call.pc, 1)
        scope.body.call_void(
            "egpu.commit",
            f"i64 {scope.get(1)}",
            f"i64 {_ring_records(scope, index)}",
            f"i64 {scope.symbol(RelocKind.RING_SIZE, index)}",
            f"ptr {scope.state(STATE_MAPS + 8 * index)}",
            f"i64 {flag}",
        )

    return build


def _ring_query(call: Call) -> str:
    ring = _ring(call)
    return call.scope.body.call(
        "i64",
        "egpu.query",
        f"i64 {ring.control}",
        f"i64 {ring.size}",
        f"i64 {call.scope.get(2)}",
    )


# fmt: off
_BODIES: dict[str, Callable[[Call], str | None]] = {
    "map_lookup":      _map_lookup,
    "map_update":      _map_update,
    "map_delete":      _map_delete,
    "ktime_get_ns":    _register("globaltimer", 64),
    "globaltimer":     _register("globaltimer", 64),
    "prandom_u32":     _register("prandom", 64),
    "sm_id":           _sm,
    "pid_tgid":        _pid_tgid,
    "ringbuf_output":  _ring_output,
    "ringbuf_reserve": _ring_reserve,
    "ringbuf_submit":  _ring_commit(0),
    "ringbuf_discard": _ring_commit(DISCARD),
    "ringbuf_query":   _ring_query,
    "block_idx":       _three("ctaid"),
    "block_dim":       _three("ntid"),
    "thread_idx":      _three("tid"),
    "grid_dim":        _three("nctaid"),
    "membar_sys":      _fence,
    "warp_id":         _register("warp"),
    "lane_id":         _register("lane"),
}
# fmt: on


def helper_bodies() -> frozenset[str]:
    """Names of the device bodies that exist."""
    return frozenset(_BODIES)
