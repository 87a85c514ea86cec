"""Concrete in abstract: what the interpreter does stays inside what the verifier explored.

Random programs are verified with every state recorded; those that pass are executed with random
memory, and at each instruction the value of every live register that can matter must belong to one
recorded state.
An accepted program must also never fault and never exceed its proven cost.
"""

import random

import pytest
from random_programs import MEMORY, Writer

from egpu.bpf import interp
from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.verifier import Policy, Region, counters, verify
from egpu.verifier import liveness as liveness_of
from egpu.verifier import structure as structure_of
from egpu.verifier.checks import span
from egpu.verifier.explore import Exploration
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
    text = Writer(randomness).program()
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
