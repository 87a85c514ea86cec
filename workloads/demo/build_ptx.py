"""Make kernels.ptx from kernels.cu, or say whether it is up to date (``--check``).

The comments at its top name the compiler's build and are left out of the comparison; another minor
version of nvcc may well emit other instructions, so the check compares only if nvcc is the one that
made the committed file.  Exit codes: 0 up to date (or no such nvcc here), 1 stale, 2 usage.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCH = "compute_75"  # the oldest that nvcc 13 takes; every later GPU runs it
MARK = "// Cuda compilation tools, "


def compiler_line(text: str) -> str:
    """The comment in PTX text that names the compiler release."""
    return next((line for line in text.splitlines() if line.startswith(MARK)), "")


def build(nvcc: str, target: Path) -> None:
    command = [nvcc, "-ptx", f"-arch={ARCH}", "-o", str(target), "kernels.cu"]
    subprocess.run(command, cwd=HERE, check=True)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: build_ptx.py [--check]", file=sys.stderr)
        return 2
    nvcc = shutil.which("nvcc")
    committed = HERE / "kernels.ptx"
    if not arguments:
        if nvcc is None:
            print("build_ptx.py: nvcc is not on PATH", file=sys.stderr)
            return 1
        build(nvcc, committed)
        return 0
    if nvcc is None:
        print("kernels.ptx: not checked, nvcc is not on PATH")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "kernels.ptx"
        build(nvcc, fresh)
        old, new = committed.read_text(), fresh.read_text()
    if compiler_line(old) != compiler_line(new):
        print(f"kernels.ptx: not checked, it was made by {compiler_line(old)[len(MARK) :]}")
        return 0
    body = [line for line in old.splitlines() if not line.startswith("//")]
    if body != [line for line in new.splitlines() if not line.startswith("//")]:
        print("kernels.ptx: stale, run python workloads/demo/build_ptx.py", file=sys.stderr)
        return 1
    print("kernels.ptx: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
