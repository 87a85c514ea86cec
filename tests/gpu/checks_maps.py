"""Maps under load: totals that are known whatever the order of the threads."""

from __future__ import annotations

import json
import subprocess
import time

from building import HERE, Built
from map_totals import results_of, wrong_inner, wrong_per_thread, wrong_pushed, wrong_totals
from observing import CheckError, egpu, plain, require

LAUNCHES, SIZE = 6, 1_000_000
SLOTS = 200_000  # fewer than some kernels have threads


def _hash_totals(argv: list[str], part: str, timeout: float) -> int:
    """How many operations were exact; CheckError if any was not, or it took too long."""
    program = str(HERE / "probes" / f"{part}.bpf.o")
    # The probe is large on purpose: its twins have fewer blocks on an SM.
    options = ("--json", "--allow-occupancy-loss")
    try:
        run = plain(egpu("run", program, *options, "--", *argv), timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CheckError(f"{part}: not done within {timeout:.0f} s") from None
    require(run.code == 0, f"{part}: exit {run.code}: {run.errors[-2000:]}")
    totals, report = map(json.loads, run.output.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    wrong = wrong_totals(report["maps"], threads)
    require(not wrong, f"{part}: " + "; ".join(wrong[:20]))
    return sum(results_of(report["maps"]).values())


def hashes_one_map(built: Built) -> str:
    """Each of the five maps alone, so that one that is slow is known by name."""
    workload = [str(built.demo), "--launches", "2", "--size", str(SIZE), "--json"]
    done, failed = [], []
    for part in ("counts", "per_sm", "small", "churn", "recent"):
        start = time.monotonic()
        try:
            operations = _hash_totals(workload, f"hash_{part}", 30)
        except CheckError as error:
            failed.append(str(error))
            continue
        done.append(f"{part} {operations:,} in {time.monotonic() - start:.1f} s")
        print("   ", done[-1], flush=True)
    require(not failed, "; ".join(failed))
    return "; ".join(done)


def hashes_together(built: Built) -> str:
    """Mixed insertions, updates and deletions from all SMs, by five kernels one after another."""
    workload = [str(built.demo), "--launches", str(LAUNCHES), "--size", str(SIZE), "--json"]
    return f"{_hash_totals(workload, 'hashes', 28):,} operations exact"


def hashes_two_kernels(built: Built) -> str:
    """The same by two kernels that run at the same time."""
    workload = [built.program("two_kernels"), "4", "8192"]
    return f"{_hash_totals(workload, 'hashes', 28):,} operations exact"


def pushed(built: Built) -> str:
    """A queue, a stack that gives up its oldest and a Bloom filter, by every thread."""
    workload = [str(built.demo), "--launches", "2", "--size", "100003", "--json"]
    program = str(HERE / "probes" / "pushed.bpf.o")
    options = ("--json", "--allow-occupancy-loss")
    run = plain(egpu("run", program, *options, "--", *workload), timeout=60)
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    totals, report = map(json.loads, run.output.strip().splitlines()[-2:])
    threads = sum(row["threads"] for row in totals["kernels"].values())
    wrong = wrong_pushed(report["maps"], threads)
    require(not wrong, "; ".join(wrong[:20]))
    return f"{threads:,} threads exact"


def maps_of_maps(built: Built) -> str:
    """Arrays, per-SM arrays and hash maps that a map of maps gives."""
    workload = [str(built.demo), "--launches", "5", "--size", "300000", "--json"]
    program = str(HERE / "probes" / "inner.bpf.o")
    options = ("--json", "--allow-occupancy-loss")
    run = plain(egpu("run", program, *options, "--", *workload), timeout=60)
    require(run.code == 0, f"exit {run.code}: {run.errors[-2000:]}")
    totals, report = map(json.loads, run.output.strip().splitlines()[-2:])
    wrong = wrong_inner(report["maps"], totals["kernels"])
    require(not wrong, "; ".join(wrong))
    return f"{len(report['maps'])} maps exact"


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


CHECKS = (hashes_one_map, hashes_together, hashes_two_kernels, pushed, maps_of_maps, per_thread)
