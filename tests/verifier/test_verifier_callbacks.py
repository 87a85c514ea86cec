"""bpf_loop: its callback is walked once for all calls."""

import importlib.util

import pytest
from verifier_programs import END, RESERVE, VALUE, check, refusal

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import run
from egpu.verifier import Limits, Policy, verify

# r6 to r9 are kept; the callback adds its index to the number on the caller's stack
SUM = """
stdw [%r10-8], 0
mov %r1, {turns}
lddw %r2, code body
mov %r3, %r10
add %r3, -8
mov %r4, 0
call 181
{after}
exit
body:
ldxdw %r3, [%r2]
add %r3, %r1
stxdw [%r2], %r3
mov %r0, 0
{stop}
exit
"""
STOP = "jlt %r1, 6, on\nmov %r0, 1\non:"
ANSWER = "mov %r7, %r0\nldxdw %r0, [%r10-8]\nlsh %r7, 32\nor %r0, %r7"


def loop(turns=10, after="mov %r0, 0", stop=""):
    return SUM.format(turns=turns, after=after, stop=stop)


def executable(text):
    return verify(program_from_code(assemble(text), "p"), policy=Policy.EXECUTOR)


def test_cost_is_calls_times_the_callback():
    assert check(loop(10)).cost.instructions == 7 + 10 * 5 + 2
    assert check(loop(10_000)).cost.instructions == 7 + 10_000 * 5 + 2
    error = refusal(loop(100_000))
    assert (error.rule, "--cost-limit" in error.hint) == ("P4", True)
    assert check(loop(1_000_000), limits=Limits(processed=500, cost=10_000_000))


def test_facts():
    facts = check(loop()).facts
    assert facts.helpers == {181}
    assert [o.value for (pc, r), o in facts.operands.items() if (pc, r) == (7, 2)] == [10]
    assert facts.stack_depth == 8


@pytest.mark.parametrize(("turns", "stop", "answer"), [
    (10, "", 10 << 32 | 45),
    (10, STOP, 7 << 32 | 21),
    (1, STOP, 1 << 32),
    (0, "", 0),
])  # fmt: skip
def test_results_agree(turns, stop, answer):
    verified = executable(loop(turns, ANSWER, stop))
    assert run(verified.program) == answer
    for executor in executors():
        assert executor(verified) == answer


def executors():
    """The others that are installed: this processor by LLVM, and the simulated device."""
    if importlib.util.find_spec("llvmlite") is None:
        return []
    from egpu.codegen import compile_executor_ptx, run_host  # noqa: PLC0415
    from egpu.sim.executor import run_executor  # noqa: PLC0415

    def simulated(verified):
        (answer, _), *_ = run_executor(compile_executor_ptx(verified), [b""])
        return answer

    return [lambda verified: run_host(verified, bytearray()), simulated]


NESTED = """
stdw [%r10-8], 0
mov %r1, 5
lddw %r2, code outer
mov %r3, %r10
add %r3, -8
mov %r4, 0
call 181
ldxdw %r0, [%r10-8]
exit
outer:
mov %r6, %r1
stxdw [%r10-8], %r2
mov %r1, 3
lddw %r2, code inner
mov %r3, %r10
add %r3, -8
mov %r4, 0
call 181
add %r0, %r6
ldxdw %r2, [%r10-8]
ldxdw %r1, [%r2]
add %r1, %r0
stxdw [%r2], %r1
mov %r0, 0
exit
inner:
ldxdw %r2, [%r2]
ldxdw %r3, [%r2]
add %r3, 100
stxdw [%r2], %r3
mov %r0, 0
exit
"""


def test_nested_callbacks():
    verified = executable(NESTED)
    expected = 5 * 3 * 100 + 5 * 3 + 0 + 1 + 2 + 3 + 4
    assert run(verified.program) == expected
    for executor in executors():
        assert executor(verified) == expected
    assert check(NESTED).facts.stack_depth == 16


def test_the_index_is_below_the_number_of_calls():
    text = VALUE.format(1) + "stxdw [%r10-8], %r6\nmov %r1, {}\nlddw %r2, code body\n"
    text += "mov %r3, %r10\nadd %r3, -8\nmov %r4, 0\ncall 181" + END
    text += "body:\nldxdw %r2, [%r2]\nadd %r2, %r1\nldxb %r3, [%r2]\nmov %r0, 0\nexit"
    assert check(text.format(16))
    error = refusal(text.format(17))
    assert error.rule == "P2"
    assert any("r1=scalar(0..16)" in line for line in error.path)


def test_what_a_callback_leaves_is_not_known_exactly():
    """The sum on the stack is any number afterwards, not what one call makes it."""
    after = VALUE.format(1) + "ldxdw %r7, [%r10-8]\nadd %r6, %r7\nldxb %r0, [%r6]"
    assert refusal(loop(3, after)).rule == "P2"
    bounded = after.replace("add %r6, %r7", "and %r7, 15\nadd %r6, %r7")
    assert check(loop(3, bounded))


def test_bounds_that_are_limited():
    text = loop(0).replace("mov %r1, 0", "ldxdw %r1, [%r1+240]\n{}", 1)
    assert refusal(text.format("")).rule == "P4"
    clamped = text.format("jle %r1, 100, fits\nmov %r1, 100\nfits:")
    assert 100 * 5 <= check(clamped).cost.instructions <= 100 * 5 + 20


REFUSED = {
    "callback returns 2": (loop().replace("mov %r0, 0\n\nexit", "mov %r0, 2\nexit"), "P2"),
    "callback returns anything": (loop().replace("mov %r0, 0\n\nexit", "mov %r0, %r1\nexit"), "P2"),
    "callback returns nothing": (loop().replace("mov %r0, 0\n\nexit", "exit"), "P2"),
    "callback returns a pointer": (
        loop().replace("mov %r0, 0\n\nexit", "mov %r0, %r2\nexit"),
        "P9",
    ),
    "flags": (loop().replace("mov %r4, 0", "mov %r4, 1"), "P2"),
    "no function": (loop().replace("lddw %r2, code body", "lddw %r2, code body\nmov %r2, 5"), "P2"),
    "context that is no stack": (
        "mov %r9, %r1\n" + loop().replace("mov %r3, %r10\nadd %r3, -8", "mov %r3, %r9"),
        "P2",
    ),
    "callback reads r3": (loop().replace("ldxdw %r3, [%r2]", "mov %r5, %r3"), "P2"),
    "callback reads its caller's registers": (
        loop().replace("ldxdw %r3, [%r2]", "mov %r3, %r6"),
        "P2",
    ),
    "callback reads outside its caller's frame": (
        loop().replace("ldxdw %r3, [%r2]", "ldxdw %r3, [%r2+8]"),
        "P2",
    ),
    "callback reads what was never written": (
        loop().replace("ldxdw %r3, [%r2]", "ldxdw %r3, [%r2-8]"),
        "P9",
    ),
    "callback never ends": (
        loop().replace("mov %r0, 0\n\nexit", "mov %r0, 0\nagain:\nja again"),
        "P4",
    ),
    "callback keeps a record": (
        loop().replace(
            "mov %r0, 0\n\nexit",
            RESERVE.format(8) + "jeq %r0, 0, none\nmov %r0, 1\nexit\nnone:\nmov %r0, 0\nexit",
        ),
        "P10",
    ),
    "callback leaves a pointer to its own frame": (
        loop().replace("stxdw [%r2], %r3", "stxdw [%r2], %r10"),
        "P9",
    ),
    "arithmetic on a function": (loop().replace("mov %r4, 0", "add %r2, 8\nmov %r4, 0"), "P2"),
    "read through a function": (loop().replace("mov %r4, 0", "ldxdw %r4, [%r2]"), "P2"),
    "callback makes a pointer of a number": (
        loop(2, "ldxdw %r1, [%r10-8]\nldxdw %r0, [%r1]").replace(
            "stxdw [%r2], %r3", "lddw %r5, map_index_value 4\nstxdw [%r2], %r5"
        ),
        "P4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    text, rule = REFUSED[name]
    assert refusal(text).rule == rule


def test_a_callback_that_calls_itself():
    text = loop().replace("ldxdw %r3, [%r2]", "call local body\nldxdw %r3, [%r2]")
    assert "calls itself" in refusal(text).message


def test_every_callback_is_seen():
    """Code that only a callback reaches is checked, as are helpers that it calls."""
    text = loop().replace("ldxdw %r3, [%r2]", "call 93\nldxdw %r3, [%r2]")
    assert "spin_lock" in refusal(text).message
