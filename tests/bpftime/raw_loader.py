"""A loader without libbpf: the system calls that libbpf makes, and the answers it wants.

Prints a line for each answer that is not as Linux has it, then "done".  It is run by
``egpu run --loader``; what it attaches counts the threads of vectorAdd.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys

from egpu.bpf.asm import assemble
from egpu.bpf.insn import encode

NR_BPF, NR_PERF_EVENT_OPEN = 321, 298  # x86-64
(CREATE, LOOKUP, UPDATE, DELETE, NEXT, LOAD) = range(6)
INFO, BTF_LOAD, TAKE, FREEZE, READ_BATCH, TAKE_BATCH, WRITE_BATCH, DELETE_BATCH, LINK = (
    15, 18, 21, 22, 24, 25, 26, 27, 28
)  # fmt: skip
HASH, ARRAY, PER_CPU, LRU_HASH, QUEUE, RING = 1, 2, 6, 9, 22, 27
ENOTSUPP = 524  # of Linux itself, not of errno.h
SOCKET_FILTER, KPROBE, TRACEPOINT = 1, 2, 5
ANY, NOEXIST, EXIST = range(3)
RDONLY, WRONLY = 1 << 3, 1 << 4  # BPF_F_RDONLY, BPF_F_WRONLY
PERF_EVENT = 41  # BPF_PERF_EVENT, an attach type
KERNEL = b"_Z9vectorAddPKfS0_Pf\0"
libc = ctypes.CDLL(None, use_errno=True)
alive: list = []  # buffers whose addresses the kernel has


def address(data: bytes | ctypes.Array | None) -> int:
    if data is None:
        return 0
    buffer = ctypes.create_string_buffer(data, len(data)) if isinstance(data, bytes) else data
    alive.append(buffer)
    return ctypes.addressof(buffer)


def bpf(command: int, attr: bytes) -> int:
    """The result, or a negative error number; ``attr`` afterwards is ``bpf.after``."""
    buffer = ctypes.create_string_buffer(attr, max(len(attr), 144))
    result = libc.syscall(
        ctypes.c_long(NR_BPF), ctypes.c_long(command), ctypes.byref(buffer), ctypes.c_long(144)
    )
    bpf.after = buffer.raw
    return result if result >= 0 else -ctypes.get_errno()


def create(
    kind: int, key: int, value: int, entries: int, *, name: bytes = b"", flags: int = 0
) -> int:
    return bpf(CREATE, struct.pack("<5I2I16s", kind, key, value, entries, flags, 0, 0, name))


def element(command: int, fd: int, key, value, flags: int = 0) -> int:
    attr = struct.pack("<I4xQQQ", fd, address(key), address(value), flags)
    return bpf(command, attr)


def lookup(fd: int, key: bytes, size: int, command: int = LOOKUP) -> bytes | int:
    out = ctypes.create_string_buffer(size)
    result = element(command, fd, key, out)
    return result if result < 0 else out.raw


def batch(command: int, fd: int, count: int, *buffers) -> tuple[int, int]:
    """``buffers``: keys, values, cursor before, cursor after."""
    keys, values, start, end = (*map(address, buffers), 0, 0)[:4]
    attr = struct.pack("<QQQQIIQQ", start, end, keys, values, count, fd, 0, 0)
    result = bpf(command, attr)
    return result, struct.unpack_from("<I", bpf.after, 32)[0]


def load(kind: int, text: str, name: bytes = b"", log: ctypes.Array | None = None) -> int:
    code = encode(assemble(text))
    attr = struct.pack(
        "<IIQQIIQII16s", kind, len(code) // 8, address(code), address(b"GPL\0"),
        1 if log is not None else 0, len(log) if log is not None else 0, address(log), 0, 0, name,
    )  # fmt: skip
    return bpf(LOAD, attr)


def probe_event(place: bytes, *, leaving: bool) -> int:
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(b"/sys/bus/event_source/devices/kprobe/type", b"re")  # as libbpf does
    text = ctypes.create_string_buffer(32)
    libc.fgets(text, 32, ctypes.c_void_p(file))
    kind = int(text.value)
    attr = struct.pack("<IIQ", kind, 128, int(leaving)).ljust(56, b"\0")
    attr += struct.pack("<QQ", address(place), 0)
    buffer = ctypes.create_string_buffer(attr, 128)
    words = [ctypes.c_long(word) for word in (-1, 0, -1, 8)]
    return libc.syscall(ctypes.c_long(NR_PERF_EVENT_OPEN), ctypes.byref(buffer), *words)


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        print(f"{what}: {found!r}, not {wanted!r}", flush=True)


def key(number: int) -> bytes:
    return number.to_bytes(4, "little")


def value(number: int) -> bytes:
    return number.to_bytes(8, "little")


def ask_for_features() -> None:
    for kind in (SOCKET_FILTER, TRACEPOINT):
        expect("a program that only asks", load(kind, "mov %r0, 0\nexit") >= 0, True)
    link = struct.pack("<IiII", load(TRACEPOINT, "mov %r0, 0\nexit"), -1, PERF_EVENT, 0)
    expect("link to nothing", bpf(LINK, link), -errno.EBADF)
    expect("btf", bpf(BTF_LOAD, struct.pack("<QQII", 0, 0, 0, 0)) >= 0, True)
    expect("a command of the future", bpf(99, b""), -errno.EINVAL)
    expect("a type of the future", create(4000, 4, 4, 1), -errno.EINVAL)
    expect("no map", element(LOOKUP, 0, key(0), value(0)), -errno.EBADF)


def arrays() -> int:
    fd = create(ARRAY, 4, 8, 3, name=b"counts")
    expect("zeroed", lookup(fd, key(2), 8), value(0))
    expect("past", lookup(fd, key(3), 8), -errno.ENOENT)
    expect("update past", element(UPDATE, fd, key(3), value(1)), -errno.E2BIG)
    expect("noexist", element(UPDATE, fd, key(0), value(1), NOEXIST), -errno.EEXIST)
    expect("flags", element(UPDATE, fd, key(0), value(1), 4096), -errno.EINVAL)
    expect("exist", element(UPDATE, fd, key(1), value(100), EXIST), 0)
    expect("delete", element(DELETE, fd, key(0), None), -errno.EINVAL)
    same = ctypes.create_string_buffer(4)  # one buffer for the key and the next, as loaders do
    seen = []
    result = element(NEXT, fd, None, same)
    while result == 0:
        seen.append(int.from_bytes(same.raw, "little"))
        result = element(NEXT, fd, same, same)
    expect("keys", (seen, result), ([0, 1, 2], -errno.ENOENT))
    duplicate = os.dup(fd)
    expect("duplicate", lookup(duplicate, key(1), 8), value(100))
    os.close(duplicate)
    info = ctypes.create_string_buffer(88)
    expect("info", bpf(INFO, struct.pack("<IIQ", fd, 88, address(info))), 0)
    expect("info", struct.unpack_from("<I4xIII", info.raw), (ARRAY, 4, 8, 3))
    expect("name", info.raw[24:31], b"counts\0")
    return fd


def access() -> None:
    """What the flags of maps refuse to who has the descriptor."""
    for kind in (ARRAY, HASH):
        shut = create(kind, 4, 8, 2, flags=RDONLY)
        expect("set what is read", element(UPDATE, shut, key(0), value(1)), -errno.EPERM)
        expect("delete what is read", element(DELETE, shut, key(0), None), -errno.EPERM)
        expect("take what is read", lookup(shut, key(0), 8, TAKE), -errno.EPERM)
        expect("freeze what is read", bpf(FREEZE, struct.pack("<I", shut)), -errno.EPERM)
        there = value(0) if kind == ARRAY else -errno.ENOENT
        expect("read what is read", lookup(shut, key(0), 8), there)
        blind = create(kind, 4, 8, 2, flags=WRONLY)
        expect("set what is written", element(UPDATE, blind, key(0), value(1)), 0)
        expect("read what is written", lookup(blind, key(0), 8), -errno.EPERM)
        expect("list what is written", element(NEXT, blind, None, key(0)), -errno.EPERM)
        expect("take what is written", lookup(blind, key(0), 8, TAKE), -errno.EPERM)
        expect("neither", create(kind, 4, 8, 2, flags=RDONLY | WRONLY), -errno.EINVAL)
    for kind, wrong in ((HASH, 2), (HASH, 0x400), (HASH, 0x1000), (ARRAY, 1), (ARRAY, 0x800)):
        expect(f"flags {wrong} of {kind}", create(kind, 4, 8, 2, flags=wrong), -errno.EINVAL)
    expect("a queue's flags", create(QUEUE, 0, 8, 2, flags=1), -errno.EINVAL)
    for wrong in (1, 3):
        expect("an LRU map's flags", create(LRU_HASH, 4, 8, 2, flags=wrong), -ENOTSUPP)
    expect("an LRU map's flags", create(LRU_HASH, 4, 8, 2, flags=2) >= 0, True)
    shut = create(HASH, 4, 8, 2, flags=1)
    expect("freeze", bpf(FREEZE, struct.pack("<I", shut)), 0)
    expect("freeze again", bpf(FREEZE, struct.pack("<I", shut)), -errno.EPERM)
    expect("set what is frozen", element(UPDATE, shut, key(0), value(1)), -errno.EPERM)
    expect("look up with flags", element(LOOKUP, shut, key(0), value(0), 1), -errno.EINVAL)
    expect("a ring's flags", create(RING, 0, 0, 4096, flags=WRONLY), -errno.EINVAL)


def hashes() -> int:
    fd = create(HASH, 4, 8, 4, name=b"table")
    expect("absent", lookup(fd, key(1), 8), -errno.ENOENT)
    expect("exist", element(UPDATE, fd, key(1), value(1), EXIST), -errno.ENOENT)
    keys, values = b"".join(map(key, range(5))), b"".join(map(value, range(10, 15)))
    expect("batch into a full map", batch(WRITE_BATCH, fd, 5, keys, values), (-errno.E2BIG, 4))
    out_keys, out_values = ctypes.create_string_buffer(16), ctypes.create_string_buffer(32)
    cursor = ctypes.create_string_buffer(8)
    first = batch(READ_BATCH, fd, 3, out_keys, out_values, None, cursor)
    expect("first batch", (first, out_keys.raw[:12]), ((0, 3), keys[:12]))
    expect("values", out_values.raw[:24], values[:24])
    rest = batch(READ_BATCH, fd, 3, out_keys, out_values, cursor, cursor)
    expect("last batch", (rest, out_keys.raw[:4]), ((-errno.ENOENT, 1), key(3)))
    expect("taken", lookup(fd, key(3), 8, TAKE), value(13))
    expect("taken before", lookup(fd, key(3), 8, TAKE), -errno.ENOENT)
    expect("deleted", batch(DELETE_BATCH, fd, 2, key(0) + key(1), None), (0, 2))
    expect("left", (lookup(fd, key(2), 8), lookup(fd, key(0), 8)), (value(12), -errno.ENOENT))
    expect("frozen", bpf(FREEZE, struct.pack("<I", fd)), 0)
    expect("frozen", element(UPDATE, fd, key(2), value(1)), -errno.EPERM)
    return fd


COUNT = """
stw [%r10-4], 0
lddw %r1, map_fd {fd}
mov %r2, %r10
add %r2, -4
call 1
jeq %r0, 0, none
mov %r1, 1
lock add [%r0], %r1
none:
mov %r0, 0
exit
"""


def attach(fd: int) -> None:
    log = ctypes.create_string_buffer(4096)
    unsafe = "stxdw [%r10-8], %r1\nldxdw %r0, [%r10-600]\nexit"
    expect("unsafe", load(KPROBE, unsafe, b"cuda__unsafe", log), -errno.EACCES)
    expect("log", b"cuda__unsafe: insn 1" in log.value, True)
    expect("stray map", load(KPROBE, COUNT.format(fd=0), b"cuda__stray"), -errno.EBADF)
    program = load(KPROBE, COUNT.format(fd=fd), b"cuda__count")
    event = probe_event(KERNEL, leaving=True)
    expect("link", bpf(LINK, struct.pack("<IIII", program, event, PERF_EVENT, 0)) >= 0, True)
    place = probe_event(b"k<\0", leaving=False)  # no section name could be like this
    link = bpf(LINK, struct.pack("<IIII", program, place, PERF_EVENT, 0))
    expect("bad place", link, -errno.EACCES)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    ask_for_features()
    access()
    counts, table = arrays(), hashes()
    per_cpu = create(PER_CPU, 4, 8, 1, name=b"per_cpu")
    with open("/sys/devices/system/cpu/possible") as file:
        cpus = int(file.read().strip().rpartition("-")[2]) + 1
    expect("per CPU", lookup(per_cpu, key(0), 8 * cpus), bytes(8 * cpus))
    attach(counts)
    signal.sigwait([signal.SIGINT])
    expect("threads", lookup(counts, key(0), 8), value(int(sys.argv[1])))
    expect("kept", lookup(counts, key(1), 8), value(100))
    expect("kept", lookup(table, key(2), 8), value(12))
    print("done", flush=True)


if __name__ == "__main__":
    main()
