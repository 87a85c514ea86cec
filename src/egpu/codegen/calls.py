"""Helper calls: one row per device body named in ``egpu.bpf.helpers``.

A body reads r1-r5 and gives r0 (None for helpers without a result).
"""

from __future__ import annotations

from collections.abc import Callable

from egpu.bpf.helpers import HELPERS
from egpu.bpf.maptypes import Storage, traits
from egpu.codegen.arrays import map_delete, map_lookup, map_update
from egpu.codegen.blooms import BLOOMS
from egpu.codegen.callbacks import CALLING_BACK
from egpu.codegen.deques import DEQUES
from egpu.codegen.hashes import HASHES
from egpu.codegen.helper_call import Call, argument_place
from egpu.codegen.identity import (
    attach_cookie,
    comm,
    func_arg,
    func_ip,
    ktime_get_ns,
    pid_tgid,
    stackid,
    uid_gid,
)
from egpu.codegen.library_ring import DISCARD
from egpu.codegen.outer import inner_lookup
from egpu.codegen.prints import print_line
from egpu.codegen.probe_read import probe_read
from egpu.codegen.rings import perf_output, ring_commit, ring_output, ring_query, ring_reserve
from egpu.codegen.scope import Scope
from egpu.codegen.targets import Machine
from egpu.errors import InternalError, UnsupportedError


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


def _register(name: str, bits: int = 32) -> Callable[[Call], str]:
    def build(call: Call) -> str:
        body = call.scope.body
        return body.resize(body.call(f"i{bits}", f"egpu.{name}"), bits, 64)

    return build


def _sm(call: Call) -> str:
    return call.scope.sm()


def _three(name: str) -> Callable[[Call], str]:
    """Write x, y and z of a special register through r1-r3."""

    def build(call: Call) -> str:
        body = call.scope.body
        for register, axis in enumerate("xyz", 1):
            value = body.resize(body.call("i32", f"egpu.{name}_{axis}"), 32, 64)
            place = argument_place(call, register, 8)
            body.store("i64", value, place.space, place.pointer, place.align)
        return "0"

    return build


def _thread_exit(call: Call) -> None:
    """End the thread of the kernel. LLVM knows that nothing follows."""
    if call.scope.unit.machine is not Machine.NVPTX:
        raise UnsupportedError(
            f"program {call.scope.unit.verified.program.name}, instruction {call.pc}: "
            f"{call.helper.name} on the host",
            needs="a GPU or the simulated device",
        )
    call.scope.body.line("call void @llvm.nvvm.exit()")


def _fence(call: Call) -> str:
    call.scope.body.call_void("egpu.fence_sys")
    return "0"


def _atomic_max(call: Call) -> None:
    scope = call.scope
    scope.body.call_void("egpu.max_gpu", f"i64 {scope.get(1)}", f"i64 {scope.get(2)}")


def _log2(call: Call) -> str:
    body = call.scope.body
    value = body.binary("or", "i64", call.scope.get(1), "1")
    zeros = body.call("i64", "llvm.ctlz.i64", f"i64 {value}", "i1 true")
    return body.binary("sub", "i64", "63", zeros)


_ARRAYS: dict[str, Callable[[Call], str]] = {
    "map_lookup": map_lookup,
    "map_update": map_update,
    "map_delete": map_delete,
}
_BY_STORAGE: dict[Storage, dict[str, Callable[[Call], str]]] = {
    Storage.ARRAY: _ARRAYS,
    Storage.PER_SM_ARRAY: _ARRAYS,
    Storage.PER_THREAD_ARRAY: _ARRAYS,
    Storage.HASH: HASHES,
    Storage.PER_SM_HASH: HASHES,
    Storage.DEQUE: DEQUES,
    Storage.BLOOM: BLOOMS,
    Storage.MAPS: {"map_lookup": inner_lookup},
}


def _of_map(name: str) -> Callable[[Call], str]:
    """The body of a helper that depends on the map of r1."""

    def build(call: Call) -> str:
        _, spec = call.scope.map_at(call.pc, 1)
        storage = traits(spec.type).storage
        if storage is None or name not in _BY_STORAGE.get(storage, {}):
            raise InternalError(f"{call.helper.name} on map {spec.name} ({spec.type.name})")
        return _BY_STORAGE[storage][name](call)

    return build


# fmt: off
_BODIES: dict[str, Callable[[Call], str | None]] = {
    "map_lookup":      _of_map("map_lookup"),
    "map_update":      _of_map("map_update"),
    "map_delete":      _of_map("map_delete"),
    "ktime_get_ns":    ktime_get_ns,
    "map_push":        _of_map("map_push"),
    "map_pop":         _of_map("map_pop"),
    "map_peek":        _of_map("map_peek"),
    "globaltimer":     _register("globaltimer", 64),
    "print":           print_line,
    "probe_read":      probe_read("probe_read"),
    "probe_read_text": probe_read("probe_read_text"),
    "prandom_u32":     _register("prandom", 64),
    "sm_id":           _sm,
    "pid_tgid":        pid_tgid,
    "uid_gid":         uid_gid,
    "comm":            comm,
    "func_ip":         func_ip,
    "stackid":         stackid,
    "attach_cookie":   attach_cookie,
    "func_arg":        func_arg,
    "perf_output":     perf_output,
    "ringbuf_output":  ring_output,
    "ringbuf_reserve": ring_reserve,
    "ringbuf_submit":  ring_commit(0),
    "ringbuf_discard": ring_commit(DISCARD),
    "ringbuf_query":   ring_query,
    "block_idx":       _three("ctaid"),
    "block_dim":       _three("ntid"),
    "thread_idx":      _three("tid"),
    "grid_dim":        _three("nctaid"),
    "membar_sys":      _fence,
    "thread_exit":     _thread_exit,
    "warp_id":         _register("warp"),
    "lane_id":         _register("lane"),
    "atomic_max":      _atomic_max,
    "log2":            _log2,
}
# fmt: on


def helper_bodies() -> frozenset[str]:
    """Names of the device bodies that exist."""
    return frozenset(_BODIES) | frozenset(CALLING_BACK)
