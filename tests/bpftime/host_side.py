"""Examples 6 to 8 with their programs on the host, and 14 attached to a workload that runs: on any
device, with a loader or without."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from elftools.elf.elffile import ELFFile
from examples import EXAMPLES, Example, Ran
from running import PATIENCE, Built, environment, object_of, run_direct, run_loaded, words_of

# A function of the workload that launches, by a name as nvcc's stubs have it.
LAUNCHER = "cudaLaunchKernel_of"
HOSTED = tuple(at for at, each in enumerate(EXAMPLES) if each.number in (6, 7, 8))
(LATE,) = (each for each in EXAMPLES if each.number == 14)
LAUNCHES = 20  # of the workload of 14 that come after the attach


def place_of(path: Path, name: str) -> str:
    """ "path:offset" of a function in a program's file."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        (symbol,) = elf.get_section_by_name(".symtab").get_symbol_by_name(name)
        address = symbol["st_value"]
        for segment in elf.iter_segments("PT_LOAD"):
            if segment["p_vaddr"] <= address < segment["p_vaddr"] + segment["p_filesz"]:
                return f"{path}:{address - segment['p_vaddr'] + segment['p_offset']:#x}"
    raise AssertionError(f"{name} is in no segment")


def clock_offset(*, simulated: bool) -> int:
    """What bpftime's loader of 7 and 8 adds to the host's clock: it takes the device's for
    CLOCK_REALTIME.  The simulated device's is behind the host's whatever is added."""
    return 7 if simulated else time.time_ns() - time.monotonic_ns()


def right_host_side(example: Example, ran: Ran, began: int, offset: int) -> str:
    """The example with its program on the host; gives the times that 7 and 8 found."""
    total = example.threads * example.launches
    if example.number == 6:
        # The workload launches a second kernel each time, which no probe asks for.
        assert ran.maps["call_count"] == {0: total, 1: 2 * example.launches}, ran.maps
        return ""
    bins = ran.maps["time_histogram"]
    assert sum(bins.values()) == total, bins
    called = ran.maps["last_uprobe_time"][0]
    assert began < called < time.monotonic_ns(), (began, called)
    assert ran.maps["clock_offset"][0] == offset
    return " ".join(f"{at}:{count}" for at, count in sorted(bins.items()) if count)


def hosted(place: int, built: Built, *, simulated: bool, loader: bool) -> str:
    """Run one of HOSTED (a place in EXAMPLES) and check it."""
    example = EXAMPLES[place]
    offset, flags = clock_offset(simulated=simulated), ("--sim",) if simulated else ()
    words = () if example.number == 6 else ("--set", "clock_offset", "0", str(offset))
    began = time.monotonic_ns()
    if loader:
        words = (*words, "--uprobe", place_of(built.workload, LAUNCHER))
        ran = run_loaded(replace(example, loader=words), built, *flags)
    else:
        ran = run_direct(place, example, built, *flags, "--launcher", LAUNCHER, *words)
    return right_host_side(example, ran, began, offset)


def late(built: Built, *flags: str) -> tuple[int, int]:
    """Attach 14 to a workload that runs; gives how many of its launches were probed, and how many
    there were: every thread of each from the attach on counts, and none of those before."""
    with tempfile.TemporaryDirectory(prefix="egpu-late-") as folder:
        attached = Path(folder) / "attached"
        words = words_of(LATE, built)
        words[words.index("--launches") + 1] = str(LAUNCHES)
        words += ["--until", str(attached)]
        with _start("run", "--idle", *flags, "--", *words) as idle:
            try:
                return _attached_late(idle, attached)
            finally:
                attached.touch()  # the workload ends, whatever has happened


def _attached_late(idle: subprocess.Popen[str], attached: Path) -> tuple[int, int]:
    pid = re.search(r"egpu attach (\d+)", idle.stderr.readline())[1]
    output = idle.stdout.readline()
    assert output == "launched 1\n", output  # there is something before the attach
    options = (*LATE.needs, "--json", "--interval", "0.05")
    with _start("attach", pid, object_of(LATE), *options) as attaching:
        said = attaching.stderr.readline()
        attached.touch()
        out, err = attaching.communicate(timeout=PATIENCE)
    assert attaching.returncode == 0, said + err
    assert said == f"egpu: attached to process {pid}\n"
    output += idle.stdout.read()
    assert idle.wait(PATIENCE) == 0
    assert "wrong=0" in output, output
    launches = int(re.findall(r"^launched (\d+)$", output, re.MULTILINE)[-1]) + LAUNCHES
    report = json.loads(out.splitlines()[-1])
    # One that no probe asks for shows where it launched before that was known.
    (kernel,) = [row for row in report["kernels"] if row["launches_probed"]]
    probed = kernel["launches_probed"]
    assert kernel["launches_seen"] == probed > 0, kernel
    maps = {
        name: {row["key"]: row["value"] for row in rows} for name, rows in report["maps"].items()
    }
    assert len(maps["thread_mapping"]) == LATE.threads
    assert sum(maps["sm_histogram"].values()) == LATE.threads * probed
    assert sum(maps["warp_histogram"].values()) == LATE.threads * probed
    return probed, launches


def _start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "egpu", *map(str, words)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
