"""The commands on real processes and the simulated device."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from egpu.bpf.demangle import demangle
from egpu.cli.machine import NATIVE, demo_folder
from egpu.sim import SimulatedDevice

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 200  # seconds for what takes a moment: how fast a machine is proves nothing
DEMO = demo_folder()
BUILT = DEMO is not None and any(NATIVE.glob("libegpu_agent*.so*")) and (NATIVE / "sim").is_dir()
pytestmark = pytest.mark.skipif(not BUILT, reason="the native parts are not built (make native)")
KERNELS = ("vecadd", "matmul<16>", "reduce_sum", "histogram", "demo::collatz")


EGPU = (sys.executable, "-m", "egpu")


def environment():
    """That of the package which was imported here, from the tree or installed."""
    paths = [str(NATIVE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def egpu(*arguments):
    return subprocess.run(
        [*EGPU, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def workload(launches=2, size=777):
    return [DEMO / "demo", "--launches", launches, "--size", size, "--json"]


def totals_and_report(output):
    """The demo's last line, and egpu's document after it."""
    words, _, document = output.partition("\n{\n")
    return json.loads(words.splitlines()[-1]), json.loads("{" + document)


def test_kernelcount_equals_the_workloads_own_totals():
    done = egpu("run", "kernelcount", "--sim", "--json", "--", *workload())
    assert done.returncode == 0, done.stderr
    totals, report = totals_and_report(done.stdout)
    assert report["simulated"] is True
    assert report["partial"] is False
    assert len(report["kernels"]) == len(totals["kernels"]) == 5
    for mangled, expected in totals["kernels"].items():
        (row,) = [row for row in report["kernels"] if row["name"] == demangle(mangled)]
        assert row["launches_seen"] == row["launches_probed"] == expected["launches"]
        assert row["threads"] == row["exits"] == expected["threads"]
        assert row["blocks"] == expected["blocks"]
        assert sum(row["blocks_per_sm"]) == expected["blocks"]


def test_kernellat_measures_every_block():
    done = egpu("run", "kernellat", "--sim", "--json", "--", *workload())
    assert done.returncode == 0, done.stderr
    totals, report = totals_and_report(done.stdout)
    assert report["clock"] == "simulated"
    assert report["partial"] is False
    assert sum(row["block"]["count"] for row in report["kernels"]) == sum(
        row["blocks"] for row in totals["kernels"].values()
    )
    assert all(row["launch"]["count"] == 2 for row in report["kernels"])
    assert all(row["launch"]["max"] >= row["block"]["max"] > 0 for row in report["kernels"])


def test_stacks_of_launches():
    """Each kernel of the demo is launched from one place: as many stacks as kernels."""
    done = egpu("run", "kernelcount", "--sim", "--json", "--stacks", "--", *workload(3))
    totals, report = totals_and_report(done.stdout)
    rows = report["stacks"]
    assert len(rows) == len(totals["kernels"])
    assert sorted(i for row in rows for i in row["launches"]) == list(range(1, 16))
    assert {len(row["launches"]) for row in rows} == {3}
    assert all(row["frames"][0]["path"] == str(DEMO / "demo") for row in rows)
    assert len({tuple(frame["offset"] for frame in row["frames"]) for row in rows}) == len(rows)
    text = egpu("run", "kernelcount", "--sim", "--stacks", "--", *workload(3)).stdout
    assert "Stacks of the probed launches" in text
    assert text.count(" main < ") + text.count("< main") >= 1


def test_a_share_of_the_blocks():
    arguments = ("run", "kernellat", "--sim", "--json", "--every", "2", "--", *workload())
    done = egpu(*arguments)
    totals, report = totals_and_report(done.stdout)
    assert report["every"] == 2
    assert report["partial"] is False
    measured = sum(row["block"]["count"] for row in report["kernels"])
    assert 0 < measured < sum(row["blocks"] for row in totals["kernels"].values())
    assert all(row["launch"] is None for row in report["kernels"])


# What differs from machine to machine, and with every change of a probe on the simulated clock.
TIMES = re.compile(r" *[\d.,]+ (?:[num]?s\b|%)")


def test_the_readme_shows_what_the_demo_prints():
    """All but times, and the lines that it leaves out; prose may be broken elsewhere."""
    shown = (ROOT / "README.md").read_text().partition("prints (shortened):\n\n```\n")[2]
    shown = shown.partition("```")[0]
    assert "BPF instructions to a thread" in shown
    done = egpu("demo", "--sim")
    printed = [TIMES.sub(" T", line) for line in done.stdout.splitlines()]
    # A longer time may have its unit on the next line.
    prose = TIMES.sub(" T", " ".join(done.stdout.split()))
    for paragraph in re.split(r"\n(?! )", TIMES.sub(" T", shown)):
        line = " ".join(paragraph.split())
        if line != "...":
            assert paragraph in printed or line in prose, line


def test_launches_of_kernels_without_probes_wait_for_no_twins():
    done = egpu("run", "kernelcount", "--sim", "--kernels", "nosuch*", "--", *workload())
    text = " ".join(done.stdout.split())
    assert "5 launches waited" in text
    assert "to learn that no probe is for them" in text
    assert "for twins" not in text
    arguments = ("--kernels", "vecadd", "--json", "--", *workload(launches=30, size=64))
    cost = totals_and_report(egpu("run", "kernelcount", "--sim", *arguments).stdout)[1]["cost"]
    assert (cost["waits"], cost["asks"], cost["twins"]) == (1, 4, 1)
    assert 0 < cost["ask_ms"] < cost["run_ms"]
    assert cost["host_share"] > (cost["wait_ms"] + cost["ask_ms"]) / cost["run_ms"] * 0.99


def test_the_cost_is_measured():
    done = egpu("run", "kernelcount", "--sim", "--json", "--", *workload(launches=30, size=64))
    _, report = totals_and_report(done.stdout)
    cost = report["cost"]
    assert cost["waits"] == cost["twins"] == 5
    assert 0 < cost["wait_ms"] < cost["run_ms"]
    assert cost["launch_ns"] > 0
    assert cost["launches_timed"] == 3  # of 150: the 8th, the 72nd and the 136th
    waited, launched = cost["wait_ms"], cost["launch_ns"] * report["launches"]["probed"] / 1e6
    assert cost["host_share"] == pytest.approx((waited + launched) / cost["run_ms"], rel=0.01)
    assert 0 < cost["site_instructions"] < cost["instructions"]


def test_one_launch_in_three():
    """The first, the fourth and the seventh of seven; the others run untouched and are counted."""
    arguments = ("run", "kernelcount", "--sim", "--json", "--sample", "3")
    done = egpu(*arguments, "--", *workload(launches=7, size=64))
    assert done.returncode == 0, done.stderr
    totals, report = totals_and_report(done.stdout)
    assert report["partial"] is True
    for mangled, expected in totals["kernels"].items():
        (row,) = [row for row in report["kernels"] if row["name"] == demangle(mangled)]
        assert (row["launches_seen"], row["launches_probed"]) == (7, 3)
        assert row["not_probed"] == {"left out by --sample": 4}
        assert row["threads"] == row["exits"] == expected["threads"] * 3 // 7
        assert row["blocks"] == expected["blocks"] * 3 // 7


def test_kernels_narrows():
    done = egpu("run", "kernelcount", "--sim", "--json", "--kernels", "hist*", "--", *workload())
    _, report = totals_and_report(done.stdout)
    assert [row["name"] for row in report["kernels"]] == ["histogram"]


def test_the_exit_code_is_the_workloads():
    assert egpu("run", "kernelcount", "--sim", "--", "sh", "-c", "exit 23").returncode == 23
    assert egpu("run", "kernelcount", "--sim", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_a_command_that_does_not_exist_is_one_line():
    done = egpu("run", "kernelcount", "--sim", "--", "/no/such/program")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("egpu: ")
    assert done.stderr.count("\n") == 1


def test_demo_prints_both_reports():
    done = egpu("demo", "--sim")
    assert done.returncode == 0, done.stderr
    assert "== kernelcount ==" in done.stdout
    assert "(simulated clock)" in done.stdout
    for name in KERNELS:
        assert name.split("<")[0] in done.stdout
    assert "lower bound" not in done.stdout
    assert done.stdout.count("0 records dropped, 0 missing.") == 2


@pytest.mark.parametrize("executor", ["sim", "host"])
def test_conformance_plugin(executor):
    done = subprocess.run(
        [sys.executable, "-m", "egpu", "conformance-plugin", "fe01", "--executor", executor],
        input="71 10 00 00 00 00 00 00 95 00 00 00 00 00 00 00\n",
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fe\n", "")


def test_the_cuda_executor_on_the_stand_in_driver():
    """Every driver call that it makes, without a GPU."""
    program = ["--executor", "cuda", "--raw", "7201000007000000b70000002a0000009500000000000000"]
    with SimulatedDevice() as device:
        environment = os.environ | device.environment() | {"PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [sys.executable, "-m", "egpu", "exec", "--memory", "0102", *program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "r0 = 0x2a (42)\nmemory = 07 02\n"


def test_output_that_nobody_reads_leaves_the_exit_code():
    script = '"$@" >&2; exit 3'
    command = [
        sys.executable,
        "-m",
        "egpu",
        "run",
        "kernelcount",
        "--sim",
        "--",
        "sh",
        "-c",
        script,
    ]
    paths = [str(NATIVE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [*command, "sh", "-c", script, "sh", *map(str, workload())],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        running.stdout.close()
        errors = running.stderr.read()
    assert running.returncode == 3
    assert "egpu" not in errors


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_workload_without_standard_streams(closed):
    script = f'"$@" {closed}; exit $?'
    done = egpu(
        "run", "kernelcount", "--sim", "--json", "--", "sh", "-c", script, "sh", *workload()
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (done.stderr, report["partial"], len(report["kernels"])) == ("", False, 5)


def test_more_processes_than_descriptors():
    script = f'ulimit -n 40; exec {sys.executable} -m egpu run kernelcount --sim --json -- "$@"'
    loop = 'for i in $(seq 25); do "$@" > /dev/null || exit 1; done'
    command = ["sh", "-c", script, "sh", "sh", "-c", loop, "sh", *workload(launches=1, size=64)]
    paths = [str(NATIVE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        list(map(str, command)),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["partial"] is False
    assert [row["launches_probed"] for row in report["kernels"]] == [25] * 5


def test_a_temporary_directory_with_a_long_name(tmp_path, monkeypatch):
    """A socket's address has 107 bytes."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setenv("EGPU_RUNTIME_DIR", str(tmp_path / "run"))  # sessions and pins stay there
    done = egpu("run", "kernelcount", "--sim", "--json", "--", *workload())
    assert done.returncode == 0, done.stderr
    assert len(totals_and_report(done.stdout)[1]["kernels"]) == 5
    assert not list(long.iterdir())


# A kernel that counts its threads, launched at each line of one pipe; the count goes to the other.
COUNTING = r"""
import ctypes, sys
from ctypes import byref
cuda = ctypes.CDLL("libcuda.so.1")
ptx = b'''.version 7.0
.target sm_80
.address_size 64
.visible .entry count(.param .u64 out)
{
  .reg .b64 %a;
  ld.param.u64 %a, [out];
  red.global.add.u32 [%a], 1;
  ret;
}
\0'''
def call(name, *arguments):
    assert getattr(cuda, name)(*arguments) == 0, name
context, module, function, out = (ctypes.c_void_p() for _ in range(4))
found, size = ctypes.c_uint(), ctypes.c_size_t(4)
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", byref(out), size)
call("cuMemcpyHtoD_v2", out, byref(found), size)
call("cuModuleLoadData", byref(module), ptx)
call("cuModuleGetFunction", byref(function), module, b"count")
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(out))
with open(sys.argv[1]) as steps, open(sys.argv[2], "w") as answers:
    for _ in steps:
        call("cuLaunchKernel", function, 3, 1, 1, 11, 1, 1, 0, None, parameters, None)
        call("cuCtxSynchronize")
        call("cuMemcpyDtoH_v2", byref(found), out, size)
        print(found.value, file=answers, flush=True)
    print("ended", file=answers)
"""


def test_processes_that_outlive_the_command_run_on(tmp_path):
    """Its device and its twins stay theirs until they end."""
    script = tmp_path / "counting.py"
    script.write_text(COUNTING)
    paths = [tmp_path / name for name in ("steps", "answers", "over")]
    for path in paths:
        os.mkfifo(path)
    command = ["sh", "-c", f'"$@" > /dev/null & read -r word < {paths[2]}', "sh"]
    command += [sys.executable, script, *paths[:2]]
    with (
        subprocess.Popen(
            [*EGPU, "run", "kernelcount", "--sim", "--json", "--", *map(str, command)],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        ) as running,
        opened(paths[0], "w") as steps,
        opened(paths[1]) as answers,
        opened(paths[2], "w") as over,
    ):

        def counted():
            print(file=steps, flush=True)
            return answers.readline()

        assert counted() == "33\n"
        print(file=over, flush=True)
        report = json.loads(running.stdout.read())
        assert running.wait(PATIENCE) == 0
        assert report["launches"] == {"seen": 1, "probed": 1}
        assert [counted() for _ in range(3)] == ["66\n", "99\n", "132\n"]
        steps.close()
        assert answers.readline() == "ended\n"


def opened(pipe, mode="r"):
    """A pipe for reading or writing, which waits for nobody; who reads it sees it end with it."""
    return os.fdopen(os.open(pipe, os.O_RDWR), mode)
