"""Symbols of a probe's text, resolved for one kernel and one arena layout."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from egpu.bpf.program import AttachKind
from egpu.codegen.device_code import DeviceCode, Relocation, RelocKind
from egpu.errors import InputError, InternalError
from egpu.image.ptx.lexer import Cursor
from egpu.image.ptx.syntax import Function, Parameter
from egpu.maps.layout import LAUNCH_BLOCK_SIZE, ArenaLayout, MapPlace
from egpu.splice.edits import Edit, apply_edits
from egpu.splice.ptx_names import AddedNames

_WORD = 8  # bytes that every symbol stands for
_STATEMENT_ENDS = frozenset({";", "{", "}", ":"})


@dataclass(frozen=True, slots=True)
class Piece:
    """``size`` bytes at ``offset`` of parameter ``name``, ``shift`` bits up in the value."""

    name: str
    offset: int
    size: int
    shift: int


def parameter_bytes(parameters: Sequence[Parameter]) -> int:
    """Bytes of a parameter block, up to the end of its last parameter."""
    return max((each.offset + each.size for each in parameters), default=0)


@dataclass(frozen=True, slots=True)
class Setting:
    """What symbols depend on."""

    kernel: Function
    layout: ArenaLayout
    names: AddedNames
    line: bytes = b""  # the text of the instruction at an instruction probe's site


def resolve(code: DeviceCode, setting: Setting) -> str:
    """The probe's text for one kernel, without a symbol left.

    InputError when the probe reads a parameter that the kernel has not, or the start of the kernel
    where it is not known.
    """
    wanted = {each.symbol: each for each in code.relocations}
    cursor = _tokens(code.text)
    edits: list[Edit] = []
    for index, token in enumerate(cursor.tokens):
        relocation = wanted.get(token)
        if relocation is not None:
            edits.append(_resolved(code, relocation, cursor, index, setting))
        elif token.startswith("__egpu_"):
            raise InternalError(f"probe {code.program} has the undeclared symbol {token}")
    return apply_edits(code.text, edits)


@functools.lru_cache(maxsize=64)  # a probe's text is resolved for several kernels
def _tokens(text: str) -> Cursor:
    """Where its tokens are; nobody moves it."""
    return Cursor(text)


def parameters_used(codes: Sequence[DeviceCode], kernel: Function) -> set[str]:
    """Names of the kernel's parameters that probes load."""
    if any(
        each.kind in (RelocKind.PARAMETER, RelocKind.PARAM_BYTES)
        for code in codes
        for each in code.relocations
    ):
        return {each.name for each in kernel.parameters}
    return set()


def needs(codes: Sequence[DeviceCode], kind: RelocKind) -> bool:
    """Whether one of the probes uses a symbol of this kind."""
    return any(each.kind is kind for code in codes for each in code.relocations)


def _resolved(
    code: DeviceCode,
    relocation: Relocation,
    cursor: Cursor,
    index: int,
    setting: Setting,
) -> Edit:
    at = cursor.starts[index]
    value = _value(code, relocation, setting)
    if value is not None:
        return Edit(at, at + len(cursor.tokens[index]), value)
    # mov.b64 %r, SYMBOL; becomes loads into %r
    before = cursor.tokens[max(index - 4, 0) : index]
    if (
        index < 3
        or cursor.tokens[index - 3] not in ("mov.b64", "mov.u64")
        or before[-1] != ","
        or cursor.tokens[index + 1] != ";"
        or (index > 3 and before[0] not in _STATEMENT_ENDS)
    ):
        raise InternalError(
            f"probe {code.program} uses {relocation.symbol} outside mov.b64 REGISTER, SYMBOL;"
        )
    pieces = list(_pieces(code, relocation, setting))
    loads = load_pieces(cursor.tokens[index - 2], pieces, setting.names)
    return Edit(cursor.starts[index - 3], cursor.starts[index + 1] + 1, loads)


def _value(
    code: DeviceCode,
    relocation: Relocation,
    setting: Setting,
) -> str | None:
    """What stands in the symbol's place, None for values that are loaded."""
    match relocation.kind:
        case RelocKind.PARAMETER | RelocKind.PARAM_BYTES | RelocKind.LAUNCH:
            return None
        case RelocKind.START_TIME | RelocKind.START_CLOCK if code.kind is not AttachKind.EXIT:
            raise InputError(
                "reads the start of the kernel, which only exit probes have",
                where=f"probe {code.program}",
            )
        case RelocKind.START_TIME:
            return setting.names.start_time
        case RelocKind.START_CLOCK:
            return setting.names.start_clock
        case RelocKind.PARAM_SIZE:
            return str(parameter_bytes(setting.kernel.parameters))
        case RelocKind.SM_SLOTS:
            return str(setting.layout.sm_slots)
        case RelocKind.LINE:
            word = setting.line[relocation.index : relocation.index + _WORD]
            return f"0x{int.from_bytes(word, 'little'):x}"
        case RelocKind.MAP:
            return str(_place(code, relocation, setting.layout).offset)
        case RelocKind.MAP_STRIDE:
            return str(_place(code, relocation, setting.layout).stride)
        case RelocKind.MAP_SPREAD:
            return str(_place(code, relocation, setting.layout).spread)
        case RelocKind.RING_DATA:
            place = _place(code, relocation, setting.layout)
            return str(place.ring_device or place.ring_data)
        case RelocKind.RING_FLAGS:
            return str(setting.layout.flags_base)
        case RelocKind.RING_SIZE:
            return str(_place(code, relocation, setting.layout).ring_size)
        case RelocKind.RING_SLOTS:
            return str(_place(code, relocation, setting.layout).ring_slots)


def _place(code: DeviceCode, relocation: Relocation, layout: ArenaLayout) -> MapPlace:
    if relocation.index >= len(layout.places):
        raise InternalError(
            f"probe {code.program} uses map {relocation.index} of {len(layout.places)}"
        )
    return layout.places[relocation.index]


def _pieces(code: DeviceCode, relocation: Relocation, setting: Setting) -> Iterator[Piece]:
    index = relocation.index
    kernel = setting.kernel
    match relocation.kind:
        case RelocKind.PARAMETER:
            count = len(kernel.parameters)
            if index >= count:
                raise InputError(
                    f"reads parameter {index + 1}, but kernel {kernel.name} has {count}",
                    where=f"probe {code.program}",
                )
            parameter = kernel.parameters[index]
            return split_bytes((parameter,), parameter.offset, min(parameter.size, _WORD))
        case RelocKind.PARAM_BYTES:
            return split_bytes(kernel.parameters, index, _WORD)
        case RelocKind.LAUNCH:
            block = Parameter(setting.names.launch, "b8", LAUNCH_BLOCK_SIZE, _WORD, 0)
            return split_bytes((block,), index, _WORD)
        case _:
            raise InternalError(f"{relocation.symbol} is not loaded")


def split_bytes(parameters: Sequence[Parameter], begin: int, size: int) -> Iterator[Piece]:
    """Aligned loads that give ``size`` bytes at ``begin`` of the block; gaps and what is past the
    last parameter have none.

    No load is wider than the declared alignment of its parameter allows: nothing else is promised.
    """
    for parameter in parameters:
        at = max(begin - parameter.offset, 0)
        end = min(begin + size - parameter.offset, parameter.size)
        while at < end:
            width = _WORD
            while width > parameter.align or at % width or at + width > end:
                width //= 2
            yield Piece(parameter.name, at, width, 8 * (parameter.offset + at - begin))
            at += width


def load_pieces(register: str, pieces: Sequence[Piece], names: AddedNames) -> str:
    """Instructions that put the pieces together in a 64-bit register, zero elsewhere."""
    if not pieces:
        return f"mov.b64 {register}, 0;"
    lines: list[str] = []
    for number, piece in enumerate(pieces):
        into = names.word if number else register
        # A .u load into a wider register zero-extends (PTX ISA 9.0, section 9.4.1).
        lines.append(f"ld.param.u{8 * piece.size} {into}, [{piece.name}+{piece.offset}];")
        if piece.shift:
            lines.append(f"shl.b64 {into}, {into}, {piece.shift};")
        if number:
            lines.append(f"or.b64 {register}, {register}, {into};")
    if len(pieces) == 1:
        return " ".join(lines)
    return f"{{ .reg .b64 {names.word}; {' '.join(lines)} }}"
