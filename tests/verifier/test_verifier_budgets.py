"""P4 for loops of an unknown number of turns: what is taken for one, its budget and its cost."""

import pytest
from verifier_programs import END, VALUE, check, refusal

from egpu.bpf.budget import LINUX_TURNS
from egpu.verifier import Limits

COUNT = "mov %r7, 0\nloop:\nadd %r7, 1\njlt %r7, %r8, loop" + END
FROM_CONTEXT = "ldxdw %r8, [%r1+240]\n"
BUDGETED = {
    "bound from the context": FROM_CONTEXT + COUNT,
    "bound in a map": VALUE.format(1) + "ldxdw %r8, [%r6]\n" + COUNT,
    "bound in a map, read again": (
        VALUE.format(1) + COUNT.replace("loop:\n", "loop:\nldxdw %r8, [%r6]\n")
    ),
    "wraps before the bound": FROM_CONTEXT + COUNT.replace("%r7, 1", "%r7, 0x1000"),
    "down to 0": FROM_CONTEXT + "loop:\nsub %r8, 1\njne %r8, 0, loop" + END,
    "in 32 bits": FROM_CONTEXT + COUNT.replace("add", "add32").replace("jlt", "jlt32"),
    "inside another": FROM_CONTEXT + (
        "mov %r9, 0\nouter:\nmov %r7, 0\nloop:\nadd %r7, 1\njlt %r7, %r8, loop\n"
        "add %r9, 1\njlt %r9, 10, outer"
    ) + END,
    "in a function": FROM_CONTEXT + "mov %r1, %r8\ncall local f\nmov %r0, 0\nexit\nf:\n"
    "mov %r8, %r1\n" + COUNT,
}  # fmt: skip
REFUSED = {
    "waits for memory": (VALUE.format(1) + "loop:\nldxdw %r8, [%r6]\njeq %r8, 0, loop" + END, "P4"),
    "waits for memory and counts": (
        VALUE.format(1) + "mov %r7, 0\nloop:\nadd %r7, 1\nldxdw %r8, [%r6]\njeq %r8, 0, loop" + END,
        "P4",
    ),
    "a constant that is too large": ("mov %r8, 1000000\n" + COUNT, "P4"),
    "a pointer that moves": (
        VALUE.format(1) + "ldxdw %r8, [%r6]\nmov %r9, %r6\nmov %r7, 0\nloop:\nldxb %r4, [%r9]\n"
        "add %r9, 1\nadd %r7, 1\njlt %r7, %r8, loop" + END,
        "P2",
    ),
    "an index without a mask": (
        VALUE.format(1) + "ldxdw %r8, [%r6]\nmov %r7, 0\nloop:\nmov %r9, %r6\nadd %r9, %r7\n"
        "ldxb %r4, [%r9]\nadd %r7, 1\njlt %r7, %r8, loop" + END,
        "P2",
    ),
    "may_goto that stays inside": (
        "mov %r7, 0\nloop:\nmay_goto loop\nadd %r7, 0\nja loop\nexit", "P1"),
    "may_goto on one way of two": (
        VALUE.format(1) + "loop:\nldxdw %r7, [%r6]\njeq %r7, 3, loop\nmay_goto out\nja loop\nout:"
        + END, "P4"),
    "may_goto to the next instruction": ("loop:\nmay_goto +0\nja loop", "P4"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUDGETED)
def test_budgeted(name):
    verified = check(BUDGETED[name])
    budget = verified.facts.budget
    assert len(budget.loops) == 1
    assert 99_000 < verified.cost.instructions <= 100_000
    assert verified.cost.instructions <= verified.warp_cost.instructions
    twice = check(BUDGETED[name], limits=Limits(cost=200_000))
    assert twice.facts.budget.turns >= 2 * budget.turns - 1
    assert twice.cost.instructions <= 200_000


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    text, rule = REFUSED[name]
    assert refusal(text).rule == rule


def test_what_has_a_known_end_has_no_budget():
    masked = FROM_CONTEXT + "and %r8, 15\n" + COUNT
    assert check(masked).facts.budget is None
    again = VALUE.format(1) + COUNT.replace("loop:\n", "loop:\nldxdw %r8, [%r6]\nand %r8, 31\n")
    assert check(again).facts.budget is None


def test_what_is_limited_to_too_many_is_budgeted():
    text = FROM_CONTEXT + "and %r8, 0xffff\n" + COUNT
    assert check(text).facts.budget.loops
    assert check(text, limits=Limits(cost=200_000)).facts.budget is None


def test_no_room_for_a_turn():
    body = "xor %r4, %r7\n" * 30
    text = FROM_CONTEXT + "mov %r4, 0\n" + COUNT.replace("loop:\n", "loop:\n" + body)
    error = refusal(text, limits=Limits(cost=40))
    assert error.rule == "P4"


def test_records_are_not_left():
    held = (
        FROM_CONTEXT
        + "mov %r9, %r8\nlddw %r1, map_index 2\nmov %r2, 8\nmov %r3, 0\ncall 131\njeq %r0, 0, out\n"
        "mov %r6, %r0\nmov %r8, %r9\n"
        + COUNT.removesuffix(END)
        + "\nmov %r1, %r6\nmov %r2, 0\ncall 132\nout:"
        + END
    )
    error = refusal(held)
    assert error.rule == "P10"
    assert "record" in error.message
    paying = held.replace("loop:\n", "loop:\nmay_goto done\n").replace(
        "mov %r1, %r6\nmov %r2, 0", "done:\nmov %r1, %r6\nmov %r2, 0"
    )
    assert check(paying).facts.budget.loops == {}


# may_goto

WAITS = VALUE.format(1) + "loop:\nmay_goto out\nldxdw %r8, [%r6]\njeq %r8, 0, loop\nout:" + END


def test_may_goto_bounds_any_loop():
    verified = check(WAITS)
    assert verified.facts.budget.loops == {}
    weighted = verified.cost.instructions + verified.cost.helpers
    assert 99_998 <= weighted <= 100_000
    assert verified.facts.budget.turns == (100_000 - (weighted - 3 * 33_326)) // 3 == 33_326


def test_may_goto_where_nothing_turns():
    verified = check("mov %r0, 0\nmay_goto out\nmov %r0, 1\nout:\nexit")
    assert verified.facts.budget.turns == 100_000
    assert verified.cost.instructions == 4
    most = check("may_goto +0" + END, limits=Limits(cost=1 << 30))
    assert most.facts.budget.turns == LINUX_TURNS


def test_a_loop_with_a_limit_and_may_goto_is_counted():
    text = "mov %r7, 0\nloop:\nmay_goto out\nadd %r7, 1\njlt %r7, 200, loop\nout:" + END
    assert 3 * 200 <= check(text).cost.instructions <= 3 * 200 + 10


def test_both_ways_of_may_goto_are_walked():
    text = "may_goto out\nmov %r0, 0\nexit\nout:\nldxdw %r0, [%r10-8]\nexit"
    assert refusal(text).rule == "P9"
    assert refusal("may_goto out\nldxdw %r0, [%r10-8]\nexit\nout:\nmov %r0, 0\nexit").rule == "P9"


def test_loops_in_loops_share_the_tokens():
    text = (
        FROM_CONTEXT + "mov %r9, 0\nouter:\nmay_goto out\nmov %r7, 0\ninner:\nmay_goto out\n"
        "add %r7, 1\njlt %r7, %r8, inner\nadd %r9, 1\njlt %r9, %r8, outer\nout:" + END
    )
    verified = check(text)
    assert 99_000 < verified.cost.instructions <= 100_000
    turns = verified.facts.budget.turns
    assert 100_000 // 8 < turns < 100_000 // 6  # the dearest turn has 7 instructions


def test_records_held_on_another_way():
    """A loop that is budgeted takes tokens also where its turns are known."""
    text = (
        "mov %r9, %r1\nlddw %r1, map_index 2\nmov %r2, 8\nmov %r3, 0\ncall 131\nmov %r6, %r0\n"
        "ldxdw %r8, [%r9+240]\njeq %r6, 0, go\nmov %r8, 3\ngo:\n"
        + COUNT.removesuffix(END)
        + "\njeq %r6, 0, out\nmov %r1, %r6\nmov %r2, 0\ncall 132\nout:"
        + END
    )
    assert refusal(text).rule == "P10"
    assert check(text.replace("ldxdw %r8, [%r9+240]", "mov %r8, 7"))


def test_three_loops_in_each_other():
    """As in a product of matrices whose sizes come from a map."""
    text = VALUE.format(1) + "ldxw %r7, [%r6]\nldxw %r8, [%r6+4]\nldxw %r9, [%r6+8]\nmov %r5, 0\n"
    text += "mov %r1, 0\na:\njge %r1, %r7, out\nadd %r1, 1\nmov %r2, 0\nb:\njge %r2, %r8, a\n"
    text += (
        "add %r2, 1\nmov %r3, 0\nc:\njge %r3, %r9, b\nadd %r3, 1\nadd %r5, %r3\nja c\nout:" + END
    )
    verified = check(text, limits=Limits(processed=1000))
    assert len(verified.facts.budget.loops) == 3
    assert 99_000 < verified.cost.instructions <= 100_000
