"""From the PTX of LLVM's kernel to text that can stand inside another kernel.

Works on tokens, not on lines.  The result is a statement a line; registers, labels and the local
array have names of their own, ``ret`` became a branch to one end label, and everything that could
not stand inside a kernel is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from egpu.codegen.device_code import Relocation, RelocKind
from egpu.errors import InternalError

# PTX ISA 9.0, chapter 4: identifiers, directives, literals, the rest by single characters.
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<string>"[^"]*")
      | (?P<word>[%$_.]?[A-Za-z_$%][\w$.]*(?:::[\w.]+)*)
      | (?P<number>\d[\w.]*)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_FORBIDDEN = frozenset(
    {".global", ".const", ".shared", ".param", ".func", ".entry", ".extern", ".visible",
     "exit", "trap", "call", "call.uni", "brx.idx", "brx.idx.uni", ".branchtargets", "bar.sync",
     "barrier.sync", "ret.uni"}
)  # fmt: skip
# Marks without a blank before them, and without one after them.
_GLUED_LEFT = frozenset("],);>}:|<+")
_GLUED_RIGHT = frozenset("[({!@-+<|")


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel's body, ready to be placed.

    ``declarations`` and ``statements`` are lines; ``end`` is the label that ends it (to be placed
    by whoever adds an epilogue); ``diverges`` whether it has conditional branches.
    """

    declarations: tuple[str, ...]
    statements: tuple[str, ...]
    end: str
    diverges: bool
    relocations: tuple[Relocation, ...]


def tokens(text: str) -> Iterator[str]:
    """The tokens of PTX text without blanks and comments."""
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "blank":
            yield match.group()


def embed(ptx: str, tag: str, *, allowed: frozenset[str] = frozenset()) -> KernelText:
    """The body of the only ``.entry`` of ``ptx``, its names made unique by ``tag``.

    ``allowed`` are words that it may contain although they leave the kernel.
    Raises InternalError if LLVM made something that cannot stand inside another kernel.
    """
    module = list(tokens(ptx))
    start = _entry_body(module)
    statements = list(_statements(module[start:]))
    families = dict(_register_families(statements))
    rename = _Names(families, tag)
    declarations: list[str] = []
    lines: list[str] = []
    symbols: dict[Relocation, None] = {}
    diverges = False
    for number, statement in enumerate(statements):
        _check(statement, allowed)
        if statement[0] in (".reg", ".local") and not _nested(statements, number):
            declarations.append(_join([rename(token) for token in statement]))
            continue
        if statement[-2:] == ["ret", ";"]:
            guard = statement[:-2]
            if not guard and number == len(statements) - 1:
                continue
            statement = [*guard, "bra", rename.end, ";"]  # noqa: PLW2901
        diverges = diverges or (statement[0] == "@" and _is_branch(statement))
        symbols.update(dict.fromkeys(_relocations(statement)))
        lines.append(_join([rename(token) for token in statement]))
    return KernelText(tuple(declarations), tuple(lines), rename.end, diverges, tuple(symbols))


def _entry_body(module: list[str]) -> int:
    """Index of the first token inside the entry's braces."""
    entry = module.index(".entry")
    head = module[:entry]
    bad = [token for token in head if token in (_FORBIDDEN - {".visible"})]
    if bad or module.count(".entry") != 1:
        raise InternalError(f"the compiled probe declares {bad or 'two kernels'} at module scope")
    opened = module.index("{", entry)
    tail = module[opened:]
    depth = 0
    for position, token in enumerate(tail):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth == 0:
            if position != len(tail) - 1:
                raise InternalError(f"the compiled probe has {tail[position + 1]} after its kernel")
            return opened + 1
    raise InternalError("the compiled probe's kernel does not end")


def _statements(body: list[str]) -> Iterator[list[str]]:
    """Statements, labels and braces of nested scopes, the closing brace of the kernel left out."""
    current: list[str] = []
    for position, token in enumerate(body[:-1]):
        alone = not current and token in ("{", "}")
        current.append(token)
        ends_label = token == ":" and len(current) == 2
        if alone or token == ";" or ends_label:
            yield current
            current = []
        elif position == len(body) - 2:
            raise InternalError(f"the compiled probe ends in {' '.join(current)}")


def _nested(statements: list[list[str]], number: int) -> bool:
    """Whether a statement lies in a scope of its own (inline assembly with its own registers)."""
    before = statements[:number]
    return before.count(["{"]) > before.count(["}"])


def _register_families(statements: list[list[str]]) -> Iterator[tuple[str, int | None]]:
    """(name, count) of ``.reg`` declarations: ``%r<5>`` gives ("%r", 5), ``%SP`` ("%SP", None)."""
    for number, statement in enumerate(statements):
        if statement[0] != ".reg" or _nested(statements, number):
            continue
        if statement[3] == "<":
            yield statement[2], int(statement[4])
        else:
            yield statement[2], None


class _Names:
    """New names for the kernel's own registers, labels and local array."""

    def __init__(self, families: dict[str, int | None], tag: str) -> None:
        self._families = families
        self._tag = tag
        self.end = f"$egpu_{tag}_end"

    def __call__(self, token: str) -> str:
        if token in self._families:
            return f"%{self._tag}_{token[1:]}"
        stem = token.rstrip("0123456789")
        if stem != token and self._families.get(stem) is not None:
            return f"%{self._tag}_{token[1:]}"
        if token.startswith("$L"):
            return f"$egpu_{self._tag}_{token[1:].replace('$', '_')}"
        if token.startswith("__local_depot"):
            return f"egpu_{self._tag}_local"
        return token


def _check(statement: list[str], allowed: frozenset[str]) -> None:
    bad = [token for token in statement if token in _FORBIDDEN - allowed]
    if bad:
        raise InternalError(f"the compiled probe contains {bad[0]}: {' '.join(statement)}")


def _is_branch(statement: list[str]) -> bool:
    return any(token == "bra" or token.startswith("bra.") for token in statement)


def _relocations(statement: list[str]) -> Iterator[Relocation]:
    for token in statement:
        if not token.startswith("__egpu_"):
            continue
        relocation = _relocation(token)
        if statement[0] != "mov.b64" or statement[2:] != [",", token, ";"]:
            raise InternalError(f"symbol {token} stands in {' '.join(statement)}")
        yield relocation


def _relocation(symbol: str) -> Relocation:
    for kind in RelocKind:
        if symbol == kind.value and not symbol.endswith("_"):
            return Relocation(kind)
        if kind.value.endswith("_") and symbol.startswith(kind.value):
            index = symbol.removeprefix(kind.value)
            if index.isdigit():
                return Relocation(kind, int(index))
    raise InternalError(f"unknown symbol {symbol}")


def _join(statement: list[str]) -> str:
    """One statement as a line: blanks between words, none around marks."""
    out, is_array = "", statement[0] == ".local"
    for position, token in enumerate(statement):
        previous = statement[position - 1] if position else ""
        glued = token in _GLUED_LEFT or previous in _GLUED_RIGHT or (token == "[" and is_array)
        out += token if glued or not out else f" {token}"
    return out
