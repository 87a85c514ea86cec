"""Mistakes that other verifiers made, one test each: what must stay refused, what must pass.

The classes are those of PREVAIL's published soundness fixes (versions 0.2.5 and 0.2.6), told in our
own words; Linux's own class of null checks is added.
"""

import pytest
from verifier_programs import END, LOOKUP, VALUE, check, refusal

from egpu.verifier import Limits

# r6 = value of totals (16 bytes), r7 = index to be used
INDEX = VALUE.format(1) + "{0}\nadd %r6, %r7\nldxb %r0, [%r6]\nexit"

REFUSED = {
    "sign-extending move keeps the upper half": (
        INDEX.format("ldxdw %r7, [%r6]\nmovsx832 %r7, %r7"),
        "P2",
    ),
    "32-bit comparison says nothing of the upper half": (
        INDEX.format("ldxdw %r7, [%r6]\njlt32 %r7, 16, small\nmov %r7, 0\nsmall:"),
        "P2",
    ),
    "load that straddles context fields": ("ldxdw %r0, [%r1+172]\nexit", "P2"),
    "store of an uninitialised register": (
        "stdw [%r10-8], 0\nstxdw [%r10-8], %r3\nldxdw %r0, [%r10-8]\nexit",
        "P2",
    ),
    "endless loop inside a called function": (
        "call local f\nmov %r0, 0\nexit\nf:\nmov %r0, 0\nagain:\nja again",
        "P4",
    ),
    "sign-extending load gives negative numbers": (
        INDEX.format("ldxsb %r7, [%r6]\njsgt %r7, 15, out\nja in\nout:\nmov %r7, 0\nin:"),
        "P2",
    ),
    "facts of a pointer survive a change of type": (
        VALUE.format(1) + "ldxdw %r6, [%r6]\nldxdw %r0, [%r6]\nexit",
        "P13",
    ),
    "facts of a slot survive a change of type": (
        "stxdw [%r10-8], %r1\nstdw [%r10-8], 5\nldxdw %r1, [%r10-8]\nldxw %r0, [%r1+224]\nexit",
        "P2",
    ),
    "store at a variable index leaves a constant": (
        "ldxw %r8, [%r1+232]\nand %r8, 7\nstdw [%r10-24], 1\nstdw [%r10-16], 1\n"
        "mov %r2, %r10\nadd %r2, -24\nadd %r2, %r8\nstb [%r2], 77\n"
        + VALUE.format(1)
        + "ldxdw %r7, [%r10-24]\nadd %r6, %r7\nldxb %r0, [%r6]\nexit",
        "P2",
    ),
    "store at a variable index initialises": (
        ("ldxw %r8, [%r1+232]\nand %r8, 7\nmov %r2, %r10\nadd %r2, -8\nadd %r2, %r8\n"
        "stb [%r2], 1\nldxb %r0, [%r10-8]\nexit"),
        "P9",
    ),
    "store at a variable index overwrites a spilled pointer": (
        "stxdw [%r10-8], %r1\nldxw %r8, [%r1+232]\nand %r8, 7\nmov %r2, %r10\nadd %r2, -8\n"
        "add %r2, %r8\nstb [%r2], 1" + END,
        "P9",
    ),
    "quotient of a negative dividend is negative": (
        INDEX.format("ldxsb %r7, [%r6]\nsdiv %r7, 64"),
        "P2",
    ),
    "negative constant divisor turns the range round": (
        INDEX.format("ldxb %r7, [%r6]\nsdiv %r7, -64\nadd %r7, 2"),
        "P2",
    ),
    "buffer far below the stack": (
        "lddw %r1, map_index 1\nmov %r2, %r10\nadd %r2, -100000\ncall 1" + END,
        "P2",
    ),
    "check of one lookup counts for another": (
        LOOKUP.format(1)
        + "mov %r6, %r0\nstw [%r10-4], 1\nlddw %r1, map_index 1\nmov %r2, %r10\nadd %r2, -4\n"
        "call 1\njeq %r6, 0, end\nldxdw %r0, [%r0]\nend:" + END,
        "P2",
    ),
    "null check in 32 bits": (
        LOOKUP.format(1) + "jeq32 %r0, 0, end\nldxdw %r0, [%r0]\nend:" + END,
        "P9",
    ),
    "null check on the wrong way": (
        LOOKUP.format(1) + "jne %r0, 0, end\nldxdw %r1, [%r0]\nend:" + END,
        "P2",
    ),
    "released record through a spilled copy": (
        "lddw %r1, map_index 2\nmov %r2, 8\nmov %r3, 0\ncall 131\njeq %r0, 0, end\n"
        "stxdw [%r10-8], %r0\nmov %r1, %r0\nmov %r2, 0\ncall 132\nldxdw %r1, [%r10-8]\n"
        "stdw [%r1], 1\nend:" + END,
        "P9",
    ),
    "pruning forgets a pointer's null link": (
        LOOKUP.format(1)
        + "mov %r6, %r0\nmov %r7, %r0\ncall 5\njeq %r0, 0, test\nmov %r7, 0\ntest:\n"
        "jeq %r7, 0, read\nja end\nread:\nldxdw %r0, [%r6]\nend:" + END,
        "P2",
    ),
    "pruning forgets a narrower way explored first": (
        VALUE.format(1)
        + "ldxb %r8, [%r6]\nmov %r7, 15\njeq %r8, 0, join\nmov %r7, 16\njoin:\n"
        "add %r6, %r7\nldxb %r0, [%r6]\nexit",
        "P2",
    ),
    "pruning forgets a stack slot read through a copy of r10": (
        "mov %r9, %r1\nstdw [%r10-8], 15\nldxw %r8, [%r9+232]\njeq %r8, 0, join\n"
        "stdw [%r10-8], 16\njoin:\nmov %r5, %r10\nadd %r5, -8\nldxdw %r7, [%r5]\n"
        "stxdw [%r10-16], %r7\n"
        + VALUE.format(1)
        + "ldxdw %r7, [%r10-16]\nadd %r6, %r7\nldxb %r0, [%r6]\nexit",
        "P2",
    ),
    "pruning forgets a slot that only a called function reads": (
        "mov %r9, %r1\nstdw [%r10-8], 15\nldxw %r8, [%r9+232]\njeq %r8, 0, join\n"
        "stdw [%r10-8], 16\njoin:\n"
        + VALUE.format(1)
        + "mov %r1, %r10\nadd %r1, -8\nmov %r2, %r6\ncall local f\nexit\n"
        "f:\nldxdw %r7, [%r1]\nadd %r2, %r7\nldxb %r0, [%r2]\nexit",
        "P2",
    ),
    "caller's own stack pointer stored into its frame": (
        "mov %r1, %r10\nadd %r1, -8\ncall local f\nmov %r0, 0\nexit\nf:\nstxdw [%r1], %r1" + END,
        "P9",
    ),
    "linked scalars stay linked after one of them changes": (
        INDEX.format("ldxdw %r7, [%r6]\nmov %r8, %r7\nadd %r7, 8\njgt %r8, 15, out\nja in\n"
                     "out:\nmov %r7, 0\nin:"),
        "P2",
    ),
    "pruning forgets that two numbers are one": (
        VALUE.format(1)
        + "ldxdw %r7, [%r6]\nmov %r8, %r7\nldxb %r1, [%r6]\njeq %r1, 0, join\n"
        "ldxdw %r8, [%r6]\njoin:\njgt %r7, 15, out\nadd %r6, %r8\nldxb %r0, [%r6]\nexit\nout:"
        + END,
        "P2",
    ),
    "comparisons that rule one way out leave the others": (
        INDEX.format("ldxdw %r7, [%r6]\nmov %r8, %r7\njgt %r7, 15, big\njgt %r8, 20, never\nja in\n"
                     "never:\nmov %r7, 0\nja in\nbig:\njlt %r8, 16, never\nin:"),
        "P2",
    ),
    "memory that a helper writes keeps what was known of it": (
        "stdw [%r10-8], 3\nstdw [%r10-16], 3\nstdw [%r10-24], 3\nmov %r1, %r10\nadd %r1, -8\n"
        "mov %r2, %r10\nadd %r2, -16\nmov %r3, %r10\nadd %r3, -24\ncall 505\n"
        + VALUE.format(1)
        + "ldxdw %r7, [%r10-16]\nadd %r6, %r7\nldxb %r0, [%r6]\nexit",
        "P2",
    ),
}  # fmt: skip

ACCEPTED = {
    "constant stores are sign-extended to 64 bits": (
        "stdw [%r10-8], -1\nldxdw %r2, [%r10-8]\njeq %r2, -1, end\nmov %r0, %r9\nend:" + END
    ),
    "32-bit divisor that is a multiple of 2^32 is zero": (
        "mov %r2, 9\nlddw %r3, 0x100000000\ndiv32 %r2, %r3\njeq %r2, 0, end\nmov %r0, %r9\nend:"
        + END
    ),
    "copies and spills are narrowed together": INDEX.format(
        "ldxdw %r7, [%r6]\nstxdw [%r10-16], %r7\nmov %r8, %r7\njgt %r8, 15, out\n"
        "ldxdw %r7, [%r10-16]\nja in\nout:\nmov %r7, 0\nin:"
    ),
    "a null check counts for all copies": (
        LOOKUP.format(1)
        + "mov %r6, %r0\nstxdw [%r10-16], %r0\njeq %r0, 0, end\nldxdw %r1, [%r10-16]\n"
        "ldxdw %r2, [%r1]\nldxdw %r2, [%r6]\nend:" + END
    ),
    "shift by zero keeps the value": INDEX.format("mov %r7, 8\nlsh %r7, 0\narsh %r7, 0"),
    "narrow spills keep their bounds": INDEX.format(
        "ldxb %r7, [%r6]\nand %r7, 15\nstxw [%r10-12], %r7\nldxw %r7, [%r10-12]"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_stays_refused(name):
    text, rule = REFUSED[name]
    assert refusal(text).rule == rule


@pytest.mark.parametrize("name", ACCEPTED)
def test_stays_accepted(name):
    check(ACCEPTED[name])


def test_deep_programs_do_not_recurse():
    """Python's recursion limit must not be the verifier's."""
    text = "call 5\nmov %r6, %r0\nmov %r0, 0\n"
    text += "".join(f"jeq %r6, {n}, end\n" for n in range(3000)) + "end:\nexit"
    assert check(text).cost.instructions == 3 + 3000 + 1


def test_branches_that_do_not_matter_are_pruned():
    """2^40 ways, one state: only live registers are compared."""
    text = "call 5\nmov %r6, %r0\n"
    text += "".join(
        f"mov %r7, {n}\njset %r6, {n + 1}, l{n}\nmov %r7, 1\nl{n}:\n" for n in range(40)
    )
    assert check(text + "mov %r0, 0\nexit").cost.instructions == 2 + 3 * 40 + 2


def test_nested_loops_are_bounded():
    text = (
        "mov %r6, 0\nouter:\nmov %r7, 0\ninner:\nadd %r7, 1\njlt %r7, 10, inner\n"
        "add %r6, 1\njlt %r6, 10, outer\nmov %r0, 0\nexit"
    )
    assert check(text).cost.instructions == 1 + 10 * (1 + 20 + 2) + 2


def test_loop_bounded_by_read_only_data():
    text = (
        "lddw %r1, map_index_value 3\nldxw %r6, [%r1]\nmov %r0, 0\nloop:\nadd %r0, 1\n"
        "jlt %r0, %r6, loop\nexit"
    )
    known = check(text)
    assert known.cost.instructions == 3 + 2 * 3 + 1
    assert known.facts.budget is None
    written = check(text.replace("map_index_value 3", "map_index_value 4"))
    assert written.facts.budget.loops.keys() == {4}


COUNT = "call 5\nmov %r6, %r0\nmov %r7, 0\nmov %r8, 0\nloop:\n"


def test_numbers_that_never_matter_are_not_compared():
    """A count that only goes into a map: without this, turns times counts are explored."""
    text = COUNT + "mov %r1, %r6\nrsh %r6, 1\nand %r1, 1\njeq %r1, 0, even\nadd %r8, 1\neven:\n"
    text += "add %r7, 1\njlt %r7, 64, loop\nstxdw [%r10-8], %r8\nldxdw %r8, [%r10-8]\n"
    store = VALUE.format(1) + "lock add [%r6], %r8"
    limits = Limits(processed=3_000)
    assert check(text + store + END, limits=limits).cost.instructions > 64 * 6


@pytest.mark.parametrize(
    "use",
    [
        "add %r6, %r8\nldxb %r0, [%r6]",  # as an offset
        "stxdw [%r10-16], %r8\nldxdw %r7, [%r10-16]\nadd %r6, %r7\nldxb %r0, [%r6]",  # by the stack
        "mov %r7, %r8\nlsh %r7, 1\nrsh %r7, 1\nadd %r6, %r7\nldxb %r0, [%r6]",  # by arithmetic
        "mov %r2, %r8\nmov %r1, %r6\ncall local f\nexit\nf:\nadd %r1, %r2\nldxb %r0, [%r1]\nexit",
        "jlt %r8, 16, end\nldxdw %r0, [%r9]\nend:",  # by a branch
    ],
)
def test_numbers_that_matter_are_compared(use):
    """The way with 15, explored first, must not stand for the one with 16."""
    text = "ldxw %r7, [%r1+232]\nmov %r8, 15\njeq %r7, 0, join\nmov %r8, 16\njoin:\n"
    text += VALUE.format(1) + use + ("" if use.endswith("exit") else END)
    assert refusal(text).rule == "P2"


# r1 and r2 are two numbers, the same one after this on the way that is explored first.
LINKED = (
    "ldxdw %r1, [%r9+240]\nldxdw %r2, [%r9+112]\nldxw %r3, [%r9+248]\njeq %r3, 0, merge\n"
    "mov %r2, %r1\nmerge:\n"
)


@pytest.mark.parametrize(
    "text",
    [
        LINKED + "jgt %r1, 7, out\nadd %r6, %r2",
        LINKED.replace("mov %r2, %r1", "mov %r1, %r2") + "jgt %r2, 7, out\nadd %r6, %r1",
        # one on the stack
        LINKED.replace("jeq", "stxdw [%r10-8], %r2\njeq").replace(
            "mov %r2, %r1", "stxdw [%r10-8], %r1"
        )
        + "jgt %r1, 7, out\nldxdw %r2, [%r10-8]\nadd %r6, %r2",
    ],
)
def test_numbers_that_are_equal_on_one_way_are_not_on_another(text):
    """What a branch says of one, it says of the other only where both are the same number: the way
    on which they are, explored first, must not stand for the one on which they are not."""
    begin = "mov %r9, %r1\n" + VALUE.format(1)
    end = "\nldxb %r0, [%r6]\nout:" + END
    error = refusal(begin + text + end)
    assert error.rule == "P2"
    assert "unbounded number" in str(error)
    check(begin + text.replace("ldxdw %r2, [%r9+112]", "mov %r2, %r1") + end)
