"""The names that splicing adds to a twin; none of them occurs in the text it adds them to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class AddedNames:
    """Names with one common prefix, "__egpu_" unless the module has it already."""

    prefix: str

    @property
    def launch(self) -> str:
        """The hidden parameter."""
        return f"{self.prefix}launch"

    @property
    def globals(self) -> str:
        """The table of addresses of the original module's variables."""
        return f"{self.prefix}globals"

    @property
    def start_time(self) -> str:
        """The register with the %globaltimer of the entry."""
        return f"{self.prefix}start_time"

    @property
    def start_clock(self) -> str:
        """The register with the %clock64 of the entry."""
        return f"{self.prefix}start_clock"

    @property
    def word(self) -> str:
        """A register in a scope of its own, to put a value together."""
        return f"{self.prefix}word"

    def address(self, number: int) -> str:
        """The ``number``-th address register of one rewritten instruction."""
        return f"{self.prefix}address_{number}"

    def stay(self, place: str) -> str:
        """The label after a guarded site, for threads that do not take part there."""
        return f"{self.prefix}stay_{place}"


def added_names(text: str) -> AddedNames:
    """Names that do not clash with ``text``."""
    if "__egpu_" not in text:
        return AddedNames("__egpu_")
    return next(
        AddedNames(prefix) for prefix in (f"__egpu{n}_" for n in count(2)) if prefix not in text
    )
