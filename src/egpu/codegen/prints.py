"""bpf_printk and its like: a record of ``egpu.bpf.prints`` in the ring of prints."""

from __future__ import annotations

from egpu.bpf.helpers import Arg
from egpu.bpf.own_maps import PRINT_RING, own_map
from egpu.bpf.prints import (
    BLOCK,
    KERNEL,
    LAUNCH,
    SITE,
    SM,
    THREAD,
    TIME,
    PrintCall,
)
from egpu.codegen.helper_call import Call, argument_place, copy, is_straight
from egpu.codegen.ir import GENERIC, GLOBAL
from egpu.codegen.library_ring import GROUP
from egpu.codegen.memory import Place, load_from
from egpu.codegen.rings import ring_arguments, ring_at
from egpu.errors import UnsupportedError
from egpu.verifier.verified import PRINTED_VALUE, Region

_EAGAIN = -11  # uapi/asm-generic/errno-base.h
_FIRST_VALUE = 3  # the register of the first one that a format shows


def print_line(call: Call) -> str:
    """0, or -EAGAIN where the ring is full (Linux gives the length, which no device knows)."""
    scope, body = call.scope, call.scope.body
    verified = scope.unit.verified
    index = own_map(verified.program.maps, PRINT_RING)
    if index is None:
        raise UnsupportedError(
            f"program {verified.program.name}, instruction {call.pc}: {call.helper.name} without a "
            "ring to print to",
            needs="a session, such as that of egpu run, which adds it",
        )
    shown = verified.facts.prints[call.pc]
    ring = ring_at(scope, index)
    arguments = ring_arguments(ring, str(shown.size))
    result = body.variable(body.fresh("printed"), "i64")
    body.store("i64", str(_EAGAIN), "ptr", result, 8)
    together = "true" if all(is_straight(size) for size in shown.values) else "false"
    begin, end = ring.function("output_begin"), ring.function("output_end")
    begun = body.call(GROUP, begin, *arguments, f"i1 {together}", *ring.more)
    record = body.value(f"extractvalue {GROUP} {begun}, 0")
    write, done = body.fresh("write"), body.fresh("done")
    body.branch_if(body.compare("eq", "i64", record, "0"), done, write)
    body.label(write)
    _header(call, record, _site(call, shown))
    for position, (at, size) in enumerate(zip(shown.offsets(), shown.values, strict=True)):
        target = body.add(record, at)
        if size:
            copy(call, target, _text(call, position, size), size)
        else:
            body.store("i64", _number(call, position), GLOBAL, body.pointer(target), 8)
    position_at = body.value(f"extractvalue {GROUP} {begun}, 1")
    mask = body.value(f"extractvalue {GROUP} {begun}, 2")
    joint = body.value(f"extractvalue {GROUP} {begun}, 3")
    ends = (f"i64 {position_at}", f"i32 {mask}", f"i1 {joint}")
    body.call_void(end, *arguments[1:], *ends, *ring.more)
    body.store("i64", "0", "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)


def _site(call: Call, shown: PrintCall) -> str:
    """The site of the format that the call has now: of several, by bytes that tell them apart.

    The shortest is asked for first: what is read of the memory is never past the end of what can
    still be there.
    """
    body = call.scope.body
    rows = sorted(shown.each(), key=lambda each: len(each.format.encode()))
    sites = [str(each.site - (1 << 64) if each.site >> 63 else each.site) for each in rows]
    if len(rows) == 1:
        return sites[0]
    texts = [each.format.encode() + b"\0" for each in rows]
    result = body.variable(body.fresh("site"), "i64")
    done = body.fresh("known")
    for number, (text, site) in enumerate(zip(texts[:-1], sites[:-1], strict=True)):
        body.store("i64", site, "ptr", result, 8)
        other = body.fresh("other")
        body.branch_if(_is_format(call, text, texts[number + 1 :]), done, other)
        body.label(other)
    body.store("i64", sites[-1], "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)


def _is_format(call: Call, text: bytes, others: list[bytes]) -> str:
    """Whether ``text`` is behind r1, where one of ``others``, not shorter, could be."""
    body = call.scope.body
    places = {
        next(at for at, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1])
        for other in others
    }
    memory = argument_place(call, 1, max(places) + 1)
    result = "true"
    for at in sorted(places):
        pointer = body.value(f"getelementptr i8, {memory.space} {memory.pointer}, i64 {at}")
        byte = load_from(call.scope, Place(pointer, memory.space, 1, memory.shared), 8)
        result = body.binary("and", "i1", result, body.compare("eq", "i8", byte, str(text[at])))
    return result


def _header(call: Call, record: str, site: str) -> None:
    scope, body = call.scope, call.scope.body
    words = {
        SITE: site,
        TIME: body.call("i64", "egpu.globaltimer"),
        LAUNCH: scope.launch("launch_id"),
    }
    halves = {KERNEL: body.resize(scope.launch("kernel_id"), 64, 32)}
    halves[SM] = body.resize(scope.sm(), 64, 32)
    for number, axis in enumerate("xyz"):
        halves[BLOCK + 4 * number] = body.call("i32", f"egpu.ctaid_{axis}")
        halves[THREAD + 4 * number] = body.call("i32", f"egpu.tid_{axis}")
    for at, value in words.items():
        body.store("i64", value, GLOBAL, body.pointer(body.add(record, at)), 8)
    for at, value in halves.items():
        body.store("i32", value, GLOBAL, body.pointer(body.add(record, at)), 4)


def _in_array(call: Call) -> bool:
    return Arg.PRINTED_ARRAY in call.helper.args


def _slot(call: Call, position: int) -> Place:
    """The place of a value in the array behind r3."""
    array = argument_place(call, _FIRST_VALUE, 8)
    pointer = call.scope.body.value(
        f"getelementptr i8, {array.space} {array.pointer}, i64 {8 * position}"
    )
    return Place(pointer, array.space, 8)


def _number(call: Call, position: int) -> str:
    if _in_array(call):
        return load_from(call.scope, _slot(call, position), 64)
    return call.scope.get(_FIRST_VALUE + position)


def _text(call: Call, position: int, size: int) -> Place:
    """The memory of ``size`` bytes of text."""
    scope, body = call.scope, call.scope.body
    if not _in_array(call):
        first = 1 if Arg.TEXT in call.helper.args else _FIRST_VALUE
        return argument_place(call, first + position, size)
    operand = scope.operand(call.pc, PRINTED_VALUE + position)
    address = load_from(scope, _slot(call, position), 64)
    space = GENERIC if Region.STACK in operand.regions else GLOBAL
    shared = Region.MAP_VALUE in operand.regions
    return Place(body.pointer(address, space), space, min(operand.align, 8), shared)
