"""Object file to machine code, step by step, cold and from the cache.

    PYTHONPATH=src python bench/twins.py [--rounds N] [--json]

Needs ptxas and no GPU.  Cold is a fresh compile in a running process; the first round of a process
also pays for LLVM's initialisation and is shown apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from egpu.agent.twin import DeviceInfo, KernelSeen, Twin
from egpu.bpf.object import read_object
from egpu.codegen import compile_probe
from egpu.image.ptx import parse
from egpu.maps import plan
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.cache import TwinCache
from egpu.session.twins import TwinBuilder
from egpu.splice import splice_ptx
from egpu.verifier import verify

ROOT = Path(__file__).resolve().parents[1]
OBJECT = ROOT / "bench" / "probes" / "entry_exit_thread.bpf.o"
KERNELS = ROOT / "workloads" / "demo" / "kernels.ptx"
KERNEL = "_Z6matmulILi16EEvPKfS1_Pfi"  # the largest of the demo's
DEVICE = 90  # sm_90
SM_SLOTS = 132
STEPS = ("read", "verify", "compile", "parse", "splice", "assemble")


def one_round(assembler: Assembler) -> dict[str, float]:
    """Milliseconds of each step for the object's two probes in one kernel, nothing cached."""
    times: dict[str, float] = {}
    last = time.perf_counter()

    def done(step: str) -> None:
        nonlocal last
        now = time.perf_counter()
        times[step] = (now - last) * 1e3
        last = now

    read = read_object(OBJECT.read_bytes(), OBJECT.name)
    done("read")
    verified = [verify(program) for program in read.programs]
    done("verify")
    codes = [compile_probe(item, point=item.program.attach[0]) for item in verified]
    done("compile")
    module = parse(KERNELS.read_text())
    done("parse")
    spliced = splice_ptx(module, KERNEL, codes, plan(read.maps, SM_SLOTS))
    done("splice")
    assembler.assemble(spliced.text, spliced.target, DEVICE)
    done("assemble")
    return times


def cached_round(assembler: Assembler, cache: TwinCache) -> dict[str, float]:
    """The same through the session's builder, whose cache holds the twin."""
    times: dict[str, float] = {}
    last = time.perf_counter()
    read = read_object(OBJECT.read_bytes(), OBJECT.name)
    times["read"] = (time.perf_counter() - last) * 1e3
    last = time.perf_counter()
    verified = [
        verify(replace(p, attach=(replace(p.attach[0], pattern=KERNEL),))) for p in read.programs
    ]
    times["verify"] = (time.perf_counter() - last) * 1e3
    last = time.perf_counter()
    builder = TwinBuilder(
        ProbeSet(verified),
        assembler,
        cache,
        lambda device: plan(read.maps, device.sm_count),
        allow_occupancy_loss=False,
    )
    device = DeviceInfo(0, DEVICE // 10, DEVICE % 10, SM_SLOTS, "bench")
    seen = KernelSeen(1, device, KERNEL, 1, 1, image=KERNELS.read_bytes)
    if not isinstance(builder.resolve(seen), Twin):
        sys.exit(f"twins.py: {builder.reports()}")
    times["find"] = (time.perf_counter() - last) * 1e3
    builder.settle()
    return times | {"cached": float(builder.reports()[0].cached)}


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {step: round(statistics.median(row[step] for row in rounds), 3) for step in rounds[0]}


def measure(rounds: int) -> dict[str, object]:
    """First round, cold medians and cached medians, in milliseconds for both probes together."""
    ptxas = find_ptxas()
    if ptxas is None:
        sys.exit("twins.py: no ptxas on this machine")
    assembler = Assembler(ptxas)
    first = one_round(assembler)
    cold = [one_round(assembler) for _ in range(rounds)]
    with tempfile.TemporaryDirectory() as folder:
        cache = TwinCache(Path(folder))
        cached_round(assembler, cache)
        cached = [cached_round(assembler, cache) for _ in range(rounds)]
    if not all(row.pop("cached") for row in cached):
        sys.exit("twins.py: not every round came from the cache")
    return {
        "assembler": ptxas.version,
        "probes": 2,
        "rounds": rounds,
        "first_ms": {step: round(value, 3) for step, value in first.items()},
        "cold_ms": medians(cold),
        "cached_ms": medians(cached),
    }


def table(result: dict) -> str:
    columns = {name: result[f"{name}_ms"] for name in ("first", "cold", "cached")}
    lines = [f"{'step':<10}" + "".join(f"{name:>10}" for name in columns) + "   ms, both probes"]
    for step in (*STEPS, "find"):
        cells = (f"{row[step]:.2f}" if step in row else "-" for row in columns.values())
        lines.append(f"{step:<10}" + "".join(f"{cell:>10}" for cell in cells))
    totals = "".join(f"{sum(row.values()):>10.2f}" for row in columns.values())
    return "\n".join([*lines, f"{'all':<10}{totals}"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = measure(options.rounds)
    print(json.dumps(result) if options.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
