"""Operands as functions: how a compiled instruction reads and writes lane values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from egpu.errors import InputError, UnsupportedError
from egpu.image.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)
from egpu.sim.lanes import CLOCKS, Lanes
from egpu.sim.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from egpu.sim.types import TYPES, Array, Kind, ScalarType, resized

Read: TypeAlias = Callable[[Lanes], Array]
Write: TypeAlias = Callable[[Lanes, Array], None]
Run: TypeAlias = Callable[[Lanes], None]

# Bits that a space adds to make an address generic (cvta); global and const addresses are generic.
WINDOW = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}


@dataclass(frozen=True, slots=True)
class RegisterName:
    """Register ``index`` of a compiled kernel."""

    index: int
    type: ScalarType


@dataclass(frozen=True, slots=True)
class PlaceName:
    """A variable: ``space`` among shared, local, param (of the kernel), global; its address there.

    ``dynamic`` marks extern shared memory, which begins where the static part ends.
    """

    space: str
    address: int
    dynamic: bool = False


Name: TypeAlias = "RegisterName | PlaceName | str"


@dataclass(slots=True)
class Layout:
    """Sizes in bytes that grow while a kernel is compiled."""

    shared: int = 0
    local: int = 0
    registers: list[ScalarType] = field(default_factory=list)

    def place(self, space: str, size: int, align: int) -> int:
        """Room for a variable; gives its address."""
        used = self.shared if space == "shared" else self.local
        address = -(-used // max(align, 1)) * max(align, 1)
        if space == "shared":
            self.shared = address + size
        else:
            self.local = address + size
        return address

    @property
    def dynamic(self) -> int:
        """Where extern shared memory begins: 16-byte aligned, as its strictest user may need."""
        return -(-self.shared // 16) * 16


class Scope:
    """Names visible to an instruction: declared in its block, its function, its module."""

    def __init__(self, parent: Scope | None, layout: Layout) -> None:
        self.parent = parent
        self.layout = layout
        self.names: dict[str, Name] = {}

    def find(self, name: str) -> Name | None:
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def register(self, name: str) -> RegisterName:
        """InputError if ``name`` is not a declared register."""
        found = self.find(name)
        if not isinstance(found, RegisterName):
            raise InputError(f"{name} is not a declared register")
        return found

    # Reading

    def read(self, operand: Operand, type: ScalarType) -> Read:
        """The operand's value as bits of ``type``: one per executing lane, or one for all."""
        match operand:
            case Immediate():
                return _constant(np.array([_immediate(operand, type)], type.raw))
            case Register(name=name, negated=negated):
                if name.startswith("%") and self.find(name) is None:
                    return _special(name, type)
                return _register(self.register(name), type, negated)
            case Symbol():
                return self._symbol(operand, type)
            case Pair() | Vector() | Address():
                raise InputError("an operand of this form stands where a value is needed")

    def _symbol(self, operand: Symbol, type: ScalarType) -> Read:
        if operand.name == "WARP_SZ":
            return _constant(np.array([32], type.raw))
        place = self.find(operand.name)
        if isinstance(place, RegisterName):
            return _register(place, type, False)
        if not isinstance(place, PlaceName):
            raise UnsupportedError(
                f"the address of {operand.name}", needs="a variable of the module"
            )
        return self._place(place, operand.offset, type)

    def _place(self, place: PlaceName, offset: int, type: ScalarType) -> Read:
        if not place.dynamic:
            return _constant(np.array([place.address + offset], np.uint64).astype(type.raw))
        layout = self.layout  # final only when the whole kernel is compiled

        def read(lanes: Lanes) -> Array:
            return np.array([layout.dynamic + offset], np.uint64).astype(type.raw)

        return read

    def address(self, operand: Operand) -> tuple[Read, str]:
        """An ``[address]`` as 64-bit values, and the space of its variable ("" for registers)."""
        if not isinstance(operand, Address):
            raise InputError("an address is needed here")
        if operand.extra:
            raise UnsupportedError("tensor coordinates")
        u64 = TYPES["u64"]
        base = operand.base
        if base is None:
            return _constant(np.array([operand.offset & (1 << 64) - 1], np.uint64)), ""
        if isinstance(base, Symbol):
            found = self.find(base.name)
            if isinstance(found, PlaceName):
                return self._place(found, base.offset + operand.offset, u64), found.space
            if found is None:
                raise UnsupportedError(f"the address of {base.name}", needs="a known variable")
        name = base.name
        register = self.register(name)
        width = TYPES[f"u{register.type.bits}"]
        plain = _register(register, width, False)
        if not operand.offset:
            return (lambda lanes: plain(lanes).astype(np.uint64)), ""
        step = np.array([operand.offset & (1 << width.bits) - 1], width.raw)
        return (lambda lanes: (plain(lanes) + step).astype(np.uint64)), ""

    # Writing

    def write(self, operand: Operand, type: ScalarType) -> Write:
        """How to store bits of ``type`` into the operand for the executing lanes."""
        name = getattr(operand, "name", "")
        if name == "_":
            return lambda lanes, value: None
        if not isinstance(operand, Register | Symbol):
            raise InputError("a destination register is needed here")
        register = self.register(name)
        index, target = register.index, register.type.raw
        if target == type.raw:

            def write(lanes: Lanes, value: Array) -> None:
                lanes.registers[index][lanes.select] = value

            return write

        def write_resized(lanes: Lanes, value: Array) -> None:
            lanes.registers[index][lanes.select] = resized(value, type, target)

        return write_resized


def _constant(value: Array) -> Read:
    return lambda lanes: value


def _immediate(operand: Immediate, type: ScalarType) -> int:
    if type.kind is Kind.PREDICATE:
        return int(operand.bits != 0)
    if not operand.is_float:
        if type.kind is Kind.FLOAT:  # an integer literal is not converted: it has no float meaning
            raise InputError(f"the literal {operand.text} is not a floating-point constant")
        return operand.bits & (1 << type.bits) - 1
    single = operand.text.lstrip("+-")[:2] in ("0f", "0F")
    if single and type.bits == 32:
        return operand.bits
    value = (
        struct.unpack("<f", struct.pack("<I", operand.bits))[0]
        if single
        else struct.unpack("<d", struct.pack("<Q", operand.bits))[0]
    )
    if type.bits == 64:
        return int.from_bytes(struct.pack("<d", value), "little")
    if type.bits == 32:
        return int(np.float32(value).view(np.uint32))
    raise InputError(f"the literal {operand.text} cannot be a .{type.name}")


def _register(register: RegisterName, type: ScalarType, negated: bool) -> Read:
    index = register.index
    if negated:
        return lambda lanes: ~lanes.registers[index][lanes.select]
    if register.type.raw == type.raw:
        return lambda lanes: lanes.registers[index][lanes.select]
    source, target = register.type, type.raw
    return lambda lanes: resized(lanes.registers[index][lanes.select], source, target)


def _special(name: str, type: ScalarType) -> Read:
    clock = CLOCKS.get(name)
    if clock is not None:
        mask, shift = (1 << clock[0]) - 1, clock[1]

        def read_clock(lanes: Lanes) -> Array:
            value = lanes.now() >> np.uint64(shift) & np.uint64(mask)
            return value.astype(type.raw)

        return read_clock

    def read(lanes: Lanes) -> Array:
        value = lanes.special.get(name)
        if value is None:
            raise UnsupportedError(f"special register {name} on the simulated device")
        chosen: Array = value[lanes.select]
        return chosen.astype(type.raw, copy=False)

    return read


def scalar(ins: Instruction, name: str) -> ScalarType:
    """The type called ``name``; UnsupportedError names the instruction."""
    type = TYPES.get(name)
    if type is None:
        raise UnsupportedError(f"type .{name} of {ins.opcode} on the simulated device")
    return type


def unsupported(ins: Instruction, why: str = "") -> UnsupportedError:
    """The refusal of an instruction, by its name."""
    return UnsupportedError(f"PTX instruction {ins.opcode} on the simulated device{why}")


def apply(
    scope: Scope,
    ins: Instruction,
    function: Callable[..., Array],
    result: ScalarType,
    sources: tuple[ScalarType, ...],
) -> Run:
    """``d = function(a, b, …)`` on bits, lane by lane."""
    if len(ins.operands) != len(sources) + 1:
        raise InputError(f"{ins.opcode} needs {len(sources) + 1} operands")
    write = scope.write(ins.operands[0], result)
    reads = [
        scope.read(operand, type) for operand, type in zip(ins.operands[1:], sources, strict=True)
    ]
    if len(reads) == 1:
        (a,) = reads
        return lambda lanes: write(lanes, function(a(lanes)))
    if len(reads) == 2:
        a, b = reads
        return lambda lanes: write(lanes, function(a(lanes), b(lanes)))
    if len(reads) == 3:
        a, b, c = reads
        return lambda lanes: write(lanes, function(a(lanes), b(lanes), c(lanes)))
    return lambda lanes: write(lanes, function(*(read(lanes) for read in reads)))
