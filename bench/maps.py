"""What map operations cost on a real GPU: rates, and ratios to the same atomics without a map.

    python bench/maps.py [--only rates|million|rings|micro]... [--json FILE]

A time is the median of launches less that of the same kernel without a probe; every sum is checked
against the number of threads, and a wrong one ends the benchmark without a number.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

from building import build_native, command  # noqa: E402 - the path above comes first

# Kernel of bench/maps.cu: (the kernel that does the same itself, the map whose sum is checked).
RATES = {
    "array_one": ("native_array_one", "one"),
    "array_spread": ("native_array_spread", "spread"),
    "sm_thread": ("native_sm_thread", "per_sm"),
    "sm_warp": ("native_sm_warp", "per_sm"),
    "hash_add_uniform": ("native_hash_add_uniform", "rates.bpf.o.add_uniform"),
    "hash_add_zipf": ("native_hash_add_zipf", "add_zipf"),
    "hash_put_uniform": ("native_hash_put_uniform", ""),
    "hash_put_zipf": ("native_hash_put_zipf", ""),
    "pinned_add_uniform": ("native_hash_add_uniform", "rates_pinned.bpf.o.add_uniform"),
    "pinned_put_uniform": ("native_hash_put_uniform", ""),
    "pinned_put_zipf": ("native_hash_put_zipf", ""),
}
MILLION = {"hash_add_million": ("native_hash_add_million", "add_million")}
RECORDS = tuple((kind, size) for kind in ("thread", "warp") for size in (16, 32, 64))
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


START = time.monotonic()


def say(what: str) -> None:
    """Progress, so that one sees where a slow run is."""
    print(f"{time.monotonic() - START:6.1f} s  {what}", file=sys.stderr, flush=True)


def build(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    build_native()
    for name in names:
        source = HERE / f"{name}.cu"
        command("nvcc", "-std=c++17", "-O2", "-arch=sm_90", source, "-o", folder / name)
    say("built")


def run_probed(
    argv: list[str], programs: list[str], names: set[str], watch: Callable | None = None
) -> tuple[dict, dict]:
    """The workload's JSON, and the totals of maps; ``watch`` runs beside the workload."""
    from egpu import session  # noqa: PLC0415 - its native parts are built by now

    paths = [str(HERE / "probes" / f"{name}.bpf.o") for name in programs]
    options = session.Options(hash_maps=True, allow_occupancy_loss=True)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as output:
        shell = ["sh", "-c", 'exec "$0" "$@" > ' + output.name, *argv]
        with session.run(shell, programs=paths, options=options) as running:
            ended = threading.Event()
            watcher = threading.Thread(target=watch or (lambda *_: None), args=(running, ended))
            watcher.start()
            code = running.wait()
            ended.set()
            watcher.join()
            text = output.read()
            say("workload ended")
            if code != 0:
                sys.exit(f"{argv[0]}: exit {code}: {text}")
            sums = {name: total(running.maps[name]) for name in names}
            say("maps read")
        return json.loads(text.strip().splitlines()[-1]), sums


def total(view: object) -> object:
    """The sum of all values of a map of numbers; what became of a ring's records."""
    if hasattr(view, "totals"):
        for _ in view.finish():
            pass
        return view.totals()
    if hasattr(view, "_raw_read"):  # a million entries, which nobody needs decoded
        rows = (values[0].tobytes() for _, values in view._raw_read())
        return sum(int.from_bytes(row, "little") for row in rows)
    return sum(view.values())


def rates(folder: Path) -> dict:
    """Operations per second, and the time of each as a multiple of the bare atomics' or stores'."""
    argv = [str(folder / "maps"), "10"]
    return rows_of(argv, ["rates", "rates_pinned"], RATES)


def million(folder: Path) -> dict:
    """The same with a map of a million entries."""
    argv = [str(folder / "maps"), "10", str(1 << 22), "million"]
    return rows_of(argv, ["rates_million"], MILLION)


def rows_of(argv: list[str], programs: list[str], operations: dict) -> dict:
    names = {name for _, name in operations.values() if name}
    result, sums = run_probed(argv, programs, names)
    times, threads = result["us"], result["threads"]
    expected = threads * result["launches"]
    wrong = {
        name: found
        for name, found in sums.items()
        if found != expected * (2 if name == "per_sm" else 1)
    }
    if wrong:
        sys.exit(f"sums differ from {expected}: {wrong}")
    rows = []
    for name, (native, _) in operations.items():
        own, bare = (max(times[kernel] - times["idle"], 0.001) for kernel in (name, native))
        rows.append(
            {
                "operation": name,
                "giga_per_s": round(threads / own / 1e3, 2),
                "bare_giga_per_s": round(threads / bare / 1e3, 2),
                "times_bare": round(own / bare, 2),
                "kernel_us": times[name],
                "bare_us": times[native],
            }
        )
    return {"threads": threads, "idle_us": times["idle"], "rows": rows}


def rings(folder: Path) -> dict:
    """Bytes per second into rings that a reader drains, and the share of bare stores' rate."""

    def drain(running: object, ended: threading.Event) -> None:
        last = False
        while not last:
            last = ended.wait(0.005)
            for _, reader in running.maps["ring"].readers():
                for _ in reader.batches():
                    pass

    result, sums = run_probed([str(folder / "rings"), "5"], ["rates_ring"], {"ring"}, drain)
    times, counts = result["us"], sums["ring"]
    # 16 times as many threads where each warp has a record.
    records = {"thread": result["threads"], "warp": result["threads"] * 16 // 32}
    expected = sum(records[kind] for kind, _ in RECORDS) * result["launches"]
    if counts.received + counts.dropped != expected or counts.holes:
        sys.exit(f"ring: {counts}, expected {expected} records in all")
    rows = []
    for kind, size in RECORDS:
        idle = times["idle" if kind == "thread" else "idle_warps"]
        count = records[kind]
        own = times[f"ring_{kind}_{size}"] - idle
        bare = times[f"native_{kind}_{size}"] - idle
        rows.append(
            {
                "records": f"{size} bytes per {kind}",
                "mega_records_per_s": round(count / own, 1),
                "gigabytes_per_s": round(count * size / own / 1e3, 2),
                "bare_gigabytes_per_s": round(count * size / bare / 1e3, 2),
                "share": round(bare / own, 3),
            }
        )
    return {"dropped": counts.dropped, "received": counts.received, "rows": rows}


def micro(folder: Path) -> dict:
    """Time of a launch with one small probe as a multiple of that without, by size."""
    result, _ = run_probed([str(folder / "micro"), "10"], ["micro"], set())
    return {
        size: {name: round(us / times["baseline"], 3) for name, us in times.items()}
        | {"baseline_us": times["baseline"]}
        for size, times in result.items()
    }


def print_rows(rows: list[dict]) -> None:
    names = list(rows[0])
    print("".join(f"{name:>22}" for name in names))
    for row in rows:
        print("".join(f"{row[name]!s:>22}" for name in names))


def print_micro(result: dict) -> None:
    sizes = list(result)
    print(f"{'':<20}" + "".join(f"{size:>18}" for size in sizes))
    for name in next(iter(result.values())):
        cells = []
        for size in sizes:
            published = PUBLISHED.get(name, {}).get(size)
            cells.append(f"{result[size][name]}" + (f" ({published})" if published else ""))
        print(f"{name:<20}" + "".join(f"{cell:>18}" for cell in cells))
    print("in brackets: bpftime, as published")


PARTS = {
    "rates": ("maps", rates),
    "million": ("maps", million),
    "rings": ("rings", rings),
    "micro": ("micro", micro),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    chosen = options.only or list(PARTS)
    folder = ROOT / "build" / "bench"
    build(folder, sorted({PARTS[name][0] for name in chosen}))
    results = {}
    for name in chosen:
        result = results[name] = PARTS[name][1](folder)
        print(f"\n{name}")
        if name == "micro":
            print_micro(result)
        else:
            print_rows(result["rows"])
        print(json.dumps({name: result}), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
