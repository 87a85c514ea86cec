"""What people call a C++ function, from its demangled name."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=256)  # each kernel's is asked for with every pattern
def name_forms(demangled: str) -> tuple[str, ...]:
    """What people call a function: in full, then without arguments, template arguments, scope."""
    plain = _before_arguments(demangled)
    bare = _without_templates(plain)
    forms = (demangled, plain, bare, bare.rpartition("::")[2], _last_component(plain))
    return tuple(dict.fromkeys(form for form in forms if form))


def split_name(demangled: str) -> tuple[str, str, str]:
    """(scope, name, template arguments) of a function: ("at::native", "fill", "4, float").

    Arguments of the function are left out, and so are those of templates in its scope.
    """
    plain = _before_arguments(demangled)
    last = _last_component(plain)
    scope = _without_templates(plain[: len(plain) - len(last)]).removesuffix("::")
    name, bracket, arguments = last.partition("<")
    if not bracket or not arguments.endswith(">"):
        return scope, last, ""
    return scope, name, arguments[:-1]


def _before_arguments(name: str) -> str:
    """Cut the argument list: the first "(" outside template brackets that does not open a name."""
    depth = 0
    for at, character in enumerate(name):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == "(" and depth == 0 and at and not name.startswith("(anonymous", at):
            return name[:at]
    return name


def _without_templates(name: str) -> str:
    out: list[str] = []
    depth = 0
    for character in name:
        depth += character == "<"
        if depth == 0:
            out.append(character)
        depth -= character == ">"
    return "".join(out) if depth == 0 else name


def _last_component(name: str) -> str:
    depth = 0
    for at in range(len(name) - 1, 0, -1):
        depth += (name[at] == ">") - (name[at] == "<")
        if depth == 0 and name.startswith("::", at - 1):
            return name[at + 1 :]
    return name
