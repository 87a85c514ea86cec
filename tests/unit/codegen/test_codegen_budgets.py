"""Budgets of runs: the same turns on every executor, and every run that is cut short is counted."""

import dataclasses

import pytest
from codegen_programs import ARCHES, assemble_ptx, entry, in_kernel, needs_ptxas
from test_codegen_lanes import Run

from egpu.bpf.asm import assemble
from egpu.bpf.context import FIELDS
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import MapState, run
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import HostProgram, compile_probe
from egpu.codegen.host import HostArenas
from egpu.maps.layout import ARENA_HEADER
from egpu.verifier import Limits, Policy, verify

BEFORE = "lddw %r6, map_index_value 0\nldxdw %r7, [%r6]\n"
# Each leaves in r0 what it did: turns, a sum, calls.
PROGRAMS = {
    "may_goto": BEFORE + "mov %r0, 0\ntop:\njge %r0, %r7, out\nmay_goto out\nadd %r0, 1\nja top\n"
    "out:\nexit",
    "may_goto back": BEFORE + "mov %r0, 0\njeq %r7, 0, out\ntop:\nadd %r0, 1\nmay_goto +1\n"
    "jlt %r0, %r7, top\nout:\nexit",
    "may_goto in two loops": BEFORE + "mov %r0, 0\nmov %r1, 0\nouter:\nmay_goto out\n"
    "jge %r1, 3, out\nadd %r1, 1\nmov %r2, 0\ninner:\nmay_goto outer\njge %r2, %r7, outer\n"
    "add %r2, 1\nadd %r0, 1\nja inner\nout:\nexit",
    "may_goto without a loop": BEFORE + "mov %r0, 1\nmay_goto out\nmov %r0, 2\nout:\nexit",
    "loop": BEFORE + "mov %r0, 0\ntop:\njge %r0, %r7, out\nadd %r0, 1\nja top\nout:\nexit",
    "loop rotated": BEFORE + "mov32 %r0, 0\njeq32 %r7, 0, out\ntop:\nadd32 %r0, 1\n"
    "jne32 %r0, %r7, top\nout:\nexit",
    "loops in loops": BEFORE + "mov %r0, 0\nmov %r1, 0\nouter:\njge %r1, %r7, out\nmov %r2, 0\n"
    "inner:\njge %r2, %r7, next\nadd %r2, 1\nadd %r0, 1\nja inner\nnext:\nadd %r1, 1\nja outer\n"
    "out:\nexit",
    "loop in a function": BEFORE + "mov %r1, %r7\ncall local f\nadd %r0, 1000\nexit\nf:\n"
    "mov %r0, 0\ntop:\njge %r0, %r1, out\nadd %r0, 1\nja top\nout:\nexit",
    "loop after a call": BEFORE + "mov %r9, 0\ntop:\nadd %r9, 1\nmov %r1, %r9\ncall local f\n"
    "jlt %r9, %r7, top\nexit\nf:\nmov %r0, %r1\nadd %r0, 7\nexit",
    "loop in a callback": BEFORE + "stxdw [%r10-8], %r7\nmov %r1, 3\nlddw %r2, code body\n"
    "mov %r3, %r10\nadd %r3, -8\nmov %r4, 0\ncall 181\nadd %r0, 100\nexit\nbody:\n"
    "ldxdw %r1, [%r2]\nmov %r0, 0\ntop:\njge %r0, %r1, out\nadd %r0, 1\nja top\nout:\n"
    "mov %r0, 0\nexit",
    "bpf_loop": BEFORE + "mov %r1, %r7\nlddw %r2, code body\nstdw [%r10-8], 0\nmov %r3, %r10\n"
    "add %r3, -8\nmov %r4, 0\ncall 181\nlsh %r0, 32\nldxdw %r1, [%r10-8]\nor %r0, %r1\nexit\n"
    "body:\nldxdw %r0, [%r2]\nadd %r0, %r1\nand %r0, 0xffff\nstxdw [%r2], %r0\nmov %r0, 0\nexit",
    "bpf_loop that ends": BEFORE + "mov %r1, %r7\nlddw %r2, code body\nmov %r3, 0\nmov %r4, 0\n"
    "call 181\nexit\nbody:\nmov %r0, 0\njle %r1, 90, on\nmov %r0, 1\non:\nexit",
}  # fmt: skip
COST = 1000
NUMBER = MapSpec("n", MapType.ARRAY, 4, 8, 1)


def made(name, *, policy=Policy.EXECUTOR, text=None):
    text = PROGRAMS[name] if text is None else text
    attach = (entry(),) if policy is Policy.PROBE else ()
    code = program_from_code(assemble(text), "p", maps=(NUMBER, RESULT), attach=attach)
    return verify(code, policy=policy, limits=Limits(cost=COST))


RESULT = MapSpec("r", MapType.ARRAY, 4, 32, 1)


def interpreted(verified, number):
    """r0, whether the run was cut short, and its instructions."""
    states = [MapState(spec) for spec in verified.program.maps]
    states[0].value(0)[:] = number.to_bytes(8, "little")
    machines = []
    budget = verified.facts.budget
    result = run(verified.program, maps=states, budget=budget, ended=machines.append)
    return result, machines[0].tokens.short, machines[0].steps


def on_host(verified, number):
    arenas = HostArenas(verified)
    start = arenas.layout.places[0].offset
    arenas.device[start : start + 8] = number.to_bytes(8, "little")
    with HostProgram(verified, arenas=arenas) as host:
        result = host.run(bytearray())
    offset, size = ARENA_HEADER["cut_short"]
    return result, int.from_bytes(arenas.device[offset : offset + size], "little")


def numbers(budget):
    edges = {n + more for n in (budget.turns, budget.turns // 3, 91) for more in range(-2, 4)}
    return sorted({n for n in edges if n >= 0} | {0, 1, 2, 1 << 23, (1 << 23) + 1, (1 << 32) - 1})


@pytest.mark.parametrize("name", PROGRAMS)
def test_interpreter_and_host_agree(name):
    """Also: no run costs more than the verifier said."""
    verified = made(name)
    found = set()
    for number in numbers(verified.facts.budget):
        result, short, steps = interpreted(verified, number)
        assert on_host(verified, number) == (result, int(short))
        assert steps <= verified.cost.instructions <= COST
        found.add(short)
    if name not in ("may_goto without a loop", "bpf_loop that ends"):
        assert found == {False, True}


def test_turns_are_exact():
    verified = made("loop")
    turns = verified.facts.budget.turns
    assert interpreted(verified, turns)[:2] == (turns, False)
    assert interpreted(verified, turns + 1)[:2] == (0, True)
    verified = made("may_goto")
    turns = verified.facts.budget.turns
    assert interpreted(verified, turns)[:2] == (turns, False)
    assert interpreted(verified, turns + 1)[:2] == (turns, True)
    verified = made("bpf_loop that ends")
    assert interpreted(verified, 50)[0] == 50
    assert interpreted(verified, 1 << 23)[0] == 92
    assert interpreted(verified, (1 << 23) + 1)[0] == (1 << 64) - 7


# Many lanes: each asks for as many turns as the map says and its index; what it did is summed.
LANES = """
ldxw %r8, [%r1+{thread}]
lddw %r6, map_index_value 0
ldxdw %r7, [%r6]
add %r7, %r8
mov %r0, 0
top:
{pay}
jge %r0, %r7, out
add %r0, 1
ja top
out:
lddw %r6, map_index_value 1
lock add [%r6], %r0
mov %r1, 1
lock add [%r6+8], %r1
mov %r0, 0
exit
"""


@pytest.mark.parametrize("pay", ["", "may_goto out"], ids=["loop", "may_goto"])
@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (2, 33), (3, 96), (2, 75)])
def test_lanes_that_are_cut_short_are_counted(pay, blocks, threads):
    offset = next(field.offset for field in FIELDS if field.name == "thread_x")
    verified = made("", policy=Policy.PROBE, text=LANES.format(thread=offset, pay=pay))
    turns = verified.facts.budget.turns
    first = turns - threads // 2
    done = Started(verified, first, blocks=blocks, threads=threads)
    wanted = [first + lane for lane in range(threads)]
    short = [n for n in wanted if n > turns]
    if pay:
        short = [n for n in wanted if n >= turns]  # asks for one more to find that it is done
        total, ended = sum(min(n, turns) for n in wanted), threads
    else:
        total, ended = sum(n for n in wanted if n <= turns), threads - len(short)
    assert done.words(done.layout.places[1].offset, 2).tolist() == [blocks * total, blocks * ended]
    assert done.words(ARENA_HEADER["cut_short"][0], 1).tolist() == [blocks * len(short)]


class Started(Run):
    """A run whose map 0 holds a number before."""

    def __init__(self, verified, number, **options):
        maps = verified.program.maps
        first = dataclasses.replace(maps[0], initial=number.to_bytes(8, "little"))
        code = dataclasses.replace(verified.program, maps=(first, *maps[1:]))
        again = verify(code, policy=Policy.PROBE, limits=Limits(cost=COST))
        assert again.facts.budget == verified.facts.budget
        super().__init__(again, entry(), **options)


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_ptx_assembles(tmp_path, arch, name):
    code = compile_probe(made(name, policy=Policy.PROBE, text=PROGRAMS[name].replace(
        "\nexit", "\nmov %r0, 0\nexit", 1)), point=entry())  # fmt: skip
    assemble_ptx(in_kernel(code), tmp_path, arch)


def test_code_of_another_budget_has_another_name():
    """Or a kernel built under one cost limit would be taken for that of another."""
    code = program_from_code(
        assemble(PROGRAMS["loop"].replace("out:\n", "out:\nmov %r0, 0\n")),
        "p", maps=(NUMBER, RESULT), attach=(entry(),),
    )  # fmt: skip
    digests = [
        compile_probe(verify(code, limits=Limits(cost=cost)), point=entry()).digest
        for cost in (COST, COST, 2 * COST)
    ]
    assert digests[0] == digests[1] != digests[2]
