"""P8 through a budget: whether and what a program stores may depend on how often a loop turned."""

from typing import NamedTuple

import pytest
from verifier_programs import END, VALUE, check, refusal

COUNT = "mov %r8, 0\ntop:\njge %r8, %r7, out\nadd %r8, 1\nja top\nout:\n"
TOKENS = "mov %r8, 0\ntop:\nmay_goto mid\njge %r8, %r7, mid\nadd %r8, 1\nja top\nmid:\n"
REST = "mov %r8, 0\nagain:\nmay_goto out\nadd %r8, 1\nja again\nout:\n"
# r6: a value that all threads share; r9: the context
BEGIN = "mov %r9, %r1\n" + VALUE.format(1)
LOADED = BEGIN + "ldxdw %r7, [%r6]\n"
GIVEN = BEGIN + "ldxdw %r7, [%r9+240]\n"
STORE = "ldxdw %r1, [%r9+240]\nstxdw [%r6], %r1\n"
CALLED = "mov %r1, %r7\ncall local f\n"
FUNCTION = "\nf:\nmov %r7, %r1\n" + COUNT + "mov %r0, 0\nexit"
CALLS = "lddw %r2, code body\nmov %r3, 0\nmov %r4, 0\ncall 181\n"
BODY = "\nbody:\nmov %r0, 0\nexit"
# r1 is the number of the call
STORING_BODY = (
    "body:\nmov %r7, %r1\n" + VALUE.format(1).replace("found", "there") + "stxdw [%r6], %r7" + END
)


class Pair(NamedTuple):
    """A program that passes, one that is refused, and words of why."""

    accepted: str
    refused: str
    words: str


ENDS = "its budget may end the program before this is stored"
CHANGED = "is changed and stored back"
PAIRS = {
    "before a loop that may end the program, and after it": Pair(
        LOADED + STORE + COUNT + END, LOADED + COUNT + STORE + END, ENDS
    ),
    "after a loop with a limit": Pair(
        LOADED + "and %r7, 63\n" + COUNT + STORE + END, LOADED + COUNT + STORE + END, ENDS
    ),
    "after a loop to a number from elsewhere": Pair(
        GIVEN + COUNT + STORE + END, LOADED + COUNT + STORE + END, ENDS
    ),
    "in another turn": Pair(
        GIVEN + COUNT.replace("ja top", STORE + "ja top") + END,
        LOADED + COUNT.replace("ja top", STORE + "ja top") + END,
        "whether this is stored depends on",
    ),
    "before and after a call of a function with such a loop": Pair(
        LOADED + STORE + CALLED + END + FUNCTION, LOADED + CALLED + STORE + END + FUNCTION, ENDS
    ),
    "a function that is called after the loop": Pair(
        GIVEN + COUNT + "mov %r1, %r6\ncall local f" + END + "f:\nmov %r2, 7\nstxdw [%r1], %r2\n"
        "mov %r0, 0\nexit",
        LOADED + COUNT + "mov %r1, %r6\ncall local f" + END + "f:\nmov %r2, 7\nstxdw [%r1], %r2\n"
        "mov %r0, 0\nexit",
        ENDS,
    ),
    "a count of the tokens that a loop left": Pair(
        GIVEN + TOKENS + REST + "stxdw [%r6], %r8" + END,
        LOADED + TOKENS + REST + "stxdw [%r6], %r8" + END,
        CHANGED,
    ),
    "how often bpf_loop called": Pair(
        LOADED + "ldxdw %r1, [%r9+240]\n" + CALLS + "stxdw [%r6], %r0" + END + BODY,
        LOADED + "mov %r1, %r7\n" + CALLS + "stxdw [%r6], %r0" + END + BODY,
        CHANGED,
    ),
    "what bpf_loop calls": Pair(
        LOADED + "ldxdw %r1, [%r9+240]\n" + CALLS + END + STORING_BODY,
        LOADED + "mov %r1, %r7\n" + CALLS + END + STORING_BODY,
        "whether this is stored depends on",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_a_budget_decides(name):
    check(PAIRS[name].accepted)
    error = refusal(PAIRS[name].refused)
    assert error.rule == "P8"
    assert PAIRS[name].words in str(error)
