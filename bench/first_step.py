"""What probes in every kernel add to the first step of a PyTorch process: time to attach.

    PYTHONPATH=src python bench/first_step.py [--repeats N] [--json FILE]

Needs a GPU and PyTorch.  ``plain``: without egpu; ``no match``: under egpu, probes that match no
kernel; ``cold``: kernelcount in all kernels, no twin on disk; ``warm``: the same, all on disk.
Processes alternate and must come to the same loss.  Added times are differences of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

from observing import environment  # noqa: E402 - the path above comes first

WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "no match": ("--kernels", "no_such_kernel"),
    "cold": (),
    "warm": (),
}


def run_once(way: str, folder: str) -> dict:
    """What one process measured, with egpu's report; ``folder`` holds the twins on disk."""
    workload = [sys.executable, str(HERE / "first_step_workload.py")]
    report = Path(folder) / "report.json"
    if way != "plain":
        egpu = [sys.executable, "-m", "egpu", "run", "kernelcount", "--json", "-o", str(report)]
        workload = [*egpu, *WAYS[way], "--", *workload]
    run = subprocess.run(
        workload,
        capture_output=True,
        text=True,
        check=False,
        env=environment(EGPU_CACHE_DIR=folder),
        timeout=300,
    )
    line = next((each for each in run.stdout.splitlines() if each.startswith('{"import')), None)
    if run.returncode != 0 or line is None:
        sys.exit(f"first_step.py: {way}: exit {run.returncode}: {run.stderr[-2000:]}")
    found: dict = json.loads(line)
    if way != "plain":
        found["report"] = json.loads(report.read_text())
        check(way, found["report"])
    return found


def check(way: str, report: dict) -> None:
    """Every launch was probed, or none and no image was read; twins come from where they should."""
    cost, launches = report["cost"], report["launches"]
    wanted = 0 if way == "no match" else launches["seen"]
    if launches["probed"] != wanted or (wanted == 0 and cost["images"]):
        sys.exit(f"first_step.py: {way}: {launches['probed']} of {launches['seen']} were probed")
    twins, cached = cost["twins"], cost["twins_cached"]
    if way == "cold" and cached * 10 > twins:  # a kernel can be in two modules
        sys.exit(f"first_step.py: cold: {cached} of {twins} twins were on disk")
    if way == "warm" and cached != twins:
        sys.exit(f"first_step.py: warm: only {cached} of {twins} twins were on disk")


def measure(repeats: int) -> dict[str, list[dict]]:
    """What each process measured, by way."""
    seen: dict[str, list[dict]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for way in WAYS:
                seen[way].append(run_once(way, folder))
    losses = {each["loss"] for runs in seen.values() for each in runs}
    if len(losses) != 1:
        sys.exit(f"first_step.py: other results: {losses}")
    return seen


def summary(seen: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """Milliseconds of the first and of the last step, what is added, twins and their time."""
    found = {}
    plain = statistics.median(each["steps_s"][0] for each in seen["plain"])
    for way, runs in seen.items():
        first = statistics.median(each["steps_s"][0] for each in runs)
        row = {
            "first_ms": first * 1e3,
            "added_ms": (first - plain) * 1e3,
            "last_ms": statistics.median(each["steps_s"][-1] for each in runs) * 1e3,
        }
        if way != "plain":
            costs = [each["report"]["cost"] for each in runs]
            row["twins"] = costs[0]["twins"]
            row["twin_ms"] = statistics.median(each["twin_ms"] for each in costs)
            row["wait_ms"] = statistics.median(each["wait_ms"] for each in costs)
        found[way] = row
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    result = summary(measure(options.repeats))
    for way, row in result.items():
        cells = ", ".join(f"{key} {value:.1f}" for key, value in row.items())
        print(f"{way:<10}{cells}")
    if options.json:
        options.json.write_text(json.dumps({**result, "repeats": options.repeats}) + os.linesep)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
