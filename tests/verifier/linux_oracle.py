"""The Linux verifier as an oracle, by the bpf system call alone (x86-64 and arm64)."""

import ctypes
import functools
import os
import platform
import struct

from egpu.bpf.asm import assemble
from egpu.bpf.insn import encode

_CALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _PROG_LOAD = 0, 5
_ARRAY, _SOCKET_FILTER = 2, 1
_ATTRIBUTES = 160


def _bpf(command, attributes):
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(bytes(attributes).ljust(_ATTRIBUTES, b"\0"))
    result = library.syscall(_CALLS[platform.machine()], command, buffer, _ATTRIBUTES)
    return result, ctypes.get_errno()


def load(code):
    """Whether Linux takes ``code`` (encoded), and its log if not."""
    instructions = ctypes.create_string_buffer(code)
    licence = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(1 << 16)
    attributes = struct.pack(
        "<IIQQIIQ",
        _SOCKET_FILTER,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        1,
        len(log),
        ctypes.addressof(log),
    )
    descriptor, error = _bpf(_PROG_LOAD, attributes)
    if descriptor >= 0:
        os.close(descriptor)
        return True, ""
    return False, f"{os.strerror(error)}: {log.value.decode(errors='replace')[-600:]}"


@functools.cache
def unavailable():
    """Why the oracle cannot be asked here, "" if it can."""
    if platform.system() != "Linux" or platform.machine() not in _CALLS:
        return f"no bpf(2) known on {platform.system()} {platform.machine()}"
    accepted, log = load(encode(assemble("mov %r0, 0\nexit")))
    return "" if accepted else f"the kernel does not let us load programs ({log.strip()})"


@functools.cache
def array(size):
    """A file descriptor of an array map with one value of ``size`` bytes, open until exit."""
    descriptor, error = _bpf(_MAP_CREATE, struct.pack("<IIII", _ARRAY, 4, size, 1))
    if descriptor < 0:
        raise OSError(error, os.strerror(error))
    return descriptor


def prologue(size):
    """Instructions that set r1 to ``size`` bytes of memory (0 if none) and r2 to ``size``."""
    if not size:
        return assemble("mov %r1, 0\nmov %r2, 0\nexit")[:-1]
    text = f"""
    stw [%r10-4], 0
    lddw %r1, map_fd {array(size)}
    mov %r2, %r10
    add %r2, -4
    call 1
    jne %r0, 0, found
    mov %r0, 0
    exit
    found:
    mov %r1, %r0
    mov %r2, {size}
    exit
    """
    return assemble(text)[:-1]


def accepts(code, size):
    """Whether Linux takes ``code`` with ``size`` bytes of memory behind r1, and its log if not."""
    return load(encode((*prologue(size), *code)))
