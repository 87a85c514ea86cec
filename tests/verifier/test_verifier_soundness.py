"""Concrete in abstract: what the interpreter does stays inside what the verifier explored.

Random programs are verified with every state recorded; those that pass are executed with random
memory, and at each instruction the value of every live register that can matter must belong to one
recorded state.
An accepted program must also never fault and never exceed its proven cost.
"""

import random

import pytest
from random_programs import MEMORY, CallbackWriter, Writer

from egpu.bpf import interp
from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.isa import FETCH, AluOp, AtomicOp, Kind, form_of
from egpu.verifier import Policy, Region, counters, verify
from egpu.verifier import liveness as liveness_of
from egpu.verifier import structure as structure_of
from egpu.verifier.checks import span
from egpu.verifier.explore import Exploration
from egpu.verifier.refine import INVERSE
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.setting import Limits, Recorder, Setting

KINDS = {"stack": Region.STACK, "memory": Region.MEMORY}


def explore(program):
    """Every state explored, by pc, the liveness, the result, and how it went with loops."""
    shape = structure_of.analyse(program, Policy.EXECUTOR)
    alive = liveness_of.analyse(shape)
    setting = Setting(program, Policy.EXECUTOR, MEMORY, False, Limits(), shape)
    states = {}

    def record(pc, state):
        states.setdefault(pc, []).append((len(state.frames), list(state.frame.registers)))

    exploration = Exploration(setting, alive, Recorder(), record)
    explored = exploration.run()
    return states, alive, explored, exploration.counting


def in_scalar(value, scalar):
    low, width = S64.low_word(scalar), S64.half
    part = value & width.limit
    return (
        value & ~scalar.mask == scalar.value
        and scalar.umin <= value <= scalar.umax
        and scalar.smin <= S64.full.signed(value) <= scalar.smax
        and low.umin <= part <= low.umax
        and low.smin <= width.signed(part) <= low.smax
    )


def agrees(machine, concrete, abstract):
    if abstract is None:
        return False
    if isinstance(abstract, Scalar):
        return in_scalar(concrete, abstract)
    if abstract.region is Region.FUNCTION:
        return concrete == machine.code_address(abstract.owner)
    found = machine.space.locate(concrete)
    if found is None:
        return False
    region, offset = found
    if region.kind == "stack":
        offset -= 512
    low, high = span(abstract)
    return KINDS[region.kind] is abstract.region and low <= offset <= high


class Watcher:
    """Compares each step of a run with the recorded states."""

    def __init__(self, states, alive):
        self.states = states
        self.alive = alive
        self.compared = 0

    def __call__(self, machine):
        live = self.alive.entry[machine.pc]
        wanted = [index for index in range(11) if live.registers >> index & 1]
        candidates = self.states.get(machine.pc, [])
        assert any(
            depth == machine.depth
            and all(
                # States that differ in numbers that do not matter were not all explored.
                agrees(machine, machine.registers[i], registers[i])
                or (isinstance(registers[i], Scalar) and not live.numbers >> i & 1)
                for i in wanted
            )
            for depth, registers in candidates
        ), (machine.pc, machine.registers, candidates)
        self.compared += 1


@pytest.mark.parametrize("walked", [64, 0], ids=["turn by turn", "loops as one"])
@pytest.mark.parametrize("seed", range(120))
def test_random_programs(seed, walked, monkeypatch):
    monkeypatch.setattr(counters, "_WALKED", walked)
    randomness = random.Random(seed)
    stays_inside(Writer(randomness).program(), randomness, seed)


@pytest.mark.parametrize("seed", range(120))
def test_random_callbacks(seed):
    """One walk of a callback stands for all of its calls."""
    randomness = random.Random(1000 + seed)
    stays_inside(CallbackWriter(randomness).program(), randomness, seed)


def test_every_instruction_is_among_the_random_ones():
    """All operations of RFC 9669 in both widths, every jump, every atomic, and both loops."""
    forms = set()
    for seed in range(120):
        for writer in (Writer(random.Random(seed)), CallbackWriter(random.Random(1000 + seed))):
            for insn in assemble(writer.program()):
                form = form_of(insn)
                if form is None:
                    continue  # the second half of a 64-bit immediate
                if form.kind is Kind.ATOMIC:
                    forms.add((form.kind, form.width, insn.imm))
                elif form.kind is Kind.ALU:
                    forms.add((form.kind, form.op, form.width, insn.off))
                else:
                    forms.add((form.kind, form.op, form.width))
    alu = {(op, 0) for op in AluOp if op is not AluOp.END}
    alu |= {(AluOp.DIV, 1), (AluOp.MOD, 1), (AluOp.MOV, 8), (AluOp.MOV, 16)}
    wanted = {(Kind.ALU, op, width, off) for op, off in alu for width in (32, 64)}
    wanted |= {(Kind.ALU, AluOp.MOV, 64, 32)}
    wanted |= {(Kind.JUMP, op, width) for op in INVERSE for width in (32, 64)}
    atomics = [AtomicOp.ADD, AtomicOp.OR, AtomicOp.AND, AtomicOp.XOR]
    atomics += [op | FETCH for op in atomics] + [AtomicOp.XCHG, AtomicOp.CMPXCHG]
    wanted |= {(Kind.ATOMIC, width, int(op)) for op in atomics for width in (32, 64)}
    assert wanted - forms == set()
    assert {form[0] for form in forms} >= {
        Kind.LOAD, Kind.LOAD_SIGNED, Kind.STORE_IMM, Kind.STORE_REG, Kind.BYTE_ORDER, Kind.CALL,
    }  # fmt: skip


def stays_inside(text, randomness, seed):
    """Run what ``text`` says with random memory, each step compared with the explored states."""
    program = program_from_code(assemble(text), f"seed{seed}")
    verified = verify(program, policy=Policy.EXECUTOR, memory_size=MEMORY)
    states, alive, explored, _ = explore(program)
    assert explored.worst.public().instructions == verified.cost.instructions
    for _ in range(4):
        memory = bytearray(
            randomness.choice([0, 0, 1, 0x7F, 0x80, 0xFF, randomness.getrandbits(8)])
            for _ in range(MEMORY)
        )
        watcher = Watcher(states, alive)
        interp.run(program, memory, observe=watcher)
        assert watcher.compared <= verified.cost.instructions


def test_loops_are_walked_as_one(monkeypatch):
    """The test above is about something: most random loops are recognised."""
    monkeypatch.setattr(counters, "_WALKED", 0)
    done = loops = 0
    for seed in range(40):
        text = Writer(random.Random(seed)).program()
        program = program_from_code(assemble(text), f"seed{seed}")
        counting = explore(program)[3]
        done, loops = done + len(counting.done), loops + len(counting.loops)
    assert done > loops // 2 > 10


def test_the_watcher_notices_a_wrong_bound():
    """The test above can fail: a state that lacks a value is found out."""
    program = program_from_code(
        assemble("ldxb %r0, [%r1]\nadd %r0, 1\njeq %r0, 9, end\nend:\nexit"), "p"
    )
    states, alive, *_ = explore(program)
    depth, registers = states[2][0]
    registers[0] = S64.from_range(1, 100)
    states[2] = [(depth, registers)]
    interp.run(program, bytearray([5] * MEMORY), observe=Watcher(states, alive))
    with pytest.raises(AssertionError):
        interp.run(program, bytearray([200] * MEMORY), observe=Watcher(states, alive))
