"""Where programs of uprobe sections can run: at the calls that launch kernels.

The agent is in the driver's calls, not in any other function.  A call of the CUDA runtime makes
one call of the driver, so its launches are met there, a little later than the runtime's own entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from egpu.agent.protocol import LaunchCall
from egpu.bpf.program import AttachKind, AttachPoint
from egpu.errors import UnsupportedError

_DRIVER, _RUNTIME = "libcuda.so", "libcudart.so"
# fmt: off
_DRIVERS = {  # symbols of libcuda; "_ptsz" is the same for per-thread streams
    "cuLaunchKernel":            LaunchCall.KERNEL,
    "cuLaunchKernelEx":          LaunchCall.KERNEL_EX,
    "cuLaunchCooperativeKernel": LaunchCall.COOPERATIVE,
}
# Symbols of libcudart, and of programs that were linked with it or with a template of this name;
# the longer name first.
_RUNTIMES = {
    "cudaLaunchKernelEx":          LaunchCall.KERNEL_EX,
    "cudaLaunchKernel":            LaunchCall.KERNEL,
    "cudaLaunchCooperativeKernel": LaunchCall.COOPERATIVE,
}
# fmt: on


@dataclass(frozen=True, slots=True)
class HostPoint:
    """A call that launches; ``program`` is the only file whose processes count, None for all."""

    call: LaunchCall
    leaving: bool
    program: Path | None = None

    def meets(self, call: LaunchCall, *, leaving: bool, pid: int) -> bool:
        """Whether a call of process ``pid`` is one of these."""
        if (call, leaving) != (self.call, self.leaving):
            return False
        if self.program is None:
            return True
        try:
            return os.path.samefile(self.program, f"/proc/{pid}/exe")
        except OSError:
            return False


def host_point(point: AttachPoint) -> HostPoint:
    """The call that a uprobe or uretprobe section means; UnsupportedError for any other place."""
    leaving = point.kind is AttachKind.HOST_EXIT
    file, _, symbol = point.detail.rpartition(":")
    name = Path(file).name
    if name.startswith(_DRIVER):
        call = _DRIVERS.get(symbol.removesuffix("_ptsz"))
        return _known(call, None, point, leaving=leaving)
    call = launch_of(symbol)
    own = None if name.startswith(_RUNTIME) else Path(file)
    if own is not None and call is not None and not own.is_file():
        raise UnsupportedError(
            f"{point.kind.value}/{point.detail}: there is no such file",
            needs="the path of the program that launches, or of libcuda.so.1 or libcudart.so",
        )
    return _known(call, own, point, leaving=leaving)


def launch_of(symbol: str) -> LaunchCall | None:
    """The call of the driver that a function of the runtime makes, by its name."""
    return next((call for part, call in _RUNTIMES.items() if part in symbol), None)


def _known(
    call: LaunchCall | None, program: Path | None, point: AttachPoint, *, leaving: bool
) -> HostPoint:
    if call is None:
        raise UnsupportedError(
            f"{point.kind.value}/{point.detail or '(no place)'}",
            needs=f"a place where kernels are launched: {', '.join(_names())}",
        )
    return HostPoint(call, leaving, program)


def _names() -> Iterable[str]:
    yield from (f"libcuda.so.1:{symbol}" for symbol in _DRIVERS)
    yield "libcudart.so:cudaLaunchKernel"
    yield "a function of the program whose name has cudaLaunchKernel in it"
