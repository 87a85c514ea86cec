"""Array helpers: ARRAY, PERCPU_ARRAY as one copy for each SM slot, and per-thread arrays
(``egpu.maps.layout``)."""

from __future__ import annotations

from egpu.bpf.maptypes import traits
from egpu.codegen.arena import round_up
from egpu.codegen.device_code import RelocKind
from egpu.codegen.helper_call import Call, argument_place, copy
from egpu.codegen.memory import load_from

# Linux's errno values as helpers give them (uapi/asm-generic/errno-base.h).
_E2BIG, _EEXIST, _EINVAL = -7, -17, -22
_BPF_NOEXIST, _BPF_EXIST = 1, 2  # flags of bpf_map_update_elem


def _key(call: Call) -> str:
    """The u32 key behind r2, 64 bits."""
    place = argument_place(call, 2, 4)
    return call.scope.body.resize(load_from(call.scope, place, 32), 32, 64)


def entry(call: Call, key: str) -> tuple[str, str]:
    """(whether ``key`` is in range, address of its value) for the map of r1."""
    scope, body = call.scope, call.scope.body
    index, spec = scope.map_at(call.pc, 1)
    inside = body.compare("ult", "i64", key, str(spec.max_entries))
    entry = round_up(spec.value_size, 8)
    if traits(spec.type).per_thread:
        thread = body.call("i64", "egpu.thread_number")
        stride = scope.symbol(RelocKind.MAP_STRIDE, index)
        slots = body.binary("udiv", "i64", stride, str(entry))
        inside = body.binary("and", "i1", inside, body.compare("ult", "i64", thread, slots))
        own = body.binary("mul", "i64", thread, str(entry))
        skip = body.binary("add", "i64", body.binary("mul", "i64", key, stride), own)
    else:
        skip = body.binary("mul", "i64", key, str(entry))
    return inside, scope.argument_base(call.pc, 1, skip)


def map_lookup(call: Call) -> str:
    body = call.scope.body
    inside, address = entry(call, _key(call))
    # An arena is never at 0: said so that the program's null check folds into the range check.
    present = body.compare("ne", "i64", address, "0")
    body.line(f"call void @llvm.assume(i1 {present})")
    return body.select(inside, "i64", address, "0")


def map_update(call: Call) -> str:
    """As Linux's array_map_update_elem: flags first, then the key, then BPF_NOEXIST."""
    scope, body = call.scope, call.scope.body
    _, spec = scope.map_at(call.pc, 1)
    flags = scope.get(4)
    bad_flags = body.compare("ugt", "i64", flags, str(_BPF_EXIST))
    exists = body.compare("eq", "i64", flags, str(_BPF_NOEXIST))
    inside, address = entry(call, _key(call))
    error = body.select(exists, "i64", str(_EEXIST), "0")
    error = body.select(inside, "i64", error, str(_E2BIG))
    error = body.select(bad_flags, "i64", str(_EINVAL), error)
    source = argument_place(call, 3, spec.value_size)
    write, done = body.fresh("write"), body.fresh("done")
    body.branch_if(body.compare("eq", "i64", error, "0"), write, done)
    body.label(write)
    copy(call, address, source, spec.value_size)
    body.branch(done)
    body.label(done)
    return error


def map_delete(_call: Call) -> str:
    return str(_EINVAL)  # array elements cannot be deleted
