"""What authors write in C, as clang compiles it for every eBPF version, passes."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from verifier_programs import ROOT

from egpu.bpf.object import read_object
from egpu.verifier import verify

SOURCE = Path(__file__).with_name("idioms.bpf.c")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="no clang for eBPF: ziglang is not installed",
)


@pytest.fixture(scope="module", params=["v2", "v3", "v4"])
def programs(request, tmp_path_factory):
    target = tmp_path_factory.mktemp("idioms") / "idioms.o"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"]
    command += [f"-mcpu={request.param}", "-O2", "-g", f"-I{ROOT / 'bpf' / 'include'}"]
    subprocess.run([*command, "-c", str(SOURCE), "-o", str(target)], check=True)
    return read_object(target.read_bytes(), SOURCE.name).by_name()


def test_every_program_is_accepted(programs):
    assert len(programs) == 9
    costs = {name: verify(program).cost.instructions for name, program in programs.items()}
    assert all(0 < cost < 1000 for cost in costs.values())


def test_updates_of_a_per_sm_value_become_atomics(programs):
    matches = verify(programs["update_fields"]).facts.rmw.values()
    assert sorted((match.op.value, match.size) for match in matches) == [("add", 8), ("or", 4)]


def test_loop_over_read_only_data_is_counted(programs):
    assert verify(programs["loop_over_data"]).cost.helper_calls == 3


def test_facts_of_contexts(programs):
    facts = verify(programs["record_on_stack"]).facts
    assert facts.context_fields == {"globaltimer", "start_time", "block_dim_x"}
    assert verify(programs["guard"]).facts.parameters == {0, 1, 2}
