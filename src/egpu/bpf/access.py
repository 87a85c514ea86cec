"""Which of the flags that say who may read or write a map go together (Linux: map_flags_access_ok,
bpf_get_file_flag and the map types' alloc_check)."""

from __future__ import annotations

from egpu.bpf.maptypes import MapType, Storage, traits
from egpu.bpf.program import BPF_F_RDONLY, BPF_F_RDONLY_PROG, BPF_F_WRONLY, BPF_F_WRONLY_PROG

_PROGRAMS = BPF_F_RDONLY_PROG | BPF_F_WRONLY_PROG
_OUTSIDE = BPF_F_RDONLY | BPF_F_WRONLY
_NAMES = {
    BPF_F_RDONLY: "BPF_F_RDONLY",
    BPF_F_WRONLY: "BPF_F_WRONLY",
    BPF_F_RDONLY_PROG: "BPF_F_RDONLY_PROG",
    BPF_F_WRONLY_PROG: "BPF_F_WRONLY_PROG",
}
_NOTHING = (MapType.RINGBUF, MapType.GPU_RINGBUF, MapType.STACK_TRACE)


def access_problem(kind: MapType, flags: int) -> str:
    """What is wrong with the access flags in ``flags`` for a map of ``kind``, "" if nothing is.

    Linux answers EINVAL then.
    """
    for both in (_OUTSIDE, _PROGRAMS):
        if flags & both == both:
            return " and ".join(_chosen(both)) + " exclude each other"
    refused = 0
    if kind in _NOTHING:
        refused = _OUTSIDE | _PROGRAMS
    elif traits(kind).storage is Storage.MAPS or kind is MapType.PERF_EVENT_ARRAY:
        refused = _PROGRAMS
    wrong = _chosen(flags & refused)
    return f"a {kind.name} does not take {wrong[0]}" if wrong else ""


def _chosen(flags: int) -> list[str]:
    return [name for flag, name in _NAMES.items() if flags & flag]
