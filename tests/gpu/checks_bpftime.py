"""bpftime's example programs, in shapes of our own (tests/bpftime), in the originals' sizes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from building import ROOT
from building import Built as GpuBuilt
from observing import egpu, environment, require

HERE = ROOT / "tests" / "bpftime"
sys.path.insert(0, str(HERE))

from examples import EXAMPLES, Example  # noqa: E402
from host_side import HOSTED, LAUNCHES, hosted, late  # noqa: E402
from running import PTX, Built, build, run_direct, run_loaded  # noqa: E402
from running import egpu as run_egpu  # noqa: E402

AT_ONCE = 4
SIDE, GEMM_C = 32, 1373634560


def _failure(place: int, built: Built) -> str:
    example = EXAMPLES[place].on_a_gpu()
    return _failed(example, lambda: example.check(example, run_direct(place, example, built)))


def bpftime_examples(_built: GpuBuilt) -> str:
    """Every example: the exact results of its row."""
    places = range(len(EXAMPLES))
    with tempfile.TemporaryDirectory(prefix="egpu-bpftime-") as folder:
        built = build(Path(folder))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            failed = [text for text in pool.map(lambda at: _failure(at, built), places) if text]
    require(not failed, "\n".join(failed))
    return f"{len(places)} examples exact"


def bpftime_system_calls(_built: GpuBuilt) -> str:
    """The system calls of a loader, without libbpf."""
    with tempfile.TemporaryDirectory(prefix="egpu-bpftime-") as folder:
        built = build(Path(folder))
        raw = shlex.join([sys.executable, str(HERE / "raw_loader.py"), "30"])
        workload = [str(built.workload), "add3", "--ptx", str(PTX)]
        done = run_egpu("run", "--loader-wait", "0.2", "--loader", raw, "--", *workload)
        said = [line for line in done.stdout.splitlines() if line]
        require(said[2:3] == ["done"], f"system calls: {done.stdout[-1500:]}{done.stderr[-500:]}")
    return "system calls exact"


def bpftime_loaders(_built: GpuBuilt) -> str:
    """Examples under a loader that is an ordinary libbpf program, 6 to 8 with their uprobes."""
    chosen = [each for each in EXAMPLES if each.number in (1, 10, 11, 13)]
    with tempfile.TemporaryDirectory(prefix="egpu-bpftime-") as folder:
        built = build(Path(folder))
        if built.loader is None:
            return "skipped: this machine has no libbpf.so.1"
        failed = [_failed(each, lambda each=each: _loaded(each, built)) for each in chosen]
        failed += _hosted(built, loader=True)
    require(not any(failed), "\n".join(filter(None, failed)))
    return f"{len(failed)} examples exact under a loader"


def bpftime_host_side(_built: GpuBuilt) -> str:
    """6 to 8 with their programs on the host, without a loader."""
    with tempfile.TemporaryDirectory(prefix="egpu-bpftime-") as folder:
        failed = _hosted(build(Path(folder)), loader=False)
    require(not any(failed), "\n".join(filter(None, failed)))
    return f"{len(failed)} examples exact with their programs on the host"


def bpftime_late(_built: GpuBuilt) -> str:
    """14, attached to a workload that runs."""
    with tempfile.TemporaryDirectory(prefix="egpu-bpftime-") as folder:
        probed, launches = late(build(Path(folder)))
    require(LAUNCHES <= probed < launches, f"{probed} of {launches} launches probed")
    return f"every thread of {probed} of {launches} launches counted"


def _loaded(example: Example, built: Built) -> None:
    example.check(example, run_loaded(example, built))


def _hosted(built: Built, *, loader: bool) -> list[str]:
    """What went wrong with each of HOSTED, "" where nothing did."""

    def run(place: int) -> None:
        bins = hosted(place, built, simulated=False, loader=loader)
        if bins:  # powers of ten from 100 ns on, as far as the device's clock is CLOCK_REALTIME
            print(f"    {EXAMPLES[place].program}: launches to threads, by bin: {bins}", flush=True)

    return [_failed(EXAMPLES[place], lambda place=place: run(place)) for place in HOSTED]


def _failed(example: Example, run: Callable[[], None]) -> str:
    try:
        run()
    except (AssertionError, KeyError, subprocess.TimeoutExpired) as error:
        return f"{example.number} {example.program}: {type(error).__name__}: {str(error)[-1500:]}"
    return ""


def bpftime_directly(_built: GpuBuilt) -> str:
    """15: programs that are kernels themselves."""
    path = str(HERE / "programs" / "directly_run.bpf.o")
    values = [("vec_N", 0, 1024)]
    values += [(name, i, i * times) for i in (1, 77, 1023) for name, times in _VECTORS]
    words = [str(word) for row in values for word in ("--set", *row)]
    report = _directly(path, "cuda__vec_add", "1 4 1 1 256 1 1", words)
    sums = {row["key"]: row["value"] for row in report["vec_C"]}
    require(sums == {i: 3 * i for i in (1, 77, 1023)}, f"vec_C is {sums}")
    words = ["--set", "gemm_dims", "0", str(SIDE | SIDE << 32 | SIDE << 64)]
    for i in range(SIDE):  # one row times one column
        words += ["--set", "gemm_A", str(i), "65536", "--set", "gemm_B", str(i * SIDE), "655"]
    report = _directly(path, "cuda__gemm", "1 4 4 1 16 16 1", words)
    product = {row["key"]: row["value"] for row in report["gemm_C"]}
    require(product == {0: GEMM_C}, f"gemm_C is {product}")
    return "vec_add and gemm exact"


_VECTORS = (("vec_A", 1), ("vec_B", 2))


def _directly(path: str, program: str, shape: str, words: list[str]) -> dict:
    command = egpu("run-on-gpu", "--json", *words, path, program, *shape.split())
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment()
    )
    require(run.returncode == 0, f"{program}: exit {run.returncode}: {run.stderr[-1500:]}")
    return json.loads(run.stdout.strip().splitlines()[-1])["maps"]


CHECKS = (
    bpftime_examples,
    bpftime_system_calls,
    bpftime_loaders,
    bpftime_host_side,
    bpftime_late,
    bpftime_directly,
)
