"""Decoded keys, values and records, for JSON and for people."""

from __future__ import annotations


def plain(value: object) -> object:
    """A decoded value as JSON has it: namedtuples as objects, bytes as hexadecimal text."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is not None:
            return {name: plain(item) for name, item in zip(names, value, strict=True)}
        return [plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def shown(value: object) -> str:
    """A decoded value for people: ``name=value`` pairs, text where bytes hold text."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is not None:
            return " ".join(
                f"{name}={shown(item)}" for name, item in zip(names, value, strict=True)
            )
        return "[" + ", ".join(shown(item) for item in value) + "]"
    if isinstance(value, bytes):
        text = value.rstrip(b"\0")
        return text.decode() if text.isascii() and text.decode().isprintable() else value.hex()
    return str(value)
