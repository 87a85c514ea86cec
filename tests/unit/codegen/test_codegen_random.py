"""Random programs: the host JIT and PTX on the simulated device give what the interpreter gives."""

import random

import pytest
from codegen_programs import executable

from egpu.bpf.asm import disassemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import run
from egpu.bpf.isa import (
    EXIT,
    FORMS,
    LD_IMM64,
    SIZE_BYTES,
    AluOp,
    AtomicOp,
    Class,
    JmpOp,
    Kind,
    Mode,
    Size,
)
from egpu.bpf.program import Insn
from egpu.codegen import compile_executor_ptx, run_host
from egpu.sim import run_executor
from egpu.verifier import Policy, verify

MEMORY = 64
REGISTERS = range(9)  # r9 stays the memory pointer
INTERESTING = (0, 1, -1, 2, 7, 31, 32, 33, 63, 64, 127, 128, 255, 256, -128, 32767, -32768)
INTERESTING += (2**31 - 1, -(2**31))
ALU = [form for form in FORMS.values() if form.kind in (Kind.ALU, Kind.BYTE_ORDER)]
# may_goto counts turns, of which straight code has none: test_codegen_budgets.py has it.
COMPARISONS = [op for op in JmpOp if op not in (JmpOp.JA, JmpOp.CALL, JmpOp.EXIT, JmpOp.JCOND)]
JUMPS = [form for form in FORMS.values() if form.kind is Kind.JUMP and form.op in COMPARISONS]


def immediate(rng):
    return rng.choice(INTERESTING) if rng.random() < 0.7 else rng.randrange(-(2**31), 2**31)


def arithmetic(rng):
    form = rng.choice(ALU)
    src = rng.choice(REGISTERS) if form.register else 0
    off = rng.choice(sorted(form.off)) if isinstance(form.off, frozenset) else 0
    if isinstance(form.imm, frozenset):
        imm = rng.choice(sorted(form.imm))
    else:
        imm = 0 if form.register or form.op is AluOp.NEG else immediate(rng)
    return [Insn(form.opcode, rng.choice(REGISTERS), src, off, imm)]


def access(rng):
    """A load, store or atomic on the memory block or the stack; plain ones may be unaligned."""
    size = rng.choice(list(Size))
    width = SIZE_BYTES[size]
    base, low = rng.choice(((9, 0), (10, -MEMORY)))
    register = rng.choice(REGISTERS)
    place = low + rng.randrange(0, MEMORY - width + 1)
    aligned = low + rng.randrange(0, MEMORY // width) * width
    if base == 10:
        place = aligned
    choice = rng.randrange(5)
    if choice == 0:
        return [Insn(Class.ST | Mode.MEM | size, base, 0, place, immediate(rng))]
    if choice == 1:
        return [Insn(Class.STX | Mode.MEM | size, base, register, place)]
    if choice == 2 and width >= 4:
        op = rng.choice(list(AtomicOp))
        return [Insn(Class.STX | Mode.ATOMIC | size, base, register, aligned, op)]
    mode = Mode.MEMSX if choice == 3 and size is not Size.DW else Mode.MEM
    return [Insn(Class.LDX | mode | size, register, base, place)]


def jump(rng, room):
    form = rng.choice(JUMPS)
    src = rng.choice(REGISTERS) if form.register else 0
    imm = 0 if form.register else immediate(rng)
    return [Insn(form.opcode, rng.choice(REGISTERS), src, rng.randrange(room + 1), imm)]


def constant(register, value):
    low, high = value & 0xFFFFFFFF, value >> 32
    signed = [part - (1 << 32) if part >> 31 else part for part in (low, high)]
    return [Insn(LD_IMM64, register, 0, 0, signed[0]), Insn(0, 0, 0, 0, signed[1])]


def random_program(rng, length=40):
    head = [Insn(Class.ALU64 | AluOp.MOV | 8, 9, 1)]
    for register in REGISTERS:
        value = rng.choice(INTERESTING) if rng.random() < 0.5 else rng.getrandbits(64)
        head += constant(register, value & 2**64 - 1)
    for place in range(-MEMORY, 0, 8):
        head.append(Insn(Class.STX | Mode.MEM | Size.DW, 10, rng.choice(REGISTERS), place))
    body = []
    while len(body) < length:
        kind = rng.random()
        if kind < 0.6:
            body += arithmetic(rng)
        elif kind < 0.85:
            body += access(rng)
        else:
            body += jump(rng, min(5, length - len(body) - 1))
    tail = []
    for register in REGISTERS[1:]:  # r0 depends on every register
        tail.append(Insn(Class.ALU64 | AluOp.MUL, 0, 0, 0, 31))
        tail.append(Insn(Class.ALU64 | AluOp.ADD | 8, 0, register))
    for place in range(-MEMORY, 0, 8):  # and on the stack
        tail.append(Insn(Class.LDX | Mode.MEM | Size.DW, 1, 10, place))
        tail.append(Insn(Class.ALU64 | AluOp.MUL, 0, 0, 0, 31))
        tail.append(Insn(Class.ALU64 | AluOp.ADD | 8, 0, 1))
    return tuple(head + body + tail + [Insn(EXIT)])


def verified_program(seed):
    rng = random.Random(seed)
    program = program_from_code(random_program(rng), f"random{seed}")
    verified = verify(program, policy=Policy.EXECUTOR, memory_size=MEMORY)
    return verified, rng


@pytest.mark.parametrize("seed", range(40))
def test_host(seed):
    verified, rng = verified_program(seed)
    for _ in range(2):
        memory = rng.randbytes(MEMORY)
        expected, got = bytearray(memory), bytearray(memory)
        answer = run(verified.program, expected)
        listing = "\n".join(disassemble(verified.program.code))
        assert (run_host(verified, got), got) == (answer, expected), listing


@pytest.mark.parametrize("seed", range(100, 112))
def test_simulated_device(seed):
    verified, rng = verified_program(seed)
    memories = [rng.randbytes(MEMORY) for _ in range(32)]
    expected = []
    for memory in memories:
        after = bytearray(memory)
        expected.append((run(verified.program, after), bytes(after)))
    assert run_executor(compile_executor_ptx(verified), memories) == expected


def test_calls_keep_frames_and_registers():
    text = """
    mov %r6, 1
    mov %r7, 2
    stdw [%r10-8], 5
    mov %r1, %r10
    add %r1, -8
    call local f
    ldxdw %r1, [%r10-8]
    add %r0, %r1
    add %r0, %r6
    add %r0, %r7
    exit
    f: mov %r6, 100
    stdw [%r10-8], 1000
    ldxdw %r7, [%r1]
    add %r7, 3
    stxdw [%r1], %r7
    mov %r2, %r10
    add %r2, -8
    call local g
    ldxdw %r0, [%r10-8]
    exit
    g: ldxdw %r3, [%r1]
    ldxdw %r4, [%r2]
    add %r3, %r4
    stxdw [%r2], %r3
    mov %r0, 0
    exit
    """
    verified = executable(text)
    assert run_host(verified, bytearray()) == run(verified.program) == 1008 + 8 + 1 + 2
    assert run_executor(compile_executor_ptx(verified), [b""]) == [(1019, b"")]
    assert ".local" not in compile_executor_ptx(verified)


def test_jump_predicates_are_all_tried():
    seen = {form.op for form in JUMPS}
    assert seen == set(COMPARISONS)
