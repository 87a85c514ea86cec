"""What a loader program made by bpf(2), as an object that a session runs."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from egpu.bpf.insn import decode, program_from_code
from egpu.bpf.isa import LD_IMM64, instructions
from egpu.bpf.map_flags import flag_problem
from egpu.bpf.maptypes import MapType, traits
from egpu.bpf.program import (
    MEMORY_CAPTURE,
    AttachKind,
    AttachPoint,
    Insn,
    MapSpec,
    Object,
    Program,
    PseudoSrc,
)
from egpu.bpf.sections import parse_section
from egpu.errors import InputError, VerifierError
from egpu.verifier import Limits, Policy, VerifiedProgram, verify

PROG_TYPE_KPROBE = 2  # Linux uapi, enum bpf_prog_type: kprobe/, kretprobe/, uprobe/ sections
# bpftime: a program whose name begins (ends, in its older form) so is the GPU's.
_GPU_PREFIX, _GPU_SUFFIX = "cuda__", "__cuda"
_NAME_LENGTH = 15
_LENIENT = Limits(lost_updates=True)
_PSEUDO = {
    PseudoSrc.MAP_FD: PseudoSrc.MAP_INDEX,
    PseudoSrc.MAP_FD_VALUE: PseudoSrc.MAP_INDEX_VALUE,
}
_ANYWHERE = (
    AttachPoint(AttachKind.EXIT, "*"),
    AttachPoint(AttachKind.INSTRUCTION, "*", detail=MEMORY_CAPTURE),
)


@dataclass(slots=True)
class LoadedProgram:
    """A program as it was loaded: its code names maps by the numbers that the loader got.

    ``refused`` is why the verifier does not let it into a kernel: it may be meant for Linux.
    """

    name: str
    code: tuple[Insn, ...]
    numbers: tuple[int, ...]
    license: str = ""
    refused: str = ""
    points: tuple[AttachPoint, ...] = ()
    verified: VerifiedProgram | None = None

    @property
    def named_for_gpu(self) -> bool:
        """Whether bpftime's rule of names makes it the GPU's."""
        return self.name.startswith(_GPU_PREFIX) or self.name.endswith(_GPU_SUFFIX)


def new_map(number: int, fields: Sequence[int], name: str) -> MapSpec:
    """The map that BPF_MAP_CREATE asks for; OSError with Linux's error number if there is none.

    ``fields`` are type, key size, value size, entries and flags.
    """
    kind, key_size, value_size, entries, flags = fields
    try:
        map_type = MapType(kind)
    except ValueError:
        raise OSError(errno.EINVAL, f"map {name}: unknown type {kind}") from None
    if traits(map_type).storage is None:
        raise OSError(errno.EINVAL, f"map {name}: egpu has no {map_type.name} yet")
    problem = flag_problem(map_type, flags)
    if problem is not None:
        raise OSError(problem.errno, f"map {name}: {problem.text}; {problem.hint}")
    return MapSpec(name or f"map{number}", map_type, key_size, value_size, entries, flags)


def load_program(name: str, license: str, code: bytes, maps: dict[int, MapSpec]) -> LoadedProgram:
    """A program of BPF_PROG_LOAD.

    Raises VerifierError if it is named for the GPU and refused; InputError if it is malformed.
    """
    numbered, numbers = _indexed(decode(code), maps)
    loaded = LoadedProgram(name, numbered, numbers, license)
    specs = tuple(maps[number] for number in numbers)
    problems: list[VerifierError] = []
    for point in _ANYWHERE:  # where it goes is known when it is attached
        program = program_from_code(numbered, name, maps=specs, attach=(point,), section="kprobe")
        try:
            # What it may do to the workload is decided when the workload is started.
            loaded.verified = verify(program, policy=Policy.CONTROL, limits=_LENIENT)
        except VerifierError as error:
            problems.append(error)
        else:
            return loaded
    if loaded.named_for_gpu:
        raise problems[0]
    loaded.refused = str(problems[0])
    return loaded


def _indexed(
    code: tuple[Insn, ...], maps: dict[int, MapSpec]
) -> tuple[tuple[Insn, ...], tuple[int, ...]]:
    """Map numbers become indices into the numbers used, in the order of their first use."""
    order: dict[int, int] = {}
    out = list(code)
    for pc, insn, _ in instructions(code):
        if insn.opcode == LD_IMM64 and insn.src in _PSEUDO and insn.imm in maps:
            index = order.setdefault(insn.imm, len(order))
            out[pc] = replace(insn, src=_PSEUDO[PseudoSrc(insn.src)], imm=index)
    return tuple(out), tuple(order)


def place_of(program: LoadedProgram, place: str, *, leaving: bool) -> tuple[AttachPoint, ...]:
    """The attach points of ``kprobe/<place>``; raises as ``parse_section``."""
    word = "kretprobe" if leaving else "kprobe"
    return parse_section(f"{word}/{place}", program.name)


def directly(programs: Iterable[LoadedProgram], name: str, point: AttachPoint) -> LoadedProgram:
    """The program ``name``, at ``point`` and nowhere else; InputError if there is none.

    Linux cuts names to 15 characters, and so does libbpf.
    """
    loaded = list(programs)
    for each in loaded:
        if each.name == name[:_NAME_LENGTH]:
            return replace(each, points=(point,))
    known = ", ".join(each.name for each in loaded) or "none"
    raise InputError(f"the loader has no program {name}", hint=f"it has {known}", usage=True)


def collect(
    programs: Iterable[LoadedProgram], maps: dict[int, MapSpec]
) -> tuple[Object, tuple[int, ...]]:
    """The attached ``programs`` as one object, and the numbers of its maps in their order.

    InputError if nothing is attached.
    """
    attached = [
        replace(each, points=points)
        for each in programs
        if (points := tuple(p for p in each.points if p.kind is not AttachKind.EXECUTOR))
    ]
    if not attached:
        raise InputError("the loader attached no program to a kernel")
    numbers = tuple(dict.fromkeys(number for each in attached for number in each.numbers))
    specs = tuple(maps[number] for number in numbers)
    made = tuple(_program(each, numbers, specs) for each in attached)
    return Object("loader", made, specs), numbers


def _program(
    loaded: LoadedProgram, numbers: tuple[int, ...], specs: tuple[MapSpec, ...]
) -> Program:
    moved = {index: numbers.index(number) for index, number in enumerate(loaded.numbers)}
    indexed = (PseudoSrc.MAP_INDEX, PseudoSrc.MAP_INDEX_VALUE)
    code = list(loaded.code)
    for pc, insn, _ in instructions(loaded.code):
        if insn.opcode == LD_IMM64 and insn.src in indexed:
            code[pc] = replace(insn, imm=moved[insn.imm])
    return program_from_code(
        code, loaded.name, maps=specs, attach=loaded.points, section=_section(loaded)
    )


def _section(loaded: LoadedProgram) -> str:
    return ", ".join(f"{point.kind.value}/{point.pattern}" for point in loaded.points)
