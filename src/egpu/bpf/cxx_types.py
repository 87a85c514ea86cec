"""How C++ spells types: what the demangler puts together."""

from __future__ import annotations

from egpu.bpf.mangled import UnknownError

BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char",
    "h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int",
    "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long",
    "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double", "e": "long double",
    "g": "__float128", "z": "...",
    "Dh": "half", "Di": "char32_t", "Ds": "char16_t", "Du": "char8_t", "Dn": "decltype(nullptr)",
    "Da": "auto", "DF16_": "_Float16", "DF16b": "std::bfloat16_t",
}  # fmt: skip
_LITERAL_SUFFIX = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul",
                   "long long": "ll", "unsigned long long": "ull"}  # fmt: skip


def listed(types: list[str]) -> str:
    """A parameter list; empty packs are not shown."""
    return "" if types == ["void"] else ", ".join(filter(None, types))


def split(declarator: str, mark: str) -> tuple[str, str]:
    """What stands before and after ``mark``, which must not be inside a template argument."""
    head, found, tail = declarator.partition(mark)
    if not found or head.count("<") != head.count(">"):
        raise UnknownError
    return head, tail


def indirect(inner: str, mark: str) -> str:
    """Pointer or reference to ``inner``: for arrays and functions it goes inside."""
    if not inner.endswith(("]", ")")):
        return inner + mark
    head, tail = split(inner, " [" if inner.endswith("]") and " (" not in inner else " (")
    if tail[0] in "*&":  # to a pointer to an array or function
        before, _, after = tail.partition(")")
        return f"{head} ({before}{mark}){after}"
    return f"{head} ({mark}) [{tail}" if inner.endswith("]") else f"{head} ({mark})({tail}"


def array_of(element: str, size: str) -> str:
    """An array of ``size`` elements."""
    if element.endswith(")"):
        raise UnknownError  # of functions or pointers to them
    if not element.endswith("]"):
        return f"{element} [{size}]"
    head, tail = split(element, " [")
    return f"{head} [{size}][{tail}"


def literal(kind: str, digits: str) -> str:
    """A number of type ``kind`` as a template argument; a leading "n" is its sign."""
    if not digits.removeprefix("n").isdigit():
        raise UnknownError
    value = ("-" if digits.startswith("n") else "") + digits.removeprefix("n")
    if kind == "bool":
        return {"0": "false", "1": "true"}.get(value, f"(bool){value}")
    if kind in _LITERAL_SUFFIX:
        return value + _LITERAL_SUFFIX[kind]
    return f"({kind}){value}"
