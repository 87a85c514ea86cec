"""bpf_printk and its like for the interpreter: the ring of prints holds finished lines."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from egpu.bpf.own_maps import PRINT_RING, own_map
from egpu.bpf.print_format import Format, Shown, parse_format
from egpu.bpf.prints import TEXT_LIMIT
from egpu.errors import DeviceFault, InputError

if TYPE_CHECKING:
    from egpu.bpf.interp import Machine

_SLOT = 8


def trace_printk(machine: Machine, args: Sequence[int]) -> int:
    """The values are r3 to r5."""
    return _print(machine, args, list(args[2:5]))


def trace_vprintk(machine: Machine, args: Sequence[int]) -> int:
    """The values are 8 bytes each behind r3."""
    values = [
        int.from_bytes(machine.space.view(args[2] + at, _SLOT), "little")
        for at in range(0, args[3], _SLOT)
    ]
    return _print(machine, args, values)


def puts(machine: Machine, args: Sequence[int]) -> int:
    """The text is behind r1."""
    return _line(machine, parse_format(b"%s\0").render([_text(machine, args[0])]))


def _print(machine: Machine, args: Sequence[int], values: list[int]) -> int:
    try:
        form = parse_format(bytes(machine.space.view(args[0], args[1])))
    except InputError:
        return -errno.EINVAL
    if len(form.values) > len(values):
        return -errno.EINVAL
    return _line(machine, form.render(_values(machine, form, values)))


def _values(machine: Machine, form: Format, values: list[int]) -> list[int | bytes]:
    return [
        _text(machine, value) if specifier.shown is Shown.TEXT else value
        for specifier, value in zip(form.values, values, strict=False)
    ]


def _text(machine: Machine, address: int) -> bytes:
    """Up to the NUL, the end of the memory, or the limit."""
    found = bytearray()
    while len(found) < TEXT_LIMIT:
        try:
            byte = machine.space.view(address + len(found), 1)[0]
        except DeviceFault:
            if not found:
                raise
            break
        if not byte:
            break
        found.append(byte)
    return bytes(found)


def _line(machine: Machine, text: str) -> int:
    ring = own_map(machine.program.maps, PRINT_RING)
    if ring is not None:
        machine.maps[ring].records.append(text.encode())
    return 0
