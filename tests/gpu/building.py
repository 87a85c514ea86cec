"""Build what the device checks run: the native parts, the workloads and their PTX."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WORKLOADS = HERE / "workloads"

CXX = ("-std=c++17", "-O2")
_MACHINE_CODE = ("-gencode", "arch=compute_90,code=sm_90")  # no PTX
_MACHINE_CODE_90A = ("-gencode", "arch=compute_90a,code=sm_90a")
# name: (options, source); the output is build/gpu/<name>
# fmt: off
NVCC_PROGRAMS = {
    "runtime_static":  (("-arch=sm_90", "-DWITH_CLUSTERS"), "runtime.cu"),
    "runtime_shared":  (("-cudart", "shared"),              "runtime.cu"),
    "increments":      (("-arch=sm_90",),                   "increments.cu"),
    "two_kernels":     (("-arch=sm_90",),                   "two_kernels.cu"),
    "long_running":    ((),                                 "long_running.cu"),
    "out_of_memory":   ((),                                 "out_of_memory.cu"),
    "machine_code":    (_MACHINE_CODE,                      "machine_code.cu"),
    "machine_code_ptx": (("-arch=sm_90",),                  "machine_code.cu"),
    "stress_ptx":      (("-arch=sm_90",),                   "stress.cu"),
    "constants":       (("-arch=sm_90",),                   "constants.cu"),
    "constants_alone": (_MACHINE_CODE,                      "constants.cu"),
    "persistent":      (("-arch=sm_90",),                   "persistent.cu"),
    "stress":          (_MACHINE_CODE,                      "stress.cu"),
    "hopper":          (_MACHINE_CODE_90A,                  "hopper.cu"),
    "waiting":         (_MACHINE_CODE,                      "waiting.cu"),
    "two_devices":     (("-arch=sm_90",),                   "two_devices.cu"),
    "hogging":         (_MACHINE_CODE,                      "hogging.cu"),
}
# fmt: on


@dataclass(frozen=True)
class Built:
    """Where everything lies."""

    folder: Path
    demo: Path
    conformance: Path | None  # the public suite's cases, where this machine has them

    def program(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def driver_ptx(self) -> str:
        return str(self.folder / "driver_kernels.ptx")

    @property
    def demo_cubin(self) -> str:
        return str(self.folder / "demo_kernels.cubin")

    @property
    def driver_cubin(self) -> str:
        return str(self.folder / "driver_kernels.cubin")


def command(*arguments: object) -> None:
    words = [str(argument) for argument in arguments]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"building failed: {' '.join(words)}\n{run.stdout}{run.stderr}")


def build_driver_program(folder: Path) -> None:
    """The workload that calls the driver itself."""
    work = folder / "stub"
    work.mkdir(exist_ok=True)
    compiled = work / "driver.o"
    command("nvcc", *CXX, "-c", WORKLOADS / "driver.cpp", "-o", compiled)
    link_with_driver(compiled, folder / "driver")


def link_with_driver(compiled: Path, output: Path) -> None:
    """Link against a stub with libcuda's name, made from the symbols that ``compiled`` needs.

    Some machines have a driver and nothing to link with, others the reverse; this works on both.
    """
    folder = compiled.parent
    listing = subprocess.run(["nm", "-u", compiled], capture_output=True, text=True, check=True)
    symbols = sorted(set(re.findall(r"\bU (cu[A-Z]\w*)", listing.stdout)))
    source = folder / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 34; }}\n" for name in symbols))
    stub = folder / "libcuda.so"
    command("cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", stub, source)
    command("c++", compiled, "-L", folder, "-lcuda", "-o", output)


def build_native() -> None:
    """Into src/egpu/_native, where a package that runs from the tree looks."""
    build = ROOT / "build" / "native"
    command("cmake", "-S", ROOT / "native", "-B", build, "-DCMAKE_BUILD_TYPE=Release")
    command("cmake", "--build", build, "-j")
    command("cmake", "--install", build, "--prefix", ROOT / "src")


def build(*, conformance: Path | None = None) -> Built:
    """Build everything, programs side by side; exits with the compiler's words if one fails."""
    folder = ROOT / "build" / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(build_native, ()), (build_driver_program, (folder,))]
    for name, (options, source) in NVCC_PROGRAMS.items():
        words = ("nvcc", *CXX, *options, WORKLOADS / source, "-o", folder / name)
        jobs.append((command, words))
    ptx = ("nvcc", "-ptx", "-arch=compute_80", WORKLOADS / "driver_kernels.cu")
    jobs.append((command, (*ptx, "-o", folder / "driver_kernels.ptx")))
    code = ("nvcc", "-cubin", "-arch=sm_90", WORKLOADS / "driver_kernels.cu")
    jobs.append((command, (*code, "-o", folder / "driver_kernels.cubin")))
    code = ("nvcc", "-cubin", "-arch=sm_90", ROOT / "workloads" / "demo" / "kernels.cu")
    jobs.append((command, (*code, "-o", folder / "demo_kernels.cubin")))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for future in [pool.submit(function, *arguments) for function, arguments in jobs]:
            future.result()
    demo = ROOT / "src" / "egpu" / "_native" / "demo" / "demo"
    return Built(folder, demo, conformance)
