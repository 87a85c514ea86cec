"""Refusals: what the stages raise, and how it is told to people.

A refusal says in one line what is wrong; the hint says what to change.  Place, source line and path
are added here, where the program is at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egpu.bpf import asm
from egpu.bpf.program import Program
from egpu.errors import VerifierError
from egpu.verifier import tnum
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.state import Frame, Pointer, Value
from egpu.verifier.verified import VerifierWarning


class Refusal(Exception):
    """A rule is broken at ``pc`` (None: at the instruction being executed)."""

    def __init__(self, rule: str, message: str, pc: int | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.pc = pc
        self.hint = hint


def source_line(program: Program, pc: int) -> str:
    """``file:line`` and the text of the source line of ``pc``, "" without line information."""
    found = None
    for line in program.lines:
        if line.pc > pc:
            break
        found = line
    if found is None:
        return ""
    text = found.text.strip()
    return f"{found.file}:{found.line}" + (f" `{text}`" if text else "")


def instruction(program: Program, pc: int) -> str:
    """The instruction at ``pc`` as text, "" outside the code."""
    if not 0 <= pc < len(program.code):
        return ""
    following = program.code[pc + 1] if pc + 1 < len(program.code) else None
    return asm.format_insn(program.code[pc], following)


def error(program: Program, refusal: Refusal, pc: int, path: Sequence[str]) -> VerifierError:
    """The public form of ``refusal``; ``pc`` is used where it names no place."""
    place = pc if refusal.pc is None else refusal.pc
    return VerifierError(
        refusal.message,
        rule=refusal.rule,
        program=program.name,
        pc=place,
        insn=instruction(program, place),
        line=source_line(program, place),
        hint=refusal.hint,
        path=tuple(path),
    )


def warning(program: Program, note: Refusal) -> VerifierWarning:
    """The public form of something that passes and should be known."""
    place = note.pc or 0
    return VerifierWarning(
        note.rule,
        note.message,
        place,
        instruction(program, place),
        source_line(program, place),
        note.hint,
    )


def describe_scalar(scalar: Scalar) -> str:
    """A scalar in a few words: the constant, or its tightest bounds and known bits."""
    if not scalar.mask:
        return str(scalar.value if scalar.value < 1 << 32 else scalar.smin)
    facts = []
    if (scalar.smin, scalar.smax) != S64.unknown[4:6]:
        facts.append(f"{scalar.smin}..{scalar.smax}")
    if scalar.umax not in (S64.full.limit, scalar.smax):
        facts.append(f"unsigned {scalar.umin}..{scalar.umax}")
    if not tnum.contains(scalar[:2], tnum.from_range(scalar.umin, scalar.umax)):
        facts.append(f"bits 0x{scalar.value:x}/0x{scalar.mask:x}")
    return "scalar(" + ", ".join(facts) + ")" if facts else "scalar"


def describe(value: Value, program: Program) -> str:
    """A register's value as error texts and paths show it."""
    if value is None:
        return "uninitialised"
    if isinstance(value, Scalar):
        return describe_scalar(value)
    return _describe_pointer(value, program)


def _describe_pointer(pointer: Pointer, program: Program) -> str:
    text = pointer.region.value
    if pointer.region.value.startswith("map"):
        text += f"({program.maps[pointer.owner].name})"
    if pointer.offset:
        text += f"{pointer.offset:+d}"
    if pointer.variable is not None:
        text += f"+{describe_scalar(pointer.variable)}"
    return text + (" or null" if pointer.null else "")


def describe_frame(frame: Frame, program: Program) -> str:
    """The initialised registers of a frame except r10."""
    return " ".join(
        f"r{index}={describe(value, program)}"
        for index, value in enumerate(frame.registers[:10])
        if value is not None
    )


def path_entry(program: Program, pc: int, frame: Frame) -> str:
    """One line of a path: the instruction and the registers before it."""
    return f"{pc}: {instruction(program, pc)} ; {describe_frame(frame, program)}"


def listing(names: Iterable[str]) -> str:
    """Names separated by commas, sorted as given."""
    return ", ".join(names)
