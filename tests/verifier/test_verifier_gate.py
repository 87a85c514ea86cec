"""The seal, and the conformance programs under both policies."""

import copy
import dataclasses
import pickle
import re

import pytest
from verifier_programs import CONFORMANCE, END, ROOT, check, has_conformance, program

from egpu.bpf.conformance import read_case
from egpu.bpf.insn import program_from_code
from egpu.errors import EgpuError, VerifierError
from egpu.verifier import Policy, VerifiedProgram, verified, verify

WIDE_SHIFTS = {
    *("arsh32-imm-high", "arsh32-imm-neg", "arsh64-imm-high", "arsh64-imm-neg"),
    *("lsh32-imm-high", "lsh64-imm-neg", "rsh32-imm-high", "rsh64-imm-neg"),
}


def test_constructor_wants_the_seal():
    good = check(END)
    fields = {"facts": good.facts, "cost": good.cost, "warp_cost": good.warp_cost, "memory_size": 0}
    for seal in (object(), None, True, verified.VerifiedProgram):
        with pytest.raises(TypeError, match=r"only egpu\.verifier\.verify"):
            VerifiedProgram(seal, program("exit"), Policy.PROBE, **fields)


def test_no_subclass():
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Forged", (VerifiedProgram,), {"__slots__": ()})


def test_properties_cannot_be_set():
    good = check(END)
    for name in ("program", "policy", "facts", "cost", "memory_size", "_program", "_policy"):
        with pytest.raises(AttributeError):
            setattr(good, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        good.facts.stack_depth = 0
    for mapping in (good.facts.operands, good.facts.rmw):
        with pytest.raises(TypeError):
            mapping[0] = None


def test_no_copy_with_changes():
    good = check(END)
    with pytest.raises(TypeError):
        dataclasses.replace(good, program=program("exit"))
    if hasattr(copy, "replace"):
        with pytest.raises(TypeError):
            copy.replace(good, program=program("exit"))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_not_copied_or_stored(copied):
    """A pickle could come back with any content, so there is none."""
    with pytest.raises(TypeError, match="cannot be copied or stored"):
        copied(check(END))


def test_only_the_gate_issues():
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"\b_issue\b|\b_SEAL\b", path.read_text())
    }
    assert users == {"src/egpu/verifier/gate.py", "src/egpu/verifier/verified.py"}


def test_a_refused_program_gives_nothing():
    with pytest.raises(VerifierError):
        check("exit")


def cases(folder):
    if not has_conformance():
        pytest.skip(f"no conformance data at {CONFORMANCE}")
    return [read_case(path) for path in sorted((CONFORMANCE / folder).glob("*.data"))]


def verdict(case, policy):
    try:
        code = case.code()
        verify(program_from_code(code, case.name), policy=policy, memory_size=len(case.memory))
    except EgpuError:
        return False
    return True


def test_executor_takes_every_executable_case():
    found = cases("tests")
    assert len(found) > 200
    assert {case.name for case in found if not verdict(case, Policy.EXECUTOR)} == {"callx"}


def test_probe_refuses_wide_shifts_and_callx_only():
    found = cases("tests")
    refused = {case.name for case in found if not verdict(case, Policy.PROBE)}
    assert refused == WIDE_SHIFTS | {"callx"}


@pytest.mark.parametrize("policy", Policy)
def test_reserved_fields_are_refused(policy):
    found = cases("reserved")
    assert len(found) == 30
    assert [case.name for case in found if verdict(case, policy)] == []


def test_own_conformance_cases_are_taken_by_the_executor():
    paths = sorted((ROOT / "tests" / "conformance" / "cases").glob("*.data"))
    assert paths
    refused = [p.stem for p in paths if not verdict(read_case(p), Policy.EXECUTOR)]
    assert refused == []
