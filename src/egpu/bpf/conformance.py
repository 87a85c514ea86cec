"""Reader of the public BPF conformance suite's ``.data`` files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egpu.bpf.asm import assemble
from egpu.bpf.insn import decode
from egpu.bpf.program import Insn
from egpu.errors import InputError

# Tested in this order against a line that contains "--", as the suite's own reader does.
_SECTIONS = ("asm", "result", "mem", "raw", "no register offset", " c", "error")


@dataclass(frozen=True, slots=True)
class Case:
    """One test of the suite.

    ``asm`` is the assembler text ("" if only raw data is given), ``memory`` the block behind r1,
    ``expected`` the unsigned 64-bit r0 (None: the program must be rejected), ``raw_bytes`` the
    program's bytes under ``raw`` (None without one; they win over ``asm``).
    """

    name: str
    asm: str
    memory: bytes
    expected: int | None
    raw_bytes: bytes | None

    def code(self) -> tuple[Insn, ...]:
        """The program: the raw bytes decoded, else the text assembled. Raises InputError."""
        return assemble(self.asm) if self.raw_bytes is None else decode(self.raw_bytes)


def read_case(path: Path) -> Case:
    """Read a ``.data`` file; under ``raw``, two-digit words are bytes and longer ones 64-bit words.

    Raises InputError with file and line for anything that the format does not allow.
    """
    return parse_case(path.read_text(encoding="utf-8"), path.stem, where=str(path))


def parse_case(text: str, name: str, *, where: str = "") -> Case:
    """Like ``read_case`` for the text of a file."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        if "--" in line:
            title = next((title for title in _SECTIONS if title in line), None)
            if title is None:
                raise InputError(f"unknown section {line!r}", where=f"{where}:{number}")
            current = sections.setdefault(title, [])
        elif line.strip():
            if current is None:
                raise InputError("text before the first section", where=f"{where}:{number}")
            current.append(line.strip())
    if "asm" not in sections and "raw" not in sections:
        raise InputError("neither asm nor raw section", where=where)
    try:
        raw_bytes = _raw(sections["raw"]) if "raw" in sections else None
        memory = bytes.fromhex(" ".join(sections.get("mem", ())))
        expected = _result(sections)
    except ValueError as error:
        raise InputError(f"bad number: {error}", where=where) from error
    return Case(name, "\n".join(sections.get("asm", ())), memory, expected, raw_bytes)


def _result(sections: dict[str, list[str]]) -> int | None:
    lines = sections.get("result", ())
    if lines:
        return int(lines[-1], 16 if "0x" in lines[-1] else 10) & 0xFFFFFFFFFFFFFFFF
    if "error" in sections:
        return None
    raise ValueError("no result")


def _raw(lines: list[str]) -> bytes:
    words = " ".join(lines).split()
    if all(len(word) == 2 for word in words):
        return bytes.fromhex("".join(words))
    return b"".join(int(word, 0).to_bytes(8, "little") for word in words)
