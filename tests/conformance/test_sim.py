"""The conformance suite as PTX on the simulated device: one lane, and a warp with 32 memories."""

from pathlib import Path

import pytest

from egpu.bpf.conformance import read_case
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import run
from egpu.codegen import compile_executor_ptx
from egpu.sim import run_executor
from egpu.verifier import Policy, verify

ROOT = Path(__file__).resolve().parents[2]
OWN = sorted((ROOT / "tests/conformance/cases").glob("*.data"))
PUBLIC = sorted((ROOT.parent / "shared/conformance/tests").glob("*.data"))
REFUSED = {"callx"}  # call through a register: no executor has it
CASES = [path for path in OWN + PUBLIC if path.stem not in REFUSED]


def lane_memory(memory, lane):
    """The case's memory with some bytes changed, lane 0 having it as it is."""
    return bytes(byte ^ (lane * 37 * (i % 3 != 0)) & 0xFF for i, byte in enumerate(memory))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_result(path):
    case = read_case(path)
    program = program_from_code(case.code(), case.name)
    verified = verify(program, policy=Policy.EXECUTOR, memory_size=len(case.memory))
    ptx = compile_executor_ptx(verified)
    assert run_executor(ptx, [case.memory])[0][0] == case.expected
    memories = [lane_memory(case.memory, lane) for lane in range(32)]
    expected = []
    for memory in memories:
        after = bytearray(memory)
        expected.append((run(program, after), bytes(after)))
    assert run_executor(ptx, memories) == expected
