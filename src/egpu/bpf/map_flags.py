"""Which flags a map of each type may be created with: the one table (Linux: the map types'
alloc_check, map_flags_access_ok, bpf_get_file_flag)."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import BPF_F_RDONLY, BPF_F_RDONLY_PROG, BPF_F_WRONLY, BPF_F_WRONLY_PROG

ENOTSUPP = 524  # include/linux/errno.h; errno.h of user space does not have it
BPF_F_NO_PREALLOC, BPF_F_NO_COMMON_LRU, BPF_F_NUMA_NODE = 1 << 0, 1 << 1, 1 << 2
BPF_F_STACK_BUILD_ID, BPF_F_ZERO_SEED, BPF_F_CLONE = 1 << 5, 1 << 6, 1 << 9
BPF_F_MMAPABLE, BPF_F_PRESERVE_ELEMS, BPF_F_INNER_MAP = 1 << 10, 1 << 11, 1 << 12

NAMES = {
    BPF_F_NO_PREALLOC: "BPF_F_NO_PREALLOC",
    BPF_F_NO_COMMON_LRU: "BPF_F_NO_COMMON_LRU",
    BPF_F_NUMA_NODE: "BPF_F_NUMA_NODE",
    BPF_F_RDONLY: "BPF_F_RDONLY",
    BPF_F_WRONLY: "BPF_F_WRONLY",
    BPF_F_STACK_BUILD_ID: "BPF_F_STACK_BUILD_ID",
    BPF_F_ZERO_SEED: "BPF_F_ZERO_SEED",
    BPF_F_RDONLY_PROG: "BPF_F_RDONLY_PROG",
    BPF_F_WRONLY_PROG: "BPF_F_WRONLY_PROG",
    BPF_F_CLONE: "BPF_F_CLONE",
    BPF_F_MMAPABLE: "BPF_F_MMAPABLE",
    BPF_F_PRESERVE_ELEMS: "BPF_F_PRESERVE_ELEMS",
    BPF_F_INNER_MAP: "BPF_F_INNER_MAP",
}
_OUTSIDE = BPF_F_RDONLY | BPF_F_WRONLY
_PROGRAMS = BPF_F_RDONLY_PROG | BPF_F_WRONLY_PROG
_ACCESS = _OUTSIDE | _PROGRAMS
_NODE = BPF_F_NUMA_NODE
_PER_CPU_HASH = _ACCESS | BPF_F_NO_PREALLOC | BPF_F_ZERO_SEED
_HASH = _PER_CPU_HASH | _NODE
_ARRAY = _ACCESS | _NODE | BPF_F_MMAPABLE | BPF_F_INNER_MAP
_LISTS = BPF_F_NO_COMMON_LRU | BPF_F_NUMA_NODE
_LRU = BPF_F_NO_COMMON_LRU | BPF_F_NO_PREALLOC  # the latter is known and not supported

# fmt: off
TAKEN: dict[MapType, int] = {
    MapType.HASH:             _HASH,
    MapType.ARRAY:            _ARRAY,
    MapType.PERF_EVENT_ARRAY: _OUTSIDE | _NODE | BPF_F_PRESERVE_ELEMS,
    MapType.PERCPU_HASH:      _PER_CPU_HASH,
    MapType.PERCPU_ARRAY:     _ACCESS,
    MapType.STACK_TRACE:      _OUTSIDE | _NODE | BPF_F_STACK_BUILD_ID,
    MapType.LRU_HASH:         _HASH | _LRU,
    MapType.LRU_PERCPU_HASH:  _PER_CPU_HASH | _LRU,
    MapType.ARRAY_OF_MAPS:    _OUTSIDE | _NODE,
    MapType.HASH_OF_MAPS:     _HASH,
    MapType.QUEUE:            _ACCESS | _NODE,
    MapType.STACK:            _ACCESS | _NODE,
    MapType.RINGBUF:          _NODE,
    MapType.BLOOM_FILTER:     _ACCESS | _NODE | BPF_F_ZERO_SEED,
    # bpftime's: those of the type that each is like.
    MapType.GPU_HASH:                  _HASH,
    MapType.GPU_PER_THREAD_ARRAY:      _ARRAY,
    MapType.GPU_ARRAY:                 _ARRAY,
    MapType.GPU_KERNEL_SHARED_ARRAY:   _ARRAY,
    MapType.GPU_PER_THREAD_HOST_ARRAY: _ARRAY,
    MapType.GPU_HOST_ARRAY:            _ARRAY,
    MapType.GPU_RINGBUF:               _NODE,
}
# Known flags that are refused all the same: (type, flag), why, what to do.
_NOT_SUPPORTED: dict[tuple[MapType, int], tuple[str, str]] = {
    (kind, BPF_F_NO_PREALLOC): ("its entries are there from the beginning", "leave the flag out")
    for kind in (MapType.LRU_HASH, MapType.LRU_PERCPU_HASH)
}
# fmt: on
# Not Linux's refusal: it would keep a frame's build id, and egpu its file.
_NOT_SUPPORTED[MapType.STACK_TRACE, BPF_F_STACK_BUILD_ID] = (
    "egpu keeps the file and offset of each frame",
    "leave the flag out",
)


@dataclass(frozen=True, slots=True)
class FlagProblem:
    """Why there is no such map, what to do, and the error number that Linux answers."""

    text: str
    hint: str
    errno: int


def flag_problem(kind: MapType, flags: int) -> FlagProblem | None:
    """What is wrong with ``flags`` for a map of ``kind``, None if nothing is.

    In Linux's order: a node is looked at last (htab_map_alloc_check).
    """
    problem = _not_taken(kind, flags & ~BPF_F_NUMA_NODE)
    if problem is not None:
        return problem
    for both in (_OUTSIDE, _PROGRAMS):
        if flags & both == both:
            return _exclusive(both)
    for (of, flag), (why, hint) in _NOT_SUPPORTED.items():
        if of is kind and flags & flag:
            text = f"{_article(kind)} cannot have {NAMES[flag]}: {why}"
            return FlagProblem(text, hint, ENOTSUPP)
    if flags & _LISTS == _LISTS:  # a list for each CPU is where its CPU is
        return _exclusive(_LISTS)
    return _not_taken(kind, flags)


def _not_taken(kind: MapType, flags: int) -> FlagProblem | None:
    wrong, known = chosen(flags & ~TAKEN[kind]), ", ".join(chosen(TAKEN[kind]))
    if not wrong:
        return None
    return FlagProblem(
        f"{_article(kind)} does not take {wrong[0]}", f"it takes {known}", errno.EINVAL
    )


def _exclusive(both: int) -> FlagProblem:
    text = " and ".join(chosen(both)) + " exclude each other"
    return FlagProblem(text, "give one of them, or neither", errno.EINVAL)


def chosen(flags: int) -> list[str]:
    """The names of ``flags``; a number of those that have none."""
    rest = flags & ~sum(NAMES)
    return [name for flag, name in NAMES.items() if flags & flag] + ([hex(rest)] if rest else [])


def _article(kind: MapType) -> str:
    return f"{'an' if kind.name[0] in 'AL' else 'a'} {kind.name}"  # an LRU_HASH
