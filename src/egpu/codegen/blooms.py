"""Bloom filters: bits that are only ever set (``egpu.maps.layout``)."""

from __future__ import annotations

from collections.abc import Callable

from egpu.bpf.maptypes import bloom_bits
from egpu.codegen.arena import BLOOM_CONTROL_SIZE
from egpu.codegen.device_code import RelocKind
from egpu.codegen.hash_key import hash_words, memory_words
from egpu.codegen.helper_call import Call, argument_place

# Linux's errno values as helpers give them (uapi/asm-generic/errno-base.h).
_ENOENT, _EINVAL = -2, -22


def _places(call: Call) -> list[tuple[str, str]]:
    """(address of the word, its bit) of each bit of the value behind r2."""
    scope, body = call.scope, call.scope.body
    index, spec = scope.map_at(call.pc, 1)
    bits, each = bloom_bits(spec.max_entries, spec.extra)
    base = body.binary(
        "add", "i64", scope.launch("device_arena"), scope.symbol(RelocKind.MAP, index)
    )
    source = argument_place(call, 2, spec.value_size)
    value = hash_words(body, tuple(memory_words(call, source, spec.value_size)))
    step = body.binary("or", "i64", body.binary("lshr", "i64", value, "32"), "1")
    found = []
    for _ in range(each):
        number = body.binary("and", "i64", value, str(bits - 1))
        skip = body.binary("shl", "i64", body.binary("lshr", "i64", number, "6"), "3")
        address = body.binary("add", "i64", body.add(base, BLOOM_CONTROL_SIZE), skip)
        shift = body.binary("and", "i64", number, "63")
        found.append((address, body.binary("shl", "i64", "1", shift)))
        value = body.binary("add", "i64", value, step)
    return found


def bloom_push(call: Call) -> str:
    """As Linux's bloom_map_push_elem."""
    body, flags = call.scope.body, call.scope.get(3)
    right, done = body.fresh("right"), body.fresh("done")
    known = body.compare("eq", "i64", flags, "0")
    body.branch_if(known, right, done)
    body.label(right)
    for address, bit in _places(call):
        body.call_void("egpu.or_gpu", f"i64 {address}", f"i64 {bit}")
    body.branch(done)
    body.label(done)
    return body.select(known, "i64", "0", str(_EINVAL))


def bloom_peek(call: Call) -> str:
    """As Linux's bloom_map_peek_elem: 0 if the value may have been pushed, else -ENOENT."""
    body = call.scope.body
    missing = "0"
    for address, bit in _places(call):
        word = body.call("i64", "egpu.load_gpu", f"i64 {address}")
        absent = body.binary("xor", "i64", body.binary("and", "i64", word, bit), bit)
        missing = body.binary("or", "i64", missing, absent)
    there = body.compare("eq", "i64", missing, "0")
    return body.select(there, "i64", "0", str(_ENOENT))


BLOOMS: dict[str, Callable[[Call], str]] = {"map_push": bloom_push, "map_peek": bloom_peek}
