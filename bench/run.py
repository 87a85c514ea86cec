"""All benchmarks on a real GPU: a table for people, one JSON line for results.md.

    python bench/run.py [--launches N] [--json FILE]

Every ratio is against the unprobed kernel in the same run, after results and counts were checked;
a wrong one ends the benchmark without a number.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

from building import build_native, command  # noqa: E402 - the path above comes first
from observing import environment  # noqa: E402

REPEATS = 5  # processes for the launch cost, alternating with and without the agent
LEVELS = ("thread", "warp")


def last_json(output: str) -> dict:
    return json.loads(output.strip().splitlines()[-1])


def build(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    build_native()
    for name in ("kernels", "launches"):
        source = HERE / f"{name}.cu"
        command("nvcc", "-std=c++17", "-O2", "-arch=sm_90", source, "-o", folder / name)


def entry_exit(folder: Path, level: str, launches: int) -> dict:
    """Times and ratios of the three kernels under the counting probes of one level."""
    from egpu import session  # noqa: PLC0415 - its native parts are built by now

    output = folder / f"kernels.{level}.json"
    argv = ["sh", "-c", 'exec "$0" "$1" > "$2"']
    argv += [str(folder / "kernels"), str(launches), str(output)]
    program = HERE / "probes" / f"entry_exit_{level}.bpf.o"
    with session.run(argv, programs=str(program)) as running:
        code = running.wait()
        counts = (running.maps["counts"][0], running.maps["counts"][1])
    if code != 0:
        sys.exit(f"kernels under {program.name}: exit {code}: {output.read_text()}")
    result = last_json(output.read_text())
    expected = result["probed_threads"]
    if counts != (expected, expected):
        sys.exit(f"{program.name}: counted {counts}, expected {expected}")
    for row in result["kernels"]:
        row["control_ratio"] = round(row["control_us"] / row["plain_us"], 4)
        row["probed_ratio"] = round(row["probed_us"] / row["plain_us"], 4)
    return result


def launch_cost(folder: Path) -> dict:
    """Nanoseconds per launch alone and under an agent whose probes match nothing that runs."""
    argv = [str(folder / "launches")]
    egpu = [sys.executable, "-m", "egpu", "run", "--json"]
    egpu += [str(HERE / "probes" / "entry_exit_thread.bpf.o"), "--", *argv]
    seen: dict[str, list[dict]] = {"alone": [], "agent": []}
    for _ in range(REPEATS):
        for name, words in (("alone", argv), ("agent", egpu)):
            run = subprocess.run(
                words, capture_output=True, text=True, check=True, env=environment(), timeout=120
            )
            # egpu's report follows the workload's line.
            seen[name].append(json.loads(run.stdout.splitlines()[0]))
    medians = {
        name: {
            key: round(statistics.median(row[key] for row in rows), 1)
            for key in ("least_ns", "median_ns")
        }
        for name, rows in seen.items()
    }
    added = {
        key: round(medians["agent"][key] - medians["alone"][key], 1) for key in medians["agent"]
    }
    return {**medians, "added": added, "processes": REPEATS}


def print_tables(result: dict) -> None:
    for level in LEVELS:
        row = result["entry_exit"][level]
        print(
            f"\nentry and exit counted per SM, one update per {level}, {row['launches']} launches"
        )
        print(f"{'kernel':<10}{'plain us':>12}{'control':>10}{'probed':>10}")
        for kernel in row["kernels"]:
            print(
                f"{kernel['name']:<10}{kernel['plain_us']:>12.2f}"
                f"{kernel['control_ratio']:>10.4f}{kernel['probed_ratio']:>10.4f}"
            )
    print("\none unprobed launch, ns")
    for name in ("alone", "agent", "added"):
        row = result["launch"][name]
        print(f"{name:<10}{row['least_ns']:>12.1f} least{row['median_ns']:>12.1f} median")
    from twins import table  # noqa: PLC0415 - imports egpu

    print("\nobject to machine code\n" + table(result["twins"]))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    folder = ROOT / "build" / "bench"
    build(folder)
    from twins import measure  # noqa: PLC0415 - imports egpu

    result = {
        "entry_exit": {level: entry_exit(folder, level, options.launches) for level in LEVELS},
        "launch": launch_cost(folder),
        "twins": measure(20),
    }
    print_tables(result)
    line = json.dumps(result)
    print("\n" + line)
    if options.json:
        options.json.write_text(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
