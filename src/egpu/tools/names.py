"""Kernel names as reports show them: readable, short, and different where the kernels are.

Libraries give their kernels names of many hundreds of characters, most of it template arguments.
JSON and ``--verbose`` have them in full.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from egpu.bpf.demangle import demangle
from egpu.bpf.name_forms import split_name

WIDTH = 36  # of a name, without what tells it from others
_TAIL = 11  # characters kept of the end of a name that is cut
_CANDIDATES = 24  # words of a name that are tried, so that many long names take no time
_PAIRS = 64  # names of a group at most, for which pairs of words are tried
_WORD = re.compile(r"[A-Za-z_]\w*|\d+")
_PART = re.compile(r"(\d+)")
_NESTED = re.compile(r"_ZN?K?(?=\d)")


def display_names(names: Sequence[str]) -> tuple[str, ...]:
    """A short name for each of ``names`` (mangled or readable), equal only for equal names.

    Template arguments are left out unless the whole is short.  Where several names would then be
    the same, a word that only one of them has stands in their place, else a number behind.
    """
    different = list(dict.fromkeys(names))
    shown = {name: _short(name) for name in different}
    groups: dict[str, list[str]] = {}
    for name, text in shown.items():
        groups.setdefault(text, []).append(name)
    for text, group in groups.items():
        if len(group) > 1:
            shown |= dict(zip(group, _told_apart(text, group), strict=True))
    return tuple(_unique(different, shown)[name] for name in names)


def _short(name: str) -> str:
    readable = demangle(name)
    if readable.startswith("_Z"):
        readable = _scope_of_mangled(readable)
    scope, last, arguments = split_name(readable)
    scoped = f"{scope}::{last}" if scope else last
    full = f"{scoped}<{arguments}>" if arguments else scoped
    elided = "<…>" if arguments else ""
    for text in (full, scoped + elided, last + elided):
        if len(text) <= WIDTH:
            return text
    if not arguments:
        return f"{last[: WIDTH - _TAIL - 1]}…{last[-_TAIL:]}"
    return f"{last[: WIDTH - len(elided) - 1]}…{elided}"


def _scope_of_mangled(mangled: str) -> str:
    """The readable beginning of a name that the demangler does not know to its end."""
    begin = _NESTED.match(mangled)
    if begin is None:
        return mangled
    at, parts = begin.end(), []
    while (found := _PART.match(mangled, at)) is not None:
        end = found.end() + int(found[1])
        part = mangled[found.end() : end]
        if not part or len(part) < int(found[1]):
            return mangled
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N") else part)
        at = end
    return "::".join(parts) + ("<…>" if mangled[at : at + 1] == "I" else "")


def _told_apart(text: str, group: list[str]) -> list[str]:
    """``text`` for each name of ``group``, with a word or two that no other one has."""
    words = [_words(name) for name in group]
    owners = Counter(word for each in words for word in each)
    out = []
    for place, each in enumerate(words):
        others = [set(other) for at, other in enumerate(words) if at != place]
        # What types are called says more than numbers and namespaces, and inner ones most.
        some = sorted(
            (word for word in reversed(each) if owners[word] < len(group)),
            key=lambda word: not word[0].isupper(),
        )[:_CANDIDATES]
        most = 1 if len(group) > _PAIRS else 2
        chosen = next(
            (
                pick
                for size in range(1, most + 1)
                for pick in itertools.combinations(some, size)
                if not any(other.issuperset(pick) for other in others)
            ),
            (),
        )
        marked = "…".join(sorted(chosen, key=each.index))
        if not marked:
            out.append(text)
        elif text.endswith("<…>"):
            out.append(f"{text.removesuffix('<…>')}<…{marked}…>")
        else:
            out.append(f"{text} …{marked}")
    return out


def _words(name: str) -> list[str]:
    """The words of a name in order, none twice; none of a name that cannot be read."""
    readable = demangle(name)
    if readable.startswith("_Z"):
        return []
    found = _WORD.findall(readable) if "<" in readable else readable.split("_")
    return [word for word in dict.fromkeys(found) if word]


def _unique(names: list[str], shown: dict[str, str]) -> dict[str, str]:
    """Numbers behind what is still the same."""
    owners = Counter(shown[name] for name in names)
    used: Counter[str] = Counter()
    out = {}
    for name in names:
        text = shown[name]
        used[text] += 1
        out[name] = f"{text} #{used[text]}" if owners[text] > 1 else text
    return out
