"""Opcode to builder: every instruction that is a function of its operands.

Flow (bra, call, ret, bar) is compile.py's.  What is in neither is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from egpu.image.ptx.syntax import Instruction
from egpu.sim import (
    ops_atomic,
    ops_bits,
    ops_carry,
    ops_convert,
    ops_float,
    ops_integer,
    ops_memory,
    ops_select,
    ops_warp,
)
from egpu.sim.operands import Run, Scope, unsupported
from egpu.sim.types import TYPES, Kind

Builder: TypeAlias = Callable[[Scope, Instruction], Run]


def _is_float(ins: Instruction) -> bool:
    type = TYPES.get(ins.parts[-1])
    return type is None or type.kind is Kind.FLOAT or type.name in ("f16x2", "bf16", "bf16x2")


def _by_type(integer: Builder, floating: Builder) -> Builder:
    return lambda scope, ins: (floating if _is_float(ins) else integer)(scope, ins)


_ARITHMETIC = _by_type(ops_integer.arithmetic, ops_float.arithmetic)

# fmt: off
BUILDERS: dict[str, Builder] = {
    # 9.7.1 to 9.7.5 arithmetic
    "add":    _ARITHMETIC,
    "sub":    _ARITHMETIC,
    "div":    _ARITHMETIC,
    "min":    _ARITHMETIC,
    "max":    _ARITHMETIC,
    "abs":    _ARITHMETIC,
    "neg":    _ARITHMETIC,
    "rem":    ops_integer.arithmetic,
    "sad":    ops_integer.arithmetic,
    "mul":    _by_type(ops_integer.multiply, ops_float.arithmetic),
    "mad":    _by_type(ops_integer.multiply, ops_float.arithmetic),
    "addc":   ops_carry.extended,
    "subc":   ops_carry.extended,
    "madc":   ops_carry.extended,
    "mul24":  ops_integer.multiply24,
    "mad24":  ops_integer.multiply24,
    "fma":    ops_float.arithmetic,
    "sqrt":   ops_float.arithmetic,
    "rcp":    ops_float.arithmetic,
    "rsqrt":  ops_float.arithmetic,
    "sin":    ops_float.arithmetic,
    "cos":    ops_float.arithmetic,
    "lg2":    ops_float.arithmetic,
    "ex2":    ops_float.arithmetic,
    "tanh":   ops_float.arithmetic,
    "copysign": ops_float.copy_sign,
    "testp":  ops_float.test_property,
    # bits
    "and":    ops_bits.logic,
    "or":     ops_bits.logic,
    "xor":    ops_bits.logic,
    "not":    ops_bits.logic,
    "cnot":   ops_bits.logic,
    "lop3":   ops_bits.three_way,
    "shl":    ops_bits.bits,
    "shr":    ops_bits.bits,
    "shf":    ops_bits.bits,
    "clz":    ops_bits.bits,
    "popc":   ops_bits.bits,
    "brev":   ops_bits.bits,
    "bfind":  ops_bits.bits,
    "bfe":    ops_bits.bits,
    "bfi":    ops_bits.bits,
    "bmsk":   ops_bits.bits,
    "prmt":   ops_bits.bits,
    # comparison, selection, movement
    "setp":   ops_select.set_predicate,
    "set":    ops_select.set_value,
    "selp":   ops_select.select,
    "slct":   ops_select.select_by_sign,
    "mov":    ops_convert.move,
    "cvt":    ops_convert.convert,
    "cvta":   ops_convert.convert_address,
    "isspacep": ops_convert.is_space,
    # memory
    "ld":     ops_memory.load,
    "ldu":    ops_memory.load,
    "st":     ops_memory.store,
    "atom":   ops_atomic.atomic,
    "red":    ops_atomic.atomic,
    "membar": ops_memory.nothing,
    "fence":  ops_memory.nothing,
    "prefetch":  ops_memory.nothing,
    "prefetchu": ops_memory.nothing,
    "discard":   ops_memory.nothing,
    "nanosleep": ops_memory.nothing,
    "pmevent":   ops_memory.nothing,
    # the warp
    "activemask": ops_warp.active_mask,
    "shfl":   ops_warp.shuffle,
    "vote":   ops_warp.vote,
    "match":  ops_warp.match,
    "redux":  ops_warp.reduce,
}
# fmt: on

COLLECTIVES = frozenset({"shfl", "vote", "match", "redux"})


def build(scope: Scope, ins: Instruction) -> Run:
    """What the instruction does to the executing lanes; UnsupportedError names it if nothing is
    known."""
    builder = BUILDERS.get(ins.parts[0])
    if "cc" in ins.parts and ins.parts[0] in ("add", "sub", "mad"):
        builder = ops_carry.extended
    if builder is None or ("proxy" in ins.opcode and ins.parts[0] == "fence"):
        raise unsupported(ins)
    return builder(scope, ins)
