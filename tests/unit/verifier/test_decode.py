"""Decoding against the structural check, and what instructions read and write."""

import itertools

import pytest

from egpu.bpf import isa
from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.program import Insn
from egpu.verifier import Policy, liveness, structure
from egpu.verifier.decode import decode
from egpu.verifier.report import Refusal

NUMBERS = (-(1 << 31), -1, 0, 1, 8, 16, 31, 32, 63, 64, 0xA0, 0xF1, (1 << 31) - 1)
OFFSETS = (-1, 0, 1, 8, 16, 32)


@pytest.mark.parametrize("opcode", range(256))
def test_fast_check_agrees_with_the_slow_one(opcode):
    """Under EXECUTOR an instruction is refused exactly where check_fields gives a reason."""
    second = Insn(0, 0, 0, 0, 0)
    for dst, src, off, imm in itertools.product((0, 9, 10, 11), (0, 1, 10, 11), OFFSETS, NUMBERS):
        insn = Insn(opcode, dst, src, off, imm)
        wide = opcode == isa.LD_IMM64
        reason = isa.check_fields(insn, second if wide else None)
        assert refusal_of((insn, second) if wide else (insn,)) == reason, insn


def refusal_of(code):
    """Why decoding refuses ``code``, None if it does not."""
    try:
        decode(code, Policy.EXECUTOR)
    except Refusal as refusal:
        return refusal.message
    return None


@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        ("mov %r3, 1", {}, {3}),
        ("mov %r3, %r4", {4}, {3}),
        ("add %r3, 1", {3}, {3}),
        ("add32 %r3, %r4", {3, 4}, {3}),
        ("neg %r3", {3}, {3}),
        ("be16 %r3", {3}, {3}),
        ("lddw %r3, 5", {}, {3}),
        ("ldxw %r3, [%r4]", {4}, {3}),
        ("stxw [%r3], %r4", {3, 4}, {}),
        ("stw [%r3], 4", {3}, {}),
        ("lock add [%r3], %r4", {3, 4}, {}),
        ("lock fetch add [%r3], %r4", {3, 4}, {4}),
        ("lock cmpxchg [%r3], %r4", {0, 3, 4}, {0}),
        ("jeq %r3, 1, +0", {3}, {}),
        ("jlt32 %r3, %r4, +0", {3, 4}, {}),
        ("ja +0", {}, {}),
        ("call 5", {}, {0, 1, 2, 3, 4, 5}),
        ("call 1", {1, 2}, {0, 1, 2, 3, 4, 5}),
        ("call 600", {1, 2}, {0, 1, 2, 3, 4, 5}),
        ("exit", {0}, {}),
    ],
)
def test_registers(text, reads, writes):
    step = decode(assemble(text + "\nexit"), Policy.EXECUTOR)[0]
    assert step.reads == sum(1 << register for register in reads)
    assert step.writes == sum(1 << register for register in writes)


def test_halves_of_a_stack_slot_live_apart():
    text = "stw [%r10-8], 1\nstw [%r10-4], 2\nldxw %r1, [%r10-8]\nldxdw %r0, [%r10-8]\nexit"
    code = program_from_code(assemble(text))
    entry = liveness.analyse(structure.analyse(code, Policy.EXECUTOR)).entry
    # bit 0 is r10-4, bit 1 r10-8
    assert [live.slots for live in entry] == [0b00, 0b10, 0b11, 0b11, 0b00]


def test_a_smaller_store_leaves_its_half_live():
    text = "sth [%r10-4], 2\nstb [%r10-5], 2\nldxdw %r0, [%r10-8]\nexit"
    code = program_from_code(assemble(text))
    entry = liveness.analyse(structure.analyse(code, Policy.EXECUTOR)).entry
    assert [live.slots for live in entry] == [0b11, 0b11, 0b11, 0b00]
