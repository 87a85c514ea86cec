"""Example 15: programs that are kernels themselves, run on the simulated device."""

import ctypes
import json

import pytest
from running import HERE, egpu

from egpu.cli.machine import gpus

OBJECT = HERE / "programs" / "directly_run.bpf.o"
N, SIDE = 1024, 32
GEMM_A, GEMM_B, GEMM_C = 65536, 655, 1373634560
DIMS = SIDE | SIDE << 32 | SIDE << 64  # three u32


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


DRIVER = has_driver()


def numbers(rows):
    """{index: number} of a map of the report; values of 4 bytes are numbers, others hexadecimal."""
    return {row["key"]: row["value"] for row in rows}


def report_of(*words, device="--sim"):
    done = egpu("run-on-gpu", OBJECT, *words, device, "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[-1], [line["text"] for line in lines if "text" in line]


def test_a_program_runs_once_in_each_thread():
    report, prints = report_of("cuda__run", 2, 3, 1, 1, 5, 1, 1)
    assert prints == ["directly run on GPU"] * (2 * 3 * 5)
    assert [row["launches_probed"] for row in report["kernels"]] == [2]
    assert report_of("cuda__run")[1] == ["directly run on GPU"]


@pytest.mark.skipif(DRIVER, reason="there is a CUDA driver on this machine")
@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("run-on-gpu", OBJECT, "cuda__run"), "--sim"),
        (("run-on-gpu", OBJECT, "cuda__run", "--json"), "--sim"),
        (("run-on-gpu", "--loader", "true", "cuda__run"), "--sim"),
        (("exec", OBJECT, "--program", "cuda__run", "--executor", "cuda"), "--executor sim"),
    ],
)
def test_without_a_driver_there_is_one_line_and_no_report(words, instead):
    """It names an option that the command has."""
    done = egpu(*words)
    assert (done.returncode, done.stdout) == (1, "")
    said = f"egpu: not supported: a run on a GPU (no libcuda.so.1); needs one, or {instead}\n"
    assert done.stderr == said


def test_vectors():
    words = ["--set", "vec_N", 0, N]
    for i in (1, 2, 500, N - 1):
        words += ["--set", "vec_A", i, i, "--set", "vec_B", i, 2 * i]
    report, _ = report_of("cuda__vec_add", 1, 4, 1, 1, 256, 1, 1, *words)
    assert numbers(report["maps"]["vec_C"]) == {i: 3 * i for i in (1, 2, 500, N - 1)}


def test_on_this_machine():
    """The reference interpreter, in every thread of the grid: the same numbers."""
    words = ["--set", "vec_N", 0, N]
    for i in (1, 63, 64, N - 1):
        words += ["--set", "vec_A", i, i, "--set", "vec_B", i, 2 * i]
    report, _ = report_of("cuda__vec_add", 1, 4, 1, 1, 256, 1, 1, *words, device="--host")
    assert numbers(report["maps"]["vec_C"]) == {i: 3 * i for i in (1, 63, 64, N - 1)}
    report, _ = report_of("cuda__run", 2, 1, 3, 1, 1, 2, 5, device="--host")
    assert report["prints"] == ["directly run on GPU"] * (2 * 3 * 10)
    done = egpu("run-on-gpu", OBJECT, "cuda__run", "--host")
    assert (done.returncode, done.stdout) == (0, "directly run on GPU\n"), done.stderr


def executed(*words):
    done = egpu("exec", OBJECT, "--program", *words, "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[-1], [line["text"] for line in lines if "text" in line], done.stderr


def test_egpu_exec_runs_them_as_kernels():
    """As run-on-gpu, with its grid and its maps: on the simulated device, and interpreted."""
    shape = ("--count", 2, "--grid", "3", "--block", "5")
    report, prints, _ = executed("cuda__run", "--executor", "sim", *shape)
    assert prints == ["directly run on GPU"] * (2 * 3 * 5)
    assert [row["launches_probed"] for row in report["kernels"]] == [2]
    report, _, _ = executed(
        "cuda__run", "--executor", "interp", "--grid", "1,3", "--block", "1,2,5"
    )
    assert report["prints"] == ["directly run on GPU"] * (3 * 10)
    values = ["--set", "vec_N", 0, N, "--set", "vec_A", 7, 1, "--set", "vec_B", 7, 2]
    words = ("cuda__vec_add", *values, "--grid", 4, "--block", 256)
    for executor in ("sim", "interp"):
        report, _, _ = executed(*words, "--executor", executor)
        assert numbers(report["maps"]["vec_C"]) == {7: 3}


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU")
def test_without_a_gpu_the_simulated_device_runs_them():
    _, prints, said = executed("cuda__run")
    assert prints == ["directly run on GPU"]
    assert "egpu: no GPU here: on the simulated device\n" in said


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--executor", "host"), 2, "--executor sim, cuda or interp run it"),
        (("--memory", "00"), 2, "it has no --memory"),
        (("--grid", "1,x"), 2, "--grid is X, X,Y or X,Y,Z, not 1,x"),
        (("--block", "1,1,1,1"), 2, "--block is X, X,Y or X,Y,Z, not 1,1,1,1"),
        (("--block", "2048"), 1, "a block of 2048 threads, limit 1024"),
        (("--grid", str(2**32 + 1)), 1, "a grid of 4294967297,1,1, limit 2147483647,65535,65535"),
        (("--grid", "1,65536"), 1, "a grid of 1,65536,1, limit"),
        (("--grid", "9" * 30, "--executor", "interp"), 1, "a grid of 9999"),
        (("--set", "nothing", 0, 1), 1, "no map nothing"),
    ],
)
def test_mistakes_of_egpu_exec(words, code, message):
    done = egpu("exec", OBJECT, "--program", "cuda__run", *words)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_matrices_under_a_loader(built):
    if built.loader is None:
        pytest.skip("there is no libbpf.so.1 on this machine")
    words = [str(built.loader), str(OBJECT), "--set", "gemm_dims", "0", hex(DIMS)]
    words += ["--fill", "gemm_A", str(SIDE * SIDE), str(GEMM_A)]
    words += ["--fill", "gemm_B", str(SIDE * SIDE), str(GEMM_B)]
    shape = (1, 4, 4, 1, 16, 16, 1)
    done = egpu("run-on-gpu", "--sim", "--loader", " ".join(words), "cuda__gemm", *shape)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("gemm_C ")]
    found = [int.from_bytes(bytes.fromhex(value), "little") for _, _, value in rows]
    assert found[: SIDE * SIDE] == [GEMM_C] * (SIDE * SIDE)
    assert not any(found[SIDE * SIDE :])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((OBJECT,), 2, "no program to run"),
        ((OBJECT, "cuda__nothing"), 2, "no program cuda__nothing in it"),
        ((OBJECT, "cuda__run", 1, 2), 2, "count gx gy gz bx by bz"),
        ((OBJECT, "cuda__run", 1, 1, 1, 1, 1024, 2, 1), 1, "a block of 2048 threads, limit 1024"),
        ((OBJECT, "cuda__run", "--set", "vec_N", 1, 1), 1, "has 1 elements, not 1"),
        ((OBJECT, "cuda__run", "--set", "vec_N", 0, 1 << 32), 1, "needs more than 4 bytes"),
        ((OBJECT, "cuda__run", "--set", "nothing", 0, 1), 1, "no map nothing"),
        (("--loader", "", "cuda__run"), 2, "names no program"),
        (("--loader", "/nowhere", "cuda__run"), 1, "/nowhere: cannot start it"),
    ],
)
def test_mistakes(built, words, code, message):
    done = egpu("run-on-gpu", "--sim", *words)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
