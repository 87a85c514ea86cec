"""What the tools cost on the device: kernels under each tool, against the same kernels without.

    python bench/tools.py [--launches N] [--json FILE]

The kernels are those of ``run.py``; their results are checked, and blocks are counted, before a
ratio is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

from observing import environment  # noqa: E402 - the path above comes first
from run import build, last_json  # noqa: E402

TOOLS = ("kernelcount", "kernellat", "blocksched")
WARM_UP = 5  # launches of each kernel that kernels.cu does not time


def blocks_of(row: dict) -> int:
    """Blocks of one kernel in a tool's report."""
    return row["block"]["count"] if "block" in row else row["blocks"]


def under(folder: Path, tool: str, launches: int) -> dict:
    """Times and ratios of the kernels, and what became of the tool's numbers."""
    file = folder / f"{tool}.json"
    words = [sys.executable, "-m", "egpu", "run", tool, "--json", "-o", str(file)]
    words += ["--kernels", "*_probed", "--", str(folder / "kernels"), str(launches)]
    run = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment(), timeout=300
    )
    if run.returncode != 0:
        sys.exit(f"kernels under {tool}: exit {run.returncode}: {run.stderr[-2000:]}")
    result, report = last_json(run.stdout), json.loads(file.read_text())
    rows = {row["name"]: row for row in report["kernels"]}
    lost = report.get("records", {}).get("dropped", 0)
    for row in result["kernels"]:
        expected = row["blocks"] * (launches + WARM_UP)
        found = blocks_of(rows[f"{row['name']}_probed"])
        if not expected - lost <= found <= expected:
            sys.exit(f"{tool}: {row['name']}: {found} of {expected} blocks, {lost} dropped")
        row["probed_ratio"] = round(row["probed_us"] / row["plain_us"], 4)
        row["added_ns_per_block"] = round(
            (row["probed_us"] - row["plain_us"]) * 1e3 / row["blocks"], 2
        )
    return {"kernels": result["kernels"], "dropped": lost, "partial": report["partial"]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    folder = ROOT / "build" / "bench"
    build(folder)
    result = {tool: under(folder, tool, options.launches) for tool in TOOLS}
    print(f"{'tool':<14}{'kernel':<10}{'blocks':>10}{'plain us':>12}{'ratio':>10}{'ns/block':>10}")
    for tool, row in result.items():
        for kernel in row["kernels"]:
            print(
                f"{tool:<14}{kernel['name']:<10}{kernel['blocks']:>10,}{kernel['plain_us']:>12.2f}"
                f"{kernel['probed_ratio']:>10.3f}{kernel['added_ns_per_block']:>10.2f}"
            )
        if row["dropped"]:
            print(f"{tool}: {row['dropped']:,} records dropped")
    line = json.dumps(result)
    print("\n" + line)
    if options.json:
        options.json.write_text(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
