"""The demo workload as a process of its own, plainly and under egpu, on the simulated device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import egpu
from egpu.bpf.demangle import demangle
from egpu.sim import SimulatedDevice

DEMO = Path(egpu.__file__).parent / "_native" / "demo" / "demo"
SIZES = (1, 255, 4096, 5003)


@pytest.fixture(scope="module", autouse=True)
def built():
    """In CI the native parts must be there; in a checkout they may not be built yet."""
    if not DEMO.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{DEMO} is not built (make native)")


def arguments(size, *more):
    return [str(DEMO), "--launches", "2", "--size", str(size), "--json", *more]


def plain(argv):
    with SimulatedDevice() as device:
        environment = os.environ | device.environment()
        return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)


def under_egpu(argv, *options, tool="kernelcount"):
    command = [sys.executable, "-m", "egpu", "run", tool, "--sim", "--json", *options, "--", *argv]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    output, brace, report = run.stdout.rpartition("\n{\n")
    return run, output + "\n", json.loads(brace + report) if brace else None


@pytest.mark.parametrize("size", SIZES)
def test_counts_are_exact_and_results_unchanged(size):
    unprobed = plain(arguments(size))
    assert unprobed.returncode == 0, unprobed.stderr
    run, output, report = under_egpu(arguments(size))
    assert (run.returncode, run.stderr) == (0, "")
    assert output == unprobed.stdout
    expected = json.loads(output.splitlines()[-1])["kernels"]
    rows = {row["name"]: row for row in report["kernels"]}
    assert rows.keys() == {demangle(name) for name in expected}
    for name, totals in expected.items():
        row = rows[demangle(name)]
        assert (row["threads"], row["exits"]) == (totals["threads"], totals["threads"]), name
        assert row["blocks"] == totals["blocks"]
        assert (row["launches_seen"], row["launches_probed"]) == (2, 2)
        assert sum(row["blocks_per_sm"]) == totals["blocks"]
    assert report["simulated"] is True
    assert report["partial"] is False


def test_a_glob_leaves_other_kernels_alone():
    _, output, report = under_egpu(arguments(300), "--kernels", "*matmul*")
    expected = json.loads(output.splitlines()[-1])["kernels"]
    counted = {row["name"]: row["threads"] for row in report["kernels"] if row["threads"]}
    name = "_Z6matmulILi16EEvPKfS1_Pfi"
    assert counted == {demangle(name): expected[name]["threads"]}


def test_every_launch_has_a_duration():
    run, output, report = under_egpu(arguments(600), tool="kernellat")
    assert run.returncode == 0
    assert len(output.splitlines()) == 6
    assert [row["launches_probed"] for row in report["kernels"]] == [2] * 5
    assert report["cost"]["records_dropped"] == report["cost"]["records_missing"] == 0


def test_through_a_shell():
    line = " ".join(arguments(300))
    run, output, report = under_egpu(["sh", "-c", f"true; {line}"])
    assert run.returncode == 0
    assert json.loads(output.splitlines()[-1])["digest"]
    assert report["launches"] == {"seen": 10, "probed": 10}


@pytest.mark.parametrize("code", [1, 7])
def test_exit_code_is_the_workloads(code):
    run, _, _ = under_egpu(["sh", "-c", f"exit {code}"])
    assert run.returncode == code


def test_a_failing_workload_says_so_itself(tmp_path):
    broken = tmp_path / "broken.ptx"
    broken.write_text(".version 9.0\n.target sm_75\n.address_size 64\n.visible .entry (\n")
    argv = arguments(300, "--ptx", str(broken))
    unprobed, (run, _, _) = plain(argv), under_egpu(argv)
    assert unprobed.returncode == run.returncode == 1
    assert "CUDA_ERROR_INVALID_PTX" in run.stderr


def test_without_a_match_no_image_is_read():
    """Probes that match no kernel cost nothing but the question: nothing is opened or unpacked."""
    _, matched, report = under_egpu(arguments(300))
    assert report["cost"]["images"] == 1
    _, output, report = under_egpu(arguments(300), "--kernels", "no_such_kernel")
    assert output == matched
    assert (report["cost"]["images"], report["cost"]["twins"]) == (0, 0)
    assert report["launches"]["probed"] == 0
