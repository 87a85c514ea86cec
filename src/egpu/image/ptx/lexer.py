"""Tokens of PTX text (PTX ISA 9.0, section 4.3 and 4.4).

A token is its text and its offset; the first character says its class, so no class is stored:
a letter, ``_``, ``$`` or ``%`` begins a word, a digit a number, ``.`` a directive, ``"`` a string,
and everything else is punctuation.  A word keeps its dotted tail ("ld.global.v2.u32", "%tid.x"),
since only the place tells an opcode from a register.
"""

from __future__ import annotations

import re

from egpu.errors import InputError

# The last alternative takes any character, so a match never fails and nothing is tried twice: the
# scan is linear.  (Possessive quantifiers would say so, but Python before 3.11.5 gets them wrong in
# groups.)
_TOKEN = re.compile(
    r"""
    (?: [\s\x00]+ | //[^\n]* | /\*(?:[^*]|\*(?!/))*\*/ )*
    (?:
      (
        [A-Za-z_$%][\w$]* (?: (?:\.|::) [\w$]+ )*    # word with its dotted tail
      | \.[A-Za-z_][\w$]* (?: :: [\w$]+ )*           # directive, type, state space
      | 0[fF][0-9a-fA-F]{8}(?![\w$]) | 0[dD][0-9a-fA-F]{16}(?![\w$])
      | 0[xX][0-9a-fA-F]+U?(?![\w$]) | 0[bB][01]+U?(?![\w$])
      | [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?(?![\w$]) | [0-9]+[eE][+-]?[0-9]+(?![\w$])
      | [0-9]+U?(?![\w$])
      | "(?:[^"\\\n]|\\.)*"
      | <<|>>|&&|\|\||==|!=|<=|>=
      | [][{}()<>;,:@!|+\-=*&^~?%] | /(?!\*)
      )
    | \Z
    | (.)
    )
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_SHOWN = 24  # characters of an offending token that a message shows


class Cursor:
    """A position in the tokens of ``text``; the last token is "" (the end of the text)."""

    __slots__ = ("at", "starts", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        tokens: list[str] = []
        starts: list[int] = []
        for match in _TOKEN.finditer(text):
            token = match[1]
            if token is None:
                if match[2] is not None:
                    raise self.error_at(match.start(2), _why(text, match.start(2)))
                break
            tokens.append(token)
            starts.append(match.start(1))
        tokens.append("")
        starts.append(len(text))
        self.tokens = tokens
        self.starts = starts

    @property
    def token(self) -> str:
        """The token at the cursor."""
        return self.tokens[self.at]

    @property
    def start(self) -> int:
        """Offset of the token at the cursor."""
        return self.starts[self.at]

    @property
    def end_of_last(self) -> int:
        """Offset just past the token before the cursor."""
        return self.starts[self.at - 1] + len(self.tokens[self.at - 1]) if self.at else 0

    def ahead(self, count: int = 1) -> str:
        """The token ``count`` places after the cursor, "" past the end."""
        index = self.at + count
        return self.tokens[index] if index < len(self.tokens) else ""

    def take(self) -> str:
        """The token at the cursor, which then moves on; InputError at the end of the text."""
        token = self.tokens[self.at]
        if not token:
            raise self.error("the text ends inside a statement")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        """Moves past ``token`` if it is the one at the cursor."""
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        """Moves past ``token``; InputError if another stands here."""
        if self.tokens[self.at] != token:
            raise self.unexpected(f"'{token}'")
        self.at += 1

    def word(self, what: str) -> str:
        """A word; InputError that names ``what`` was expected if another token stands here."""
        token = self.tokens[self.at]
        if not is_word(token):
            raise self.unexpected(what)
        self.at += 1
        return token

    def skip_group(self) -> None:
        """Moves past a bracketed group, nested groups included (never recursive)."""
        depth = 0
        while True:
            token = self.take()
            if token in "([{":
                depth += 1
            elif token in ")]}":
                depth -= 1
                if depth <= 0:
                    return

    def unexpected(self, wanted: str) -> InputError:
        """An error that says what was wanted and what is here."""
        found = f"'{self.token[:_SHOWN]}'" if self.token else "the end of the text"
        return self.error(f"expected {wanted}, found {found}")

    def error(self, message: str) -> InputError:
        """An error at the cursor."""
        return self.error_at(self.start, message)

    def error_at(self, offset: int, message: str) -> InputError:
        """An error at ``offset``, with line and column."""
        line, column = line_column(self.text, offset)
        return InputError(message, where=f"PTX line {line}, column {column}")


def is_word(token: str) -> bool:
    """Whether ``token`` is a word (identifier, register, opcode)."""
    return token[:1].isalpha() or (token[:1] in ("_", "$", "%") and len(token) > (token[0] == "%"))


def line_column(text: str, offset: int) -> tuple[int, int]:
    """Line and column, both from 1, of a character offset."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _why(text: str, offset: int) -> str:
    if text.startswith("/*", offset):
        return "this comment does not end"
    if text[offset] == '"':
        return "this string does not end on its line"
    if text[offset].isdigit():
        return f"malformed number '{text[offset : offset + _SHOWN].split(maxsplit=1)[0]}'"
    return f"character {text[offset]!a} cannot stand here"
