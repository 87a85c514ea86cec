"""Whatever breaks, the workload finishes with the right output and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from building import Built
from observing import (
    CheckError,
    egpu,
    environment,
    plain,
    probed,
    require,
    require_accounted,
    require_same,
    require_totals,
)


def wait_for(path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise CheckError(f"{path.name} did not appear in {seconds:.0f} s")
        time.sleep(0.02)


def session_killed(built: Built) -> str:
    """kill -9 of the session in the middle of a run."""
    with tempfile.TemporaryDirectory() as folder:
        expected, result = Path(folder, "expected"), Path(folder, "result")
        require(plain([built.program("long_running"), "0", str(expected)]).code == 0, "unprobed")
        argv = [built.program("long_running"), "6", str(result)]
        session = subprocess.Popen(
            egpu("run", "kernelcount", "--json", "--", *argv),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_for(Path(f"{result}.started"), 60)
        finally:
            os.kill(session.pid, signal.SIGKILL)
            session.wait()
        wait_for(result, 60)
        deadline = time.monotonic() + 10
        while not result.read_text().endswith("\n") and time.monotonic() < deadline:
            time.sleep(0.05)
        require(result.read_text() == expected.read_text(), "the result differs")
    return "the workload finished with the right result"


def no_ptxas(built: Built) -> str:
    """Without ptxas the driver assembles the twins."""
    argv = [str(built.demo), "--json"]
    unprobed, run = plain(argv), probed(argv, EGPU_PTXAS="none")
    require(run.output == unprobed.output and run.code == 0, f"exit {run.code}: {run.errors}")
    return f"{require_totals(run)} launches exact"


def broken_ptxas(built: Built) -> str:
    """A ptxas that fails on everything: the originals run and the report says why."""
    with tempfile.TemporaryDirectory() as folder:
        fake = Path(folder, "ptxas")
        fake.write_text(
            "#!/bin/sh\n"
            'case "$1" in --version) echo "Build broken"; exit 0;; esac\n'
            'echo "ptxas fatal: out of ideas" >&2; exit 1\n'
        )
        fake.chmod(0o755)
        argv = [built.program("increments")]
        unprobed = plain(argv)
        run = probed(argv, EGPU_PTXAS=str(fake), EGPU_CACHE_DIR=str(Path(folder, "cache")))
    require_same(unprobed, run)
    seen, count = require_accounted(run)
    require((seen, count) == (1, 0), f"{count} of {seen} launches probed, expected 0 of 1")
    reasons = [reason for row in run.report["kernels"] for reason in row["not_probed"]]
    require(bool(reasons), "no reason")
    return f"reason: {reasons[0]}"


def full_cache_disk(built: Built) -> str:
    """A cache that cannot be written costs the cache, nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder],
            check=True,
            capture_output=True,
        )
        try:
            Path(folder, "filler").write_bytes(b"x" * 4096)
            argv = [str(built.demo), "--json"]
            unprobed, run = plain(argv), probed(argv, EGPU_CACHE_DIR=folder)
        finally:
            subprocess.run(["umount", folder], check=True)
    require(run.output == unprobed.output and run.code == 0, f"exit {run.code}: {run.errors}")
    return f"{require_totals(run)} launches exact"


def out_of_memory(built: Built) -> str:
    """The workload took all device memory: its launches run unprobed and are counted as such."""
    argv = [built.program("out_of_memory")]
    unprobed, run = plain(argv), probed(argv)
    require_same(unprobed, run)
    seen, count = require_accounted(run)
    require(seen == 100, f"{seen} launches seen of 100")
    if count == seen:
        require_totals(run)
    return f"{count} of {seen} launches probed"


def exit_code(built: Built) -> str:
    """The workload's own exit code and its death by a signal come through."""
    require(probed(["bash", "-c", "exit 7"]).code == 7, "exit code 7 is lost")
    killed = probed(["bash", "-c", "kill -9 $$"])
    require(killed.code not in (0, 1, 2), f"death by signal gives {killed.code}")
    return f"7, and {killed.code} for SIGKILL"


def workload_killed(built: Built) -> str:
    """The workload dies by kill -9: what was snapshot is reported and marked as a lower bound."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        argv = [built.program("long_running"), "20", str(result)]
        session = subprocess.Popen(
            egpu("run", "kernelcount", "--json", "--", *argv),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for(Path(f"{result}.started"), 60)
        time.sleep(2)
        os.kill(_child_running(session.pid, "long_running"), signal.SIGKILL)
        output, errors = session.communicate(timeout=60)
    require('"partial": true' in output, f"not marked as partial: {output}{errors}")
    return "reported as a lower bound"


def _child_running(parent: int, name: str) -> int:
    """The process ``name`` among the descendants of ``parent``."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        pid, rest = stat.split(" (", 1)
        names[int(pid)], fields = rest.rsplit(") ", 1)
        parents[int(pid)] = int(fields.split()[1])
    for pid, own in names.items():
        ancestor = pid
        while ancestor and own == name[:15]:
            ancestor = parents.get(ancestor, 0)
            if ancestor == parent:
                return pid
    raise CheckError(f"no {name} below process {parent}")


CHECKS = (
    session_killed,
    workload_killed,
    no_ptxas,
    broken_ptxas,
    full_cache_disk,
    out_of_memory,
    exit_code,
)
