"""The programs that both verifiers judge: whole probes compiled from C, and objects we ship."""

import functools
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from verifier_programs import ROOT

from egpu.bpf.object import read_object
from egpu.errors import EgpuError

HERE = Path(__file__).parent
VERSIONS = ("v2", "v3", "v4")


def compiler_missing():
    """Why C cannot be compiled here, "" if it can."""
    return "" if importlib.util.find_spec("ziglang") else "ziglang is not installed"


def compile_object(source, version, target):
    """Compile a C file to an object file."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"]
    command += [f"-mcpu={version}", "-O2", "-g", f"-I{ROOT / 'bpf' / 'include'}"]
    subprocess.run([*command, "-c", str(source), "-o", str(target)], check=True)


@functools.cache
def compiled(source, version):
    """The object that clang makes of a C file."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "program.o"
        compile_object(source, version, target)
        return read_object(target.read_bytes(), source.name)


def corpus():
    """(name, program) of every C program of the corpus and the idioms, for each eBPF version."""
    for source in sorted([*(HERE / "corpus").glob("*.bpf.c"), HERE / "idioms.bpf.c"]):
        for version in VERSIONS:
            for program in compiled(source, version).programs:
                yield f"{source.name.split('.')[0]}/{program.name}/{version}", program


def shipped():
    """(name, program) of the tools, benchmarks, device checks and fixtures, as committed."""
    folders = ("src/egpu/tools", "bench", "tests/gpu", "tests/unit/objects")
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.bpf.o")):
            try:
                programs = read_object(path.read_bytes(), path.name).programs
            except EgpuError:
                continue  # a fixture of what the reader refuses
            for program in programs:
                yield f"{path.relative_to(ROOT)}/{program.name}", program
