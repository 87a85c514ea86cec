"""Compile the C sources beside this file: python tests/unit/objects/build.py

The objects are committed so that tests need no compiler; a test compares them with fresh ones where
zig's clang is installed.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[2] / "bpf" / "include"
SOURCES = sorted(HERE.glob("*.bpf.c"))
CPU = "v3"


def compile_object(source, target, *, cpu=CPU, flags=()):
    """Compile ``source``; paths in debug information are relative."""
    subprocess.run(
        [
            sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding",
            f"-mcpu={cpu}", "-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror",
            "-fdebug-compilation-dir=.", f"-I{INCLUDE}", f"-ffile-prefix-map={INCLUDE}=.",
            *flags, "-c", source.name, "-o", str(target),
        ],
        cwd=source.parent,
        check=True,
        capture_output=True,
        text=True,
    )  # fmt: skip


if __name__ == "__main__":
    for source in SOURCES:
        compile_object(source, source.with_suffix(".o"))
