"""Functions that the device's system provides: vprintf and __assertfail (CUDA C++ guide, ch. 10).

A compiler declares them ``.extern`` and passes their arguments as .param variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from egpu.errors import InputError
from egpu.sim.faults import FaultKind, LaneFault
from egpu.sim.lanes import Lanes
from egpu.sim.operands import Run
from egpu.sim.ops_memory import places
from egpu.sim.types import Array

STRING_LIMIT = 4096

# (local addresses of the arguments, of the result or None) -> what the call does
SystemCall: TypeAlias = Callable[[tuple[int, ...], "int | None"], Run]

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXcspfFeEgGaA%])"
)
_LONG = frozenset(("l", "ll", "j", "z", "t"))
_SHORT = {"hh": 8, "h": 16}


def _load(lanes: Lanes, lane: int, space: str, address: int, size: int) -> int:
    """A value of one lane's memory; ``lane`` counts among the executing ones."""
    before, thread = lanes.select, lanes.active()[lane]
    lanes.select = np.array([thread])
    try:
        (place,) = places(lanes, space, np.array([address], np.uint64), size, size)
        return int(place.view[place.index][0])
    except LaneFault as fault:
        raise LaneFault(fault.kind, fault.message, lane) from None
    finally:
        lanes.select = before


def _text(lanes: Lanes, lane: int, address: int) -> str:
    found = bytearray()
    while len(found) < STRING_LIMIT and (byte := _load(lanes, lane, "", address + len(found), 1)):
        found.append(byte)
    return found.decode(errors="replace")


class _Arguments:
    """The packed arguments of one vprintf: each aligned to its size."""

    def __init__(self, lanes: Lanes, lane: int, address: int) -> None:
        self.lanes, self.lane, self.address = lanes, lane, address
        self.taken = 0

    def take(self, size: int) -> int:
        at = -(-self.address // size) * size
        self.address = at + size
        self.taken += 1
        return _load(self.lanes, self.lane, "", at, size)

    def signed(self, size: int) -> int:
        value = self.take(size)
        return value - (1 << 8 * size) if value >> (8 * size - 1) else value


def _integer(arguments: _Arguments, kind: str, length: str) -> int:
    size = 8 if length in _LONG else 4
    bits = _SHORT.get(length, 8 * size)
    value = arguments.take(size) & ((1 << bits) - 1)
    return value - (1 << bits) if kind in "di" and value >> (bits - 1) else value


def _one(arguments: _Arguments, match: re.Match[str]) -> str:
    """One conversion, by Python's own, which has C's flags."""
    kind, length = match["kind"], match["length"] or ""
    if kind == "%":
        return "%"
    width = str(arguments.signed(4)) if match["width"] == "*" else match["width"]
    precision = match["precision"]
    if precision == "*":
        precision = str(arguments.signed(4))
    head = f"%{match['flags']}{width}" + ("" if precision is None else f".{precision}")
    if kind in "diu":
        return (head + "d") % _integer(arguments, kind, length)
    if kind in "oxX":
        value = _integer(arguments, kind, length)
        plain = head.replace("#", "")  # C's 0 for octal is not Python's 0o
        prefix = {"o": "0", "x": "0x", "X": "0X"}[kind] if "#" in head and value else ""
        return prefix + (plain + kind) % value
    if kind == "c":
        return (head + "c") % (arguments.take(4) & 0x7F)
    if kind == "s":
        return (head + "s") % _text(arguments.lanes, arguments.lane, arguments.take(8))
    if kind == "p":
        return (head + "s") % hex(arguments.take(8))
    number = float(np.uint64(arguments.take(8)).view(np.float64))
    return (head + "s") % number.hex() if kind in "aA" else (head + kind) % number


def _formatted(pattern: str, arguments: _Arguments) -> str:
    return _CONVERSION.sub(lambda match: _one(arguments, match), pattern)


def _print(given: tuple[int, ...], result: int | None) -> Run:
    if len(given) != 2:
        raise InputError("vprintf takes a format and its arguments")

    def run(lanes: Lanes) -> None:
        counts: Array = np.zeros(lanes.size(), np.uint32)
        for lane in range(lanes.size()):
            pattern = _text(lanes, lane, _load(lanes, lane, "local", given[0], 8))
            arguments = _Arguments(lanes, lane, _load(lanes, lane, "local", given[1], 8))
            lanes.printed.append(_formatted(pattern, arguments))
            counts[lane] = arguments.taken
        if result is not None:
            address = np.full(lanes.size(), result, np.uint64)
            for place in places(lanes, "local", address, 4, 4):
                place.view[place.index] = counts[place.lanes]

    return run


def _assert_failed(given: tuple[int, ...], result: int | None) -> Run:
    if len(given) != 5:
        raise InputError("__assertfail takes five arguments")

    def run(lanes: Lanes) -> None:
        message, file, function = (
            _text(lanes, 0, _load(lanes, 0, "local", given[i], 8)) for i in (0, 1, 3)
        )
        line = _load(lanes, 0, "local", given[2], 4)
        raise LaneFault(
            FaultKind.ASSERT, f"{file}:{line}: {function}: assertion `{message}` failed", 0
        )

    return run


SYSTEM_CALLS: dict[str, SystemCall] = {
    "vprintf": _print,
    "__assertfail": _assert_failed,
}
