"""Decoded keys, values and records, for JSON and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egpu.bpf.program import MapSpec

_ESCAPES = str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\x1b"}
)
_UNPRINTED = "\n\t\r\x1b"  # what texts have that cannot be printed; \x1b begins colours


def plain(value: object) -> object:
    """A decoded value as JSON has it: namedtuples as objects, bytes as hexadecimal text."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is not None:
            return {name: plain(item) for name, item in zip(names, value, strict=True)}
        return [plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def key_typed(spec: MapSpec) -> bool:
    """Whether a type says what keys of the map are."""
    return spec.btf is not None and bool(spec.key_type)


def value_typed(spec: MapSpec) -> bool:
    """Whether a type says what values of the map are."""
    return spec.btf is not None and bool(spec.value_type)


def shown(value: object, *, typed: bool = True) -> str:
    """A decoded value for people: ``name=value`` pairs, text for arrays of characters that hold it.

    Bytes are such an array where the value is ``typed``; else they are no text, even if they look
    like it, and stand there in hexadecimal, as they are given for maps without types.
    """
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is not None:
            return " ".join(
                f"{name}={shown(item, typed=typed)}"
                for name, item in zip(names, value, strict=True)
            )
        return "[" + ", ".join(shown(item, typed=typed) for item in value) + "]"
    if isinstance(value, bytes):
        text = _text(value) if typed else None
        return value.hex() if text is None else text
    return str(value)


def _text(characters: bytes) -> str | None:
    """What an array of characters says up to its zero, as bpftool shows it; quoted where it would
    run into what stands beside it.  None if it says nothing: then it holds numbers."""
    said, _, rest = characters.partition(b"\0")
    try:
        text = said.decode()
    except UnicodeDecodeError:
        return None
    if not text:
        return None if rest.strip(b"\0") else ""
    if text.isspace() or not all(each.isprintable() or each in _UNPRINTED for each in text):
        return None
    quoted = text.translate(_ESCAPES)
    return text if quoted == text and not set(text) & set(" ,=[]") else f'"{quoted}"'
