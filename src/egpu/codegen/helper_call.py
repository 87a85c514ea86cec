"""A helper call being lowered: its arguments in memory, and copying from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from egpu.bpf.helpers import Helper
from egpu.codegen.ir import GLOBAL
from egpu.codegen.memory import Place, load_from, place_of
from egpu.codegen.scope import Scope

_UNROLLED = 256  # bytes up to which a copy is straight code
_PAIR = "<2 x i64>"


@dataclass(frozen=True, slots=True)
class Call:
    """A helper call being lowered."""

    scope: Scope
    pc: int
    helper: Helper


def argument_place(call: Call, register: int, size: int) -> Place:
    """Where a memory argument of ``size`` bytes points."""
    place = place_of(call.scope, call.pc, register, 0, size)
    return Place(place.pointer, place.space, min(place.align, 8), place.shared)


def is_straight(size: int | None) -> bool:
    """Whether :func:`copy` writes straight code for so many bytes (None: known at run time)."""
    return size is not None and size <= _UNROLLED


def copy(call: Call, address: str, source: Place, size: int, *, align: int = 8) -> None:
    """Copy ``size`` bytes to ``address`` in words, so that no word is ever seen half-written; two
    at once where ``align``, the address's (8 or 16), allows it."""
    body = call.scope.body
    if not is_straight(size):
        copy_run_time(call, address, source, str(size))
        return
    offset = 0
    while offset < size:
        step = next(width for width in (align, 8, 4, 2, 1) if width <= size - offset)
        target = body.pointer(body.add(address, offset))
        if step == 16:
            words = [piece(call, source, offset + at, 8) for at in (0, 8)]
            first = body.value(f"insertelement {_PAIR} poison, i64 {words[0]}, i32 0")
            pair = body.value(f"insertelement {_PAIR} {first}, i64 {words[1]}, i32 1")
            body.store(_PAIR, pair, GLOBAL, target, 16)
        else:
            body.store(f"i{8 * step}", piece(call, source, offset, step), GLOBAL, target, step)
        offset += step


def piece(call: Call, source: Place, offset: int, size: int) -> str:
    """The value of ``size`` bytes (1, 2, 4 or 8) at ``offset``."""
    pointer = source.pointer
    if offset:
        pointer = call.scope.body.value(f"getelementptr i8, {source.space} {pointer}, i64 {offset}")
    align = math.gcd(source.align, offset) if offset else source.align
    piece = Place(pointer, source.space, min(align, 8), source.shared)
    return load_from(call.scope, piece, 8 * size)


def copy_out(call: Call, target: Place, address: str | None, size: int) -> None:
    """Copy ``size`` bytes from the 8-byte aligned ``address`` (None: zeros), word by word, to
    memory of the program."""
    body = call.scope.body
    for start in range(0, size, 8):
        word = "0"
        if address is not None:
            word = body.call("i64", "egpu.load_gpu", f"i64 {body.add(address, start)}")
        offset = start
        while offset < min(size, start + 8):
            left = min(size, start + 8) - offset
            step = next(width for width in (8, 4, 2, 1) if width <= left)
            pointer = target.pointer
            if offset:
                pointer = body.value(f"getelementptr i8, {target.space} {pointer}, i64 {offset}")
            shifted = body.binary("lshr", "i64", word, str(8 * (offset - start)))
            align = math.gcd(target.align, offset) if offset else target.align
            piece = body.resize(shifted, 64, 8 * step)
            body.store(f"i{8 * step}", piece, target.space, pointer, min(align, 8))
            offset += step


def copy_run_time(call: Call, address: str, source: Place, size: str) -> None:
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
