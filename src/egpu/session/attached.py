"""Verified programs and what they are attached to."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from egpu.bpf.demangle import demangle
from egpu.bpf.program import AttachKind, AttachPoint
from egpu.bpf.sections import matches
from egpu.codegen import DeviceCode, Launch, Together, compile_probe
from egpu.verifier import VerifiedProgram

_Key: TypeAlias = tuple[int, str, str, str]  # program, and what of a point says which sites


@dataclass(frozen=True, slots=True)
class Attachment:
    """One program at one of its attach points."""

    program: VerifiedProgram
    point: AttachPoint


class ProbeSet:
    """The programs of a session; compiles each once per (program, kind, level, class)."""

    def __init__(self, programs: Sequence[VerifiedProgram], *, only: str = "") -> None:
        """``only`` is a glob that narrows every attach point to the kernels it matches."""
        self._attachments = tuple(
            Attachment(verified, point)
            for verified in programs
            for point in verified.program.attach
        )
        self._only = only
        self._disabled: set[int] = set()
        self._compiled: dict[tuple[_Key, Launch, Together], DeviceCode] = {}
        self._fingerprints: dict[tuple[int, AttachPoint], str] = {}
        self.spent_s = 0.0  # compiling

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        return self._attachments

    def is_enabled(self, verified: VerifiedProgram) -> bool:
        """Whether kernels get this program."""
        return id(verified) not in self._disabled

    def enable(self, verified: VerifiedProgram) -> None:
        """Put this program into kernels that are resolved from now on."""
        self._disabled.discard(id(verified))

    def disable(self, verified: VerifiedProgram) -> None:
        """Leave it out of them."""
        self._disabled.add(id(verified))

    def matching(self, kernel: str) -> tuple[Attachment, ...]:
        """What to put into ``kernel`` (mangled name); each program at most once per site kind."""
        # Reading a mangled name takes longer than all the rest; for a lone star nobody has to.
        plain = all(pattern == "*" for pattern in self._patterns())
        readable = kernel if plain else demangle(kernel)
        if self._only and not matches(_narrowing(self._only), kernel, readable):
            return ()
        found = (each for each in self._enabled() if matches(each.point, kernel, readable))
        return self._once(found)

    def everywhere(self) -> tuple[Attachment, ...]:
        """What is put into every kernel, whatever its name is."""
        if self._only not in ("", "*"):
            return ()
        return self._once(each for each in self._enabled() if each.point.pattern == "*")

    def likely(self) -> tuple[tuple[Attachment, ...], ...]:
        """What kernels get together that one pattern matches, or that all do."""
        patterns = dict.fromkeys(each.point.pattern for each in self._enabled())
        return tuple(
            self._once(each for each in self._enabled() if each.point.pattern in ("*", pattern))
            for pattern in patterns
        )

    def _enabled(self) -> Iterator[Attachment]:
        return (each for each in self._attachments if self.is_enabled(each.program))

    def _once(self, attachments: Iterable[Attachment]) -> tuple[Attachment, ...]:
        chosen: dict[_Key, Attachment] = {}
        for attachment in attachments:
            chosen.setdefault(_key(attachment), attachment)
        return tuple(chosen.values())

    def _patterns(self) -> Iterator[str]:
        yield self._only or "*"
        yield from (each.point.pattern for each in self._attachments)

    def fingerprint(self, attachment: Attachment) -> str:
        """Names everything that the device code of ``attachment`` depends on, without compiling.

        A program's repr holds its instructions, its maps and their initial contents.
        """
        key = id(attachment.program), attachment.point
        found = self._fingerprints.get(key)
        if found is None:
            verified = attachment.program
            text = f"{verified.policy.value} {attachment.point!r} {verified.program!r}"
            found = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
            self._fingerprints[key] = found
        return found

    def compiled(
        self, attachment: Attachment, launch: Launch, together: Together = Together.WARP
    ) -> DeviceCode:
        """The device code of ``attachment``, compiled at the first call."""
        key = _key(attachment), launch, together
        code = self._compiled.get(key)
        if code is None:
            begin = time.perf_counter()
            code = compile_probe(
                attachment.program, point=attachment.point, launch=launch, together=together
            )
            self.spent_s += time.perf_counter() - begin
            self._compiled[key] = code
        return code


def _key(attachment: Attachment) -> _Key:
    point = attachment.point
    return id(attachment.program), point.kind.value, point.level.value, point.detail


def _narrowing(pattern: str) -> AttachPoint:
    return AttachPoint(AttachKind.ENTRY, pattern)
