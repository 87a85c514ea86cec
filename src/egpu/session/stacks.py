"""Stacks from which kernels were launched, by the numbers that bpf_get_stackid gives."""

from __future__ import annotations

import functools
import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from egpu.agent.frames import CallFrame
from egpu.bpf.demangle import demangle
from egpu.bpf.program import MapSpec

_LARGEST = 1 << 30  # bytes of a file whose symbols are read
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One caller: byte ``offset`` of the file ``path`` ("" if of none) where it goes on after the
    call, inside ``function`` ("" if it has no symbol)."""

    path: str
    offset: int
    function: str

    def __str__(self) -> str:
        return self.function or f"{Path(self.path).name or '?'}+0x{self.offset:x}"


class StackView(Mapping[int, tuple[StackFrame, ...]]):
    """A map of type STACK_TRACE: frames by number, innermost first.

    The agents keep the stacks; each lists those of every launch so far.  At most ``value_size / 8``
    frames are given, as many as the map has room for.
    """

    def __init__(
        self, spec: MapSpec, stacks: Callable[[], Mapping[int, tuple[CallFrame, ...]]]
    ) -> None:
        self._spec = spec
        self._stacks = stacks

    @property
    def spec(self) -> MapSpec:
        """The map as declared."""
        return self._spec

    def __getitem__(self, number: int) -> tuple[StackFrame, ...]:
        frames = self._stacks()[number]
        return named(frames[: self._spec.value_size // 8])

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._stacks()))

    def __len__(self) -> int:
        return len(self._stacks())


def named(frames: Sequence[CallFrame]) -> tuple[StackFrame, ...]:
    """The frames with the functions in which they are."""
    return tuple(_named(frame) for frame in frames)


def _named(frame: CallFrame) -> StackFrame:
    if not frame.path:
        return StackFrame("", frame.offset, "")
    # The call is before the address to which it returns, perhaps in another function.
    name = _symbols(frame.path).at(frame.offset - 1)
    return StackFrame(frame.path, frame.offset, demangle(name))


@dataclass(frozen=True, slots=True)
class _Symbols:
    """Functions of a file by their offsets in it, in order."""

    starts: list[int]
    ends: list[int]
    names: list[str]

    def at(self, offset: int) -> str:
        place = bisect_right(self.starts, offset) - 1
        return self.names[place] if place >= 0 and offset < self.ends[place] else ""


def functions_at(path: str, offset: int) -> tuple[str, ...]:
    """The mangled names of the functions that begin at a file's ``offset``; none if it cannot be
    read."""
    found = _symbols(path)
    first, last = (cut(found.starts, offset) for cut in (bisect_left, bisect_right))
    return tuple(found.names[first:last])


@functools.lru_cache(maxsize=64)
def _symbols(path: str) -> _Symbols:
    """The functions of ``path``; none if it cannot be read."""
    try:
        if Path(path).stat().st_size > _LARGEST:
            return _Symbols([], [], [])
        return _read_symbols(Path(path).read_bytes())
    except (OSError, ELFError, ValueError, KeyError):
        return _Symbols([], [], [])


def _read_symbols(data: bytes) -> _Symbols:
    elf = ELFFile(io.BytesIO(data))
    table = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
    if table is None or elf.elfclass != 64:
        return _Symbols([], [], [])
    rows = np.frombuffer(table.data(), _SYMBOL)
    strings = elf.get_section(table["sh_link"]).data()
    rows = rows[np.isin(rows["info"] & 0xF, _FUNCTIONS) & (rows["section"] != 0)]
    loads = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
    found = []
    for name, _, _, _, value, size in rows.tolist():
        for load in loads:
            if load["p_vaddr"] <= value < load["p_vaddr"] + load["p_filesz"]:
                start = value - load["p_vaddr"] + load["p_offset"]
                found.append((start, start + max(1, size), name))
                break
    found.sort()
    names = [_string(strings, name) for _, _, name in found]
    return _Symbols([row[0] for row in found], [row[1] for row in found], names)


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.find(b"\0", offset)].decode("utf-8", "replace")
