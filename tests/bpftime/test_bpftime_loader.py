"""Loaders of libbpf, unchanged: what they read, write and are told."""

import ctypes
import os
import re
import shlex
import struct
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from examples import EXAMPLES
from host_side import place_of
from running import HERE, PATIENCE, PTX, Gated, egpu, words_of

PROGRAMS = HERE / "programs"
(SHARED_MAP,) = (each for each in EXAMPLES if each.program == "gpu_shared_map")


def arguments(built, program, *words, workload, options=()):
    if built.loader is None:
        pytest.skip("there is no libbpf.so.1 on this machine")
    loader = " ".join([str(built.loader), str(PROGRAMS / f"{program}.bpf.o"), *words])
    return ["run", "--sim", *options, "--loader-wait", "0.2", "--loader", loader, "--", *workload]


def under(built, program, *words, **more):
    return egpu(*arguments(built, program, *words, **more))


def adding(built, *more):
    return [built.workload, "add3", "--ptx", PTX, *more]


def test_system_calls_are_answered_as_linux_does(built):
    """Without libbpf: every command, its errors and its corners."""
    loader = shlex.join([sys.executable, str(HERE / "raw_loader.py"), "30"])
    done = egpu("run", "--sim", "--loader-wait", "0.2", "--loader", loader, "--", *adding(built))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line]
    assert said[2:3] == ["done"], done.stdout  # after the two lines of the workload
    assert "'kprobe/k<': unbalanced brackets" in done.stderr


def records_of(built, tmp_path, program, option, name):
    """How often each record came, and all that was said: libbpf has taken those of a launch out
    before there is another."""
    shape = ("--grid", "3", "--block", "50", "--launches", "6")
    words = arguments(built, program, option, name, workload=adding(built, *shape))
    record = re.compile(rf"^{name} record (\w+)$", re.MULTILINE)
    with Gated(tmp_path, words) as running:
        for number in range(1, 7):
            running.wait_for(
                lambda said, number=number: (
                    f"\nlaunched {number}\n" in f"\n{said}"
                    and len(record.findall(said)) >= 150 * number
                )
            )
            running.go_on()
        said = running.end()
    return Counter(record.findall(said)), said


def test_records_of_a_linux_ring_buffer(built, tmp_path):
    """More bytes than the ring has: libbpf takes them out while they come."""
    records, said = records_of(built, tmp_path, "ring", "--ring", "ring")
    threads = {
        thread.to_bytes(8, "little") + bytes(16) + (thread + 1).to_bytes(4, "little") + bytes(4)
        for thread in range(150)
    }
    assert records == dict.fromkeys((each.hex() for each in threads), 6)
    assert "dropped 00000000 0000000000000000" in said


def test_records_of_a_perf_buffer(built, tmp_path):
    records, _ = records_of(built, tmp_path, "perf", "--perf", "events")
    threads = {  # Linux counts the padding behind a sample's size: 4 bytes here
        thread.to_bytes(8, "little") + bytes(12) + (thread + 1).to_bytes(4, "little") + bytes(4)
        for thread in range(150)
    }
    assert records == dict.fromkeys((each.hex() for each in threads), 6)


def value_of(output, name, key):
    (found,) = re.findall(rf"^{name} {key} (\w+)$", output, re.MULTILINE)
    return int.from_bytes(bytes.fromhex(found), "little")


def test_changes_before_and_while_the_workload_runs(built, tmp_path):
    words = ("--set", "counter", "0", "1000", "--set", "counter_per_thread", "7", "70")
    words = (*words, "--delete", "counter_per_thread", "7")
    during = ("--during", "counter", "0", "5000", "--during", "counter_per_thread", "9", "90")
    workload = words_of(SHARED_MAP, built)
    words = arguments(built, "gpu_shared_map", *words, *during, workload=workload)
    with Gated(tmp_path, words) as running:
        # one launch makes the loader write, and say this: ENOENT, deleted a moment before
        running.wait_for(lambda said: "counter_per_thread 7: error 2" in said)
        running.go_on(SHARED_MAP.launches)
        said = running.end()
    left = SHARED_MAP.threads * (SHARED_MAP.launches - 1)
    assert value_of(said, "counter", "00000000") == 5000 + left
    rows = re.findall(r"^counter_per_thread (\w+) \w+$", said, re.MULTILINE)
    assert "07000000" not in rows
    # of its two places the process has one, 7 had the other: there was no room for 9 before
    assert "09000000" in rows


def test_nothing_attached(built):
    done = under(built, "shared_with_linux", "--no-attach", workload=adding(built))
    assert done.returncode == 1
    assert "it attached no program to a kernel" in done.stderr
    assert done.stdout == ""  # the workload was not started


def test_a_refused_program_is_the_loaders_error(built):
    done = under(built, "refused", workload=adding(built))
    assert done.returncode == 1
    assert "BPF program load failed: Permission denied" in done.stderr
    assert "cuda__endless" in done.stderr


def linux_refuses():
    """Why Linux runs no uprobe programs here, "" if it does."""
    if not Path("/sys/bus/event_source/devices/uprobe/type").exists():
        return "this kernel has no uprobe events"
    attr = ctypes.create_string_buffer(struct.pack("<5I", 2, 4, 8, 1, 0), 144)  # an array
    words = (ctypes.c_long(321), ctypes.c_long(0), ctypes.byref(attr), ctypes.c_long(144))
    made = ctypes.CDLL(None, use_errno=True).syscall(*words)
    if made < 0:
        return f"bpf(2): {os.strerror(ctypes.get_errno())}"
    os.close(made)
    return ""


def test_example_6_a_map_of_the_gpu_and_of_linux(built):
    """Linux counts launches by a uretprobe, the GPU threads; the loader reads both from one map."""
    if why := linux_refuses():
        pytest.skip(f"Linux runs no uprobe programs here: {why}")
    uprobe = ("--uprobe", place_of(built.workload, "launch_once"))
    workload = adding(built, "--grid", "2", "--block", "5", "--launches", "4")
    done = under(built, "shared_with_linux", *uprobe, "--set", "call_count", "1", "1000",
                 workload=workload)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert value_of(done.stdout, "call_count", "00000000") == 4 * 10
    assert value_of(done.stdout, "call_count", "01000000") == 1000 + 4


def test_a_gpu_program_that_reads_what_linux_adds_is_refused(built):
    if why := linux_refuses():
        pytest.skip(f"Linux runs no uprobe programs here: {why}")
    uprobe = ("--uprobe", place_of(built.workload, "launch_once"))
    done = under(built, "reads_shared", *uprobe, workload=adding(built))
    assert done.returncode == 1
    assert "program cuda__enter reads or writes map call_count" in done.stderr
    assert "C[0]" not in done.stdout  # the workload was not started


@pytest.mark.parametrize("program", ["launchlate", "launchlate_shared"])
def test_examples_7_and_8_with_their_uprobe(built, program):
    """The call's time, set by the uprobe before each launch, is what every thread of it finds: the
    host's clock is ahead of the simulated device's, so that no sample is late."""
    uprobe = ("--uprobe", place_of(built.workload, "cudaLaunchKernel_of"))
    workload = adding(built, "--launches", "4", "--block", "10")
    began = time.monotonic_ns()
    done = under(built, program, *uprobe, "--set", "clock_offset", "0", "7", workload=workload)
    assert done.returncode == 0, done.stderr
    assert value_of(done.stdout, "time_histogram", "00000000") == 4 * 10
    assert all(
        value_of(done.stdout, "time_histogram", f"{number:02x}000000") == 0
        for number in range(1, 10)
    )
    called = value_of(done.stdout, "last_uprobe_time", "00000000")
    assert began < called < time.monotonic_ns()
    assert value_of(done.stdout, "clock_offset", "00000000") == 7


def test_example_6_counts_its_launches_at_the_launch_itself(built):
    """A uretprobe of a function that launches, which needs nothing of Linux."""
    uprobe = ("--uprobe", place_of(built.workload, "cudaLaunchKernel_of"))
    workload = adding(built, "--grid", "2", "--block", "5", "--launches", "4")
    done = under(built, "shared_with_linux", *uprobe, "--set", "call_count", "1", "1000",
                 workload=workload)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert value_of(done.stdout, "call_count", "00000000") == 4 * 10
    # the workload launches a second kernel each time, which no probe asks for
    assert value_of(done.stdout, "call_count", "01000000") == 1000 + 2 * 4


def test_values_that_must_cross_between_linux_and_the_gpu_are_refused(built):
    uprobe = ("--uprobe", place_of(built.workload, "launch_once"))
    done = under(built, "launchlate", *uprobe, workload=adding(built))
    assert done.returncode == 1
    assert "failed to attach to uprobe" in done.stderr
    assert "program launching at" in done.stderr
    assert "Linux and the GPU do not see each other's values" in done.stderr


def test_links_end_with_their_loader(built, tmp_path):
    told, launches = tmp_path / "told", 50
    os.mkfifo(told)
    workload = adding(built, "--launches", str(launches))
    words = arguments(built, "threadhist", "--end-at", str(told), workload=workload)
    with Gated(tmp_path, words) as running:
        running.wait_for(lambda said: "launched 1\n" in said)
        told.write_bytes(b".")
        running.wait_for(lambda said: "the loader has ended: its programs are detached" in said)
        for number in range(1, launches):  # the workload hears of it while it launches
            running.go_on()
            running.wait_for(lambda said, number=number: f"launched {number + 1}\n" in said)
        running.go_on()
        said = running.end()
    probed = re.search(rf"(\d+) of {launches} launches probed", said)
    assert probed, said
    assert 1 <= int(probed[1]) < launches
    done = under(built, "threadhist", "--end-at", "/dev/zero", workload=adding(built))
    assert done.returncode == 1
    assert "the loader ended with 0: its links ended with it" in done.stderr


def test_a_loader_that_a_script_starts_ends_too(built, tmp_path):
    if built.loader is None:
        pytest.skip("there is no libbpf.so.1 on this machine")
    script, number = tmp_path / "script", tmp_path / "number"
    command = shlex.join([str(built.loader), str(PROGRAMS / "threadhist.bpf.o")])
    script.write_text(f"#!/bin/sh\n{command} &\necho $! >{number}\nwait\n")
    script.chmod(0o755)
    done = egpu("run", "--sim", "--loader-wait", "0.2", "--loader", script, "--", *adding(built))
    assert done.returncode == 0, done.stderr
    process, deadline = Path(f"/proc/{number.read_text().strip()}"), time.monotonic() + PATIENCE
    while process.exists() and time.monotonic() < deadline:  # until its new parent has seen it end
        time.sleep(0.05)
    assert not process.exists()


def test_a_loader_that_has_closed_its_output(built, tmp_path):
    """What it prints then goes nowhere, least of all into a socket or ring of egpu's."""
    if built.loader is None:
        pytest.skip("there is no libbpf.so.1 on this machine")
    script = tmp_path / "quiet"
    command = [str(built.loader), str(PROGRAMS / "threadhist.bpf.o")]
    script.write_text(f"#!/bin/sh\nexec {shlex.join(command)} >&- 2>&-\n")
    script.chmod(0o755)
    done = egpu(
        "run", "--sim", "--loader-wait", "0.2", "--loader", script, "--", *adding(built)
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "connection to the loader" not in done.stderr
    assert re.search(r"(\d) of \1 launches probed", done.stdout), done.stdout


def test_a_workload_that_fails_keeps_its_exit_code(built):
    done = under(built, "threadhist", workload=[built.workload, "nothing"])
    assert done.returncode == 2
    assert value_of(done.stdout, "call_count", "00000000") == 0


def test_plain_additions_need_a_word_of_their_own(built):
    workload = adding(built, "--grid", "4", "--block", "64")
    done = under(built, "racy", workload=workload)
    assert done.returncode == 1
    assert "updates by other threads in between are lost" in done.stderr
    done = under(built, "racy", workload=workload, options=("--allow-lost-updates",))
    assert done.returncode == 0, done.stderr
    assert 3 <= value_of(done.stdout, "counter", "00000000") < 3 * 256
    assert "updates may be lost, as was allowed" in " ".join(done.stdout.split())
