"""What probes in every kernel add to the first step of a PyTorch process: time to attach.

    PYTHONPATH=src python bench/first_step.py [--repeats N] [--json FILE]

Needs a GPU and PyTorch.  ``plain``: without egpu; ``no match``: under egpu, probes that match no
kernel; ``cold``: kernelcount in all kernels, no twin on disk; ``warm``: the same, all on disk.
A process that nobody measures has read every file before.  Then the four take turns and must come
to the same loss.  Added times are differences of medians, with the least and the most that
processes are above the median of plain ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

from observing import environment  # noqa: E402 - the path above comes first

WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "no match": ("--kernels", "no_such_kernel"),
    "cold": ("--explain",),
    "warm": ("--explain",),
}
PARTS = ("build_ms", "image_ms", "compile_ms", "rest_ms")


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


def measure(repeats: int, keep: Callable[[dict[str, list[dict]]], None]) -> dict[str, list[dict]]:
    """What each process measured, by way; ``keep`` gets what is known after each turn."""
    seen: dict[str, list[dict]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        run_once("cold", folder)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for way in WAYS:
                seen[way].append(run_once(way, folder))
        keep(seen)
    losses = {each["loss"] for runs in seen.values() for each in runs}
    if len(losses) != 1:
        sys.exit(f"first_step.py: other results: {losses}")
    return seen


def kernels_of(runs: Sequence[dict]) -> list[dict]:
    """Every kernel of every run that has a twin, with its times."""
    rows = [row for each in runs for row in each["report"]["explain"] if row["way"] != "no"]
    for row in rows:
        row["rest_ms"] = row["build_ms"] - row["image_ms"] - row["compile_ms"]
    return rows


def twins(rows: Sequence[dict]) -> dict[str, float]:
    """Milliseconds a twin: all of them, an image's first ones, and what the mean is made of."""
    firsts = [row["build_ms"] for row in rows if row["image_ms"]]
    return {
        "median": statistics.median(row["build_ms"] for row in rows),
        "first_of_image_median": statistics.median(firsts),
        "first_of_image_mean": statistics.fmean(firsts),
        **{f"mean_{part}": statistics.fmean(row[part] for row in rows) for part in PARTS},
    }


def summary(seen: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """Milliseconds of the first and of the last step, what is added, twins and their time."""
    found = {}
    plain = statistics.median(each["steps_s"][0] for each in seen["plain"])
    for way, runs in seen.items():
        steps = [each["steps_s"][0] for each in runs]
        row = {
            "first_ms": statistics.median(steps) * 1e3,
            "added_ms": (statistics.median(steps) - plain) * 1e3,
            "added_least_ms": (min(steps) - plain) * 1e3,
            "added_most_ms": (max(steps) - plain) * 1e3,
            "last_ms": statistics.median(each["steps_s"][-1] for each in runs) * 1e3,
        }
        if way != "plain":
            costs = [each["report"]["cost"] for each in runs]
            for name in ("twins", "images", "twin_ms", "waits", "wait_ms"):
                row[name] = statistics.median(each[name] for each in costs)
        if way in ("cold", "warm"):
            row |= {f"twin_{name}": value for name, value in twins(kernels_of(runs)).items()}
        found[way] = row
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)

    def keep(seen: dict[str, list[dict]]) -> None:
        if options.json:
            kernels = {way: kernels_of(seen[way]) for way in ("cold", "warm")}
            steps = {way: [each["steps_s"] for each in runs] for way, runs in seen.items()}
            data = {**summary(seen), "steps_s": steps, "kernels": kernels}
            options.json.write_text(json.dumps(data) + os.linesep)

    result = summary(measure(options.repeats, keep))
    for way, row in result.items():
        print(way)
        for key, value in row.items():
            print(f"  {key:<28}{value:>10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
