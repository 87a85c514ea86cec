"""PTX to machine code: ptxas if there is one, else the driver's own compiler.

The driver takes PTX text as a module image, so without ``ptxas`` a twin is handed over as text and
compiled where it is loaded.  That is slower at attach and not cached by egpu, but nothing is lost.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from egpu.errors import UnsupportedError
from egpu.splice import (
    ASSEMBLER_OPTIONS,
    FREE_REGISTERS,
    free_registers,
    ptxas_arguments,
)

_TIMEOUT_S = 120
_SPILL_LIMIT = 64  # bytes: a few registers that are put away around a probe
_USED = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores")


@dataclass(frozen=True, slots=True)
class Ptxas:
    """An assembler: its path and the last line of ``--version`` (part of the cache key)."""

    path: str
    version: str


def find_ptxas() -> Ptxas | None:
    """The first ptxas that runs: ``$EGPU_PTXAS``, PATH, CUDA_HOME, the toolkit, the pip wheel.

    ``EGPU_PTXAS=none`` means that there is none.
    """
    explicit = os.environ.get("EGPU_PTXAS")
    if explicit == "none":
        return None
    for candidate in [explicit] if explicit else _candidates():
        if candidate is None:
            continue
        try:
            answer = subprocess.run(
                [candidate, "--version"], capture_output=True, text=True, timeout=30, check=True
            )
        except (OSError, ValueError, subprocess.SubprocessError):  # ValueError: no text
            continue
        lines = answer.stdout.strip().splitlines()
        if lines:  # it runs in another folder later, where a relative PATH leads elsewhere
            return Ptxas(os.path.abspath(shutil.which(candidate) or candidate), lines[-1])
    return None


def _candidates() -> list[str | None]:
    found = [shutil.which("ptxas")]
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found += [str(Path(root) / "bin" / "ptxas") for root in roots if root]
    for entry in sys.path:  # the nvidia-cuda-nvcc wheel: nvidia/cu13/bin/ptxas
        found += [str(path) for path in Path(entry or ".").glob("nvidia/cu*/bin/ptxas")]
    return found


class Assembler:
    """Turns a twin's PTX into the image that the agent loads."""

    def __init__(self, ptxas: Ptxas | None) -> None:
        self._ptxas = ptxas
        self._codes: dict[tuple[str, str], bytes] = {}  # kernels with like parameters share probes
        self._own = threading.local()
        self._ahead: set[subprocess.Popen[str]] = set()
        self._abandoned = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """What this thread assembles meanwhile no kernel has asked for: ``abandon`` ends it."""
        self._own.ahead = True
        try:
            yield
        finally:
            self._own.ahead = False

    def abandon(self) -> None:
        """End what is assembled ahead, with UnsupportedError, and begin no more of it: a session
        that ends does not wait for it."""
        with self._lock:
            self._abandoned = True
            for process in self._ahead:
                process.kill()

    @property
    def spent_s(self) -> float:
        """Seconds that the calling thread has waited for ptxas."""
        return float(getattr(self._own, "spent_s", 0.0))

    @property
    def stable(self) -> bool:
        """Whether the result is machine code that is worth keeping."""
        return self._ptxas is not None

    @property
    def description(self) -> str:
        """What assembles, for reports."""
        return self._ptxas.version if self._ptxas else "the driver's own compiler (no ptxas found)"

    def assemble(
        self,
        text: str,
        target: str,
        device: int,
        *,
        original: Callable[[], str] | None = None,
        sites: int = 1,
    ) -> bytes:
        """Machine code of ``text`` for a device of arch ``device`` (90), or the text itself
        (NUL-terminated) without ptxas.  ``target`` is the text's ``.target``.

        ptxas takes registers freely, and a twin with fewer resident blocks is not used.  So a twin
        that takes more than the kernel by itself (``original`` gives its text) is held to the
        kernel's number, if that spills a few registers at most at each of ``sites``, of which a
        thread passes one or two.

        Raises UnsupportedError with the assembler's first message if it refuses the text.
        """
        if self._ptxas is None:
            return text.encode() + b"\0"
        arguments = ptxas_arguments(target, device, source="twin.ptx", output="twin.cubin")
        free = self._run(self._ptxas, text, arguments)
        if original is None or free.registers <= FREE_REGISTERS:
            return free.image
        bare = self._run(self._ptxas, original(), arguments)
        limit = free_registers(bare.registers)
        if free.registers <= limit:
            return free.image
        held = self._run(self._ptxas, text, (f"-maxrregcount={limit}", *arguments))
        few = held.spilled - bare.spilled <= _SPILL_LIMIT * max(1, sites)
        return held.image if few else free.image

    def machine_code(self, text: str, architecture: str) -> bytes:
        """Machine code of a probe for "sm_90" and the like, to be spliced into a cubin.

        UnsupportedError without ptxas: the driver's compiler does not hand it out.
        """
        if self._ptxas is None:
            raise UnsupportedError("splicing machine code", needs="ptxas (egpu doctor says where)")
        options = (f"-arch={architecture}", *ASSEMBLER_OPTIONS)
        code = self._codes.get((text, architecture))
        if code is None:
            arguments = (*options, "--output-file=twin.cubin", "twin.ptx")
            code = self._run(self._ptxas, text, arguments).image
            self._codes[text, architecture] = code
        return code

    def _run(self, ptxas: Ptxas, text: str, arguments: tuple[str, ...]) -> _Assembled:
        begin = time.perf_counter()
        try:
            return _run(ptxas, text, arguments, self._known)
        finally:
            self._own.spent_s = self.spent_s + time.perf_counter() - begin

    @contextlib.contextmanager
    def _known(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """While it runs, ``abandon`` finds a process that works ahead."""
        if not getattr(self._own, "ahead", False):
            yield
            return
        with self._lock:
            self._ahead.add(process)
            if self._abandoned:
                process.kill()
        try:
            yield
        finally:
            with self._lock:
                self._ahead.discard(process)


@dataclass(frozen=True, slots=True)
class _Assembled:
    """Machine code, the registers of a thread and the bytes of them that it spills."""

    image: bytes
    registers: int
    spilled: int


_Known: TypeAlias = Callable[[subprocess.Popen[str]], contextlib.AbstractContextManager[None]]


def _run(ptxas: Ptxas, text: str, arguments: tuple[str, ...], known: _Known) -> _Assembled:
    """``known`` is told of the process while it runs."""
    with tempfile.TemporaryDirectory(prefix="egpu-ptxas-") as folder:
        try:
            Path(folder, "twin.ptx").write_text(text, "utf-8", "surrogateescape")
            code, output, errors = _finished([ptxas.path, "-v", *arguments], folder, known)
            if code == 0:
                return _Assembled(
                    Path(folder, "twin.cubin").read_bytes(),
                    max((int(number) for number in _USED.findall(errors)), default=0),
                    sum(int(number) for number in _SPILLED.findall(errors)),
                )
        except subprocess.TimeoutExpired:
            raise UnsupportedError(
                f"this kernel (ptxas did not finish in {_TIMEOUT_S} s)"
            ) from None
        except OSError as error:
            raise UnsupportedError(f"assembling the twin ({error.strerror or error})") from error
    message = (errors or output).strip().splitlines() or [f"exit code {code}"]
    first = next((line for line in message if "error" in line or "fatal" in line), message[0])
    raise UnsupportedError(f"this kernel (ptxas refuses the twin: {first.strip()})")


def _finished(command: list[str], folder: str, known: _Known) -> tuple[int, str, str]:
    """Exit code and what a process said; as ``subprocess.run``, which tells nobody of it."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            with known(process):
                output, errors = process.communicate(timeout=_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
        return process.returncode, output, errors
