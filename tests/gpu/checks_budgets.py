"""Budgets of runs on the device: what is cut short, and how many runs are, by arithmetic."""

from __future__ import annotations

import json

from building import HERE, Built
from map_totals import wrong_budgets
from observing import egpu, plain, require

LIMIT = ("--cost-limit", "800")


def budgets(built: Built) -> str:
    """may_goto, a counting loop and bpf_loop, where some lanes want more turns than there are."""
    probe = str(HERE / "probes" / "budgets.bpf.o")
    verified = plain(egpu("verify", probe, "--json", *LIMIT), timeout=60)
    require(verified.code == 0, f"verify: {verified.errors[-2000:]}")
    turns = {row["name"]: row["budget"] for row in json.loads(verified.output)["programs"]}
    command = egpu("run", probe, "--json", "--allow-occupancy-loss", *LIMIT, "--",
                   built.program("runtime_static"))  # fmt: skip
    run = plain(command, timeout=60)
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    totals, report = map(json.loads, run.output.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    short = report["cost"]["runs_cut_short"]
    wrong = wrong_budgets(report["maps"], threads, turns, short)
    require(not wrong, "; ".join(wrong))
    return f"{threads:,} threads, {short:,} of {3 * threads:,} runs cut short, all counted"


CHECKS = (budgets,)
