"""Extended-precision integers (PTX ISA 9.0, 9.7.2): add.cc, addc, sub.cc, subc, mad.cc, madc.

The condition code's carry is a hidden predicate register of the kernel; a borrow sets it, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from egpu.errors import InputError
from egpu.image.ptx.syntax import Instruction
from egpu.sim.lanes import Lanes
from egpu.sim.operands import RegisterName, Run, Scope, scalar, unsupported
from egpu.sim.ops_integer import high_product
from egpu.sim.types import PREDICATE, Array, ScalarType

_CARRY = "condition code"  # no PTX identifier has a blank
_TYPES = frozenset(("u32", "s32", "u64", "s64"))
_FORMS = ("add", "sub", "mad")


def _carry(scope: Scope) -> int:
    """The register of the carry, one for the kernel: kept in the outermost scope."""
    while scope.parent is not None:
        scope = scope.parent
    known = scope.names.get(_CARRY)
    if not isinstance(known, RegisterName):
        known = RegisterName(len(scope.layout.registers), PREDICATE)
        scope.layout.registers.append(PREDICATE)
        scope.names[_CARRY] = known
    return known.index


def _sum(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


def _difference(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    partial = a - b
    total = partial - carry
    return total, (a < b) | (partial < carry)


def _product(ins: Instruction, type: ScalarType) -> Callable[[Array, Array], Array]:
    if "lo" in ins.parts:
        return np.multiply
    return lambda a, b: high_product(a, b, type)


def extended(scope: Scope, ins: Instruction) -> Run:
    """Any of the six; ``.cc`` writes the carry, the c at the name's end reads it."""
    type = scalar(ins, ins.parts[-1])
    name = ins.parts[0]
    form = next(form for form in _FORMS if name.startswith(form))
    if type.name not in _TYPES or set(ins.parts[1:-1]) - {"cc", "lo", "hi"}:
        raise unsupported(ins)
    if len(ins.operands) != (4 if form == "mad" else 3):
        raise InputError(f"{ins.opcode} has {len(ins.operands)} operands")
    reads_carry, writes_carry = name != form, "cc" in ins.parts
    register = _carry(scope)
    write = scope.write(ins.operands[0], type)
    reads = [scope.read(operand, type) for operand in ins.operands[1:]]
    combine = _difference if form == "sub" else _sum
    product = _product(ins, type)

    def run(lanes: Lanes) -> None:
        values = [read(lanes) for read in reads]
        if form == "mad":
            values = [product(values[0], values[1]), values[2]]
        carry = lanes.registers[register][lanes.select] & reads_carry
        total, carry_out = combine(values[0], values[1], carry.astype(type.raw))
        write(lanes, total)
        if writes_carry:
            lanes.registers[register][lanes.select] = carry_out

    return run
