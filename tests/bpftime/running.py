"""Running an example: by egpu itself or under its loader, on any device; results in one form."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples import Example, Ran

import egpu as package
from egpu.bpf.object import read_object

HERE = Path(__file__).resolve().parent
PATIENCE = 200  # seconds for what takes a moment: how fast a machine is proves nothing
PTX = HERE / "kernels.ptx"
COUNT_VARIABLE = "BPFTIME_MAP_GPU_THREAD_COUNT"
# The header that every line which a program prints begins with.
_PRINTED = re.compile(r"\S.* block \d+,\d+,\d+ thread \d+,\d+,\d+: (.*)")
_PER_THREAD = {1502, 1512}


@dataclass(frozen=True)
class Built:
    """The compiled workload and loader; ``loader`` is None where there is no libbpf."""

    workload: Path
    loader: Path | None


def compile_c(*words: object) -> str:
    """Run the C compiler; what it said if it failed."""
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def build(folder: Path) -> Built:
    """Compile both; the workload is linked against a stub with libcuda's name."""
    compiled, stub = folder / "workload.o", folder / "libcuda.so"
    source, workload, loader = folder / "stub.c", folder / "workload", folder / "loader"
    said = compile_c("-c", HERE / "workload.c", "-o", compiled)
    assert not said, said
    listing = subprocess.run(["nm", "-u", compiled], capture_output=True, text=True, check=True)
    names = sorted(set(re.findall(r"\bU (cu[A-Z]\w*)", listing.stdout)))
    source.write_text("".join(f"int {n}(void);\nint {n}(void) {{ return 34; }}\n" for n in names))
    said = compile_c("-shared", "-Wl,-soname,libcuda.so.1", "-o", stub, source)
    said += compile_c(compiled, "-L", folder, "-lcuda", "-lm", "-o", workload)
    assert not said, said
    missing = compile_c(HERE / "loader.c", "-l:libbpf.so.1", "-ldl", "-o", loader)
    assert not missing or "libbpf" in missing, missing
    return Built(workload, None if missing else loader)


def words_of(example: Example, built: Built) -> list[str]:
    """The workload's command."""
    grid, block = (",".join(map(str, shape)) for shape in (example.grid, example.block))
    words = [example.app, "--ptx", str(PTX), "--launches", str(example.launches)]
    return [str(built.workload), *words, "--grid", grid, "--block", block]


def object_of(example: Example) -> Path:
    return HERE / "programs" / f"{example.program}.bpf.o"


def environment() -> dict[str, str]:
    """That of a process which runs the package that was imported here."""
    paths = [str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def egpu(*words: object, slots: int = 1024) -> subprocess.CompletedProcess[str]:
    """Run egpu."""
    return subprocess.run(
        [sys.executable, "-m", "egpu", *map(str, words)],
        env=environment() | {COUNT_VARIABLE: str(slots)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class Gated:
    """egpu (``words``) with a workload that launches on when it is told to; its pipe is in
    ``folder``.

    To be used with ``with``: what has not ended then is killed."""

    def __init__(self, folder: Path, words: list[object]) -> None:
        gate = folder / "gate"
        os.mkfifo(gate)
        self._gate = os.open(gate, os.O_RDWR)  # which waits for nobody
        self._said = ""
        self._running = subprocess.Popen(
            [sys.executable, "-m", "egpu", *map(str, words), "--gate", str(gate)],
            env=environment() | {COUNT_VARIABLE: "1024"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_for(self, told: Callable[[str], bool]) -> None:
        """Until what all of them have said is enough for ``told``."""
        out, end = self._running.stdout, time.monotonic() + PATIENCE
        while not told(self._said):
            ready, _, _ = select.select([out], [], [], max(0, end - time.monotonic()))
            part = os.read(out.fileno(), 1 << 16) if ready else b""
            assert part, f"{'it ended' if ready else 'it takes too long'} after: {self._said}"
            self._said += part.decode()

    def go_on(self, launches: int = 1) -> None:
        """The workload may go on after ``launches`` of its launches."""
        os.write(self._gate, b"." * launches)

    def end(self) -> str:
        """Wait for its end, which must be a good one: all that was said."""
        out, _ = self._running.communicate(timeout=PATIENCE)
        self._said += out.decode()
        assert self._running.returncode == 0, self._said
        return self._said

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._gate)
        if self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
        self._running.stdout.close()


def run_loaded(example: Example, built: Built, *options: str) -> Ran:
    """Under the loader, which is an ordinary libbpf program."""
    words = [str(built.loader), str(object_of(example)), *example.loader]
    if example.ring:
        words += ["--gpu-ring", example.ring]
    done = egpu(
        "run", *options, *example.needs, "--loader-wait", "0.2", "--loader", " ".join(words), "--",
        *words_of(example, built), slots=example.slots,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    specs = {
        spec.name[:15]: spec for spec in read_object(object_of(example).read_bytes(), "o").maps
    }
    maps: dict[str, dict] = {spec.name: {} for spec in specs.values()}
    records: dict[str, list[bytes]] = {spec.name: [] for spec in specs.values()}
    prints: list[str] = []
    for line in done.stdout.splitlines():
        name, *rest = line.split(" ")
        printed = _PRINTED.fullmatch(line)
        spec = specs.get(name[:15])
        if printed:
            prints.append(printed[1])
        elif spec is not None and len(rest) == 2 and rest[0] == "record":
            records[spec.name].append(bytes.fromhex(rest[1]))
        elif spec is not None and len(rest) == 2:
            key, value = int.from_bytes(bytes.fromhex(rest[0]), "little"), bytes.fromhex(rest[1])
            maps[spec.name][key] = decoded(spec, value)
    return Ran(done.stdout, maps, records, prints)


def run_direct(place: int, example: Example, built: Built, *flags: str) -> Ran:
    """By egpu's Python interface, in a process of its own; ``place`` in EXAMPLES."""
    words = [HERE / "direct.py", place, built.workload, *flags]
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    output, _, document = done.stdout.rstrip("\n").rpartition("\n")
    found = json.loads(document)
    assert found["unprobed"] == []
    maps = {
        name: {key: bytes.fromhex(v) if isinstance(v, str) else v for key, v in rows}
        for name, rows in found["maps"].items()
    }
    records = {
        name: [bytes.fromhex(row) for row in rows] for name, rows in found["records"].items()
    }
    return Ran(output, maps, records, found["prints"])


def decoded(spec, value: bytes):
    """A number, the numbers of all threads, or bytes of anything else."""
    if spec.value_size not in (4, 8):
        return value
    size = spec.value_size
    parts = [int.from_bytes(value[at : at + size], "little") for at in range(0, len(value), size)]
    if spec.type in _PER_THREAD:
        return parts
    assert len(parts) == 1, (spec.name, len(value))
    return parts[0]
