"""bpf_loop and bpf_for_each_map_elem: a callback is walked once for all calls."""

import importlib.util

import pytest
from callback_programs import ANSWER, BODIES, NESTED, REFUSED, STOP, each, loop
from verifier_programs import END, ENTRY, VALUE, check, refusal

from egpu.bpf.asm import assemble
from egpu.bpf.helpers import HELPERS
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import run
from egpu.bpf.maptypes import MapType, table_slots, traits
from egpu.bpf.program import MapSpec
from egpu.errors import VerifierError
from egpu.verifier import Limits, Policy, verify


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
    open_ended = check(text.format(""))
    assert open_ended.facts.budget.calls == {7}
    assert 99_000 < open_ended.cost.instructions <= 100_000
    clamped = text.format("jle %r1, 100, fits\nmov %r1, 100\nfits:")
    assert 100 * 5 <= check(clamped).cost.instructions <= 100 * 5 + 20


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


def over(kind, entries, body="", key=4, value=8):
    """Verify a walk over a map of ``kind``, whose other sizes are given."""
    maps = (MapSpec("m", kind, key, value, entries),)
    program = program_from_code(assemble(each(body, 0)), "p", maps=maps, attach=ENTRY)
    return verify(program)


def test_cost_is_entries_times_the_callback():
    assert check(each("mov %r1, 7")).cost.instructions == 8 + 4 * 3
    array = over(MapType.ARRAY, 1000)
    assert array.cost.instructions == 8 + 1000 * 2
    table = over(MapType.HASH, 1000)
    assert table.cost.instructions == 8 + 1000 * 2
    # every slot of a table is looked at
    assert table.cost.helpers - array.cost.helpers == 8 * table_slots(1000)
    with pytest.raises(VerifierError, match=r"up to 100000 times, each up to 2 instr.*max_entries"):
        over(MapType.ARRAY, 100_000)


WALKED = [
    kind
    for kind in MapType
    if traits(kind).hashed or (traits(kind).indexed and not traits(kind).per_thread)
]


def test_maps_with_entries_for_all_are_walked():
    assert HELPERS[164].map_types == {kind.name for kind in WALKED}
    for kind in WALKED:
        assert over(kind, 5).facts.helpers == {164}


@pytest.mark.parametrize(("kind", "key", "value"), [
    (MapType.RINGBUF, 0, 0),
    (MapType.QUEUE, 0, 8),
    (MapType.STACK, 0, 8),
    (MapType.BLOOM_FILTER, 0, 8),
    (MapType.GPU_PER_THREAD_ARRAY, 4, 8),
    (MapType.GPU_PER_THREAD_HOST_ARRAY, 4, 8),
])  # fmt: skip
def test_other_maps_are_refused_by_name(kind, key, value):
    with pytest.raises(VerifierError, match=f"does not take map m of type {kind.name}; it takes"):
        over(kind, 4096, key=key, value=value)


def test_what_a_callback_gets():
    """The key is read, the value read and written, the map serves helper calls."""
    text = each(
        "ldxw %r5, [%r2]\nlock add [%r3+8], %r5\nldxb %r5, [%r2+3]\n"
        "stdw [%r10-8], 0\ncall 1\njeq %r0, 0, none\nldxdw %r5, [%r0+8]\nnone:"
    )
    operands = check(text).facts.operands
    places = {(pc, r): o for (pc, r), o in operands.items() if pc > 9}
    assert {o.regions for o in places.values() if o.map == 1}
    assert any("map_key" in {r.value for r in o.regions} for o in places.values())
    assert check(each("mov %r1, 1\nlock add [%r3], %r1", 0)).facts.maps == {0}


@pytest.mark.parametrize(("body", "rule"), BODIES, ids=lambda value: value)
def test_callbacks_over_a_map_refused(body, rule):
    assert refusal(each(body)).rule == rule


@pytest.mark.parametrize(("old", "new", "words"), [
    ("mov %r4, 0", "mov %r4, 1", "its flags, must be 0"),
    ("lddw %r1, map_index 1", "mov %r1, 0", "must be a map"),
    ("lddw %r2, code body", "lddw %r2, code body\nmov %r2, 0", "must be a function"),
    ("add %r3, -8", "mov %r3, 5", "must be a pointer into the stack, or 0"),
])  # fmt: skip
def test_arguments_refused(old, new, words):
    assert words in refusal(each("").replace(old, new)).message


def test_adding_on_a_per_sm_map_is_an_atomic():
    facts = check(each("ldxdw %r5, [%r3]\nadd %r5, 1\nstxdw [%r3], %r5", 0)).facts
    assert [rmw.size for rmw in facts.rmw.values()] == [8]


def test_read_only_maps_are_walked_and_not_written():
    assert check(each("ldxw %r5, [%r3]", 3))
    assert "read-only" in refusal(each("stw [%r3], 1", 3)).message


def test_a_sum_kept_apart_from_what_is_stored():
    """What a callback sums up on the stack is not what a later update stores."""
    body = "ldxdw %r5, [%r3]\nldxdw %r1, [%r4]\nadd %r1, %r5\nstxdw [%r4], %r1"
    text = each(body, before="stdw [%r10-8], 0\n").replace("mov %r0, 0\nexit\nbody:", (
        "stw [%r10-44], 0\nstdw [%r10-40], {0}\nstdw [%r10-32], 9\n{1}"
        "lddw %r1, map_index 1\nmov %r2, %r10\nadd %r2, -44\nmov %r3, %r10\nadd %r3, -40\n"
        "mov %r4, 0\ncall 2\nmov %r0, 0\nexit\nbody:"
    ))  # fmt: skip
    assert check(text.format(9, ""))
    lost = text.format(9, "ldxdw %r5, [%r10-8]\nstxdw [%r10-32], %r5\n")
    assert refusal(lost).rule == "P8"


def test_what_one_load_takes_from_two_maps_is_not_said_to_come_from_one():
    """The callback of two walks; what it sums up goes to a third map."""
    walk = (
        "lddw %r1, map_index {0}\nlddw %r2, code body\nmov %r3, %r10\nadd %r3, -8\nmov %r4, 0\n"
        "call 164\n"
    )
    text = (
        "stdw [%r10-8], 0\n" + walk.format(0) + walk.format(1) + "lddw %r6, map_index_value 4\n"
        "ldxdw %r5, [%r10-8]\nstxdw [%r6], %r5\nmov %r0, 0\nexit\n"
        "body:\nldxdw %r5, [%r3]\nldxdw %r1, [%r4]\nadd %r1, %r5\nstxdw [%r4], %r1\n"
        "mov %r0, 0\nexit"
    )
    error = refusal(text)
    assert (error.rule, "loaded from a map that may be .data is" in error.message) == ("P8", True)
    own = text.replace("map_index_value 4", "map_index_value 4\nldxdw %r7, [%r6]").replace(
        "[%r10-8]\nstxdw [%r6], %r5", "[%r10-8]\nstxdw [%r6], %r7"
    )
    assert "loaded from map .data is" in refusal(own).message
