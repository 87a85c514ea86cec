"""What instructions read and write, read off the disassembler's text.

Nothing here looks at the splicer's tables: it judges what they lead to.
"""

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass

from sass_corpus import NVDISASM

SIZE = 16

# By the first part of the name.  Everything else fails: what is not known is not judged.
WRITES_NOTHING = """
ST STG STL STS RED REDG MEMBAR ERRBAR CGAERRBAR CCTL BAR NOP BRA EXIT BSSY BSYNC BREAK YIELD
WARPSYNC RET CALL NANOSLEEP ENDCOLLECTIVE DEPBAR LDGDEPBAR
"""
WRITES_TWO_PREDICATES = "ISETP UISETP PLOP3 FSETP"
VOTES = "VOTE VOTEU"
# Predicates before the result, or right behind it, are written, too.
WRITES_ONE_RESULT = """
ATOM ATOMG CS2R ELECT F2I FADD FLO FFMA FMUL HFMA2 I2F I2FP IABS IADD3 IMAD IMNMX LD LDC LDG LDL
LDS LEA LOP3 MATCH MOV MUFU POPC PRMT R2UR REDUX S2R S2UR SEL SGXT SHF SHFL UFLO UIADD3 UIMAD ULDC
ULEA ULOP3 UMOV UPOPC UPRMT USEL USHF VIADD VIMNMX BREV BMSK UBREV USGXT
"""
# What takes as long as it takes, and what reads its sources after it was issued.
SLOW = """
ATOM ATOMG BREV F2F F2I FLO I2F LD LDC LDG LDL LDS MATCH MUFU POPC REDUX S2R S2UR SHFL
"""
LATE = "ATOM ATOMG RED REDG ST STG STL STS"
_NOTHING_WRITTEN, _TWO_PREDICATES = WRITES_NOTHING.split(), WRITES_TWO_PREDICATES.split()
_VOTES, _ONE_RESULT = VOTES.split(), WRITES_ONE_RESULT.split()
_SLOW, _LATE = SLOW.split(), LATE.split()
_NAME = re.compile(r"(?<![\w.])(UR|UP|R|P)(\d+|Z|T)(?![\w])(\.64)?")
_LANES = re.compile(r"^(U?P)(\d|T)$")


@dataclass(frozen=True)
class Operands:
    """Names of registers and predicates.  ``guard``: such a name, "!" before it if negated, "" for
    none; ``slow``: the result comes when it comes; ``late``: so are the sources read."""

    name: str
    guard: str
    operands: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    slow: bool
    late: bool


@functools.cache
def operands(text):
    """What one line of the disassembler names."""
    match = re.fullmatch(r"(?:@(!?U?P\w) )?\s*(\S+)\s*(.*)", text)
    guard, name, rest = match[1] or "", match[2], match[3]
    parts = tuple(part.strip() for part in rest.split(",")) if rest else ()
    kind, *modifiers = name.split(".")
    if kind in _NOTHING_WRITTEN:
        written = 0
    elif kind in _TWO_PREDICATES:
        written = 2
    elif kind in _VOTES:
        written = len(parts) - 1
    elif kind == "ELECT":
        written = 2
    elif kind == "BMOV":
        written = 1 if parts[0].startswith("R") else 0
    elif kind in _ONE_RESULT:
        written = _results(parts)
    else:
        raise AssertionError(f"what does it read and write: {text}")
    writes = set()
    for part in parts[:written]:
        writes |= _named(part, _width(kind, modifiers) if part[0] in "RU" else 1)
    reads = set()
    for at, part in enumerate(parts[written:]):
        reads |= _named(part, _source_width(kind, modifiers, part, at))
    if guard in ("PT", "UPT"):
        guard = ""
    return Operands(
        name,
        guard,
        parts,
        frozenset(reads),
        frozenset(writes),
        kind in _SLOW,
        kind in _LATE,
    )


def _results(parts):
    at = 0
    while _LANES.match(parts[at]):
        at += 1
    at += 1
    while at < len(parts) and _LANES.match(parts[at]):
        at += 1
    return at


def _width(kind, modifiers):
    if kind == "CS2R":
        return 1 if "32" in modifiers else 2
    if "128" in modifiers:
        return 4
    if kind in ("SHF", "USHF", "MATCH"):  # .U64: of what is shifted or compared
        return 1
    if kind == "F2I":
        return 2 if {"U64", "S64"} & set(modifiers) else 1
    return 2 if {"64", "WIDE"} & set(modifiers) else 1


def _source_width(kind, modifiers, part, at):
    """Of a register that stands by itself; one in an address says so."""
    if kind in ("IMAD", "UIMAD") and "WIDE" in modifiers:
        return 2 if at == 2 else 1
    if "[" in part:
        return 2 if "E" in modifiers else 1
    if kind in ("MATCH", "I2F") and {"U64", "S64"} & set(modifiers):
        return 2
    if kind == "RET":
        return 2
    if kind in ("ST", "STG", "STL", "STS", "ATOM", "ATOMG", "RED", "REDG"):
        return _width(kind, modifiers)
    if kind == "UIADD3" and "64" in modifiers:
        return 2
    return 1


def _named(part, width):
    found = set()
    for match in _NAME.finditer(part):
        kind, number = match[1], match[2]
        if number in "ZT":
            continue
        if kind in ("P", "UP"):
            span = 1
        elif part.startswith("desc[") and kind == "UR":
            span = 2
        else:
            span = 2 if match[3] else width
        found |= {f"{kind}{int(number) + more}" for more in range(span)}
    return found


@dataclass(frozen=True)
class Line:
    """One instruction.  ``target``: index of the instruction that it names, if any."""

    text: str
    word: int
    target: int | None

    @property
    def operands(self):
        return operands(self.text)

    def field(self, at, width):
        return self.word >> at & (1 << width) - 1

    stall = property(lambda self: self.field(105, 4))
    sets = property(lambda self: self._scoreboard(110))
    releases = property(lambda self: self._scoreboard(113))
    waits = property(lambda self: {each for each in range(6) if self.field(116, 6) >> each & 1})

    def _scoreboard(self, at):
        number = self.field(at, 3)
        return None if number == 7 else number


_LOW = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s+/\* 0x([0-9a-f]{16}) \*/\s*$")
_HIGH = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/\s*$")
_PLACE = re.compile(r"^(?:@!?U?P\w )?\s*(?:BRA|BSSY|CALL)\b.*\b0x([0-9a-f]+)$")


def disassemble(sections, arch):
    """The instructions of each of several sections of code, which are read in one go."""
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(sections))
        file.flush()
        words = [NVDISASM, "-b", f"SM{arch}", "-hex", file.name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found, low = [], None
    for line in done.stdout.splitlines():
        if match := _LOW.match(line):
            low = match
        elif (match := _HIGH.match(line)) and low:
            found.append((int(low[1], 16), low[2], int(match[1], 16) << 64 | int(low[3], 16)))
            low = None
    begin, out = 0, []
    for section in sections:
        lines = found[begin : begin + len(section) // SIZE]
        assert lines[0][0] == begin * SIZE
        out.append([_line(text, word, begin) for _, text, word in lines])
        begin += len(lines)
    return out


def _line(text, word, begin):
    match = _PLACE.match(text)
    return Line(text, word, int(match[1], 16) // SIZE - begin if match else None)
