"""Formats of bpf_printk: what Linux takes, checked and rendered (Documentation/core-api/
printk-formats.rst; the subset of bpf_trace_printk in man page bpf-helpers(7))."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from egpu.bpf.arith import signed
from egpu.errors import InputError

_SPECIFIER = re.compile(
    r"%(?:%|(?P<style>[-+ 0#]*\d*)(?:(?P<long>ll|l|)(?P<number>[diuxX])|(?P<char>c)|(?P<text>s)"
    r"|p(?P<pointer>ks|us|[KxBsS]|)(?![iI])))"
)
LINE = 1023  # characters: Linux has a buffer of 1,024 bytes (BPF_TRACE_PRINTK_SIZE)
_WIDTH = re.compile(r"[1-9]\d*")
_TEXT_POINTERS = ("ks", "us")


class Shown(enum.Enum):
    """How one value is shown."""

    SIGNED = "signed number"
    UNSIGNED = "unsigned number"
    CHARACTER = "character"
    TEXT = "text"
    POINTER = "pointer"


@dataclass(frozen=True, slots=True)
class Specifier:
    """One value of a format: ``bits`` of it count; ``style`` are flags, width and conversion."""

    shown: Shown
    style: str
    bits: int = 64


@dataclass(frozen=True, slots=True)
class Format:
    """A format taken apart: texts, and between each two of them a value."""

    texts: tuple[str, ...]
    values: tuple[Specifier, ...]

    def render(self, values: Sequence[int | bytes]) -> str:
        """The line: numbers for values, bytes (cut at the first NUL) for texts.

        It ends after ``LINE`` characters, as on Linux.  One newline at the end is left out; what a
        terminal would not show is escaped.
        """
        parts = [self.texts[0]]
        for specifier, value, after in zip(self.values, values, self.texts[1:], strict=True):
            parts += [_shown(specifier, value), after]
        line = "".join(parts)[:LINE]
        return "".join(map(_visible, line.removesuffix("\n")))


def _visible(letter: str) -> str:
    if letter.isprintable() or letter in "\n\t":
        return letter
    return letter.encode("unicode_escape").decode()


def _shown(specifier: Specifier, value: int | bytes) -> str:
    if isinstance(value, bytes):
        text, _, _ = value.partition(b"\0")
        return f"%{specifier.style}" % text.decode("utf-8", "backslashreplace")
    number = value & ((1 << specifier.bits) - 1)
    match specifier.shown:
        case Shown.SIGNED:
            return f"%{specifier.style}" % signed(number, specifier.bits)
        case Shown.CHARACTER:
            return chr(number)
        case Shown.POINTER:
            return f"{number:016x}"
        case _:
            return f"%{specifier.style}" % number


def parse_format(text: bytes) -> Format:
    """Take ``text`` (up to its NUL) apart. Raises InputError for what Linux has no such thing."""
    head, end, _ = text.partition(b"\0")
    if not end:
        raise InputError("the format does not end with a NUL")
    try:
        form = head.decode()
    except UnicodeDecodeError:
        raise InputError("the format is not UTF-8") from None
    texts, values, at = [""], [], 0
    while (start := form.find("%", at)) >= 0:
        texts[-1] += form[at:start]
        found = _SPECIFIER.match(form, start)
        if found is None:
            raise InputError(f"the format {form!r} has an unknown specifier at {start}")
        at = found.end()
        if found.group() == "%%":
            texts[-1] += "%"
        else:
            values.append(_specifier(found))
            texts.append("")
    texts[-1] += form[at:]
    return Format(tuple(texts), tuple(values))


def _width(found: re.Match[str]) -> str:
    """A field's width; a field that would reach beyond the line's end is as wide as the line."""
    return str(min(int(found[0][: len(str(LINE)) + 1]), LINE))


def _specifier(found: re.Match[str]) -> Specifier:
    style = _WIDTH.sub(_width, found["style"])
    if found["number"]:
        kind = Shown.SIGNED if found["number"] in "di" else Shown.UNSIGNED
        if kind is Shown.UNSIGNED:  # has no sign to show
            style = style.replace("+", "").replace(" ", "")
        conversion = "d" if found["number"] in "diu" else found["number"]
        return Specifier(kind, style + conversion, 64 if found["long"] else 32)
    if found["char"]:
        return Specifier(Shown.CHARACTER, style + "c", 8)
    if found["text"] or found["pointer"] in _TEXT_POINTERS:
        return Specifier(Shown.TEXT, style + "s")
    return Specifier(Shown.POINTER, style)
