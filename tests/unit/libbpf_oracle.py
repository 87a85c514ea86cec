"""What libbpf makes of an object's CO-RE relocations, by its shared library."""

import ctypes
import functools
import struct
from pathlib import Path

SOCKET_FILTER = 1
POISON = 0x0BAD2310  # the helper number that libbpf puts where something is missing


@functools.cache
def library():
    """libbpf, None if it is not there."""
    try:
        lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        return None
    pointer = ctypes.c_void_p
    lib.bpf_object__open_file.restype = pointer
    lib.bpf_object__open_file.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    lib.bpf_object__next_program.restype = pointer
    lib.bpf_object__next_program.argtypes = [pointer, pointer]
    lib.bpf_program__insns.restype = pointer
    lib.bpf_program__insns.argtypes = [pointer]
    lib.bpf_program__insn_cnt.restype = ctypes.c_size_t
    lib.bpf_program__insn_cnt.argtypes = [pointer]
    lib.bpf_program__name.restype = ctypes.c_char_p
    lib.bpf_program__name.argtypes = [pointer]
    lib.bpf_program__set_type.argtypes = [pointer, ctypes.c_int]
    lib.bpf_object__load.argtypes = [pointer]
    lib.bpf_object__close.argtypes = [pointer]
    lib.libbpf_set_print.argtypes = [pointer]
    lib.libbpf_set_print(None)
    return lib


def unavailable():
    """Why libbpf cannot be asked here, "" if it can."""
    if library() is None:
        return "no libbpf.so.1 on this machine"
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no BTF"
    return ""


def relocated(path, btf=None):
    """The instructions of each program of the object as libbpf would load them, by name.

    ``btf`` is a file with the kernel's types.  Loading may fail afterwards: only the relocated
    instructions are wanted.  None if the kernel does not let us load anything at all.
    """
    lib = library()
    name = ctypes.create_string_buffer(str(btf).encode()) if btf else None
    address = ctypes.addressof(name) if name else 0
    options = struct.pack("<QQB7xQI4xQQQQI4x", 80, 0, 0, 0, 0, 0, address, 0, 0, 0)
    opened = lib.bpf_object__open_file(str(path).encode(), options)
    if not opened:
        return None
    programs, program = [], lib.bpf_object__next_program(opened, None)
    while program:
        lib.bpf_program__set_type(program, SOCKET_FILTER)
        programs.append(program)
        program = lib.bpf_object__next_program(opened, program)
    before = {p: _code(lib, p) for p in programs}
    lib.bpf_object__load(opened)
    after = {p: _code(lib, p) for p in programs}
    names = {p: lib.bpf_program__name(p).decode() for p in programs}
    lib.bpf_object__close(opened)
    return None if before == after else {names[p]: after[p] for p in programs}


def _code(lib, program):
    size = 8 * lib.bpf_program__insn_cnt(program)
    return ctypes.string_at(lib.bpf_program__insns(program), size)
