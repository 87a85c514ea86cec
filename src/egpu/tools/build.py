"""``python -m egpu.tools.build [--check]``: compile the tools' programs.

The object files are committed, so that nobody needs a compiler to use a tool.  ``--check`` compiles
them elsewhere and compares programs, relocations, maps and licence with the committed ones (debug
information names folders of the machine, so it is left out).
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from elftools.elf.elffile import ELFFile

from egpu.errors import UnsupportedError
from egpu.tools.registry import TOOLS

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
INCLUDE = ROOT / "bpf" / "include"
FLAGS = ("-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c")
_DEBUG = (".debug", ".rel.debug", ".BTF", ".rel.BTF", ".llvm", ".strtab", ".symtab")


@dataclass(frozen=True, slots=True)
class Source:
    """A tool's C source and its object file."""

    name: str
    source: Path
    object_file: Path


def sources() -> tuple[Source, ...]:
    """Every tool's files, in the order of the registry."""
    return tuple(
        Source(
            entry.name,
            FOLDER / entry.name / f"{entry.name}.bpf.c",
            FOLDER / entry.name / f"{entry.name}.bpf.o",
        )
        for entry in TOOLS
    )


def compiler() -> list[str]:
    """The command that compiles C for BPF: zig's clang from this Python, else one on the PATH."""
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"]
    clang = shutil.which("clang")
    if clang is None:
        raise UnsupportedError("compiling C to BPF", needs="the ziglang package or clang")
    return [clang, "--target=bpfel"]


def compile_source(source: Path, target: Path) -> None:
    """Compile one file; the compiler's messages go to standard error.

    Runs in the project's root with a relative name, so that debug information names no machine.
    """
    command = [*compiler(), *FLAGS, f"-ffile-prefix-map={ROOT}=.", "-I", str(INCLUDE)]
    subprocess.run(
        [*command, "-o", str(target), str(source.relative_to(ROOT))], cwd=ROOT, check=True
    )


def essence(path: Path) -> dict[str, bytes]:
    """What a program is made of: its sections by name, without debug information."""
    file = ELFFile(BytesIO(path.read_bytes()))
    kept: dict[str, bytes] = {}
    for section in file.iter_sections():
        if section.name and not section.name.startswith(_DEBUG):
            kept[section.name] = section.data()
    return kept


def main(arguments: list[str] | None = None) -> int:
    """Compile, or with ``--check`` compare; 1 if an object file is not what its source gives."""
    parser = argparse.ArgumentParser(description="compile the tools' BPF programs")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args(arguments).check
    stale = []
    for row in sources():
        if not check:
            compile_source(row.source, row.object_file)
            continue
        with tempfile.TemporaryDirectory(prefix="egpu-build-") as folder:
            fresh = Path(folder) / row.object_file.name
            compile_source(row.source, fresh)
            if not row.object_file.exists() or essence(fresh) != essence(row.object_file):
                stale.append(row.object_file.relative_to(ROOT))
    for path in stale:
        print(f"{path} is not what its source gives; run python -m egpu.tools.build")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
