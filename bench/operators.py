"""What probes in machine code cost eight PyTorch operators: ratios to processes without egpu.

    PYTHONPATH=src python bench/operators.py [--repeats N] [--only WAY]... [--operator NAME]...
                                             [--rounds N] [--json FILE]

Processes with and without probes alternate, and every probed one must give the same results.
Needs a GPU and PyTorch.  ``counters``: threads counted per SM at entry and exit by a lane of each
warp; ``kernelcount``: the tool; ``records``: 32 bytes for each warp that leaves; ``sampled_out``:
the counters, linked, but only each kernel's first launch probed; ``unmatched``: the tool, matching
no kernel, so that no image is read; ``again``: without egpu once more, the noise of processes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

from observing import environment  # noqa: E402 - the path above comes first

PROBES = HERE / "probes"
WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "counters": (str(PROBES / "counters.bpf.o"),),
    "kernelcount": ("kernelcount",),
    "records": (str(PROBES / "records.bpf.o"),),
    "sampled_out": (str(PROBES / "counters.bpf.o"), "--sample", "1000000"),
    "unmatched": ("kernelcount", "--kernels", "no_such_kernel"),
    "again": (),
}


def run_once(way: str, chosen: list[str]) -> dict:
    """What one process measured."""
    workload = [sys.executable, str(HERE / "operators_workload.py"), *chosen]
    with tempfile.TemporaryDirectory() as folder:
        # What egpu writes goes elsewhere: records would come between the workload's own writes.
        said = Path(folder) / "report"
        if WAYS[way]:
            egpu = [sys.executable, "-m", "egpu", "run", *WAYS[way], "--json", "-o", str(said)]
            workload = [*egpu, "--", *workload]
        run = subprocess.run(
            workload, capture_output=True, text=True, check=False, env=environment(), timeout=400
        )
        if way == "unmatched" and run.returncode == 0:
            cost = json.loads(said.read_text())["cost"]
            if cost["images"] or cost["twins"]:
                sys.exit(f"operators.py: no kernel matches, and yet {cost}")
    line = next((each for each in run.stdout.splitlines() if each.startswith('{"times"')), None)
    if run.returncode != 0 or line is None:
        sys.exit(f"operators.py: {way}: exit {run.returncode}: {run.stderr[-2000:]}")
    return json.loads(line)


def measure(ways: list[str], repeats: int, chosen: list[str]) -> dict[str, dict[str, float]]:
    """Median microseconds by way and operator, after results were compared."""
    seen: dict[str, list[dict]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            seen[way].append(run_once(way, chosen))
    expected = seen["plain"][0]["digests"]
    for way, runs in seen.items():
        for each in runs:
            wrong = [name for name, value in each["digests"].items() if value != expected[name]]
            if wrong:
                sys.exit(f"operators.py: {way}: other results: {', '.join(wrong)}")
    return {
        way: {name: statistics.median(each["times"][name] for each in runs) for name in expected}
        for way, runs in seen.items()
    }


def ratios(times: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """To the plain processes, with geometric mean and worst."""
    found = {}
    for way, row in times.items():
        if way == "plain":
            continue
        one = {name: value / times["plain"][name] for name, value in row.items()}
        mean = math.exp(statistics.fmean(math.log(value) for value in one.values()))
        found[way] = {**one, "geomean": mean, "worst": max(one.values())}
    return found


def table(times: dict[str, dict[str, float]]) -> str:
    result = ratios(times)
    lines = [f"{'operator':<22}{'plain us':>10}" + "".join(f"{way:>12}" for way in result)]
    names = [*times["plain"], "geomean", "worst"]
    for name in names:
        plain = times["plain"].get(name)
        cells = "".join(f"{row[name]:>12.4f}" for row in result.values())
        lines.append(f"{name:<22}" + (f"{plain:>10.1f}" if plain else " " * 10) + cells)
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], choices=[*WAYS][1:])
    parser.add_argument("--operator", action="append", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9, help="of which a process takes the median")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    ways = ["plain", *(options.only or [*WAYS][1:])]
    times = measure(ways, options.repeats, [str(options.rounds), *options.operator])
    print(table(times))
    if options.json:
        result = {"us": times, "ratios": ratios(times), "repeats": options.repeats}
        options.json.write_text(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
