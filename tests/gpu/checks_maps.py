"""Maps under load: totals that are known whatever the order of the threads."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from itertools import product

from building import HERE, Built
from map_totals import results_of, wrong_inner, wrong_per_thread, wrong_pushed, wrong_totals
from observing import CheckError, egpu, plain, require
from ring_totals import wrong_ring
from ways import WAYS, Way, answers, demo, run_object

import egpu as api

LAUNCHES, SIZE = 6, 1_000_000
_PARTS = ("counts", "per_sm", "small", "churn", "recent", "roomy")
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
    wrong = wrong_totals(report, threads)
    require(not wrong, f"{part}: " + "; ".join(wrong[:20]))
    return sum(results_of(report["maps"]).values())


def hashes_one_map(built: Built) -> str:
    """Each of the six maps alone, so that one that is slow is known by name."""
    workload = [str(built.demo), "--launches", "2", "--size", str(SIZE), "--json"]
    done, failed = [], []
    for part in _PARTS:
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


def hashes_code(built: Built) -> str:
    """Each map, and all of them together, where there is machine code alone."""
    done = []
    for part in (*_PARTS, "hashes"):
        name = part if part == "hashes" else f"hash_{part}"
        argv = demo(built, Way.MACHINE_CODE, 1, 200_003)
        run = run_object(name, argv, Way.MACHINE_CODE, "--allow-occupancy-loss", timeout=30)
        threads = sum(row["threads"] for row in run.totals.values())
        wrong = wrong_totals(run.report, threads)
        require(not wrong, f"{name}: " + "; ".join(wrong[:20]))
        done.append(f"{part} {sum(results_of(run.report['maps']).values()):,}")
    return f"operations exact: {', '.join(done)}"


def pushed(built: Built) -> str:
    """A queue, a stack that gives up its oldest and a Bloom filter, by every thread."""
    said = {}
    for way in WAYS:
        argv = demo(built, way, 2, 100_003)
        run = run_object("pushed", argv, way, "--allow-occupancy-loss", timeout=60)
        threads = sum(row["threads"] for row in run.totals.values())
        wrong = wrong_pushed(run.report["maps"], threads)
        require(not wrong, f"{way.value}: " + "; ".join(wrong[:20]))
        said[way] = f"{threads:,} threads exact"
    return answers(said)


def maps_of_maps(built: Built) -> str:
    """Arrays, per-SM arrays and hash maps that a map of maps gives."""
    said = {}
    for way in WAYS:
        argv = demo(built, way, 5, 300_000)
        run = run_object("inner", argv, way, "--allow-occupancy-loss", timeout=60)
        wrong = wrong_inner(run.report["maps"], run.totals)
        require(not wrong, f"{way.value}: " + "; ".join(wrong))
        said[way] = f"{len(run.report['maps'])} maps exact"
    return answers(said)


def per_thread(built: Built) -> str:
    """Values of each thread, thread by thread, and the count of those beyond the slots."""
    said, variable = {}, {"BPFTIME_MAP_GPU_THREAD_COUNT": str(SLOTS)}
    for way, launches in ((Way.PTX, LAUNCHES), (Way.MACHINE_CODE, 1)):
        argv = demo(built, way, launches, 300_000)
        run = run_object("per_thread", argv, way, timeout=300, **variable)
        wrong = wrong_per_thread(run.report["maps"], run.totals, SLOTS)
        require(not wrong, f"{way.value}: " + "; ".join(wrong))
        said[way] = f"{len(run.report['maps']['idiom']):,} threads exact"
    return answers(said)


def rings_full(built: Built) -> str:
    """A record of each thread, far more than a ring has room for: received and dropped are all,
    none is torn; in host memory and in device memory."""
    return _full(built, "full_ring", (api.RingMemory.HOST, api.RingMemory.DEVICE))


def slots_full(built: Built) -> str:
    """The same with a record of each warp that enters and that leaves, in slots."""
    return _full(built, "full_slots", (api.RingMemory.DEVICE,))


def _full(built: Built, name: str, memories: Sequence[api.RingMemory]) -> str:
    """In machine code and in PTX."""
    done = []
    for memory, machine_code in product(memories, (True, False)):
        options = api.Options(machine_code=machine_code, allow_occupancy_loss=True, rings=memory)
        program = str(HERE / "probes" / f"{name}.bpf.o")
        records: list[tuple[int, ...]] = []
        with api.run([built.program("increments")], programs=program, options=options) as session:
            ring, end = session.maps["entries"], time.monotonic() + 60
            while session.running() and time.monotonic() < end:
                records += ring
            require(session.wait(1) == 0, "increments failed")
            records += [*ring, *ring.finish()]
            totals, sent, lanes = (ring.totals(), *session.maps["threads"].values())
            rows = session.kernels()
            ways = {str(row.way.value) for row in session.explain() if row.probed}
        wanted = "SASS" if machine_code else "PTX"
        require(ways == {wanted}, f"probed as {ways}, not {wanted}")
        threads = sum(row.threads_probed for row in rows)
        if name == "full_slots":  # at entry and at exit
            require(lanes == 2 * threads, f"{wanted}: {lanes:,} lanes of {threads:,} threads")
            threads = sent
        wrong = wrong_ring(records, totals, (sent, threads), full=True)
        require(not wrong, f"{wanted} {memory.value}: " + "; ".join(wrong))
        what = f"{totals.received:,} received, {totals.dropped:,} dropped"
        done.append(f"{wanted} {memory.value} {what}")
    return "; ".join(done)


CHECKS = (
    hashes_one_map,
    hashes_together,
    hashes_two_kernels,
    hashes_code,
    pushed,
    maps_of_maps,
    per_thread,
    rings_full,
    slots_full,
)
