"""Loops that are too long to be walked turn by turn: how often they turn is proven, the body walked
once."""

import pytest
from verifier_programs import END, VALUE, check, refusal

from egpu.verifier import Limits

LONG = Limits(processed=5_000, cost=10_000_000)

ACCEPTED = {
    "up to a constant": ("mov %r7, 0\nloop:\nadd %r7, 1\njlt %r7, 100000, loop", 200_000),
    "in 32 bits": ("mov32 %r7, 0\nloop:\nadd32 %r7, 1\njlt32 %r7, 100000, loop", 200_000),
    "until it is equal": ("mov %r7, 0\nloop:\nadd %r7, 1\njne %r7, 100000, loop", 200_000),
    "until it is equal by steps": ("mov %r7, 0\nloop:\nadd %r7, 4\njne %r7, 400000, loop", 200_000),
    "down to zero": ("mov %r7, 100000\nloop:\nadd %r7, -1\njne %r7, 0, loop", 200_000),
    "down, signed": ("mov %r7, 100000\nloop:\nadd %r7, -2\njsgt %r7, 0, loop", 100_000),
    "test at the head": (
        "mov %r7, 0\nloop:\njge %r7, 100000, out\nadd %r7, 1\nja loop\nout:",
        300_000,
    ),
    "signed, from below zero": (
        "mov %r7, -50000\nloop:\nadd %r7, 1\njslt %r7, 50000, loop",
        200_000,
    ),
    "counter on the stack": (
        (
            "stdw [%r10-8], 0\nloop:\nldxdw %r7, [%r10-8]\nadd %r7, 1\nstxdw [%r10-8], %r7\n"
            "jlt %r7, 100000, loop"
        ),
        400_000,
    ),
    "counter in four bytes of stack": (
        (
            "stw [%r10-12], 0\nja test\nloop:\nldxw %r7, [%r10-12]\nadd32 %r7, 1\n"
            "stxw [%r10-12], %r7\ntest:\nldxw %r8, [%r10-12]\njlt32 %r8, 100000, loop"
        ),
        500_000,
    ),
    "bound on the stack": (
        (
            "stdw [%r10-8], 100000\nmov %r7, 0\nloop:\nadd %r7, 1\nldxdw %r8, [%r10-8]\n"
            "jlt %r7, %r8, loop"
        ),
        300_000,
    ),
    "bound from the context, limited": (
        (
            "ldxdw %r8, [%r1+240]\njle %r8, 100000, fits\nmov %r8, 100000\nfits:\nmov %r7, 0\n"
            "loop:\njge %r7, %r8, out\nadd %r7, 1\nja loop\nout:"
        ),
        300_000,
    ),
    "bound on the left": (
        "mov %r8, 100000\nmov %r7, 0\nloop:\nadd %r7, 1\njgt %r8, %r7, loop",
        200_000,
    ),
    "two ways round with different steps": (
        (
            "mov %r9, %r1\nmov %r7, 0\nloop:\nldxw %r8, [%r9+232]\njset %r8, 1, odd\n"
            "add %r7, 1\nja test\nodd:\nadd %r7, 3\ntest:\njlt %r7, 100000, loop"
        ),
        500_000,
    ),
    "nested": (
        (
            "mov %r7, 0\nouter:\nmov %r8, 0\ninner:\nadd %r8, 1\njlt %r8, 1000, inner\n"
            "add %r7, 1\njlt %r7, 1000, outer"
        ),
        2_000_000,
    ),
    "nested three times": (
        (
            "mov %r6, 0\nfirst:\nmov %r7, 0\nsecond:\nmov %r8, 0\nthird:\nadd %r8, 1\n"
            "jlt %r8, 100, third\nadd %r7, 1\njlt %r7, 100, second\nadd %r6, 1\njlt %r6, 100, first"
        ),
        2_000_000,
    ),
    "with a way out": (
        (
            "mov %r9, %r1\nmov %r7, 0\nloop:\nldxw %r8, [%r9+232]\njeq %r8, 7, out\nadd %r7, 1\n"
            "jlt %r7, 100000, loop\nout:"
        ),
        400_000,
    ),
    "with a call inside": (
        "mov %r7, 0\nloop:\ncall 5\nadd %r7, 1\njlt %r7, 100000, loop",
        300_000,
    ),
    "in a called function": (
        (
            "mov %r1, 100000\ncall local f\nmov %r0, 0\nexit\nf:\nmov %r2, 0\nloop:\nadd %r2, 1\n"
            "jlt %r2, %r1, loop\nmov %r0, 0\nexit"
        ),
        200_000,
    ),
    "with a sum that matters afterwards": (
        (
            "mov %r7, 0\nmov %r8, 0\nloop:\nadd %r8, %r7\nadd %r7, 1\njlt %r7, 100000, loop\n"
            "jgt %r8, 15, out\nout:"
        ),
        300_000,
    ),
}


def whole(text):
    return text if text.endswith("exit") else text + END


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    text, least = ACCEPTED[name]
    cost = check(whole(text), limits=LONG).cost.instructions
    assert least <= cost <= least * 1.02 + 2000


@pytest.mark.parametrize("inside", ["", "add %r7, 0\n"])
def test_the_counter_is_a_good_index(inside):
    """What a turn knows of the counter: below the bound, and a multiple of its step."""
    text = VALUE.format(1).replace("map_index 1", "map_index {}") + "mov %r7, 0\nloop:\n" + inside
    text += "mov %r8, %r7\nrsh %r8, 13\nmov %r5, %r6\nadd %r5, %r8\nldxdw %r4, [%r5]\n"
    text += "add %r7, 0x4000\njlt %r7, {}, loop" + END
    # the offset is 2, 4, 6 ... : an aligned 2-byte access passes, up to the end of the 16 bytes
    half = text.replace("ldxdw", "ldxh")
    assert check(half.format(1, 0x4000 * 8), limits=LONG)
    assert refusal(half.format(1, 0x4000 * 9), limits=LONG).rule == "P2"


def test_a_long_row():
    """An array of 4,000 numbers, by index and by a pointer that moves."""
    from egpu.bpf.asm import assemble  # noqa: PLC0415
    from egpu.bpf.insn import program_from_code  # noqa: PLC0415
    from egpu.bpf.maptypes import MapType  # noqa: PLC0415
    from egpu.bpf.program import AttachKind, AttachPoint, MapSpec  # noqa: PLC0415
    from egpu.errors import VerifierError  # noqa: PLC0415
    from egpu.verifier import verify  # noqa: PLC0415

    maps = (MapSpec("row", MapType.ARRAY, 4, 32_000, 1),)
    attach = (AttachPoint(AttachKind.ENTRY, "*"),)
    by_index = VALUE.format(0) + (
        "mov %r7, 0\nloop:\nmov %r8, %r7\nlsh %r8, 3\nmov %r5, %r6\nadd %r5, %r8\n"
        "ldxdw %r4, [%r5]\nadd %r7, 1\njlt %r7, {}, loop"
    )
    by_pointer = VALUE.format(0) + (
        "mov %r7, 0\nloop:\nldxdw %r4, [%r6]\nadd %r6, 8\nadd %r7, 1\njlt %r7, {}, loop"
    )
    for text in (by_index, by_pointer):
        for bound, passes in ((4000, True), (4001, False)):
            program = program_from_code(
                assemble(text.format(bound) + END), "p", maps=maps, attach=attach
            )
            if passes:
                assert verify(program, limits=LONG).cost.memory >= 4000
            else:
                with pytest.raises(VerifierError):
                    verify(program, limits=LONG)


REFUSED = {
    "counter set elsewhere in the loop": (
        "mov %r9, %r1\nmov %r7, 0\nloop:\nadd %r7, 1\nldxw %r8, [%r9+232]\njne %r8, 3, test\n"
        "mov %r7, 0\ntest:\njlt %r7, 100000, loop"
    ),
    "one way round does not count": (
        "mov %r9, %r1\nmov %r7, 0\nloop:\nldxw %r8, [%r9+232]\njeq %r8, 3, test\nadd %r7, 1\n"
        "test:\njlt %r7, 100000, loop"
    ),
    "one way round does not compare": (
        "mov %r9, %r1\nmov %r7, 0\nloop:\nadd %r7, 1\nldxw %r8, [%r9+232]\njeq %r8, 3, loop\n"
        "jlt %r7, 100000, loop"
    ),
    "step 0": "mov %r9, %r1\nldxw %r7, [%r9+232]\nloop:\nadd %r7, 0\njlt %r7, 100000, loop",
    "the bound moves along": (
        "mov %r7, 0\nmov %r8, 100000\nloop:\nadd %r7, 1\nadd %r8, 1\njlt %r7, %r8, loop"
    ),
    "wraps in 32 bits": "mov32 %r7, 1\nloop:\nadd32 %r7, 2\njne32 %r7, 0, loop",
    "misses the value it waits for": "mov %r7, 0\nloop:\nadd %r7, 3\njne %r7, 100000, loop",
    "passed the value it waits for": "mov %r7, 9\nloop:\nadd %r7, 1\njne %r7, 5, loop",
    "counts the other way": "mov %r7, 5\nloop:\nadd %r7, 1\njgt %r7, 3, loop",
    "counter on the stack that a helper overwrites": (
        "stdw [%r10-8], 0\nloop:\nldxdw %r7, [%r10-8]\nadd %r7, 1\nstxdw [%r10-8], %r7\n"
        "mov %r1, %r10\nadd %r1, -8\nmov %r2, %r10\nadd %r2, -16\nmov %r3, %r10\nadd %r3, -24\n"
        "call 505\njlt %r7, 100000, loop"
    ),
    "counter on the stack overwritten at a variable place": (
        "mov %r9, %r1\nstdw [%r10-8], 0\nstdw [%r10-16], 0\nloop:\nldxdw %r7, [%r10-8]\n"
        "add %r7, 1\nstxdw [%r10-8], %r7\nldxw %r8, [%r9+232]\nand %r8, 8\nadd %r8, %r10\n"
        "stdw [%r8-16], 0\njlt %r7, 100000, loop"
    ),
    "counter on the stack overwritten in part": (
        "stdw [%r10-8], 0\nloop:\nldxdw %r7, [%r10-8]\nadd %r7, 1\nstxdw [%r10-8], %r7\n"
        "stw [%r10-8], 0\njlt %r7, 100000, loop"
    ),
    "counter on the stack overwritten by a callee": (
        "stdw [%r10-8], 0\nloop:\nldxdw %r7, [%r10-8]\nadd %r7, 1\nstxdw [%r10-8], %r7\n"
        "mov %r1, %r10\nadd %r1, -8\ncall local f\njlt %r7, 100000, loop\nmov %r0, 0\nexit\n"
        "f:\nstdw [%r1], 0\nmov %r0, 0\nexit"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    limits = Limits(processed=20_000, cost=1_000_000)
    assert refusal(whole(REFUSED[name]), limits=limits).rule == "P4"


def test_a_body_that_is_wrong_late_is_refused():
    """A turn far beyond those walked one by one reads outside the value."""
    text = VALUE.format(1) + "mov %r7, 0\nloop:\nmov %r8, %r7\nrsh %r8, 13\nmov %r5, %r6\n"
    text += "add %r5, %r8\nldxb %r4, [%r5]\nadd %r7, 1\njlt %r7, {}, loop" + END
    assert check(text.format(16 << 13), limits=LONG)
    error = refusal(text.format(1 + (16 << 13)), limits=Limits(processed=2_000_000, cost=2_000_000))
    assert error.rule == "P2"


def test_costs_of_short_loops_are_exact():
    text = "mov %r7, 0\nloop:\nadd %r7, 1\njlt %r7, {}, loop" + END
    assert check(text.format(64)).cost.instructions == 1 + 2 * 64 + 2
    long = check(text.format(1000)).cost.instructions
    assert 1 + 2 * 1000 + 2 <= long <= 2020


def test_the_way_is_shown_after_a_long_loop():
    text = "mov %r7, 0\nloop:\nadd %r7, 1\njlt %r7, 100000, loop\nmov %r3, 5\nldxb %r0, [%r3]\nexit"
    error = refusal(text, limits=LONG)
    assert error.pc == 4
    assert "r3=5" in error.path[-1]


def test_one_hint_for_loops_that_are_too_long():
    error = refusal(whole("mov %r7, 0\nloop:\nadd %r7, 1\njlt %r7, 1000000, loop"))
    assert "if (n > 100) n = 100" in error.hint


@pytest.mark.parametrize("states", [1, 2, 7, 8, 9, 12, 20])
def test_states_that_come_back_are_found(states):
    """However many differ before one comes back: few are compared one by one, many by a key."""
    text = f"mov %r9, %r1\nmov %r7, 0\nloop:\nadd %r7, 1\nmod %r7, {states}\n"
    error = refusal(text + "ldxdw %r2, [%r9+240]\njne %r2, 0, loop" + END)
    assert "infinite loop: this instruction is reached again in the same state" in error.message
    assert error.pc == 2
