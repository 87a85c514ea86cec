"""bpf_probe_read of a real workload's memory on the simulated device: what is there and no more."""

import json
import sys

import pytest
from test_runtime_cli import ROOT, egpu, pytestmark, workload

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from read_totals import wrong_reads

__all__ = ["pytestmark"]
PROGRAM = ROOT / "tests" / "gpu" / "probes" / "reads.bpf.o"


@pytest.mark.parametrize("size", [777, 1000, 1])
def test_totals_are_those_of_the_inputs(size):
    done = egpu("run", PROGRAM, "--sim", "--json", "--", *workload(launches=2, size=size))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert wrong_reads(report, size, 2) == []
    assert ".allocations" not in report["maps"]
