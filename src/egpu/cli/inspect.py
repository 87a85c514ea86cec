"""``egpu inspect``."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import click

from egpu.cli.output import json_option, output_option, read_file, write_report
from egpu.errors import EgpuError, InputError
from egpu.report import KERNEL, Column, Paragraph, Part, Report, Table, Weight

if TYPE_CHECKING:
    from egpu.cli.why import Trier
    from egpu.image import KernelInfo, Member
    from egpu.image.ptx.syntax import Block, Module

# Sections in which nvcc leaves fatbins in executables and shared objects.
_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_EM_CUDA = "EM_CUDA"
_EM_BPF = "EM_BPF"
_ELF = b"\x7fELF"
DEFAULT_PROGRAM = "kernelcount"
_EXITS = frozenset({"ret", "exit"})


@dataclass(frozen=True, slots=True)
class Sites:
    """Probe sites of a kernel in PTX: ways out, and instructions that end a thread unprobed."""

    exits: int = 0
    traps: int = 0


@click.command("inspect")
@click.argument("image", type=click.Path(path_type=Path))
@click.option(
    "--why",
    metavar="[PROGRAM]",
    is_flag=False,
    flag_value=DEFAULT_PROGRAM,
    help="Try to put PROGRAM's probes (a tool or an object; kernelcount) into each kernel: by "
    "PTX, by machine code, or why not.",
)
@click.option("--kernels", metavar="GLOB", default="", help="Try only kernels whose name matches.")
@click.option("-v", "--verbose", is_flag=True, help="Give kernel names in full.")
@json_option
@output_option
def command(
    *,
    image: Path,
    why: str | None,
    kernels: str,
    verbose: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show kernels and probe sites of an image or program.

    IMAGE is PTX text, a cubin, a fatbin, or an executable or shared object that holds fatbins.
    """
    from egpu.cli.output import destination  # noqa: PLC0415

    if kernels and why is None:
        raise click.UsageError("--kernels says which kernels --why tries")
    report = inspect_file(image, _trier(why, kernels), verbose=verbose)
    with destination(output) as stream:
        write_report(report, stream, as_json=as_json)


def _trier(why: str | None, kernels: str) -> Trier | None:
    if why is None:
        return None
    from egpu.cli.run import choose  # noqa: PLC0415
    from egpu.cli.why import Trier  # noqa: PLC0415
    from egpu.session.trial import Trials  # noqa: PLC0415

    _, loaded = choose(why)
    return Trier(Trials([loaded], kernels=kernels))


def inspect_file(path: Path, trier: Trier | None = None, *, verbose: bool = False) -> Report:
    """What ``path`` holds; InputError if it is no image and holds none.

    With ``trier`` also whether its kernels can be probed; ``verbose``: names in full.
    """
    from egpu.image import open_image  # noqa: PLC0415

    data = read_file(path)
    try:
        image = open_image(_fatbins(data) or data)
    except InputError as error:
        raise InputError(error.message, where=str(path), hint=error.hint) from error
    parts: list[Part] = [
        Paragraph(f"{path.name}: {image.kind.value} with {len(image.members)} members")
    ]
    shown = _Shown(trier, verbose)
    members = [shown.member(member, parts) for member in image.members]
    empty = sum(not each["kernels"] and each["error"] is None for each in members)
    if empty:
        parts.append(Paragraph(f"Without kernels, and not shown: {empty:,} members"))
    data_out = {"file": str(path), "kind": image.kind.value, "digest": image.digest}
    return Report("inspect/1", tuple(parts), data_out | {"members": members})


def _fatbins(data: bytes) -> bytes:
    """The fatbins of a host program, b"" for anything that is not an ELF file for a CPU."""
    if not data.startswith(_ELF):
        return b""
    from elftools.common.exceptions import ELFError  # noqa: PLC0415
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    try:
        file = ELFFile(BytesIO(data))
        if file["e_machine"] in (_EM_CUDA, 190):
            return b""
        found = [
            section.data()
            for section in file.iter_sections()
            if section.name in _FATBIN_SECTIONS and section["sh_type"] != "SHT_NOBITS"
        ]
    except (ELFError, ValueError, KeyError, OSError, AssertionError) as error:
        raise InputError(f"malformed ELF file ({error})") from error
    if file["e_machine"] == _EM_BPF:
        raise InputError("an object of eBPF programs, no image", hint="egpu verify reads it")
    if not any(found):
        raise InputError(
            "a program without GPU code in it",
            hint="GPU code may be in a library that it loads, or compiled at run time",
        )
    return b"".join(found)


@dataclass(frozen=True, slots=True)
class _Shown:
    """How members are shown: with trials or without, names short or in full."""

    trier: Trier | None
    verbose: bool

    def member(self, member: Member, parts: list[Part]) -> dict[str, object]:
        """Describe one member: adds to ``parts`` and gives its JSON."""
        from egpu.image import kept_ptx, list_kernels  # noqa: PLC0415

        prefix = "compute" if member.kind.value == "ptx" else "sm"
        arch = f"{prefix}_{member.arch}{member.suffix}"
        data: dict[str, object] = {
            "kind": member.kind.value,
            "arch": arch,
            "compression": member.compression,
            "stored_size": len(member.data),
            "size": member.size,
            "kept_ptx": False,
            "error": None,
            "kernels": [],
        }
        title = f"{member.kind.value} {arch}, {member.compression}, {len(member.data):,} bytes"
        try:
            kernels = list_kernels(member)
            kept = kept_ptx(member)
            sites: dict[str, Sites] = {}
            for text in kept or (member,):
                sites |= _sites_of(text)
        except EgpuError as error:  # one bad member must not hide the others
            parts += [Paragraph(title), Paragraph(str(error), Weight.WARNING)]
            return data | {"error": str(error)}
        if kept:
            title += ", keeps its PTX text"
        rows = [_kernel(kernel, sites.get(kernel.name)) for kernel in kernels]
        names = self.names(rows)
        for row, name in zip(rows, names, strict=True):
            row["short_name"] = name
        if rows:
            parts.append(_table(title, rows, names))
        if self.trier is not None and rows:
            trials = self.trier.tried(member, kernels, names, parts)
            for row, trial in zip(rows, trials, strict=True):
                row["why"] = trial
        return data | {"kept_ptx": bool(kept), "kernels": rows}

    def names(self, rows: list[dict[str, object]]) -> tuple[str, ...]:
        from egpu.tools.names import display_names  # noqa: PLC0415

        full = [str(row["demangled"]) for row in rows]
        return tuple(full) if self.verbose else display_names(full)


def _kernel(kernel: KernelInfo, sites: Sites | None) -> dict[str, object]:
    from egpu.bpf.demangle import demangle  # noqa: PLC0415

    return {
        "name": kernel.name,
        "demangled": demangle(kernel.name),
        "parameters": [list(parameter) for parameter in kernel.parameters],
        "registers": kernel.registers or None,
        "shared": kernel.shared,
        "has_ptx": kernel.has_ptx,
        "entry_sites": None if sites is None else 1,
        "exit_sites": None if sites is None else sites.exits,
        "traps": None if sites is None else sites.traps,
    }


def _table(title: str, rows: list[dict[str, object]], names: tuple[str, ...]) -> Table:
    columns = (
        KERNEL,
        Column("PARAMS"),
        Column("BYTES"),
        Column("REGS"),
        Column("SHARED"),
        Column("EXITS"),
    )
    cells = tuple(_cells(row, name) for row, name in zip(rows, names, strict=True))
    return Table(title, columns, cells)


def _cells(row: dict[str, object], name: str) -> tuple[str, ...]:
    parameters = row["parameters"]
    assert isinstance(parameters, list)
    size = max((offset + length for offset, length in parameters), default=0)
    shown = [row["registers"], row["shared"], row["exit_sites"]]
    return (
        name,
        str(len(parameters)),
        str(size),
        *("-" if value is None else str(value) for value in shown),
    )


def _sites_of(member: Member) -> dict[str, Sites]:
    """The probe sites of each kernel of a PTX member; cubins have none that PTX splicing knows."""
    if member.kind.value != "ptx":
        return {}
    from egpu.image import ptx_text  # noqa: PLC0415
    from egpu.image.ptx import parse  # noqa: PLC0415

    module: Module = parse(ptx_text(member))
    return {
        function.name: _count(function.body)
        for function in module.functions
        if function.is_entry and function.body is not None
    }


def _count(block: Block) -> Sites:
    from egpu.image.ptx.syntax import Block, Instruction  # noqa: PLC0415

    exits = traps = 0
    for statement in block.statements:
        if isinstance(statement, Block):
            inner = _count(statement)
            exits, traps = exits + inner.exits, traps + inner.traps
        elif isinstance(statement, Instruction):
            exits += statement.parts[0] in _EXITS
            traps += statement.parts[0] == "trap"
    return Sites(exits, traps)
