"""Object files: libbpf-style ``.bpf.o`` to programs and maps."""

from __future__ import annotations

from dataclasses import replace

from egpu.bpf.btf import Btf
from egpu.bpf.btf_ext import BtfExt, parse_btf_ext
from egpu.bpf.core_relocate import relocate
from egpu.bpf.core_target import Provider
from egpu.bpf.elf import Elf, Section, read_elf
from egpu.bpf.isa import CALL, CallSrc
from egpu.bpf.link import CodeFunction, Linker
from egpu.bpf.object_maps import read_maps
from egpu.bpf.program import MapSpec, Object, Program
from egpu.bpf.sections import parse_section
from egpu.errors import InputError

_SUBPROGRAMS = ".text"  # libbpf: functions of this section are never programs
MAX_BTF = 16 << 20  # bytes
MAP_DELETE_ELEM = 3  # the helper


def read_object(data: bytes, name: str, *, kernel: Provider | None = None) -> Object:
    """Read an object: every global function outside ``.text`` is a program.

    Programs hold, after their main function, the functions they reach, in the order of first use.
    ``name`` (a path) is for messages and becomes the object's name.
    Raises InputError, with section and offset, for anything malformed; UnsupportedError for what is
    well formed and egpu does not have: extern symbols, ….  ``kernel`` gives the types that CO-RE
    relocations are about; without it those that need a kernel's are refused.
    """
    elf = read_elf(data, name)
    btf = _read_btf(elf)
    ext = _read_btf_ext(elf, btf)
    missing: tuple[str, ...] = ()
    if btf is not None and ext.core:
        fitted = relocate(elf, btf, ext.core, ext.lines, kernel)
        elf, missing = fitted.elf, fitted.missing
    maps = read_maps(elf, btf)
    linker = Linker(elf, maps, ext.lines)
    license = _license(elf)
    programs: dict[str, Program] = {}
    for function in linker.functions.values():
        section = elf.sections[function.section]
        if section.name == _SUBPROGRAMS or function.is_static:
            continue
        if function.name in programs:
            raise InputError(
                f"two programs are called {function.name!r}", where=_where(elf, section)
            )
        program = _program(elf, linker, function, maps.specs, license)
        programs[function.name] = replace(program, missing=missing)
    _check_static(elf, linker)
    deletes = any(_deletes(program) for program in programs.values())
    specs = tuple(replace(spec, deletes=deletes) for spec in maps.specs)
    whole = tuple(replace(program, maps=specs) for program in programs.values())
    return Object(name, whole, specs, license, btf)


def _deletes(program: Program) -> bool:
    """Whether a program may delete entries of maps: what map it is, only the verifier knows."""
    return any(
        insn.opcode == CALL and insn.src == CallSrc.HELPER and insn.imm == MAP_DELETE_ELEM
        for insn in program.code
    )


def _program(
    elf: Elf, linker: Linker, function: CodeFunction, maps: tuple[MapSpec, ...], license: str
) -> Program:
    section = elf.sections[function.section]
    try:
        attach = parse_section(section.name, function.name)
    except InputError as error:
        raise InputError(error.message, where=elf.name, hint=error.hint) from error
    linked = linker.link(function)
    return Program(
        function.name,
        section.name,
        linked.code,
        linked.functions,
        maps=maps,
        attach=attach,
        lines=linked.lines,
        license=license,
    )


def _check_static(elf: Elf, linker: Linker) -> None:
    """A static function in a program section that nothing calls was meant to be a program."""
    for function in linker.functions.values():
        section = elf.sections[function.section]
        if function.is_static and section.name != _SUBPROGRAMS and not linker.is_linked(function):
            raise InputError(
                f"program {function.name!r} is static",
                where=_where(elf, section),
                hint="remove 'static'",
            )


def _where(elf: Elf, section: Section) -> str:
    return f"{elf.name}: section {section.index} ({section.name})"


def _read_btf(elf: Elf) -> Btf | None:
    section = elf.section(".BTF")
    if section is None:
        return None
    if len(section.data) > MAX_BTF:
        raise InputError(f"{len(section.data)} bytes, limit {MAX_BTF}", where=_where(elf, section))
    return Btf.parse(bytes(section.data), _where(elf, section))


def _read_btf_ext(elf: Elf, btf: Btf | None) -> BtfExt:
    section = elf.section(".BTF.ext")
    if section is None or btf is None:
        return BtfExt({}, ())
    if len(section.data) > MAX_BTF:
        raise InputError(f"{len(section.data)} bytes, limit {MAX_BTF}", where=_where(elf, section))
    return parse_btf_ext(bytes(section.data), btf, _where(elf, section))


def _license(elf: Elf) -> str:
    section = elf.section("license")
    if section is None:
        return ""
    text, _, _ = bytes(section.data[:256]).partition(b"\0")
    try:
        return text.decode("ascii")
    except UnicodeDecodeError as error:
        raise InputError("the licence is not ASCII text", where=_where(elf, section)) from error
