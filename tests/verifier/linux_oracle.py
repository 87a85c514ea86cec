"""The Linux verifier as an oracle, by the bpf system call alone (x86-64 and arm64)."""

import ctypes
import functools
import os
import platform
import struct
from dataclasses import replace

from egpu.bpf.asm import assemble
from egpu.bpf.insn import encode
from egpu.bpf.isa import CALL, LD_IMM64, CallSrc, instructions
from egpu.bpf.program import PseudoSrc

_CALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _BTF_LOAD, _MAP_FREEZE = 0, 2, 5, 18, 22
_ARRAY, _RINGBUF, SOCKET_FILTER, TRACEPOINT = 2, 27, 1, 5
STRICT_ALIGNMENT = 1  # a flag of loading
_OF_MAPS = frozenset({12, 13})
_LEAKY = (21, 38)  # CAP_SYS_ADMIN and CAP_PERFMON, with which programs may leak pointers
_CAPSET = {"x86_64": 126, "aarch64": 91}
_READ_ONLY = 1 << 7  # BPF_F_RDONLY_PROG
_ACCESS_BY_PROGRAMS = _READ_ONLY | 1 << 8  # or BPF_F_WRONLY_PROG
_ATTRIBUTES = 160


def _bpf(command, attributes):
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(bytes(attributes).ljust(_ATTRIBUTES, b"\0"))
    result = library.syscall(_CALLS[platform.machine()], command, buffer, _ATTRIBUTES)
    return result, ctypes.get_errno()


def load(code, kind=SOCKET_FILTER, flags=0):
    """Whether Linux takes ``code`` (encoded), and its log if not."""
    instructions = ctypes.create_string_buffer(code)
    licence = ctypes.create_string_buffer(b"GPL")
    program = struct.pack(
        "<IIQQ",
        kind,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
    )
    tail = struct.pack("<II", 0, flags)
    functions = function_information(code)
    if functions:
        # Up to prog_btf_fd: name, interface, expected attach type.
        described = struct.pack("<II", btf(), 8)
        known = ctypes.create_string_buffer(functions)
        described += struct.pack("<QI", ctypes.addressof(known), len(functions) // 8)
        tail += bytes(24) + described
    # The verdict first, without a log that could overflow.
    descriptor, error = _bpf(_PROG_LOAD, program + bytes(16) + tail)
    if descriptor >= 0:
        os.close(descriptor)
        return True, ""
    log = ctypes.create_string_buffer(1 << 20)
    logged = struct.pack("<IIQ", 1, len(log), ctypes.addressof(log))
    _bpf(_PROG_LOAD, program + logged + tail)
    return False, f"{os.strerror(error)}: {log.value.decode(errors='replace')[-4000:]}"


# The one type that a function has to have for Linux to let its address be taken: int f(), static.
_INT, _FUNCTION, _PROTOTYPE = 1, 12, 13  # kinds of BTF types
_TYPES = struct.pack("<IIII", 0, _INT << 24, 4, 1 << 24 | 32)
_TYPES += struct.pack("<III", 0, _PROTOTYPE << 24, 1) + struct.pack("<III", 1, _FUNCTION << 24, 2)
_NAMES = b"\0f\0"


@functools.cache
def btf():
    """A file descriptor of BTF whose type 3 is a static function, open until exit."""
    sizes = (24, 0, len(_TYPES), len(_TYPES), len(_NAMES))
    data = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, *sizes) + _TYPES + _NAMES
    buffer = ctypes.create_string_buffer(data)
    attributes = struct.pack("<QQI", ctypes.addressof(buffer), 0, len(data))
    descriptor, error = _bpf(_BTF_LOAD, attributes)
    if descriptor < 0:
        raise OSError(error, os.strerror(error))
    return descriptor


def function_information(code):
    """bpf_func_info of each function of a program that takes the address of one, else nothing."""
    starts, taken, pc = {0}, False, 0
    slots = [struct.unpack_from("<BBhi", code, at) for at in range(0, len(code), 8)]
    while pc < len(slots):
        opcode, registers, _, immediate = slots[pc]
        address = opcode == LD_IMM64 and registers >> 4 == PseudoSrc.CODE
        if address or (opcode == CALL and registers >> 4 == CallSrc.LOCAL):
            starts.add(pc + 1 + immediate)
        taken |= address
        pc += 2 if opcode == LD_IMM64 else 1
    if not taken:
        return b""
    return b"".join(struct.pack("<II", at, 3) for at in sorted(starts) if 0 <= at < len(slots))


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
    flags = _READ_ONLY if spec.read_only else spec.flags & _ACCESS_BY_PROGRAMS
    kind = _STAND_IN_MAPS.get(spec.type, spec.type)
    # A ring whose records have a type in BTF: Linux knows no size of them.
    sizes = (0, 0) if kind == _RINGBUF else (spec.key_size, spec.value_size)
    # A map of maps holds descriptors, and has an example of what they are.
    inner = array(8) if kind in _OF_MAPS else 0
    shape = (kind, sizes[0], 4 if inner else sizes[1], spec.max_entries, flags, inner)
    descriptor, error = _bpf(_MAP_CREATE, struct.pack("<IIIIII", *shape))
    if descriptor < 0:
        raise OSError(error, os.strerror(error))
    if spec.read_only:
        content = (spec.initial or b"").ljust(spec.value_size, b"\0")
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(content)
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


# What Linux does not know, and what stands in for it (docs/verifier.md).
_STAND_IN_MAPS = {1501: 1, 1502: 2, 1503: 2, 1504: 2, 1512: 2, 1513: 2, 1527: 27}
_STAND_IN_HELPERS = {160: 5, 173: 174, 502: 5, 506: 5, 509: 8, 510: 8, 511: 8, 601: 8}
# A function that writes through r1 to r3 what nobody knows.
_VECTOR_BODY = """
mov %r6, %r1
mov %r7, %r2
mov %r8, %r3
call 5
stxdw [%r6], %r0
stxdw [%r7], %r0
stxdw [%r8], %r0
mov %r0, 0
exit
"""
_MAXIMUM_BODY = "lock add [%r1], %r2\nmov %r0, 0\nexit"
# The same for r3 alone, and one that reads a text.
_ARGUMENT_BODY = "mov %r6, %r3\ncall 5\nstxdw [%r6], %r0\nmov %r0, 0\nexit"
_TEXT_BODY = "ldxb %r0, [%r1]\nexit"
_STAND_IN_FUNCTIONS = {
    _VECTOR_BODY: frozenset({503, 504, 505, 508}),
    _MAXIMUM_BODY: {600},
    _ARGUMENT_BODY: {183},
    _TEXT_BODY: {501},
}


def stood_in(code):
    """``code`` with helpers from 501 replaced by what Linux has."""
    out = list(code)
    for pc, insn, _ in instructions(code):
        if _is_helper(insn, _STAND_IN_HELPERS):
            out[pc] = replace(insn, imm=_STAND_IN_HELPERS[insn.imm])
    for body, numbers in _STAND_IN_FUNCTIONS.items():
        calls = [pc for pc, insn, _ in instructions(code) if _is_helper(insn, numbers)]
        for pc in calls:
            out[pc] = replace(code[pc], src=CallSrc.LOCAL, imm=len(out) - pc - 1)
        if calls:
            out += assemble(body)
    return tuple(out)


def _is_helper(insn, numbers):
    return insn.opcode == CALL and insn.src == CallSrc.HELPER and insn.imm in numbers


def program_bytes(program):
    """A whole probe for Linux: a tracepoint program may read its context as freely as ours."""
    return encode(with_descriptors(stood_in(program.code), program.maps))


def without_leaks(jobs):
    """Verdicts of ``load`` on each of ``jobs`` by a child that may load programs and not leak."""
    jobs = list(jobs)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _drop_capabilities()
            for job in jobs:
                accepted, log = load(*job)
                answer = b"+" if accepted else log.encode(errors="replace").replace(b"\0", b"")
                os.write(writing, len(answer).to_bytes(4, "little") + answer)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    verdicts = []
    with os.fdopen(reading, "rb") as pipe:
        while head := pipe.read(4):
            answer = pipe.read(int.from_bytes(head, "little"))
            verdicts.append((answer == b"+", "" if answer == b"+" else answer.decode()))
    _, status = os.waitpid(child, 0)
    if status or len(verdicts) != len(jobs):
        raise OSError(f"the child gave {len(verdicts)} of {len(jobs)} verdicts")
    return verdicts


def _drop_capabilities():
    library = ctypes.CDLL(None, use_errno=True)
    words = [0xFFFFFFFF, 0xFFFFFFFF]
    for capability in _LEAKY:
        words[capability // 32] &= ~(1 << capability % 32)
    header = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0))
    current = ctypes.create_string_buffer(24)
    number = _CAPSET[platform.machine()]
    if library.syscall(number - 1, header, current):  # capget
        raise OSError(ctypes.get_errno(), "capget")
    sets = struct.unpack("<6I", current.raw)
    kept = [value & words[index // 3] for index, value in enumerate(sets)]
    if library.syscall(number, header, ctypes.create_string_buffer(struct.pack("<6I", *kept))):
        raise OSError(ctypes.get_errno(), "capset")


def accepts(code, size):
    """Whether Linux takes ``code`` with ``size`` bytes of memory behind r1, and its log if not."""
    return load(encode((*prologue(size), *code)))
