"""Run a workload plainly and under egpu, and compare what both say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from building import ROOT

from egpu.bpf.demangle import demangle

REPORT_START = re.compile(r"^\{$", re.MULTILINE)  # egpu's JSON is indented, the workloads' is not


class CheckError(Exception):
    """A check found something wrong; the message says what."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise CheckError(message)


@dataclass(frozen=True)
class Observed:
    """One run. ``output`` is the workload's standard output, ``report`` egpu's JSON (or None)."""

    code: int
    output: str
    errors: str
    report: Mapping | None

    @property
    def last(self) -> Mapping:
        """The workload's own last line."""
        lines = self.output.strip().splitlines()
        require(bool(lines), f"no output; stderr: {self.errors[-2000:]}")
        return json.loads(lines[-1])


def environment(**extra: str) -> dict[str, str]:
    env = os.environ | {"PYTHONUNBUFFERED": "1"} | extra
    env["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return env


def egpu(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "egpu", *arguments]


def plain(argv: Sequence[str], *, timeout: float = 120, **extra: str) -> Observed:
    run = subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout, check=False, env=environment(**extra)
    )
    return Observed(run.returncode, run.stdout, run.stderr, None)


def split_report(output: str) -> tuple[str, Mapping | None]:
    """The workload's output and egpu's report, which follows it on the same stream."""
    starts = [match.start() for match in REPORT_START.finditer(output)]
    if not starts:
        return output, None
    return output[: starts[-1]], json.loads(output[starts[-1] :])


def probed(
    argv: Sequence[str],
    *,
    tool: str = "kernelcount",
    options: Sequence[str] = (),
    timeout: float = 180,
    **extra: str,
) -> Observed:
    run = plain(egpu("run", tool, "--json", *options, "--", *argv), timeout=timeout, **extra)
    output, report = split_report(run.output)
    return Observed(run.code, output, run.errors, report)


def require_same(unprobed: Observed, run: Observed) -> None:
    """Output, exit code and the workload's own checks are those of the unprobed run."""
    require(unprobed.code == 0, f"unprobed: exit {unprobed.code}: {unprobed.errors[-2000:]}")
    require(run.code == 0, f"probed: exit {run.code}: {run.output[-800:]}{run.errors[-2000:]}")
    require(run.output == unprobed.output, f"output differs:\n{run.output}\n{unprobed.output}")
    require(run.last["wrong"] == 0, "wrong results")


def rows_by_name(report: Mapping | None, errors: str = "") -> dict[str, Mapping]:
    if report is None:
        raise CheckError(f"no report; stderr: {errors[-2000:]}")
    return {row["name"]: row for row in report["kernels"]}


def require_totals(run: Observed, *, but: Sequence[str] = ()) -> int:
    """Every kernel's threads, blocks and exits are exact, ``but`` some kernels'; gives the number
    of launches."""
    rows = rows_by_name(run.report, run.errors)
    wrong, launches = [], 0
    for kernel, totals in run.last["kernels"].items():
        if kernel in but:
            rows.pop(demangle(kernel), None)
            continue
        launches += totals["launches"]
        row = rows.pop(demangle(kernel), None)
        if row is None:
            wrong.append(f"{kernel}: not in the report")
            continue
        for key, expected in (
            ("threads", totals["threads"]),
            ("exits", totals["threads"]),
            ("blocks", totals["blocks"]),
        ):
            if row[key] != expected:
                wrong.append(f"{kernel}: {key} {row[key]}, expected {expected}")
        if not row["launches_captured"] and row["launches_seen"] != totals["launches"]:
            wrong.append(f"{kernel}: {row['launches_seen']} seen of {totals['launches']} launches")
        if row["not_probed"]:
            wrong.append(f"{kernel}: not probed: {row['not_probed']}")
    wrong += [f"{name}: counted, but not launched" for name, row in rows.items() if row["threads"]]
    require(not wrong, "\n  ".join(["totals:", *wrong]))
    require(run.report["overflow_threads"] == 0, "kernels without room in the map")
    partial = run.report["partial"]
    require(partial == bool(but), f"marked as partial: {partial}: {run.report['snapshot']}")
    return launches


def require_accounted(run: Observed) -> tuple[int, int]:
    """Seen launches are probed or have a reason; gives (seen, probed)."""
    seen = probed_launches = 0
    for name, row in rows_by_name(run.report, run.errors).items():
        explained = row["launches_probed"] + sum(row["not_probed"].values())
        require(explained == row["launches_seen"], f"{name}: {explained} of {row['launches_seen']}")
        seen += row["launches_seen"]
        probed_launches += row["launches_probed"]
    return seen, probed_launches
