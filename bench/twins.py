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
from pathlib import Path

from egpu.bpf.object import read_object
from egpu.codegen import compile_probe
from egpu.image.ptx import parse
from egpu.maps import plan
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.cache import TwinCache
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
    """Milliseconds of each step for the object's two probes in one kernel."""
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


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {step: round(statistics.median(row[step] for row in rounds), 3) for step in STEPS}


def measure(rounds: int) -> dict[str, object]:
    """First round, cold medians and cached medians, in milliseconds for both probes together."""
    ptxas = find_ptxas()
    if ptxas is None:
        sys.exit("twins.py: no ptxas on this machine")
    first = one_round(Assembler(ptxas, None))
    cold = [one_round(Assembler(ptxas, None)) for _ in range(rounds)]
    with tempfile.TemporaryDirectory() as folder:
        assembler = Assembler(ptxas, TwinCache(Path(folder)))
        one_round(assembler)
        cached = [one_round(assembler) for _ in range(rounds)]
        if assembler.cached != rounds:
            sys.exit(f"twins.py: {assembler.cached} of {rounds} came from the cache")
    return {
        "assembler": ptxas.version,
        "probes": 2,
        "rounds": rounds,
        "first_ms": {step: round(value, 3) for step, value in first.items()},
        "cold_ms": medians(cold),
        "cached_ms": medians(cached),
    }


def table(result: dict) -> str:
    lines = [f"{'step':<10}{'first':>10}{'cold':>10}{'cached':>10}   ms, both probes"]
    columns = (result["first_ms"], result["cold_ms"], result["cached_ms"])
    for step in STEPS:
        lines.append(f"{step:<10}" + "".join(f"{column[step]:>10.2f}" for column in columns))
    totals = "".join(f"{sum(column.values()):>10.2f}" for column in columns)
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
