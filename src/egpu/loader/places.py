"""Places of a loader's uprobes: libbpf gives a file and an offset, people mean a function."""

from __future__ import annotations

from egpu.bpf.program import AttachKind, AttachPoint
from egpu.errors import UnsupportedError
from egpu.session.host_points import host_point
from egpu.session.stacks import functions_at


def launch_point(place: str, *, leaving: bool) -> AttachPoint | None:
    """The point of a uprobe at ``place`` ("path:0xoffset") if a function begins there that launches
    kernels, None if it is another one's."""
    path, _, offset = place.rpartition(":")
    kind = AttachKind.HOST_EXIT if leaving else AttachKind.HOST_ENTRY
    for symbol in functions_at(path, int(offset, 16)):
        point = AttachPoint(kind, symbol, detail=f"{path}:{symbol}")
        try:
            host_point(point)
        except UnsupportedError:
            continue
        return point
    return None
