"""Reading a mangled name piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


class UnknownError(Exception):
    """The name uses what the demangler does not know."""


@dataclass(slots=True)
class Mangled:
    """A mangled name, read up to ``at``."""

    text: str
    at: int = 2  # behind "_Z"

    def _peek(self, what: str) -> bool:
        return self.text.startswith(what, self.at)

    def _take(self, what: str) -> bool:
        if not self._peek(what):
            return False
        self.at += len(what)
        return True

    def _expect(self, what: str) -> None:
        if not self._take(what):
            raise UnknownError

    def _character(self) -> str:
        return self.text[self.at : self.at + 1]

    def _number(self) -> str:
        start = self.at
        while self._character().isdigit():
            self.at += 1
        if start == self.at or self.at - start > 5:
            raise UnknownError
        return self.text[start : self.at]

    def _sequence(self) -> int:
        """The number before "_": nothing is 0, "0" is 1, in base 36."""
        start = self.at
        while self._character() != "_":
            if not (self._character().isdigit() or self._character().isupper()):
                raise UnknownError
            self.at += 1
        digits = self.text[start : self.at]
        self.at += 1
        if len(digits) > 4:
            raise UnknownError
        return int(digits, 36) + 1 if digits else 0
