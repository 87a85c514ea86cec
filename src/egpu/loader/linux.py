"""Programs of a loader that Linux runs (uprobes), beside those of the GPU.

Linux has copies of the arrays that they use.  Neither side sees what the other writes, so only maps
that both sides add to are shared: a reader gets the sum (``merged``).  Needs the rights for bpf(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from dataclasses import dataclass, field, replace

from egpu.bpf.insn import encode
from egpu.bpf.isa import LD_IMM64, instructions
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import Insn, MapSpec, PseudoSrc
from egpu.errors import UnsupportedError

# Linux uapi: system calls of x86-64, commands of bpf(2), perf_event_open(2)
_NR_BPF, _NR_PERF_EVENT_OPEN = 321, 298
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD = 0, 1, 2, 5
_ARRAY, _KPROBE = 2, 2
_SET_BPF, _ENABLE = 0x40042408, 0x2400
_CLOEXEC = 8
_ATTR_SIZE = 144
_EVENT_SIZE = 128
_UPROBES = "/sys/bus/event_source/devices/uprobe"
_LOG_SIZE = 1 << 16
_ARRAYS = frozenset(
    {
        MapType.ARRAY,
        MapType.GPU_ARRAY,
        MapType.GPU_HOST_ARRAY,
        MapType.GPU_KERNEL_SHARED_ARRAY,
    }
)


@dataclass(slots=True)
class LinuxArray:
    """Linux's copy of an array.  ``base`` has what the loader wrote into both copies."""

    fd: int
    value_size: int
    base: dict[bytes, bytes] = field(default_factory=dict)

    def update(self, key: bytes, value: bytes) -> None:
        """Write to Linux's copy what was written to the GPU's."""
        own = ctypes.create_string_buffer(value, len(value))
        name = ctypes.create_string_buffer(key, len(key))
        attr = struct.pack("<I4xQQQ", self.fd, ctypes.addressof(name), ctypes.addressof(own), 0)
        _bpf(_MAP_UPDATE, attr)
        self.base[key] = value

    def merged(self, key: bytes, value: bytes) -> bytes:
        """``value``, the GPU's, with what Linux's programs added; in words of 8 bytes, or of 4."""
        own = ctypes.create_string_buffer(self.value_size)
        name = ctypes.create_string_buffer(key, len(key))
        attr = struct.pack("<I4xQQQ", self.fd, ctypes.addressof(name), ctypes.addressof(own), 0)
        _bpf(_MAP_LOOKUP, attr)
        base = self.base.get(key, bytes(self.value_size))
        size = 8 if self.value_size % 8 == 0 else 4
        out = bytearray()
        for at in range(0, self.value_size, size):
            here, there, before = (
                int.from_bytes(data[at : at + size], "little") for data in (value, own.raw, base)
            )
            out += ((here + there - before) % (1 << 8 * size)).to_bytes(size, "little")
        return bytes(out)


class LinuxSide:
    """Loads and attaches.  Close it to take everything out."""

    def __init__(self) -> None:
        self.arrays: dict[int, LinuxArray] = {}  # by the loader's number of the map
        self._files: list[int] = []

    def attach(
        self,
        code: tuple[Insn, ...],
        maps: dict[int, MapSpec],
        place: str,
        *,
        leaving: bool,
        license: str,
    ) -> None:
        """Run ``code``, whose maps are indices into ``maps``, at ``place`` ("path:0xoffset").

        UnsupportedError for what Linux or this machine does not allow.
        """
        if platform.machine() != "x86_64":
            raise UnsupportedError("uprobes of a loader", needs="an x86-64 machine")
        try:
            arrays = [self._array(number, spec) for number, spec in maps.items()]
            program = _load(_with_files(code, arrays), license)
            self._files.append(program)
            self._files.append(_uprobe(program, place, leaving=leaving))
        except OSError as error:
            raise UnsupportedError(
                f"a uprobe at {place} ({error.strerror})", needs="root, and Linux with uprobes"
            ) from error

    def close(self) -> None:
        """Detach and forget."""
        for file in (*self._files, *(array.fd for array in self.arrays.values())):
            os.close(file)
        self._files.clear()
        self.arrays.clear()

    def _array(self, number: int, spec: MapSpec) -> LinuxArray:
        if number in self.arrays:
            return self.arrays[number]
        if spec.type not in _ARRAYS or spec.value_size % 4:
            raise UnsupportedError(
                f"map {spec.name} ({spec.type.name}) in programs of Linux and of the GPU",
                needs="an array of words",
            )
        attr = struct.pack("<5I", _ARRAY, 4, spec.value_size, spec.max_entries, 0)
        made = LinuxArray(_bpf(_MAP_CREATE, attr), spec.value_size)
        self.arrays[number] = made
        return made


def _bpf(command: int, attr: bytes) -> int:
    """OSError if Linux refuses."""
    buffer = ctypes.create_string_buffer(attr, _ATTR_SIZE)
    words = (ctypes.c_long(command), ctypes.byref(buffer), ctypes.c_long(_ATTR_SIZE))
    return _call(_NR_BPF, *words)


def _call(number: int, *words: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _with_files(code: tuple[Insn, ...], arrays: list[LinuxArray]) -> bytes:
    out = list(code)
    for pc, insn, _ in instructions(code):
        if insn.opcode == LD_IMM64 and insn.src == PseudoSrc.MAP_INDEX:
            out[pc] = replace(insn, src=PseudoSrc.MAP_FD, imm=arrays[insn.imm].fd)
        elif insn.opcode == LD_IMM64 and insn.src == PseudoSrc.MAP_INDEX_VALUE:
            out[pc] = replace(insn, src=PseudoSrc.MAP_FD_VALUE, imm=arrays[insn.imm].fd)
    return encode(out)


def _load(code: bytes, license: str) -> int:
    """The program's descriptor; UnsupportedError with the last line of Linux's log if refused."""
    text = ctypes.create_string_buffer(code, len(code))
    name = ctypes.create_string_buffer(license.encode())
    log = ctypes.create_string_buffer(_LOG_SIZE)
    head = struct.pack(
        "<IIQQ", _KPROBE, len(code) // 8, ctypes.addressof(text), ctypes.addressof(name)
    )
    try:
        return _bpf(_PROG_LOAD, head)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise
        words = struct.pack("<IIQ", 1, _LOG_SIZE, ctypes.addressof(log))
        try:
            return _bpf(_PROG_LOAD, head + words)
        except OSError:
            lines = [line for line in log.value.decode("utf-8", "replace").splitlines() if line]
            why = next((line for line in reversed(lines) if "processed" not in line), "no reason")
            raise UnsupportedError(f"a program that Linux refuses ({why})") from error


def _uprobe(program: int, place: str, *, leaving: bool) -> int:
    """An enabled event that runs ``program`` in every process that comes to ``place``."""
    path, _, offset = place.rpartition(":")
    with open(f"{_UPROBES}/type", encoding="ascii") as file:
        kind = int(file.read())
    config = 0
    if leaving:
        with open(f"{_UPROBES}/format/retprobe", encoding="ascii") as file:
            config = 1 << int(file.read().strip().rpartition(":")[2])
    name = ctypes.create_string_buffer(os.fsencode(path))
    # struct perf_event_attr: type, size, config, ..., config1 (the path) at 56, config2 at 64
    head = struct.pack("<IIQ", kind, _EVENT_SIZE, config).ljust(56, b"\0")
    attr = head + struct.pack("<QQ", ctypes.addressof(name), int(offset, 16))
    buffer = ctypes.create_string_buffer(attr, _EVENT_SIZE)
    words = (ctypes.c_long(word) for word in (-1, 0, -1, _CLOEXEC))  # every process, from CPU 0
    event = _call(_NR_PERF_EVENT_OPEN, ctypes.byref(buffer), *words)
    try:
        fcntl.ioctl(event, _SET_BPF, program)
        fcntl.ioctl(event, _ENABLE, 0)
    except OSError:
        os.close(event)
        raise
    return event
