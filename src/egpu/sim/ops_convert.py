"""cvt, cvta, mov and isspacep (PTX ISA 9.0, 9.7.9)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from egpu.image.ptx.syntax import Instruction, Vector
from egpu.sim.lanes import Lanes
from egpu.sim.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_MASK
from egpu.sim.operands import WINDOW, Read, Run, Scope, apply, scalar, unsupported
from egpu.sim.ops_float import DIRECTED, directed32
from egpu.sim.types import PREDICATE, TYPES, Array, Kind, ScalarType, native, raw, resized

Run1 = Callable[[Array], Array]

# fmt: off
INTEGER_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}
# fmt: on
_MODIFIERS = frozenset({"rn", "ftz", "sat", *INTEGER_ROUNDING, *DIRECTED})
_NAN32 = 0x7FFFFFFF


def _bfloat(value: Array) -> Array:
    """float32 to bfloat16 bits, nearest even; NaN is 0x7fff."""
    bits = value.view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), rounded.astype(np.uint16))


def _as_float(bits: Array, type: ScalarType) -> Array:
    if type.name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return native(bits, type)


def _float_bits(value: Array, type: ScalarType) -> Array:
    if type.name == "bf16":
        if value.dtype != np.float32:
            raise TypeError("bf16 is made from f32")
        return _bfloat(value)
    result = value.astype(type.native)
    bits = raw(result, type)
    if type.bits == 64:
        return bits
    return np.where(np.isnan(result), type.raw.type(_NAN32 >> (32 - type.bits)), bits)


def _flush(value: Array) -> Array:
    return np.where(abs(value) < np.finfo(np.float32).tiny, value * np.float32(0), value)


def _float_to_integer(source: ScalarType, result: ScalarType, rounding: str, flush: bool) -> Run1:
    info = np.iinfo(result.native)
    low, high = float(info.min), float(info.max)  # 2^63 - 1 rounds up to 2^63: compared with >=
    narrow = source.bits < 64 and result.bits < 64
    not_number = 0 if narrow else 1 << (result.bits - 1)
    nearest = INTEGER_ROUNDING[rounding]

    def convert(bits: Array) -> Array:
        value = _as_float(bits, source)
        if flush and source.bits == 32:
            value = _flush(value)
        value = nearest(value.astype(np.float64))
        above, below, bad = value >= high, value <= low, np.isnan(value)
        safe = np.where(above | below | bad, 0.0, value).astype(result.native)
        least, most = result.native.type(info.min), result.native.type(info.max)
        limited = np.where(above, most, np.where(below, least, safe))
        return np.where(bad, result.raw.type(not_number), raw(limited, result))

    return convert


def _directed_to_f32(
    source: ScalarType, result: ScalarType, rounding: str, ins: Instruction
) -> Run1:
    """cvt.rz, .rm, .rp to f32 from what a double holds exactly."""
    exact = source.name == "f64" or (not _is_float(source) and source.bits <= 32)
    if result.name != "f32" or not exact or {"sat", "ftz"} & set(ins.parts):
        raise unsupported(ins)

    def convert(bits: Array) -> Array:
        return _float_bits(directed32(native(bits, source).astype(np.float64), rounding), result)

    return convert


def _float_to_float(
    source: ScalarType, result: ScalarType, modifiers: frozenset[str], ins: Instruction
) -> Run1:
    whole = next((INTEGER_ROUNDING[m] for m in modifiers if m in INTEGER_ROUNDING), None)
    flush, saturate = "ftz" in modifiers, "sat" in modifiers
    if result.name == "bf16" and source.name != "f32":
        raise unsupported(ins)

    def convert(bits: Array) -> Array:
        value = _as_float(bits, source)
        if flush and value.dtype == np.float32:
            value = _flush(value)
        if whole is not None:
            value = whole(value)
        if saturate:
            value = np.where(np.isnan(value), value.dtype.type(0), np.clip(value, 0, 1) + 0)
        if flush and result.name == "f32":
            value = _flush(value.astype(np.float32))
        return _float_bits(value, result)

    return convert


def _integer_to_integer(source: ScalarType, result: ScalarType, saturate: bool) -> Run1:
    if not saturate:
        return lambda bits: resized(bits, source, result.raw)
    low, high = int(np.iinfo(result.native).min), int(np.iinfo(result.native).max)
    own = np.iinfo(source.native)

    def convert(bits: Array) -> Array:
        value = native(bits, source)
        value = np.clip(value, max(low, int(own.min)), min(high, int(own.max)))
        return raw(value.astype(result.native), result)

    return convert


def _integer_to_float(source: ScalarType, result: ScalarType) -> Run1:
    return lambda bits: _float_bits(native(bits, source), result)


def _is_float(type: ScalarType) -> bool:
    return type.kind is Kind.FLOAT or type.name == "bf16"


def convert(scope: Scope, ins: Instruction) -> Run:
    """cvt[.modifiers].dtype.stype d, a."""
    result, source = scalar(ins, ins.parts[-2]), scalar(ins, ins.parts[-1])
    modifiers = frozenset(ins.parts[1:-2])
    if result.name in ("f16x2", "bf16x2"):
        return _pack(scope, ins, result, source, modifiers)
    if modifiers - _MODIFIERS:
        raise unsupported(ins)
    rounding = next((m for m in modifiers if m in INTEGER_ROUNDING), "")
    directed = next((m for m in modifiers if m in DIRECTED), "")
    match (_is_float(source), _is_float(result)):
        case (_, True) if directed:
            function = _directed_to_f32(source, result, directed, ins)
        case (True, True):
            function = _float_to_float(source, result, modifiers, ins)
        case (True, False):
            if not rounding:
                raise unsupported(ins)
            function = _float_to_integer(source, result, rounding, "ftz" in modifiers)
        case (False, True):
            if "sat" in modifiers or result.name == "bf16":
                raise unsupported(ins)
            function = _integer_to_float(source, result)
        case _:
            function = _integer_to_integer(source, result, "sat" in modifiers)
    return apply(scope, ins, function, result, (source,))


def _pack(
    scope: Scope,
    ins: Instruction,
    result: ScalarType,
    source: ScalarType,
    modifiers: frozenset[str],
) -> Run:
    """cvt.rn.f16x2.f32 d, a, b: a in the upper half."""
    if source.name != "f32" or modifiers != {"rn"}:
        raise unsupported(ins)
    half = TYPES["f16" if result.name == "f16x2" else "bf16"]

    def function(a: Array, b: Array) -> Array:
        high = _float_bits(native(a, source), half).astype(np.uint32)
        return high << np.uint32(16) | _float_bits(native(b, source), half)

    return apply(scope, ins, function, result, (source, source))


def convert_address(scope: Scope, ins: Instruction) -> Run:
    """cvta[.to].space.size: between a space's own and generic addresses."""
    to_space = "to" in ins.parts
    space = ins.parts[2 if to_space else 1].partition("::")[0]
    type = scalar(ins, ins.parts[-1])
    if space not in ("global", "const", "shared", "local", "param") or type.bits != 64:
        raise unsupported(ins)
    window = np.uint64(WINDOW.get(space, 0))
    if space in ("global", "const"):
        return apply(scope, ins, lambda a: a, type, (type,))
    if to_space:
        return apply(scope, ins, lambda a: a & np.uint64(WINDOW_MASK), type, (type,))
    return apply(scope, ins, lambda a: a + window, type, (type,))


def is_space(scope: Scope, ins: Instruction) -> Run:
    """isspacep.space p, a: whether a generic address lies in the space's window."""
    space = ins.parts[1].partition("::")[0]
    ranges = {
        "global": (0, SHARED_WINDOW),
        "shared": (SHARED_WINDOW, LOCAL_WINDOW),
        "local": (LOCAL_WINDOW, PARAM_WINDOW),
        "param": (PARAM_WINDOW, PARAM_WINDOW + WINDOW_MASK),
    }
    if space not in ranges:
        raise unsupported(ins)
    low, high = (np.uint64(bound) for bound in ranges[space])

    def test(a: Array) -> Array:
        return (a >= low) & (a < high)

    return apply(scope, ins, test, PREDICATE, (TYPES["u64"],))


def move(scope: Scope, ins: Instruction) -> Run:
    """mov: registers, constants, addresses; {a, b} packs and unpacks, lowest part first."""
    type = scalar(ins, ins.parts[-1])
    target = ins.operands[0]
    source = ins.operands[1]
    if isinstance(target, Vector):
        return _unpack(scope, ins, target, type)
    if isinstance(source, Vector):
        return _join(scope, ins, source, type)
    return apply(scope, ins, lambda a: a, type, (type,))


def _part_type(ins: Instruction, type: ScalarType, vector: Vector) -> ScalarType:
    part = TYPES.get(f"b{type.bits // max(len(vector.items), 1)}")
    if part is None:
        raise unsupported(ins)
    return part


def _unpack(scope: Scope, ins: Instruction, target: Vector, type: ScalarType) -> Run:
    part = _part_type(ins, type, target)
    read = scope.read(ins.operands[1], type)
    writes = [scope.write(item, part) for item in target.items]

    def run(lanes: Lanes) -> None:
        value = read(lanes)
        pieces = [
            (value >> type.raw.type(part.bits * i)).astype(part.raw) for i in range(len(writes))
        ]
        for write, piece in zip(writes, pieces, strict=True):
            write(lanes, piece)

    return run


def _join(scope: Scope, ins: Instruction, source: Vector, type: ScalarType) -> Run:
    part = _part_type(ins, type, source)
    write = scope.write(ins.operands[0], type)
    reads: list[Read] = [scope.read(item, part) for item in source.items]

    def run(lanes: Lanes) -> None:
        result: Array = np.zeros(1, type.raw)
        for i, read in enumerate(reads):
            result = result | read(lanes).astype(type.raw) << type.raw.type(part.bits * i)
        write(lanes, result)

    return run
