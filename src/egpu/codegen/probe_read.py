"""bpf_probe_read and its like: the workload's memory by the table of its allocations."""

from __future__ import annotations

from collections.abc import Callable

from egpu.bpf.own_maps import ALLOCATIONS, own_map
from egpu.codegen.helper_call import Call, argument_place
from egpu.codegen.ir import GENERIC
from egpu.errors import InternalError, UnsupportedError


def probe_read(function: str) -> Callable[[Call], str]:
    """The body that is ``function`` of the device library."""

    def build(call: Call) -> str:
        scope, body = call.scope, call.scope.body
        verified = scope.unit.verified
        size = scope.operand(call.pc, 2).value
        if size is None:
            raise InternalError(f"instruction {call.pc}: {call.helper.name} of no constant size")
        if not size:
            return "0"  # nothing is read or written, wherever the pointers lead
        index = own_map(verified.program.maps, ALLOCATIONS)
        if index is None:
            raise UnsupportedError(
                f"program {verified.program.name}, instruction {call.pc}: {call.helper.name} "
                "without a table of what may be read",
                needs="a session, such as that of egpu run, which adds it",
            )
        place = argument_place(call, 1, size)
        to = place.pointer
        if place.space != GENERIC:
            to = body.value(f"addrspacecast {place.space} {to} to ptr")
        arguments = (f"i64 {scope.map_base(index)}", f"i64 {scope.get(3)}", f"i64 {size}")
        return body.call("i64", f"egpu.{function}", *arguments, f"ptr {to}")

    return build
