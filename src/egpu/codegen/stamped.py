"""Records in stamped slots of this SM's ring, by the protocol of ``egpu.maps.ring_table``."""

from __future__ import annotations

from egpu.codegen.arena import stamped_stride
from egpu.codegen.device_code import RelocKind
from egpu.codegen.helper_call import Call, argument_place, piece
from egpu.codegen.library_stamped import NO_SLOT
from egpu.codegen.scope import Scope

_WORD = 8


def write_alone(call: Call, index: int, data: int, *, wrong: str, full: int) -> str:
    """Write the record that register ``data`` points to into a slot of map ``index``: what the
    helper gives, which is ``wrong`` (a value) if that is not 0, and ``full`` if there is no slot.
    Every record of the map fits one."""
    body = call.scope.body
    result = body.variable(body.fresh("output"), "i64")
    body.store("i64", wrong, "ptr", result, 8)
    right, done = body.fresh("right"), body.fresh("done")
    body.branch_if(body.compare("eq", "i64", wrong, "0"), right, done)
    body.label(right)
    written = _write_slot(call, index, data)
    body.store("i64", body.select(written, "i64", "0", str(full)), "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)


def _write_slot(call: Call, index: int, data: int) -> str:
    """Write what register ``data`` points to into a slot of map ``index``: whether there was one
    (an i1)."""
    scope, body = call.scope, call.scope.body
    size = scope.unit.verified.program.maps[index].stamped
    slots = scope.symbol(RelocKind.RING_SLOTS, index)
    number = body.call(
        "i64",
        "egpu.take_slot",
        f"i64 {scope.of_slot(scope.map_start(index), index)}",
        f"i64 {slots}",
        f"i64 {stamped_stride(size)}",
    )
    taken = body.compare("ne", "i64", number, str(NO_SLOT))
    write, done = body.fresh("write"), body.fresh("written")
    body.branch_if(taken, write, done)
    body.label(write)
    source = argument_place(call, data, size)
    words = [piece(call, source, offset, _WORD) for offset in range(0, size, _WORD)]
    address = _address(scope, index, number, stamped_stride(size))
    stamped = _stamped(scope, number, slots, words)
    stamped += ["0"] * (len(stamped) % 2)
    for first in range(0, len(stamped), 2):
        place = f"i64 {body.add(address, _WORD * first)}"
        pair = (f"i64 {word}" for word in stamped[first : first + 2])
        body.call_void("egpu.store_pair_gpu", place, *pair)
    body.branch(done)
    body.label(done)
    return taken


def _address(scope: Scope, index: int, number: str, stride: int) -> str:
    """Of slot ``number`` of this SM's ring.  A place in a ring, and the bytes of one, have less
    than 32 bits, in which a GPU multiplies four times as fast."""
    body = scope.body
    last = body.binary("sub", "i32", scope.low_symbol(RelocKind.RING_SLOTS, index), "1")
    place = body.binary("and", "i32", body.resize(number, 64, 32), last)
    skip = body.binary("mul", "i64", body.resize(place, 32, 64), str(stride))
    ring = body.resize(scope.low_symbol(RelocKind.RING_SIZE, index), 32, 64)
    own = body.binary("mul", "i64", scope.slot(), ring)
    rings = body.binary(
        "add", "i64", scope.launch("device_arena"), scope.symbol(RelocKind.RING_DATA, index)
    )
    return body.binary("add", "i64", body.binary("add", "i64", rings, own), skip)


def _stamped(scope: Scope, number: str, slots: str, words: list[str]) -> list[str]:
    """The slot's words: the first one, and the record's with the lap in their lowest bits."""
    body = scope.body
    odd = body.compare("ne", "i64", body.binary("and", "i64", number, slots), "0")
    lap = body.select(odd, "i64", "0", "1")
    bits, found = "0", []
    for place, word in enumerate(words):
        low = body.binary("and", "i64", word, "1")
        bits = body.binary("or", "i64", bits, body.binary("shl", "i64", low, str(place)))
        found.append(body.binary("or", "i64", body.binary("and", "i64", word, "-2"), lap))
    stamp = body.binary("shl", "i64", body.add(number, 1), "32")
    return [body.binary("or", "i64", stamp, bits), *found]
