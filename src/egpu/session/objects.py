"""Several objects in one session: one tuple of maps, indices rewritten.

A session lays out ONE arena for everything it runs, so the map indices of each object are shifted
to its place in the common tuple before anything is verified or compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.own_maps import SPECS, missing_maps
from egpu.bpf.program import (
    HOST_KINDS,
    NO_MAP,
    AttachKind,
    Insn,
    MapSpec,
    Object,
    Program,
    PseudoSrc,
)
from egpu.errors import InputError, UnsupportedError
from egpu.session.host_checks import check_host
from egpu.session.host_points import host_point
from egpu.verifier import VerifiedProgram

_LD_IMM64 = 0x18
_PROBED = frozenset({AttachKind.ENTRY, AttachKind.EXIT, AttachKind.INSTRUCTION})


@dataclass(frozen=True, slots=True)
class Collection:
    """The programs of every object over the common ``maps``; ``names`` are the maps' public names,
    ``links`` the programs'.

    What only one object declares under its name keeps it; others are called "object.name".
    """

    programs: tuple[Program, ...]
    maps: tuple[MapSpec, ...]
    names: tuple[str, ...]
    links: tuple[str, ...] = ()

    def with_cookies(self, cookies: Mapping[str, int]) -> Collection:
        """The same with what bpf_get_attach_cookie gives in each program, by name.

        Raises InputError for a program that is not there or a number of more than 64 bits.
        """
        names = {program.name for program in self.programs}
        for name in cookies.keys() - names:
            raise InputError(f"no program {name!r} to give a cookie to", where="cookies")
        programs = tuple(
            replace(each, cookie=_cookie(cookies.get(each.name, 0), each.name))
            for each in self.programs
        )
        return replace(self, programs=programs)

    def with_deletions(self) -> Collection:
        """The same with hash maps from which others than the programs can delete."""
        maps = tuple(replace(spec, deletes=True) for spec in self.maps)
        return self.with_maps(maps)

    def with_rings_on_device(self) -> Collection:
        """The same with rings whose records are written to device memory."""
        return self.with_maps(
            tuple(
                replace(spec, on_device=traits(spec.type).storage is Storage.RING)
                for spec in self.maps
            )
        )

    def with_stamped(self, records: Mapping[int, int]) -> Collection:
        """The same with rings of stamped slots: bytes of a record by the map's index."""
        maps = (replace(spec, stamped=records.get(i, 0)) for i, spec in enumerate(self.maps))
        return self.with_maps(tuple(maps))

    def with_maps(self, maps: tuple[MapSpec, ...]) -> Collection:
        """The same programs with other maps in the places of theirs."""
        programs = tuple(replace(program, maps=maps) for program in self.programs)
        return replace(self, programs=programs, maps=maps)


def _cookie(value: int, name: str) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise InputError(f"cookie {value!r:.40} does not fit 64 bits", where=f"program {name}")
    return int(value)  # True is one, and is written as "True" into programs


def combine(objects: Sequence[Object]) -> Collection:
    """Merge ``objects``; InputError if there is no program that can be attached to a kernel."""
    maps: tuple[MapSpec, ...] = ()
    for obj in objects:
        maps += tuple(_shift_inner(spec, len(maps)) for spec in obj.maps)
    needed = {name for obj in objects for each in obj.programs for name in missing_maps(each)}
    maps = (*maps, *(spec for name, spec in SPECS.items() if name in needed))
    programs: list[Program] = []
    base = 0
    for obj in objects:
        for program in obj.programs:
            _refuse_other_kinds(program, f"{obj.name}: ")
            programs.append(replace(program, code=_shift_maps(program.code, base), maps=maps))
        base += len(obj.maps)
    if not programs:
        names = ", ".join(obj.name for obj in objects) or "no object"
        raise InputError(
            "no program to attach",
            where=names,
            hint='give a program a section such as SEC("kprobe/<kernel>")',
        )
    _refuse_twice(objects)
    return Collection(tuple(programs), maps, _map_names(objects, maps), _link_names(objects))


_RUNNERS = {
    AttachKind.EXECUTOR: "egpu run-on-gpu, or egpu exec",
}


def _refuse_other_kinds(program: Program, where: str = "") -> None:
    for point in program.attach:
        if point.kind in HOST_KINDS:
            host_point(point)
        elif point.kind not in _PROBED:
            raise UnsupportedError(
                f'{where}program {program.name}: attach point "{program.section}" '
                f"({point.kind.value})",
                needs=_RUNNERS.get(point.kind, "a kprobe/, kretprobe/ or insn/ section"),
            )


def refused_where(verified: VerifiedProgram) -> str:
    """Why a session refuses a program that was verified, for where it is attached or what it does
    there; "" if it does not."""
    program = verified.program
    try:
        _refuse_other_kinds(program)
        if program.on_host:
            check_host(verified)
    except UnsupportedError as error:
        return str(error)
    return ""


def _shift_inner(spec: MapSpec, base: int) -> MapSpec:
    """Add ``base`` to the indices of the maps in a map."""
    if not spec.inner or not base:
        return spec
    return replace(spec, inner=tuple(n if n == NO_MAP else n + base for n in spec.inner))


def _shift_maps(code: tuple[Insn, ...], base: int) -> tuple[Insn, ...]:
    """Add ``base`` to every map index of ``code``."""
    indexed = (PseudoSrc.MAP_INDEX, PseudoSrc.MAP_INDEX_VALUE)
    out: list[Insn] = []
    second = False
    for insn in code:
        is_reference = not second and insn.opcode == _LD_IMM64 and insn.src in indexed
        out.append(replace(insn, imm=insn.imm + base) if is_reference else insn)
        second = not second and insn.opcode == _LD_IMM64
    return tuple(out)


def _refuse_twice(objects: Sequence[Object]) -> None:
    names = Counter(obj.name for obj in objects)
    for name, count in names.items():
        if count > 1:
            raise InputError("is given twice", where=name, hint="rename one of the files")


def _map_names(objects: Sequence[Object], maps: tuple[MapSpec, ...]) -> tuple[str, ...]:
    declared = [(obj.name, spec.name) for obj in objects for spec in obj.maps]
    added = [spec.name for spec in maps[len(declared) :]]  # by egpu itself
    return (*_public(declared), *added)


def _link_names(objects: Sequence[Object]) -> tuple[str, ...]:
    return _public([(obj.name, program.name) for obj in objects for program in obj.programs])


def _public(declared: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Of each (object, name) the name, with the object's if several objects have it."""
    plain = Counter(name for _, name in declared)
    return tuple(name if plain[name] == 1 else f"{owner}.{name}" for owner, name in declared)
