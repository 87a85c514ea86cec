"""The Linux verifier as an oracle, by the bpf system call alone (x86-64 and arm64)."""

import ctypes
import functools
import os
import platform
import struct
from dataclasses import replace

from egpu.bpf.asm import assemble
from egpu.bpf.insn import encode
from egpu.bpf.isa import LD_IMM64
from egpu.bpf.program import PseudoSrc

_CALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _MAP_FREEZE = 0, 2, 5, 22
_ARRAY, _SOCKET_FILTER = 2, 1
_READ_ONLY = 1 << 7  # BPF_F_RDONLY_PROG
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
    program = struct.pack(
        "<IIQQ",
        _SOCKET_FILTER,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
    )
    # The verdict first, without a log that could overflow.
    descriptor, error = _bpf(_PROG_LOAD, program)
    if descriptor >= 0:
        os.close(descriptor)
        return True, ""
    log = ctypes.create_string_buffer(1 << 20)
    _bpf(_PROG_LOAD, program + struct.pack("<IIQ", 1, len(log), ctypes.addressof(log)))
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


@functools.cache
def created(spec):
    """A file descriptor of the map that ``spec`` describes, open until exit."""
    flags = _READ_ONLY if spec.read_only else 0
    shape = (spec.type, spec.key_size, spec.value_size, spec.max_entries, flags)
    descriptor, error = _bpf(_MAP_CREATE, struct.pack("<IIIII", *shape))
    if descriptor < 0:
        raise OSError(error, os.strerror(error))
    if spec.read_only:
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(spec.initial)
        addresses = ctypes.addressof(key), ctypes.addressof(value)
        updated, error = _bpf(_MAP_UPDATE, struct.pack("<IIQQQ", descriptor, 0, *addresses, 0))
        frozen, _ = _bpf(_MAP_FREEZE, struct.pack("<I", descriptor))
        if updated or frozen:
            raise OSError(error, "the read-only map cannot be filled")
    return descriptor


_BY_DESCRIPTOR = {
    PseudoSrc.MAP_INDEX: PseudoSrc.MAP_FD,
    PseudoSrc.MAP_INDEX_VALUE: PseudoSrc.MAP_FD_VALUE,
}


def with_descriptors(code, maps):
    """``code`` with map indices replaced by file descriptors of real maps."""
    out = []
    for insn in code:
        source = _BY_DESCRIPTOR.get(insn.src) if insn.opcode == LD_IMM64 else None
        if source is None or not 0 <= insn.imm < len(maps):
            out.append(insn)
        else:
            out.append(replace(insn, src=source, imm=created(maps[insn.imm])))
    return tuple(out)


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
