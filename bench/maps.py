"""What map operations cost on a real GPU: rates, and ratios to the same atomics without a map.

    python bench/maps.py [--only PART]... [--json FILE] [--rings host|device] [--sim]

Parts: rates, hashes, pinned, million, rings, micro, micro_hash.  A time is the median of launches
less that of the same kernel without a probe; every sum is checked against the number of threads,
and a part with a wrong one gives no rates.  FILE is written as rows are measured: what a run that
was cut short had measured is there as "raw", and was not checked.  ``--sim`` tries it all out on
the simulated device with few threads; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from measuring import BLOCK, ROOT, Measured, Plan, build, measure, say

_MILLION_BYTES = 32 << 20  # 4 words for each of a million keys
_LAUNCHES = 10
_TELLING = 0.02  # what takes a smaller share of an idle kernel's time is noise


@dataclass(frozen=True)
class Scale:
    """How large: threads of a launch, launches of a row, the reader's pause (us) after a launch."""

    threads: int
    launches: int
    pause_us: int
    size_divisor: int = 1


FULL = Scale(threads=1 << 22, launches=_LAUNCHES, pause_us=60_000)
SMALL = Scale(threads=1024, launches=1, pause_us=1_000, size_divisor=1000)


@dataclass(frozen=True)
class Operation:
    """A probed kernel of bench/maps.cu, the one that does the same itself, the map that counts."""

    kernel: str
    bare: str
    counter: str = ""


RATES = (
    Operation("array_one", "native_array_one", "one"),
    Operation("array_spread", "native_array_spread", "spread"),
    Operation("sm_thread", "native_sm_thread", "per_sm"),
    Operation("sm_warp", "native_sm_warp", "per_sm"),
)
HASHES = (
    Operation("hash_put_uniform", "native_hash_put_uniform"),
    Operation("hash_add_uniform", "native_hash_add_uniform", "add_uniform"),
    Operation("hash_put_zipf", "native_hash_put_zipf"),
    Operation("hash_add_zipf", "native_hash_add_zipf", "add_zipf"),
)
PINNED = (
    Operation("pinned_put_uniform", "native_hash_put_uniform"),
    Operation("pinned_add_uniform", "native_hash_add_uniform", "add_uniform"),
    Operation("pinned_put_zipf", "native_hash_put_zipf"),
)
MILLION = (Operation("hash_add_million", "native_hash_add_million", "add_million"),)

Keep = Callable[[list[dict]], None]
# Where things are built, who keeps rows, whether it is simulated, the memory of rings.
Ways = tuple[Path, Keep, bool, str]


def operations(
    chosen: tuple[Operation, ...], program: str, scale: Scale, ways: Ways
) -> dict[str, object]:
    """Operations per second, and the time of each as a multiple of the bare atomics' or stores'.

    Where the time is nothing beside the launch's own, only operations per second of the whole
    kernel say something: a lower bound.
    """
    bare = dict.fromkeys(each.bare for each in chosen)
    shape = f"{scale.threads // BLOCK} {BLOCK} 0 {scale.launches} 0"
    kernels = ("idle", *bare, *(each.kernel for each in chosen))
    counters = tuple(dict.fromkeys(each.counter for each in chosen if each.counter))
    plan = Plan(
        "maps",
        (program,),
        f"memory device {3 * _MILLION_BYTES}",
        tuple(f"each {kernel} {shape}" for kernel in kernels),
        maps=counters,
    )
    found = measured(plan, ways)
    for name in counters:
        ran = (found.threads(each.kernel) for each in chosen if each.counter == name)
        check(name, found.sums[name], sum(ran))
    idle, rows = found.row("idle")["us"], []
    for each in chosen:
        row, bare_row = found.row(each.kernel), found.row(each.bare)
        own, alone = (one["us"] - idle for one in (row, bare_row))
        told = min(own, alone) > _TELLING * idle
        rows.append(
            {
                "operation": each.kernel,
                "giga_per_s": round(row["threads"] / own / 1e3, 2) if told else None,
                "bare_giga_per_s": round(row["threads"] / alone / 1e3, 2) if told else None,
                "times_bare": round(own / alone, 2) if told else None,
                "with_the_launch": round(row["threads"] / row["us"] / 1e3, 2),
                "kernel_us": row["us"],
                "bare_us": bare_row["us"],
            }
        )
    return {"idle_us": idle, "rows": rows}


def measured(plan: Plan, ways: Ways) -> Measured:
    folder, keep, simulated, memory = ways
    return measure(plan, folder, keep, simulated=simulated, rings=memory)


def check(what: str, found: int, expected: int) -> None:
    """End without rates if a sum is not what it must be."""
    if found != expected:
        sys.exit(f"{what}: {found:,}, expected {expected:,}")


# Records of a thread each; where each warp has one, 16 times as many threads.  "alone": of a thread
# that shares no group with others, as its record's size is not known to the compiler.
RECORDS = (
    *((kind, size) for kind in ("thread", "warp") for size in (64, 32, 16)),
    ("alone", 16),
)
_RING_THREADS = {"thread": 1 << 20, "warp": 1 << 24, "alone": 1 << 20}
_PER_RECORD = {"thread": 1, "warp": 32, "alone": 1}
_PER_GROUP = {"thread": 32, "warp": 32, "alone": 1}
_HEADER = 16  # bytes of a ring's group, which is what a warp writes at once; a slot takes as many
_RINGS = ("ring", "ring_16", "ring_32", "ring_64")
_LINK_BYTES = 64 << 20
_REGIONS, _REGION = 144, 2 << 20  # as many as bench/rings.cu has; bytes of one
_FLOW_PAUSE_US = 1000


def rings(scale: Scale, ways: Ways) -> dict[str, object]:
    """Bytes per second into rings in host memory, as shares of the link's and of what a kernel
    reaches that does nothing but store the same bytes to such places.

    Those are of launches that the rings have room for, as "dropped" shows; "flowing" is what the
    reader, which is one thread of Python, takes out in a process of its own while launches follow
    each other; "reader" what it takes by itself.  For rings in device memory "drained" says how
    fast their records come out of it.
    """
    divisor = FULL.threads // scale.threads
    link, region = _LINK_BYTES // divisor, _REGION // divisor
    shapes = {
        kind: f"{threads // divisor // BLOCK} {BLOCK} 0 {scale.launches}"
        for kind, threads in _RING_THREADS.items()
    }
    rows = [f"copy link_copy 1 1 {link} {scale.launches} 0"]
    rows += [f"each link_store {link // 16 // BLOCK} {BLOCK} 0 {scale.launches} 0"]
    for kind, shape in shapes.items():
        rows += [f"each idle_{kind} {shape} 0"]
        sizes = [size for k, size in RECORDS if k == kind]
        bare = shape.replace(f" 0 {scale.launches}", f" {region} {scale.launches}")
        rows += [f"each same_{kind}_{size} {bare} 0" for size in sizes]
        rows += [f"each ring_{kind}_{size} {shape} {scale.pause_us}" for size in sizes]
    memory = (_REGIONS + 1) * max(region, 4096)
    found = measured(_ring_plan(rows, memory), ways)
    what = _all_records(found)
    more = max(1, scale.launches * 40 // divisor)  # with hardly a pause for the reader
    shape = shapes["thread"].replace(f"0 {scale.launches}", f"0 {more}")
    rows = [
        f"each idle_thread {shapes['thread']} 0",
        f"each ring_thread_64 {shape} {_FLOW_PAUSE_US}",
    ]
    flow = measured(_ring_plan(rows, memory), ways)
    began, ended = (row["at"] for row in flow.rows)
    flowing = flow.read_until(ended) - flow.read_until(began)
    copied = link / found.row("link_copy")["us"] / 1e3
    stored = link / found.row("link_store")["us"] / 1e3
    return {
        "link_copy_gigabytes_per_s": round(copied, 2),
        "link_store_gigabytes_per_s": round(stored, 2),
        "flowing_gigabytes_per_s": round(flowing / (ended - began) / 1e9, 2),
        "reader_gigabytes_per_s": round(found.read_bytes / max(found.read_s, 1e-9) / 1e9, 2),
        "flowing": _all_records(flow),
        **what,
        "rows": [ring_row(found, kind, size, max(copied, stored)) for kind, size in RECORDS],
        "drained": drained(scale, ways, copied) if ways[3] == "device" else [],
    }


# Bytes with headers of a small burst and a large one, which rings hold while nobody reads.
_BURSTS = {
    **{("thread", size): (128 << 20, 640 << 20) for size in (64, 32, 16)},
    ("warp", 64): (64 << 20, 192 << 20),
    ("warp", 32): (32 << 20, 96 << 20),
    ("warp", 16): (32 << 20, 96 << 20),
    ("alone", 16): (32 << 20, 128 << 20),
}
_BURST_PAUSES = 4  # of a row of records: the reader waits until all is there
_READ_BYTES_PER_US = 1500
_LEAST_PAUSE_US = 60_000
_BURST_LAUNCHES = 20, 3  # at full scale, and small


def drained(scale: Scale, ways: Ways, link: float) -> list[dict[str, object]]:
    """Bytes per second out of rings in device memory, as shares of what the link copies.

    From when a launch begins until all it wrote is in the host's memory; of a large launch and a
    small one, the fastest of each, the differences, in which what each takes alike is not.  A
    launch that writes slower than is copied shows how fast it writes.
    """
    divisor = FULL.threads // scale.threads
    launches = _BURST_LAUNCHES[divisor > 1]
    rows = []
    for kind, size in RECORDS:
        for least, burst in enumerate(_BURSTS[kind, size], 1):
            groups = burst // divisor // _group_bytes(kind, size)
            reading = burst // divisor // _READ_BYTES_PER_US
            pause = max(_BURST_PAUSES * scale.pause_us, _LEAST_PAUSE_US) + reading
            blocks = max(least, groups * _PER_GROUP[kind] // BLOCK)
            rows.append(f"burst ring_{kind}_{size} {blocks} {BLOCK} 0 {launches} {pause}")
    program = "rates_ring" if divisor > 1 else "rates_ring_large"
    plan = replace(_ring_plan(rows, 4096), programs=(program,), quiet=True)
    found = measured(plan, ways)
    _all_records(found)
    out = []
    for (kind, size), few, many in zip(RECORDS, found.rows[::2], found.rows[1::2], strict=True):
        times, sizes = zip(*(_fastest(found.bursts(row)) for row in (few, many)), strict=True)
        check("bytes of a larger burst are more", sizes[1] > sizes[0], True)
        longer = times[1] - times[0]
        rate = (sizes[1] - sizes[0]) / longer / 1e9 if longer > 0 else None  # on a busy machine
        payload = size * (_PER_GROUP[kind] // _PER_RECORD[kind]) / _group_bytes(kind, size)
        out.append(
            {
                "records": f"{size} bytes, {kind}",
                "gigabytes_per_s": rate and round(rate * payload, 2),
                "with_headers": rate and round(rate, 2),
                "share_of_link": rate and round(rate * payload / link, 3),
                "share_with_headers": rate and round(rate / link, 3),
                "burst_us": [round(each * 1e6) for each in times],
            }
        )
    return out


def _group_bytes(kind: str, size: int) -> int:
    return _HEADER + size * (_PER_GROUP[kind] // _PER_RECORD[kind])


def _fastest(bursts: list[tuple[float, int]]) -> tuple[float, int]:
    """The least time of the launches of which everything came, and the bytes of each."""
    size = max(size for _, size in bursts)
    return min(time for time, each in bursts if each == size), size


def _ring_plan(rows: list[str], memory: int) -> Plan:
    return Plan("rings", ("rates_ring",), f"memory host {memory}", tuple(rows), rings=_RINGS)


def _all_records(found: Measured) -> dict[str, int]:
    """What became of the records, of which none may be missing."""
    what = {
        name: sum(found.rings[ring][name] for ring in _RINGS)
        for name in ("received", "dropped", "holes")
    }
    kernels = {row["kernel"] for row in found.rows}
    produced = sum(
        found.threads(f"ring_{kind}_{size}") // _PER_RECORD[kind]
        for kind, size in RECORDS
        if f"ring_{kind}_{size}" in kernels
    )
    check("records received and dropped", what["received"] + what["dropped"], produced)
    check("holes", what["holes"], 0)
    return what


def ring_row(found: Measured, kind: str, size: int, link: float) -> dict[str, object]:
    row, same = (found.row(f"{which}_{kind}_{size}") for which in ("ring", "same"))
    idle = found.row(f"idle_{kind}")["us"]
    own, bare = (max(each["us"] - idle, 0.001) for each in (row, same))
    count = row["threads"] // _PER_RECORD[kind]
    groups = row["threads"] // _PER_GROUP[kind] * _HEADER  # bytes
    return {
        "records": f"{size} bytes, {kind}",
        "mega_records_per_s": round(count / own, 1),
        "gigabytes_per_s": round(count * size / own / 1e3, 2),
        "with_headers": round((count * size + groups) / own / 1e3, 2),
        "same_gigabytes_per_s": round(count * size / bare / 1e3, 2),
        "share_of_same_stores": round(bare / own, 3),
        "share_of_link": round(count * size / own / 1e3 / link, 3),
        "kernel_us": row["us"],
    }


# bpftime's sizes: elements, launches of a tenth of its number, threads, blocks.
SIZES = {
    "tiny": (32, 1000, 32, 1),
    "small": (1000, 1000, 256, 4),
    "medium": (10_000, 1000, 256, 40),
    "large": (100_000, 100, 512, 196),
    "xlarge": (1_000_000, 100, 512, 1954),
}
MODES = (
    *("baseline", "control", "empty", "entry", "exit_only", "both", "globaltimer"),
    *("array_update", "array_lookup", "per_thread_lookup", "gpu_array_update", "gpu_array_lookup"),
    *("shared_array_update", "shared_array_lookup", "memtrace", "ring_output"),
)
HASH_MODES = ("baseline", "hash_lookup", "hash_update", "hash_delete")
# What bpftime's authors publish for these on an RTX 5090, as ratios to their baseline.
PUBLISHED = {
    "empty": {"tiny": 1.19, "xlarge": 1.55},
    "globaltimer": {"tiny": 1.33, "xlarge": 4.5},
    "gpu_array_lookup": {"tiny": 1.56, "xlarge": 6.2},
    "gpu_array_update": {"tiny": 2.1, "xlarge": 20.1},
    "per_thread_lookup": {"tiny": 1.8, "large": 3.2},
    "ring_output": {"tiny": 2.0, "medium": 6.3},
    "array_update": {"tiny": 6400},
    "array_lookup": {"tiny": 6400},
    "hash_update": {"tiny": 6400},
    "hash_lookup": {"tiny": 6400},
    "hash_delete": {"tiny": 6400},
}


def micro(scale: Scale, ways: Ways) -> dict[str, object]:
    """Time of a launch with one small probe as a multiple of that without, by size."""
    plan = micro_plan("micro", MODES, scale, maps=("array_map", "call_count"), rings=("events",))
    found = measured(plan, ways)
    # array_update sets another element to 1.
    check("array_map", found.sums["array_map"], found.threads("array_lookup") + 1)
    check("call_count", found.sums["call_count"], found.threads("per_thread_lookup"))
    ring = found.rings["events"]
    check("records", ring["received"] + ring["dropped"], found.threads("ring_output"))
    return {"ring": ring, "sizes": by_size(found, MODES)}


def micro_hash(scale: Scale, ways: Ways) -> dict[str, object]:
    """The same for hash maps, where all threads have one key."""
    found = measured(micro_plan("micro_hash", HASH_MODES, scale), ways)
    return {"sizes": by_size(found, HASH_MODES)}


def micro_plan(
    program: str,
    modes: Iterable[str],
    scale: Scale,
    *,
    maps: tuple[str, ...] = (),
    rings: tuple[str, ...] = (),
) -> Plan:
    steps = []
    for elements, launches, threads, blocks in SIZES.values():
        few = max(1, launches // scale.size_divisor)
        grid = max(1, blocks // scale.size_divisor)
        for mode in modes:
            steps.append(f"batch {mode} {grid} {threads} {elements} {few} 0")
    largest = max(threads * blocks for _, _, threads, blocks in SIZES.values())
    return Plan(
        "micro",
        (program,),
        f"memory device {3 * 4 * largest}",
        tuple(steps),
        maps,
        rings,
        budget_us=100_000,
        thread_slots=largest,
    )


def by_size(found: Measured, modes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    sizes = {}
    for number, size in enumerate(SIZES):
        rows = found.rows[number * len(modes) : (number + 1) * len(modes)]
        base = rows[0]["us"]
        sizes[size] = {row["kernel"]: round(row["us"] / base, 3) for row in rows}
        sizes[size]["baseline_us"] = base
    return sizes


def print_rows(rows: list[dict]) -> None:
    names = list(rows[0])
    print("".join(f"{name:>22}" for name in names))
    for row in rows:
        print("".join(f"{row[name]!s:>22}" for name in names))


def print_sizes(result: dict) -> None:
    sizes = list(result)
    print(f"{'':<20}" + "".join(f"{size:>18}" for size in sizes))
    for name in next(iter(result.values())):
        cells = []
        for size in sizes:
            published = PUBLISHED.get(name, {}).get(size)
            cells.append(f"{result[size][name]}" + (f" ({published})" if published else ""))
        print(f"{name:<20}" + "".join(f"{cell:>18}" for cell in cells))
    print("in brackets: bpftime, as published")


def many(scale: Scale) -> Scale:
    """For operations that are soon done."""
    return replace(scale, threads=scale.threads * 16) if scale == FULL else scale


PARTS: dict[str, tuple[str, Callable[[Scale, Ways], dict]]] = {
    "rates": ("maps", lambda scale, ways: operations(RATES, "rates", many(scale), ways)),
    "hashes": ("maps", lambda scale, ways: operations(HASHES, "hashes", scale, ways)),
    "pinned": ("maps", lambda scale, ways: operations(PINNED, "hashes_pinned", scale, ways)),
    "million": ("maps", lambda scale, ways: operations(MILLION, "hashes_million", scale, ways)),
    "rings": ("rings", rings),
    "micro": ("micro", micro),
    "micro_hash": ("micro", micro_hash),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rings", choices=["host", "device"], default="host")
    parser.add_argument("--sim", action="store_true")
    options = parser.parse_args(arguments)
    chosen = options.only or list(PARTS)
    folder = ROOT / "build" / "bench"
    build(folder, sorted({PARTS[name][0] for name in chosen}), native=not options.sim)
    results: dict[str, object] = {}

    def store() -> None:
        if options.json:
            options.json.write_text(json.dumps(results) + "\n")

    for name in chosen:

        def keep(rows: list[dict], name: str = name) -> None:
            results[name] = {"raw": rows}
            store()

        scale = SMALL if options.sim else FULL
        result = PARTS[name][1](scale, (folder, keep, options.sim, options.rings))
        results[name] = result
        store()
        print(f"\n{name}")
        if "sizes" in result:
            print_sizes(result["sizes"])
        else:
            print_rows(result["rows"])
        print(json.dumps({name: result}), flush=True)
        say(f"{name} done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
