"""What this machine has: each check looks, changes nothing, and says what to do if it fails."""

from __future__ import annotations

import ctypes
import enum
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from egpu.version import VERSION

PACKAGE = Path(__file__).resolve().parents[1]
NATIVE = PACKAGE / "_native"


class State(enum.Enum):
    """What a check found; UNKNOWN is not "no"."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``egpu doctor``: what was looked at, what was found, what to do."""

    name: str
    state: State
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device as the driver names it; ``arch`` is 90 for compute capability 9.0."""

    name: str
    arch: int


def gpus() -> tuple[Gpu, ...]:
    """The devices of the installed driver; empty without a driver, a device or permission."""
    devices, _ = _ask_driver()
    return devices


def why_no_gpu() -> str:
    """Why ``gpus()`` gives none, in words; "" if there is one."""
    devices, why = _ask_driver()
    return "" if devices else why


def findings() -> Iterator[Finding]:
    """Every check, in the order in which a reader wants them."""
    for check in _CHECKS:
        yield check()


def demo_folder() -> Path | None:
    """Where the demo workload is: ``$EGPU_DEMO_DIR``, else in the package; None if not built."""
    explicit = os.environ.get("EGPU_DEMO_DIR")
    for folder in [Path(explicit)] if explicit else [NATIVE / "demo"]:
        if os.path.isfile(folder / "demo"):
            return folder
    return None


def include_folder() -> Path | None:
    """The folder of egpu.bpf.h: in the package, or in a checkout."""
    folders = (PACKAGE / "include", NATIVE / "include", PACKAGE.parents[1] / "bpf" / "include")
    return next((folder for folder in folders if (folder / "egpu.bpf.h").is_file()), None)


def _ask_driver() -> tuple[tuple[Gpu, ...], str]:
    """The devices, and in words why there are none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (), "no libcuda.so.1"
    code = library.cuInit(0)
    if code:
        return (), f"the driver does not start (cuInit gives {code})"
    count = ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return (), f"cuDeviceGetCount gives {code}"
    found = []
    for ordinal in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        library.cuDeviceGet(ctypes.byref(device), ordinal)
        library.cuDeviceGetName(name, len(name), device)
        library.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # COMPUTE_CAPABILITY_MAJOR
        library.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # COMPUTE_CAPABILITY_MINOR
        found.append(Gpu(name.value.decode(errors="replace"), 10 * major.value + minor.value))
    return tuple(found), "the driver sees no device"


def _version() -> Finding:
    python = platform.python_version()
    return Finding("egpu", State.OK, f"{VERSION} in {PACKAGE}, Python {python}")


def _gpu() -> Finding:
    devices, why = _ask_driver()
    if devices:
        named = ", ".join(f"{gpu.name} (sm_{gpu.arch})" for gpu in devices)
        return Finding("GPU", State.OK, named)
    return Finding(
        "GPU",
        State.MISSING,
        why,
        "or use the simulated device: egpu run --sim",
    )


def _ptxas() -> Finding:
    from egpu.session.assemble import find_ptxas  # noqa: PLC0415

    found = find_ptxas()
    if found is not None:
        return Finding("ptxas", State.OK, f"{found.path} ({found.version})")
    return Finding(
        "ptxas",
        State.MISSING,
        "not found: the driver assembles twins, slower and uncached",
        "pip install 'warpbpf[cuda]'",
    )


def _tool(name: str, purpose: str, advice: str) -> Finding:
    found = shutil.which(name) or next(_in_toolkits(name), None)
    if found is not None:
        return Finding(name, State.OK, found)
    return Finding(name, State.MISSING, f"not found: {purpose}", advice)


def _in_toolkits(name: str) -> Iterator[str]:
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [Path(root) / "bin" / name for root in roots if root]
    for entry in sys.path:
        places += Path(entry or ".").glob(f"nvidia/*/bin/{name}")
    return (str(place) for place in places if os.access(place, os.X_OK))


def _nvdisasm() -> Finding:
    return _tool("nvdisasm", "only egpu's own tests use it", "pip install 'warpbpf[cuda]'")


def _nvcc() -> Finding:
    return _tool("nvcc", "needed only to compile CUDA programs", "install a CUDA toolkit")


def _compiler() -> Finding:
    if importlib.util.find_spec("ziglang") is not None:
        return Finding("C to BPF", State.OK, "clang of the ziglang package")
    clang = shutil.which("clang")
    advice = "pip install 'warpbpf[compile]'"
    if clang is None:
        return Finding("C to BPF", State.MISSING, "no ziglang package and no clang", advice)
    try:
        targets = subprocess.run(
            [clang, "--print-targets"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("C to BPF", State.UNKNOWN, f"{clang} --print-targets: {error}", advice)
    if "bpfel" in targets:
        return Finding("C to BPF", State.OK, clang)
    return Finding("C to BPF", State.MISSING, f"{clang} has no BPF target", advice)


def _perfetto() -> Finding:
    if importlib.util.find_spec("perfetto") is not None:
        return Finding("perfetto", State.OK, "egpu run blocksched --perfetto FILE")
    return Finding(
        "perfetto",
        State.MISSING,
        "not found: no files for ui.perfetto.dev",
        "pip install 'warpbpf[perfetto]'",
    )


def _header() -> Finding:
    folder = include_folder()
    if folder is None:
        return Finding("egpu.bpf.h", State.MISSING, "not in this installation", "reinstall egpu")
    return Finding("egpu.bpf.h", State.OK, f"compile with -I {folder}")


def _native(name: str, pattern: str, purpose: str) -> Finding:
    found = sorted(NATIVE.glob(pattern))
    if found:
        return Finding(name, State.OK, str(found[0]))
    return Finding(
        name,
        State.MISSING,
        f"not built: {purpose}",
        "pip install . (needs a C compiler), or make native in a checkout",
    )


def _agent() -> Finding:
    return _native("agent", "libegpu_agent*.so*", "no workload can be probed")


def _cubins() -> Finding:
    return _native("cubin library", "libegpu_image*.so*", "no machine code can be probed")


def _simulated() -> Finding:
    return _native("simulated driver", "sim/libcuda.so*", "egpu run --sim does not work")


def _demo() -> Finding:
    folder = demo_folder()
    if folder is not None:
        return Finding("demo", State.OK, str(folder))
    return Finding("demo", State.MISSING, "not built: egpu demo does not work", "make native")


def _memory() -> Finding:
    try:
        os.close(os.memfd_create("egpu-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except (AttributeError, OSError) as error:
        return Finding(
            "memfd", State.MISSING, f"memfd_create: {error}", "allow it in the sandbox's rules"
        )
    return Finding("memfd", State.OK, "shared map memory can be made")


def _ptrace() -> Finding:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return Finding("ptrace", State.UNKNOWN, "no Yama setting; only attaching would need it")
    note = {"0": "any own process", "1": "own children", "2": "administrators", "3": "nobody"}
    return Finding("ptrace", State.OK, f"allowed for {note.get(scope, scope)}; `run` needs none")


def _devices() -> Finding:
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not nodes:
        return Finding("/dev/nvidia*", State.UNKNOWN, "no device files here")
    closed = [str(node) for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        return Finding(
            "/dev/nvidia*", State.MISSING, f"no access to {', '.join(closed)}", "join their group"
        )
    return Finding("/dev/nvidia*", State.OK, f"{len(nodes)} accessible")


def _cache() -> Finding:
    from egpu.session.cache import default_directory  # noqa: PLC0415

    folder = default_directory()
    at = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    if not at.is_dir():
        return Finding(
            "cache", State.MISSING, f"{at} is no folder: twins are built anew", "set EGPU_CACHE_DIR"
        )
    if os.access(at, os.W_OK):
        return Finding("cache", State.OK, str(folder))
    return Finding(
        "cache", State.MISSING, f"{at} is not writable: twins are built anew", "set EGPU_CACHE_DIR"
    )


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _version,
    _gpu,
    _devices,
    _ptxas,
    _nvdisasm,
    _nvcc,
    _compiler,
    _perfetto,
    _header,
    _agent,
    _cubins,
    _simulated,
    _demo,
    _memory,
    _ptrace,
    _cache,
)
