"""Module variables: their place in memory and first contents (PTX ISA 9.0, 5.4)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping

from egpu.errors import InputError, UnsupportedError
from egpu.image.ptx.syntax import Module, Variable
from egpu.sim.memory import DeviceMemory
from egpu.sim.types import TYPES

_NUMBER = re.compile(
    r"[-+]?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|[0-9][\w.]*(?:[eE][-+]\d+)?)"
)
_ITEM = re.compile(r"[^,{}]+")
_MASKED = re.compile(r"(0[xX][0-9a-fA-F]+)\((.*)\)")
_SYMBOL = re.compile(r"(generic\()?\s*([A-Za-z_$%][\w$]*)\s*\)?\s*(?:\+\s*(\w+))?")


def variables_of(module: Module) -> tuple[Variable, ...]:
    """The variables that need memory of the device, in the order of the text."""
    return tuple(
        variable
        for variable in module.variables
        if variable.space in ("global", "const") and variable.size > 0
    )


def place_variables(module: Module, memory: DeviceMemory) -> Mapping[str, int]:
    """Allocate and initialise the module's variables; gives their addresses."""
    addresses = {variable.name: memory.allocate(variable.size) for variable in variables_of(module)}
    initialise(module, memory, addresses)
    return addresses


def initialise(module: Module, memory: DeviceMemory, addresses: Mapping[str, int]) -> None:
    """Write the first contents of the variables whose memory the caller provided."""
    for variable in variables_of(module):
        data = initial_bytes(variable, addresses)
        if data:
            memory.write(addresses[variable.name], data)


def initial_bytes(variable: Variable, addresses: Mapping[str, int]) -> bytes:
    """The bytes that the initializer gives, the rest being zero.

    UnsupportedError for what is not a number or the address of a variable of the module.
    """
    text = variable.initializer.strip().removeprefix("=").strip()
    if not text:
        return b""
    if text.count("{") > 1 and len(variable.dims) > 1:
        data = _nested(variable, text, addresses)
    else:
        data = b"".join(_values(variable, text, addresses))
    if len(data) > variable.size:
        raise InputError(f"variable {variable.name} has {variable.size} bytes, not {len(data)}")
    return data


def _nested(variable: Variable, text: str, addresses: Mapping[str, int]) -> bytes:
    """Rows of a two-dimensional array, each filled up with zeros."""
    rows = re.findall(r"\{([^{}]*)\}", text)
    size = TYPES[variable.type].size * variable.dims[-1]
    return b"".join(b"".join(_values(variable, row, addresses)).ljust(size, b"\0") for row in rows)


def _values(variable: Variable, text: str, addresses: Mapping[str, int]) -> Iterator[bytes]:
    type = TYPES.get(variable.type)
    if type is None:
        raise UnsupportedError(f"variable {variable.name} of type .{variable.type}")
    for match in _ITEM.finditer(text):
        item = match.group().strip()
        if item:
            yield _value(variable, item, type.size, addresses)


def _value(variable: Variable, item: str, size: int, addresses: Mapping[str, int]) -> bytes:
    masked = _MASKED.fullmatch(item)
    if masked is not None:  # 0xFF00(symbol): the byte of the address that the mask covers
        mask = int(masked.group(1), 16)
        address = _address(variable, masked.group(2).strip(), addresses)
        shift = (mask & -mask).bit_length() - 1
        return ((address & mask) >> shift).to_bytes(8, "little")[:size]
    if _NUMBER.fullmatch(item) is None:
        return _address(variable, item, addresses).to_bytes(8, "little")[:size]
    return _number(variable, item, size)


def _number(variable: Variable, item: str, size: int) -> bytes:
    sign = -1 if item.startswith("-") else 1
    digits = item.lstrip("+-")
    if digits[:2] in ("0f", "0F", "0d", "0D"):
        bits = int(digits[2:], 16)
        if variable.type in ("f32", "f64"):
            single = digits[1] in "fF"
            value = struct.unpack("<f", struct.pack("<I", bits))[0] if single else None
            if value is None:
                value = struct.unpack("<d", struct.pack("<Q", bits))[0]
            return struct.pack("<f" if variable.type == "f32" else "<d", sign * value)
        return bits.to_bytes(8, "little")[:size]
    if variable.type in ("f32", "f64"):
        return struct.pack("<f" if variable.type == "f32" else "<d", sign * float(digits))
    number = digits.rstrip("U")
    octal = len(number) > 1 and number[0] == "0" and number.isdigit()
    value = int(number, 8) if octal else int(number, 0)
    return (sign * value & (1 << 64) - 1).to_bytes(8, "little")[:size]


def _address(variable: Variable, item: str, addresses: Mapping[str, int]) -> int:
    match = _SYMBOL.fullmatch(item)
    if match is None or match.group(2) not in addresses:
        raise UnsupportedError(f"initial value {item} of variable {variable.name}")
    return addresses[match.group(2)] + int(match.group(3) or "0", 0)
