"""The conformance suite on the host JIT (x86-64)."""

from pathlib import Path

import pytest

from egpu.bpf.conformance import read_case
from egpu.bpf.insn import program_from_code
from egpu.codegen import run_host
from egpu.verifier import Policy, verify

ROOT = Path(__file__).resolve().parents[2]
OWN = sorted((ROOT / "tests/conformance/cases").glob("*.data"))
PUBLIC = sorted((ROOT.parent / "shared/conformance/tests").glob("*.data"))
REFUSED = {"callx"}  # call through a register: no executor has it
CASES = [path for path in OWN + PUBLIC if path.stem not in REFUSED]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_result(path):
    case = read_case(path)
    verified = verify(
        program_from_code(case.code(), case.name),
        policy=Policy.EXECUTOR,
        memory_size=len(case.memory),
    )
    assert run_host(verified, bytearray(case.memory)) == case.expected


def test_own_cases_are_there():
    assert len(OWN) >= 30
