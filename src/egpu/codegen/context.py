"""Reads of the virtual context (``egpu.bpf.context``): one way of producing a field per source.

Nothing is stored anywhere: a field costs what its source costs, and only where it is read.
"""

from __future__ import annotations

from collections.abc import Callable

from egpu.bpf.context import Field, Source, field_at, fields_of
from egpu.codegen.device_code import RelocKind
from egpu.codegen.scope import Scope
from egpu.errors import InternalError

# PTX special registers of the table, and the primitives that read them.
_PRIMITIVES: dict[str, tuple[str, int]] = {
    **{f"%{name}.{axis}": (f"{name}_{axis}", 32)
       for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    "%laneid": ("lane", 32),
    "%warpid": ("warp", 32),
    # Not the lanes that run the read: a warp-level probe has one of those left.
    "activemask": ("site_mask", 32),
    "%globaltimer": ("globaltimer", 64),
    "%clock64": ("clock", 64),
}  # fmt: skip
_STARTS: dict[str, RelocKind] = {
    "globaltimer": RelocKind.START_TIME,
    "clock": RelocKind.START_CLOCK,
}
_WINDOW = 8  # bytes of one symbol of these
_WINDOWS: dict[Source, RelocKind] = {
    Source.PARAM_BYTES: RelocKind.PARAM_BYTES,
    Source.LINE_BYTES: RelocKind.LINE,
}


def load_context(scope: Scope, offset: int, bits: int) -> str:
    """The ``bits`` bits at ``offset`` of the context, as a value of that width."""
    size = bits // 8
    field = field_at(offset, size, fields_of(scope.unit.verified.program.attach))
    if field is None:
        raise InternalError(f"no context field has bytes {offset} to {offset + size}")
    if field.source in _WINDOWS:
        value = _window_bytes(scope, _WINDOWS[field.source], offset - field.offset, size)
        return scope.body.resize(value, 64, bits)
    value = _PRODUCERS[field.source](scope, field)
    skipped = 8 * (offset - field.offset)
    if skipped:
        value = scope.body.binary("lshr", "i64", value, str(skipped))
    return scope.body.resize(value, 64, bits)


def _parameter(scope: Scope, field: Field) -> str:
    return scope.symbol(RelocKind.PARAMETER, int(field.detail))


def _special(scope: Scope, field: Field) -> str:
    if field.detail == "%smid":
        return scope.sm()
    try:
        name, bits = _PRIMITIVES[field.detail]
    except KeyError:
        raise InternalError(f"context field {field.name}: no way to read {field.detail}") from None
    return scope.body.resize(scope.body.call(f"i{bits}", f"egpu.{name}"), bits, 64)


def _launch(scope: Scope, field: Field) -> str:
    return scope.launch(field.detail)


def _start(scope: Scope, field: Field) -> str:
    return scope.symbol(_STARTS[field.detail])


def _constant(scope: Scope, field: Field) -> str:
    if field.detail == "param_size":
        return scope.symbol(RelocKind.PARAM_SIZE)
    return scope.body.value(f"add i64 {int(field.detail)}, 0")


_PRODUCERS: dict[Source, Callable[[Scope, Field], str]] = {
    Source.PARAMETER: _parameter,
    Source.SPECIAL: _special,
    Source.LAUNCH: _launch,
    Source.START: _start,
    Source.CONSTANT: _constant,
}


def _window_bytes(scope: Scope, kind: RelocKind, offset: int, size: int) -> str:
    """``size`` bytes of the parameter block or the site's text from aligned 8-byte windows."""
    body = scope.body
    window, skipped = offset & ~(_WINDOW - 1), offset % _WINDOW
    value = scope.symbol(kind, window)
    if skipped:
        value = body.binary("lshr", "i64", value, str(8 * skipped))
    if skipped + size > _WINDOW:
        rest = scope.symbol(kind, window + _WINDOW)
        rest = body.binary("shl", "i64", rest, str(8 * (_WINDOW - skipped)))
        value = body.binary("or", "i64", value, rest)
    return value
