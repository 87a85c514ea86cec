"""Maps under load: totals that are known whatever the order of the threads."""

from __future__ import annotations

import json

from building import HERE, Built
from map_totals import results_of, wrong_per_thread, wrong_totals
from observing import egpu, plain, require

LAUNCHES, SIZE = 10, 1_000_000
SLOTS = 200_000  # fewer than some kernels have threads


def hashes(built: Built) -> str:
    """Mixed insertions, updates and deletions from all SMs, by five kernels one after another."""
    workload = [str(built.demo), "--launches", str(LAUNCHES), "--size", str(SIZE), "--json"]
    program = str(HERE / "probes" / "hashes.bpf.o")
    # The probe is large on purpose: its twins have fewer blocks on an SM.
    options = ("--json", "--allow-occupancy-loss", "--hash-maps")
    run = plain(egpu("run", program, *options, "--", *workload), timeout=300)
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    totals, report = map(json.loads, run.output.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    wrong = wrong_totals(report["maps"], threads)
    require(not wrong, "; ".join(wrong[:20]))
    results = results_of(report["maps"])
    operations = 6 * threads
    operations += sum(results[name] for name in ("deleted", "absent", "kept", "busy"))
    return f"{operations:,} operations by {threads:,} threads exact"


def per_thread(built: Built) -> str:
    """Values of each thread, thread by thread, and the count of those beyond the slots."""
    workload = [str(built.demo), "--launches", str(LAUNCHES), "--size", "300000", "--json"]
    program = str(HERE / "probes" / "per_thread.bpf.o")
    variable = {"BPFTIME_MAP_GPU_THREAD_COUNT": str(SLOTS)}
    run = plain(egpu("run", program, "--json", "--", *workload), timeout=300, **variable)
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    totals, report = map(json.loads, run.output.strip().splitlines()[-2:])
    wrong = wrong_per_thread(report["maps"], totals["kernels"], SLOTS)
    require(not wrong, "; ".join(wrong))
    return f"{len(report['maps']['idiom']):,} threads exact"


CHECKS = (hashes, per_thread)
