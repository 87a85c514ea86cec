"""What may be done to a map from outside of programs, as it was declared (Linux: the mode of the
map's descriptor, which follows from its flags)."""

from __future__ import annotations

import errno

from egpu.bpf.program import BPF_F_RDONLY, BPF_F_WRONLY, MapSpec
from egpu.errors import MapError


def check_read(spec: MapSpec) -> None:
    """MapError EPERM if only programs may read the map."""
    if spec.flags & BPF_F_WRONLY:
        raise _refused(spec, "BPF_F_WRONLY: only programs read it")


def check_write(spec: MapSpec) -> None:
    """MapError EPERM if only programs may change the map."""
    if spec.flags & BPF_F_RDONLY:
        raise _refused(spec, "BPF_F_RDONLY: only programs change it")


def _refused(spec: MapSpec, why: str) -> MapError:
    return MapError(f"is declared with {why}", errno=errno.EPERM, where=f"map {spec.name}")
