"""Helpers: the one table (design.md section 5).

A row is everything egpu knows of a helper: the verifier takes prototype and effects from it, code
generation the name of the device body, the interpreter its dispatch key, the header generator the
C prototype.  Numbers 1-211 are Linux's (uapi/linux/bpf.h), 501-511 bpftime's, 600- ours.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Arg(enum.Enum):
    """What an argument register must hold."""

    __hash__ = object.__hash__  # members are single; Enum's own is written in Python and slow

    SCALAR = "scalar"
    MAP = "map"  # LD_IMM64 map reference
    KEY = "key"  # readable memory of the map's key_size
    VALUE = "value"  # readable memory of the map's value_size
    READ = "read"  # readable memory, size in the next argument
    SIZE = "size"  # byte count of the argument before, > 0
    SIZE_OR_ZERO = "size or zero"  # the same of a WRITE before it, which 0 makes nothing of
    CONST_SIZE = "const_size"  # a constant byte count (record size), > 0
    WRITE = "write"  # writable memory, may be uninitialised, size in the next argument
    PARAMETER = "parameter"  # a constant: which of the kernel's parameters
    OUT_VALUE = "out_value"  # writable memory of the map's value_size; of a Bloom filter, readable
    OUT_U64 = "out_u64"  # writable, 8 bytes, may be uninitialised
    RECORD = "record"  # start of a reserved ring-buffer record; its reference is released
    CONTEXT = "ctx"
    CONTEXT_OR_NULL = "ctx_or_null"  # the context; 0 only where the map is bpftime's
    ATOMIC_U64 = "atomic_u64"  # pointer to 8 aligned bytes of a map value, changed in one step
    CALLBACK = "callback"  # LD_IMM64 code reference
    CALLBACK_CONTEXT = "callback_ctx"  # a pointer into the stack, or 0: what the callback gets
    FORMAT = "format"  # constant text of a format, size in the next argument
    FORMAT_SIZE = "format_size"  # a constant, the terminating 0 included
    PRINTED = "printed"  # a value that the format shows; need not be there if it shows fewer
    PRINTED_ARRAY = "printed_array"  # such values, 8 bytes each; 0 for none
    PRINTED_SIZE = "printed_size"  # a constant, their bytes
    TEXT = "text"  # readable memory that holds text
    ANYTHING = "anything"  # any initialised value, pointers refused under no-leak rules


class Ret(enum.Enum):
    """What r0 holds afterwards."""

    SCALAR = "scalar"
    MAP_VALUE_OR_NULL = "map_value_or_null"
    RECORD_OR_NULL = "record_or_null"  # acquires a reference
    VOID = "void"  # r0 is unreadable


@dataclass(frozen=True, slots=True)
class Helper:
    """One helper.

    ``c_prototype`` is the C declaration's return type and parameter list with a ``%s`` for the
    name; ``cost`` the weighted worst-case instructions of its device body; ``maximum`` an inclusive
    upper bound of the unsigned result (None: any 64-bit value); ``map_types`` the names of MapType
    its MAP argument may have; ``body`` the device body's name in egpu.codegen's library ("" = egpu
    knows the helper but has no body yet: refused by name, with ``missing`` as the reason).
    """

    id: int
    name: str
    args: tuple[Arg, ...]
    ret: Ret
    c_prototype: str
    body: str
    cost: int
    maximum: int | None = None
    map_types: frozenset[str] = frozenset()
    control: bool = False  # changes the workload: Policy.CONTROL only
    memory: int = 0  # memory operations of the body
    atomics: int = 0
    uniform: bool = False  # the same for all lanes of a warp
    launch: bool = False  # the same for all threads of a launch
    # The lanes of a warp do it together (vote, shuffle): refused where they may have parted (P7).
    # Ring helpers take whichever lanes are there, so no helper is collective yet.
    collective: bool = False
    missing: str = ""
    counts: bool = False  # the result is how many bytes it wrote, or an error number
    host: bool = False  # no device body, but programs that run on the host may call it


_ARRAYS = frozenset(
    {
        "ARRAY",
        "PERCPU_ARRAY",
        "GPU_ARRAY",
        "GPU_HOST_ARRAY",
        "GPU_KERNEL_SHARED_ARRAY",
        "GPU_PER_THREAD_ARRAY",
        "GPU_PER_THREAD_HOST_ARRAY",
    }
)
_HASHES = frozenset({"HASH", "PERCPU_HASH", "LRU_HASH", "LRU_PERCPU_HASH", "GPU_HASH"})
_KEYED = _ARRAYS | _HASHES
# Whose entries exist whoever asks: of a per-thread array each thread has only its own.
_WALKED = frozenset(name for name in _KEYED if "PER_THREAD" not in name)
_RING = frozenset({"RINGBUF"})
_OUTER = frozenset({"ARRAY_OF_MAPS", "HASH_OF_MAPS"})
_EVENTS = frozenset({"PERF_EVENT_ARRAY", "GPU_RINGBUF"})
_DEQUES = frozenset({"QUEUE", "STACK"})
_PUSHED = _DEQUES | {"BLOOM_FILTER"}
_A = Arg
_XYZ = (Arg.OUT_U64, Arg.OUT_U64, Arg.OUT_U64)
_XYZ_C = "long (*%s)(__u64 *x, __u64 *y, __u64 *z)"

_FROM = (Arg.WRITE, Arg.SIZE_OR_ZERO, Arg.ANYTHING)


def _probe_read(number: int, name: str) -> Helper:
    """One of the helpers that read the workload's memory: a GPU has one space of addresses."""
    prototype = "long (*%s)(void *dst, __u32 size, const void *unsafe_ptr)"
    return Helper(number, name, _FROM, Ret.SCALAR, prototype, "probe_read", 320, memory=64)


def _probe_read_text(number: int, name: str) -> Helper:
    prototype = "long (*%s)(void *dst, __u32 size, const void *unsafe_ptr)"
    return Helper(number, name, _FROM, Ret.SCALAR, prototype, "probe_read_text", 2000, memory=280)


# fmt: off
_ROWS: tuple[Helper, ...] = (
    Helper(1, "bpf_map_lookup_elem", (_A.MAP, _A.KEY), Ret.MAP_VALUE_OR_NULL,
           "void *(*%s)(void *map, const void *key)", "map_lookup", 8, map_types=_KEYED | _OUTER,
           memory=1),
    Helper(2, "bpf_map_update_elem", (_A.MAP, _A.KEY, _A.VALUE, _A.SCALAR), Ret.SCALAR,
           "long (*%s)(void *map, const void *key, const void *value, __u64 flags)", "map_update",
           24, map_types=_KEYED, memory=4),
    Helper(3, "bpf_map_delete_elem", (_A.MAP, _A.KEY), Ret.SCALAR,
           "long (*%s)(void *map, const void *key)", "map_delete", 2, map_types=_KEYED),
    _probe_read(4, "bpf_probe_read"),
    Helper(5, "bpf_ktime_get_ns", (), Ret.SCALAR, "__u64 (*%s)(void)", "ktime_get_ns", 4, memory=1),
    Helper(6, "bpf_trace_printk", (_A.FORMAT, _A.FORMAT_SIZE, _A.PRINTED, _A.PRINTED, _A.PRINTED),
           Ret.SCALAR, "long (*%s)(const char *fmt, __u32 fmt_size, ...)", "print", 240,
           memory=16, atomics=2),
    Helper(7, "bpf_get_prandom_u32", (), Ret.SCALAR, "__u32 (*%s)(void)", "prandom_u32", 16,
           maximum=0xFFFFFFFF),
    Helper(8, "bpf_get_smp_processor_id", (), Ret.SCALAR, "__u32 (*%s)(void)", "sm_id", 2,
           maximum=0xFFFFFFFF, uniform=True),
    Helper(14, "bpf_get_current_pid_tgid", (), Ret.SCALAR, "__u64 (*%s)(void)", "pid_tgid", 4,
           memory=1, uniform=True, launch=True),
    Helper(15, "bpf_get_current_uid_gid", (), Ret.SCALAR, "__u64 (*%s)(void)", "uid_gid", 4,
           memory=1, uniform=True, launch=True),
    Helper(16, "bpf_get_current_comm", (_A.WRITE, _A.SIZE), Ret.SCALAR,
           "long (*%s)(void *buf, __u32 size_of_buf)", "comm", 32, memory=4, uniform=True,
           launch=True),
    Helper(25, "bpf_perf_event_output",
           (_A.CONTEXT_OR_NULL, _A.MAP, _A.SCALAR, _A.READ, _A.SIZE), Ret.SCALAR,
           "long (*%s)(void *ctx, void *map, __u64 flags, void *data, __u64 size)",
           "perf_output", 112, map_types=_EVENTS, memory=8, atomics=2),
    Helper(27, "bpf_get_stackid", (_A.CONTEXT, _A.MAP, _A.SCALAR), Ret.SCALAR,
           "long (*%s)(void *ctx, void *map, __u64 flags)", "stackid", 8,
           map_types=frozenset({"STACK_TRACE"})),
    _probe_read_text(45, "bpf_probe_read_str"),
    Helper(67, "bpf_get_stack", (_A.CONTEXT, _A.WRITE, _A.SIZE_OR_ZERO, _A.SCALAR), Ret.SCALAR,
           "long (*%s)(void *ctx, void *buf, __u32 size, __u64 flags)", "", 64, counts=True,
           host=True, missing="a kernel has the number of its stack, bpf_get_stackid"),
    Helper(87, "bpf_map_push_elem", (_A.MAP, _A.VALUE, _A.SCALAR), Ret.SCALAR,
           "long (*%s)(void *map, const void *value, __u64 flags)", "map_push", 64,
           map_types=_PUSHED, memory=4, atomics=5),
    Helper(88, "bpf_map_pop_elem", (_A.MAP, _A.OUT_VALUE), Ret.SCALAR,
           "long (*%s)(void *map, void *value)", "map_pop", 64, map_types=_DEQUES, memory=4,
           atomics=2),
    Helper(89, "bpf_map_peek_elem", (_A.MAP, _A.OUT_VALUE), Ret.SCALAR,
           "long (*%s)(void *map, void *value)", "map_peek", 48, map_types=_PUSHED, memory=15),
    _probe_read(112, "bpf_probe_read_user"),
    _probe_read(113, "bpf_probe_read_kernel"),
    _probe_read_text(114, "bpf_probe_read_user_str"),
    _probe_read_text(115, "bpf_probe_read_kernel_str"),
    Helper(125, "bpf_ktime_get_boot_ns", (), Ret.SCALAR, "__u64 (*%s)(void)", "ktime_get_ns", 4,
           memory=1),
    Helper(130, "bpf_ringbuf_output", (_A.MAP, _A.READ, _A.SIZE, _A.SCALAR), Ret.SCALAR,
           "long (*%s)(void *ringbuf, void *data, __u64 size, __u64 flags)", "ringbuf_output", 96,
           map_types=_RING, memory=8, atomics=2),
    Helper(131, "bpf_ringbuf_reserve", (_A.MAP, _A.CONST_SIZE, _A.SCALAR), Ret.RECORD_OR_NULL,
           "void *(*%s)(void *ringbuf, __u64 size, __u64 flags)", "ringbuf_reserve", 64,
           map_types=_RING, memory=2, atomics=2),
    Helper(132, "bpf_ringbuf_submit", (_A.RECORD, _A.SCALAR), Ret.VOID,
           "void (*%s)(void *data, __u64 flags)", "ringbuf_submit", 8, memory=2),
    Helper(133, "bpf_ringbuf_discard", (_A.RECORD, _A.SCALAR), Ret.VOID,
           "void (*%s)(void *data, __u64 flags)", "ringbuf_discard", 8, memory=2),
    Helper(134, "bpf_ringbuf_query", (_A.MAP, _A.SCALAR), Ret.SCALAR,
           "__u64 (*%s)(void *ringbuf, __u64 flags)", "ringbuf_query", 8, map_types=_RING,
           memory=2),
    Helper(160, "bpf_ktime_get_coarse_ns", (), Ret.SCALAR, "__u64 (*%s)(void)", "ktime_get_ns", 4,
           memory=1),
    Helper(164, "bpf_for_each_map_elem", (_A.MAP, _A.CALLBACK, _A.CALLBACK_CONTEXT, _A.SCALAR),
           Ret.SCALAR,
           "long (*%s)(void *map, void *callback_fn, void *callback_ctx, __u64 flags)",
           "for_each", 8, map_types=_WALKED),
    Helper(173, "bpf_get_func_ip", (_A.CONTEXT,), Ret.SCALAR, "__u64 (*%s)(void *ctx)", "func_ip",
           2, maximum=0xFFFFFFFF, uniform=True, launch=True),
    Helper(174, "bpf_get_attach_cookie", (_A.CONTEXT,), Ret.SCALAR, "__u64 (*%s)(void *ctx)",
           "attach_cookie", 1, uniform=True, launch=True),
    Helper(177, "bpf_trace_vprintk",
           (_A.FORMAT, _A.FORMAT_SIZE, _A.PRINTED_ARRAY, _A.PRINTED_SIZE), Ret.SCALAR,
           "long (*%s)(const char *fmt, __u32 fmt_size, const void *data, __u32 data_len)",
           "print", 480, memory=24, atomics=2),
    Helper(181, "bpf_loop", (_A.SCALAR, _A.CALLBACK, _A.CALLBACK_CONTEXT, _A.SCALAR), Ret.SCALAR,
           "long (*%s)(__u32 nr_loops, void *callback_fn, void *callback_ctx, __u64 flags)",
           "loop", 4),
    Helper(183, "bpf_get_func_arg", (_A.CONTEXT, _A.PARAMETER, _A.OUT_U64), Ret.SCALAR,
           "long (*%s)(void *ctx, __u32 n, __u64 *value)", "func_arg", 4, maximum=0, uniform=True,
           launch=True),
    Helper(501, "ebpf_puts", (_A.TEXT,), Ret.SCALAR, "long (*%s)(const char *text)", "print", 160,
           memory=16, atomics=2),
    Helper(502, "bpf_get_globaltimer", (), Ret.SCALAR, "__u64 (*%s)(void)", "globaltimer", 2),
    Helper(503, "bpf_get_block_idx", _XYZ, Ret.SCALAR, _XYZ_C, "block_idx", 6, maximum=0,
           uniform=True),
    Helper(504, "bpf_get_block_dim", _XYZ, Ret.SCALAR, _XYZ_C, "block_dim", 6, maximum=0,
           uniform=True, launch=True),
    Helper(505, "bpf_get_thread_idx", _XYZ, Ret.SCALAR, _XYZ_C, "thread_idx", 6, maximum=0),
    Helper(506, "bpf_gpu_membar", (), Ret.SCALAR, "__u64 (*%s)(void)", "membar_sys", 32, maximum=0),
    Helper(507, "bpf_cuda_exit", (), Ret.VOID, "__u64 (*%s)(void)", "thread_exit", 1, control=True),
    Helper(508, "bpf_get_grid_dim", _XYZ, Ret.SCALAR, _XYZ_C, "grid_dim", 6, maximum=0,
           uniform=True, launch=True),
    Helper(509, "bpf_get_sm_id", (), Ret.SCALAR, "__u64 (*%s)(void)", "sm_id", 2,
           maximum=0xFFFFFFFF, uniform=True),
    Helper(510, "bpf_get_warp_id", (), Ret.SCALAR, "__u64 (*%s)(void)", "warp_id", 2,
           maximum=0xFFFFFFFF, uniform=True),
    Helper(511, "bpf_get_lane_id", (), Ret.SCALAR, "__u64 (*%s)(void)", "lane_id", 2, maximum=31),
    # *place becomes the greater of itself and value: one reduction, no result, no order.
    Helper(600, "egpu_atomic_max", (_A.ATOMIC_U64, _A.SCALAR), Ret.VOID,
           "void (*%s)(__u64 *place, __u64 value)", "atomic_max", 4, memory=1, atomics=1),
    # The position of the highest bit that is set; 0 for 0.
    Helper(601, "egpu_log2", (_A.SCALAR,), Ret.SCALAR, "__u64 (*%s)(__u64 value)", "log2", 4,
           maximum=63),
)
# fmt: on

HELPERS: dict[int, Helper] = {row.id: row for row in _ROWS}


@dataclass(frozen=True, slots=True)
class RefusedHelper:
    """A helper of Linux that egpu has no row for and that people will try: why, what instead.

    ``waits``: threads would wait for each other.
    """

    id: int
    name: str
    why: str
    instead: str
    waits: bool = False


# fmt: off
_WAITS = "lanes of a warp that wait for each other never end"
_REFUSED = (
    RefusedHelper(12, "bpf_tail_call", "probes do not jump to other programs",
                  "call a static function"),
    RefusedHelper(35, "bpf_get_current_task", "a GPU thread is no task",
                  "use bpf_get_current_pid_tgid"),
    RefusedHelper(93, "bpf_spin_lock", _WAITS, "use atomics", waits=True),
    RefusedHelper(94, "bpf_spin_unlock", _WAITS, "use atomics", waits=True),
    RefusedHelper(165, "bpf_snprintf", "texts are made on the host",
                  "use bpf_printk, or send the values"),
    RefusedHelper(184, "bpf_get_func_ret", "kernels return nothing",
                  "read what the kernel wrote"),
    RefusedHelper(185, "bpf_get_func_arg_cnt", "not known before the kernel is",
                  "use ctx->param_size"),
)
# fmt: on
REFUSED: dict[int, RefusedHelper] = {row.id: row for row in _REFUSED}


def calls_back(number: int) -> bool:
    """Whether helper ``number`` calls a function of the program."""
    helper = HELPERS.get(number)
    return helper is not None and Arg.CALLBACK in helper.args
