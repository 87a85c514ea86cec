"""The cost report: of the worst thread, and of a warp whose lanes come apart."""

import pytest
from verifier_programs import END, RESERVE, VALUE, check, refusal

from egpu.verifier import Limits

LANE = "mov %r9, %r1\nldxw %r8, [%r1+232]\n"  # differs between lanes
SHARED = "mov %r9, %r1\nldxdw %r8, [%r1+112]\n"  # the first parameter: the same for all
BRANCH = (
    "jeq %r8, 0, else\n" + "mov %r7, 1\n" * 10 + "ja end\nelse:\n" + "mov %r7, 2\n" * 7 + "end:"
)


def costs(text, **options):
    verified = check(text, **options)
    return verified.cost, verified.warp_cost


def test_lanes_that_stay_together_cost_one_thread():
    thread, warp = costs(SHARED + BRANCH + END)
    assert thread == warp


def test_both_sides_of_a_varying_branch():
    thread, warp = costs(LANE + BRANCH + END)
    assert thread.instructions == 2 + 1 + 11 + 2
    # the worst thread, and everything that lanes may reach apart: both sides once more
    assert thread.instructions + 7 <= warp.instructions <= thread.instructions + 11 + 7


def test_a_loop_that_lanes_leave_apart_turns_as_often_as_the_slowest():
    text = LANE + "and %r8, 15\nmov %r7, 0\nloop:\nadd %r7, 1\njlt %r7, %r8, loop" + END
    thread, warp = costs(text)
    assert thread.instructions <= warp.instructions <= 2 * thread.instructions


def test_a_loop_inside_may_turn_at_other_times_in_each_lane():
    text = LANE + (
        "mov %r7, 0\nouter:\nmov %r6, 0\ninner:\nadd %r6, 1\njlt %r6, %r8, inner\n"
        "add %r7, 1\njlt %r7, 4, outer"
    )
    thread, warp = costs(text + END)
    assert 2 * thread.instructions < warp.instructions <= 32 * thread.instructions


def test_never_more_than_all_lanes_one_after_the_other():
    text = LANE + "jeq %r8, 0, end\n" + BRANCH.replace("else", "e2").replace("end", "e3") + "\nend:"
    thread, warp = costs(text + END)
    assert warp.instructions <= 32 * thread.instructions


def test_every_lane_writes_its_records():
    text = RESERVE.format(24) + "jeq %r0, 0, end\nmov %r1, %r0\nmov %r2, 0\ncall 133\nend:" + END
    thread, warp = costs(text)
    assert (thread.ring_bytes, warp.ring_bytes) == (24, 32 * 24)


def test_memory_atomics_and_helpers_are_counted():
    text = VALUE.format(1) + "mov %r1, 1\nlock add [%r6], %r1\nldxdw %r1, [%r6]" + END
    thread, _ = costs(text)
    assert (thread.atomics, thread.helper_calls) == (1, 1)
    assert thread.memory == 1 + 1 + 1 + 1  # the key, the lookup's own, the atomic, the load
    assert thread.helpers > 0


def test_the_limit_names_the_number_and_the_option():
    loop = "mov %r0, 0\nloop:\nadd %r0, 1\njlt %r0, 1000, loop\nexit"
    error = refusal(loop, limits=Limits(cost=1500))
    assert "over 1500 instructions a thread" in str(error)
    assert "--cost-limit" in error.hint
    check(loop, limits=Limits(cost=2100))


def chain(depth, frame=0):
    """``depth`` functions, each calling the next."""
    store = f"stdw [%r10-{frame}], 0\n" if frame else ""
    text = ""
    for number in range(depth):
        label = f"f{number}:\n" if number else ""
        call = f"call local f{number + 1}\n" if number + 1 < depth else ""
        text += f"{label}{store}{call}mov %r0, 0\nexit\n"
    return text


def test_calls_nest_eight_deep():
    assert check(chain(8)).cost.instructions == 8 * 3 - 1
    assert "calls nest 9 deep, limit 8" in str(refusal(chain(9)))


@pytest.mark.parametrize(("frame", "rounded"), [(8, 16), (16, 16), (24, 32), (64, 64)])
def test_stack_of_a_chain(frame, rounded):
    assert check(chain(8, frame)).facts.stack_depth == 8 * frame
    limits = Limits(stack=8 * rounded - 1)
    assert refusal(chain(8, frame), limits=limits).rule == "P12"
    check(chain(8, frame), limits=Limits(stack=8 * rounded))


def test_the_deepest_chain_counts_not_the_sum():
    text = "call local a\ncall local b\nmov %r0, 0\nexit\n"
    text += "a:\nstdw [%r10-256], 0\nmov %r0, 0\nexit\nb:\nstdw [%r10-128], 0\nmov %r0, 0\nexit"
    assert check(text).facts.stack_depth == 256


def test_a_frame_reached_through_a_callee_counts():
    text = "mov %r1, %r10\nadd %r1, -64\ncall local f\nmov %r0, 0\nexit\n"
    text += "f:\nstdw [%r1-8], 0\nmov %r0, 0\nexit"
    assert check(text).facts.stack_depth == 72


def test_a_callee_cannot_reach_below_its_callers_frame():
    text = "mov %r1, %r10\ncall local f\nmov %r0, 0\nexit\nf:\nstdw [%r1-520], 0\nmov %r0, 0\nexit"
    assert refusal(text).rule == "P2"
