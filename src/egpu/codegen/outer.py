"""Maps of maps: for each key the place of another map (``egpu.maps.layout``)."""

from __future__ import annotations

from egpu.codegen.helper_call import Call, argument_place
from egpu.codegen.memory import load_from


def inner_lookup(call: Call) -> str:
    """The address of the map under the u32 key behind r2, 0 if there is none."""
    scope, body = call.scope, call.scope.body
    index, spec = scope.map_at(call.pc, 1)
    key = body.resize(load_from(scope, argument_place(call, 2, 4), 32), 32, 64)
    result = body.variable(body.fresh("inner"), "i64")
    inside, there, done = body.fresh("inside"), body.fresh("there"), body.fresh("done")
    body.store("i64", "0", "ptr", result, 8)
    body.branch_if(body.compare("ult", "i64", key, str(spec.max_entries)), inside, done)
    body.label(inside)
    skip = body.binary("shl", "i64", key, "3")
    slot = body.binary("add", "i64", scope.map_start(index), skip)
    place = body.call("i64", "egpu.load_gpu", f"i64 {slot}")
    body.branch_if(body.compare("ne", "i64", place, "0"), there, done)
    body.label(there)
    address = body.binary("add", "i64", scope.launch("device_arena"), place)
    body.store("i64", address, "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)
