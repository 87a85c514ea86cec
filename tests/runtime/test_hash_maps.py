"""Hash maps of a real workload on the simulated device, read by the session."""

import json
import sys

from test_runtime_cli import ROOT, egpu, pytestmark, workload

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from hash_totals import wrong_totals

__all__ = ["pytestmark"]


def test_totals_are_exact():
    program = ROOT / "tests" / "gpu" / "probes" / "hashes.bpf.o"
    done = egpu("run", program, "--sim", "--json", "--", *workload(launches=1))
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    assert wrong_totals(report["maps"], threads) == []


def test_text_shows_entries_and_refusals():
    program = ROOT / "tests" / "gpu" / "probes" / "hashes.bpf.o"
    done = egpu("run", program, "--sim", "--", *workload(launches=1))
    assert done.returncode == 0, done.stderr
    assert "small (100 entries)" in done.stdout
    assert "insertions refused because the map was full" in done.stdout
