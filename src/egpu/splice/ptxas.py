"""How a twin's PTX is assembled; running the assembler is the session's business."""

from __future__ import annotations

import re

from egpu.errors import UnsupportedError

_TARGET = re.compile(r"sm_([0-9]+)([af]?)")


def assembler_arch(target: str, device: int) -> str:
    """The ``-arch`` that makes PTX with this ``.target`` run on a device of arch ``device``.

    ptxas refuses "sm_90a" PTX for sm_90 and PTX for a later arch than it assembles for; a cubin
    runs only where its major number is that of the device.  UnsupportedError when nothing fits.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise UnsupportedError(f"PTX target {target}")
    arch, suffix = int(match[1]), match[2]
    fits = {
        "a": arch == device,
        "f": arch // 10 == device // 10 and arch <= device,
        "": arch <= device,
    }
    if not fits[suffix]:
        raise UnsupportedError(f"PTX for {target} on an sm_{device} device")
    return f"sm_{device}{suffix}"


def ptxas_arguments(target: str, device: int, *, source: str, output: str) -> tuple[str, ...]:
    """Arguments of ptxas for a twin: no line information, its default optimisation level."""
    return (f"-arch={assembler_arch(target, device)}", f"--output-file={output}", source)
