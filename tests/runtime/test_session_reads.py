"""bpf_probe_read of a real workload's memory on the simulated device: what is there and no more."""

import json
import sys

import pytest
from test_runtime_cli import ROOT, egpu, pytestmark, workload

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from memory_totals import wrong_looks
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


def test_memory_of_pools_and_of_mappings():
    """Every look at memory that is there, is not, or goes: what the probe counts is exact."""
    argv = [sys.executable, ROOT / "tests" / "gpu" / "workloads" / "memory_kinds.py"]
    argv += ["--threads", "1000", "--rounds", "3"]
    probe = ROOT / "tests" / "gpu" / "probes" / "memory_kinds.bpf.o"
    done = egpu("run", probe, "--sim", "--json", "--", *argv)
    assert (done.returncode, done.stderr.count("egpu:")) == (0, 0), done.stderr
    said, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    assert wrong_looks(report, said["looks"]) == []
    assert said["left_out"] == {"graphs": "cuMemAllocAsync: not supported"}
    assert len(said["looks"]) == 22
    assert sum(look["read"] or 0 for look in said["looks"].values()) == 11_500
