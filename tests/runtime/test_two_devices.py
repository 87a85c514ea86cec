"""One process with two devices: every count is exact on each of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import egpu

NATIVE = Path(egpu.__file__).parent / "_native" / "sim" / "libcuda.so.1"
WORKLOAD = Path(__file__).parent / "sim_programs" / "two_devices.py"


@pytest.fixture(scope="module", autouse=True)
def built():
    if not NATIVE.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{NATIVE} is not built (make native)")


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_counts_are_exact_on_each_device(devices):
    command = [sys.executable, "-m", "egpu", "run", "kernelcount", "--sim", "--json", "--"]
    environment = os.environ | {"EGPU_SIM_DEVICES": str(devices)}
    run = subprocess.run(
        [*command, sys.executable, str(WORKLOAD)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (run.returncode, run.stderr) == (0, "")
    output, brace, report = run.stdout.rpartition("\n{\n")
    said, report = json.loads(output), json.loads(brace + report)
    assert said["right"] is True
    rows = {row["name"]: row for row in report["kernels"]}
    for kernel, given in said["given"].items():
        row = rows[kernel]
        assert len(given) == devices
        assert row["threads"] == row["exits"] == sum(threads for threads, _ in given)
        assert row["not_probed"] == {}
        # Devices come one after the other, in the order in which they were first used.
        slots = len(row["threads_per_sm"]) // devices
        parts = [slice(at * slots, (at + 1) * slots) for at in range(devices)]
        counted = [
            [sum(row["threads_per_sm"][part]), sum(row["blocks_per_sm"][part])] for part in parts
        ]
        assert sorted(counted) == sorted(given)
    assert report["partial"] is False
