"""Differential test: what this verifier takes, Linux takes, outside the written exceptions.

The running kernel is asked by bpf(2); where that is not permitted, its recorded verdicts are.
"""

import re
from pathlib import Path

import budget_programs
import callback_programs
import differential
import linux_oracle
import oracle_programs
import pytest
from differential import (
    BUDGET_MUTANTS,
    CALLBACK_MUTANTS,
    MUTANTS,
    NO_LEAK,
    POLICIES,
    PRIVILEGED,
    STRICT,
    bare,
    compare,
)
from verifier_programs import ENTRY, ROOT, has_conformance

from egpu.bpf.asm import assemble, disassemble
from egpu.bpf.insn import program_from_code
from egpu.verifier import Limits, verify

LISTED = Path(__file__).with_name("false_rejects.txt")
COUNTED = Path(__file__).with_name("counted.bpf.c")
MODES = (PRIVILEGED, STRICT, NO_LEAK)
needs_compiler = pytest.mark.skipif(
    bool(oracle_programs.compiler_missing()), reason=oracle_programs.compiler_missing() or "found"
)
needs_kernel = pytest.mark.skipif(
    bool(linux_oracle.unavailable()), reason=linux_oracle.unavailable() or "permitted"
)


def shown(outcome):
    """Wrong accepts as people read them."""
    return [(name, disassemble(code), log[-600:]) for name, code, log in outcome.wrong]


def test_the_running_kernel_is_asked():
    if linux_oracle.unavailable():
        pytest.skip(f"recorded verdicts are used: {linux_oracle.unavailable()}")
    assert linux_oracle.load(b"\x00" * 8)[0] is False


@pytest.mark.parametrize("mode", MODES)
def test_programs_without_context(mode):
    outcome = compare(differential.bare_programs(mode), mode)
    assert shown(outcome) == []
    # The public suite has most of the programs; without it egpu's own and the random ones run.
    assert len(outcome.both) > (300 if has_conformance() else 100)


@needs_compiler
@pytest.mark.parametrize("mode", [PRIVILEGED, STRICT])
def test_whole_probes(mode):
    outcome = compare(differential.probes(), mode)
    assert shown(outcome) == []
    assert len(outcome.both) > 180


@pytest.mark.parametrize("mode", MODES)
def test_mutants(mode):
    outcome = compare(differential.mutated(mode, MODES.index(mode), MUTANTS[mode]), mode)
    assert shown(outcome) == []
    assert len(outcome.both) > MUTANTS[mode] / 20


@pytest.mark.long
@needs_kernel
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("mode", MODES)
def test_many_mutants(request, mode, part):
    """100,000 in each mode, 5,000 a part."""
    if "long" not in (request.config.getoption("markexpr") or ""):
        pytest.skip("the long run: pytest -m long")
    seed = 100 + 20 * MODES.index(mode) + part
    outcome = compare(differential.mutated(mode, seed, 5000), mode)
    print(f"{mode}: {len(outcome.both)} taken by both, {len(outcome.excused)} excused")
    assert shown(outcome) == []
    assert len(outcome.both) > 250


def listed():
    """The rows of false_rejects.txt: (name, rule)."""
    rows = [line.split(None, 2) for line in LISTED.read_text().splitlines() if line[:1] != "#"]
    assert all(len(row) == 3 for row in rows), "name, rule and reason"
    return {(name, rule) for name, rule, _ in rows}


@needs_compiler
def test_false_rejects_are_listed_and_few():
    cases = [*differential.conformance(), *differential.probes()]
    outcome = compare(cases, false_rejects=True)
    found = {(name, error.rule) for name, error in outcome.refused}
    assert found == listed()
    taken_by_linux = len(outcome.both) + len(found)
    assert taken_by_linux > 450 or not differential.has_conformance()
    assert len(found) <= 0.02 * taken_by_linux


@pytest.mark.parametrize("mode", MODES)
def test_callbacks(mode):
    """Programs with callbacks, which Linux takes with BTF for their functions, and mutants."""
    outcome = compare(differential.callbacks(), mode)
    assert shown(outcome) == []
    assert len(outcome.both) == len(callback_programs.PASSING)
    changed = compare(differential.changed_callbacks(mode), mode)
    assert shown(changed) == []
    assert len(changed.both) > CALLBACK_MUTANTS[mode] / 50


@pytest.mark.parametrize("mode", MODES)
def test_budgets(mode):
    """may_goto and bpf_loop as Linux has them."""
    outcome = compare(differential.budgeted(), mode)
    assert shown(outcome) == []
    assert outcome.excused == []
    assert set(outcome.both) == {f"budgets/{name}" for name in budget_programs.LINUX_TOO}
    changed = compare(differential.changed_budgets(mode), mode)
    assert shown(changed) == []
    assert len(changed.both) > BUDGET_MUTANTS[mode] / 15


@pytest.mark.long
@needs_kernel
@pytest.mark.timeout(1200)
def test_budgets_that_are_ours_alone(request):
    """Linux walks each of these for half a minute before it gives up."""
    if "long" not in (request.config.getoption("markexpr") or ""):
        pytest.skip("the long run: pytest -m long")
    outcome = compare(differential.budgeted(budget_programs.OURS_ALONE))
    assert shown(outcome) == []
    names = {f"budgets/{name}" for name in budget_programs.OURS_ALONE}
    assert dict(outcome.excused) == dict.fromkeys(names, BUDGETED)


def test_the_exception_for_budgets_covers_nothing_else():
    """Not what may_goto or bpf_loop bound, nor what has no budget."""
    for name, text in budget_programs.LINUX_TOO.items():
        case = bare(name, assemble(text), budget_programs.SIZE)
        assert not differential.budget_alone(case, SHORT), name
    for name, text in budget_programs.OURS_ALONE.items():
        case = bare(name, assemble(text), budget_programs.SIZE)
        assert differential.budget_alone(case, SHORT), name
    for case in differential.callbacks():
        if case.ours() is None:
            budget = verify(case.program, memory_size=case.size).facts.budget
            assert budget is None or not budget.loops, case.name


SHORT = Limits(cost=2_000)
BUDGETED = "loops that count to a number that is not known"


@needs_kernel
@needs_compiler
def test_callbacks_that_linux_counts():
    (program,) = oracle_programs.compiled(COUNTED, "v3").programs
    ((_, reason),) = compare([differential.Case("counted", program, None)]).excused
    assert reason == "callbacks whose number of calls Linux counts one by one"


@needs_kernel
def test_an_address_that_nobody_calls():
    text = "mov %r1, 2\nlddw %r2, code outer\nmov %r3, 0\nmov %r4, 0\ncall 181\nmov %r0, 0\nexit\n"
    text += "outer:\nlddw %r2, code body\nmov %r0, 0\nexit\nbody:\nmov %r0, 0\nexit"
    outcome = compare([bare("address", assemble(text), 0)])
    assert outcome.wrong == []
    for _, reason in outcome.excused:
        assert reason == "functions whose address is taken and that are never called"


def test_exceptions_are_written_down():
    text = (ROOT / "docs" / "verifier.md").read_text()
    for policy in POLICIES:
        assert policy.reason in text, policy


def test_coarse_mode_forgets_division():
    """A way that only the value of a quotient shows to be dead: Linux 6.18 walks it and refuses."""
    text = "mov %r1, 7\nmov %r2, 2\ndiv %r1, %r2\njeq %r1, 3, end\nmov %r0, %r9\nend:\n"
    case = bare("quotient", assemble(text + "mov %r0, 0\nexit"), 0)
    assert case.ours() is None
    with differential.as_coarse_as_linux():
        assert case.ours() is not None


@needs_kernel
def test_a_wrong_accept_is_found(monkeypatch):
    """The comparison can fail: with our verdict forced, Linux's refusal is reported."""
    case = bare("uninitialised", assemble("mov %r0, %r3\nexit"), 0)
    monkeypatch.setattr(differential.Case, "ours", lambda self: None)
    assert [name for name, _, _ in compare([case]).wrong] == ["uninitialised"]
    assert [name for name, _, _ in compare([case], NO_LEAK).wrong] == ["uninitialised"]


@needs_kernel
def test_no_leak_mode_refuses_leaks():
    leak = assemble("mov %r0, %r10\nexit")
    job = bare("leak", leak, 0).job()
    assert linux_oracle.load(*job)[0], "privileged programs may leak"
    ((accepted, log),) = linux_oracle.without_leaks([job])
    assert not accepted
    assert "leaks addr" in log


def test_recorded_verdicts_serve_without_bpf(monkeypatch):
    monkeypatch.setattr(linux_oracle, "unavailable", lambda: "not permitted in this test")
    outcome = compare(differential.bare_programs())
    assert shown(outcome) == []
    assert len(outcome.both) > 150
    assert compare([bare("unknown", assemble("mov %r0, 12345\nexit"), 0)]).both == []


@pytest.mark.parametrize("mode", MODES)
def test_recorded_verdicts_cover_budgets(mode, monkeypatch):
    monkeypatch.setattr(linux_oracle, "unavailable", lambda: "not permitted in this test")
    outcome = compare(differential.budgeted(), mode)
    assert shown(outcome) == []
    assert set(outcome.both) == {f"budgets/{name}" for name in budget_programs.LINUX_TOO}
    changed = compare(differential.changed_budgets(mode), mode)
    assert shown(changed) == []
    assert len(changed.both) > BUDGET_MUTANTS[mode] / 15


@pytest.mark.parametrize("number", range(len(POLICIES)))
def test_a_record_says_which_exception_covers_a_refusal(number):
    """Several exceptions may have the words of one log: the record has to replay the right one."""
    policy = POLICIES[number]
    sample = differential.SAMPLES[number]
    assert re.search(policy.log, sample)
    for case in (*differential.callbacks(), *differential.budgeted()):
        for mode in policy.modes:
            log = "The sequence of 8193 jumps is too complex."
            if policy.covers(case, log, mode):
                replayed = differential.SAMPLES[int(differential.refused_as(case, log, mode))]
                assert any(other.covers(case, replayed, mode) for other in POLICIES)


def test_values_that_linux_does_not_follow_may_bound_a_loop():
    """A lane's number is below 32, so this ends; for Linux it is any number, as for a budget."""
    text = (
        "mov %r4, 0\nldxw %r1, [%r1+232]\ntop:\nmov32 %r5, %r1\nxor32 %r5, %r4\nadd32 %r4, 1\n"
        "jlt32 %r4, %r5, top\nmov %r0, 0\nexit"
    )
    case = differential.Case("lane", program_from_code(assemble(text), "p", attach=ENTRY), None)
    assert verify(case.program).facts.budget is None
    log = "BPF program is too large. Processed 1000001 insn"
    assert differential.excused(case, log, PRIVILEGED) == "values that Linux does not follow"


@needs_kernel
def test_two_arguments_in_one_record():
    """Key and value of an update, both in what is reserved."""
    text = (
        "lddw %r1, map_index 2\nmov %r2, 32\nmov %r3, 0\ncall 131\njeq %r0, 0, out\nmov %r6, %r0\n"
        "stdw [%r6], 0\nstdw [%r6+8], 1\nstdw [%r6+16], 1\nlddw %r1, map_index 1\nmov %r2, %r6\n"
        "mov %r3, %r6\nadd %r3, 8\nmov %r4, 0\ncall 2\nmov %r1, %r6\nmov %r2, 0\ncall 132\n"
        "out:\nmov %r0, 0\nexit"
    )
    ((_, reason),) = compare([bare("record", assemble(text), 0)]).excused
    assert reason == "two arguments that point into one record"
