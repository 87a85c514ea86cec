#!/usr/bin/env python3
"""How fast the verifier is: instructions walked a second, and milliseconds a program.

    PYTHONPATH=src python bench/verifier.py [--check | --profile NAME]

Prints a table; needs no device.  Targets: 100,000 instructions a second where 50 or more are
walked, also if every pass runs for each of them once (of shorter programs, what any verification
takes is much of the time: see the row "empty"); 5 ms for every program of a tool; 60 s for
everything that the differential test asks about in one run (tests/verifier), which needs the
packages of `make test`.

--check names every target that is missed and fails then.  It means something on an idle machine
only: nothing that runs in CI asks for it.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import pstats
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from egpu.bpf.asm import assemble  # noqa: E402
from egpu.bpf.conformance import read_case  # noqa: E402
from egpu.bpf.insn import program_from_code  # noqa: E402
from egpu.bpf.maptypes import MapType  # noqa: E402
from egpu.bpf.object import read_object  # noqa: E402
from egpu.bpf.program import AttachKind, AttachPoint, MapSpec, Program  # noqa: E402
from egpu.errors import EgpuError  # noqa: E402
from egpu.verifier import Limits, Policy, structure, verify  # noqa: E402
from egpu.verifier import liveness as liveness_of  # noqa: E402
from egpu.verifier.explore import Exploration  # noqa: E402
from egpu.verifier.setting import Recorder, Setting  # noqa: E402

RATE, LEAST_WALKED, TOOL_SECONDS, CORPUS_SECONDS = 100_000, 50, 0.005, 60
BEST_OF = 25

ENTRY = (AttachPoint(AttachKind.ENTRY, "*"),)
MAPS = (MapSpec("totals", MapType.ARRAY, 4, 512, 4),)
LIMITS = Limits(processed=1_000_000, cost=10_000_000)
CASES = ROOT.parent / "shared" / "conformance" / "tests"

# r6 = value 0 of map 0
VALUE = """
mov %r9, %r1
stw [%r10-4], 0
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
mov %r6, %r0
jne %r6, 0, found
mov %r0, 0
exit
found:
"""
END = "\nmov %r0, 0\nexit"


def logarithm() -> str:
    """The bucket of a log2 histogram, by halving: each turn may or may not add to the result."""
    text = VALUE + "ldxdw %r1, [%r9+240]\nmov %r7, 0\n"
    for shift in (32, 16, 8, 4, 2, 1):
        text += f"mov %r2, %r1\nrsh %r2, {shift}\njeq %r2, 0, l{shift}\n"
        text += f"mov %r1, %r2\nadd %r7, {shift}\nl{shift}:\n"
    return text + "and %r7, 63\nlsh %r7, 3\nadd %r6, %r7\nmov %r1, 1\nlock add [%r6], %r1" + END


def histogram() -> str:
    """The same as a loop over the bits: 64 turns, each of which may be the last."""
    text = VALUE + "ldxdw %r1, [%r9+240]\nmov %r7, 0\nagain:\nrsh %r1, 1\njeq %r1, 0, out\n"
    text += "add %r7, 1\njlt %r7, 63, again\nout:\nlsh %r7, 3\nadd %r6, %r7\nmov %r1, 1\n"
    return text + "lock add [%r6], %r1" + END


def long_loop() -> str:
    """A loop that cannot be summarised: its counter is doubled."""
    text = VALUE + "mov %r7, 0\nloop:\nmov %r8, %r7\nand %r8, 63\nmov %r3, %r8\nlsh %r3, 3\n"
    text += "mov %r4, %r6\nadd %r4, %r3\nldxdw %r5, [%r4]\nxor %r5, %r8\nstxdw [%r10-16], %r5\n"
    text += "ldxdw %r2, [%r10-16]\njset %r2, 1, odd\nadd %r2, 3\nodd:\nadd %r7, 1\nmul32 %r7, 1\n"
    return text + "jlt %r7, 2000, loop" + END


def branches() -> str:
    """A load, arithmetic and a bound check, many times over."""
    text = VALUE
    for number in range(300):
        text += f"ldxdw %r2, [%r6+{8 * (number % 64)}]\nand %r2, 255\nadd %r2, {number}\n"
        text += f"jgt %r2, {40 + number}, m{number}\nmov %r3, %r6\nadd %r3, %r2\n"
        text += f"stxdw [%r10-16], %r2\nm{number}:\n"
    return text + END


def read_program(name: str, text: str) -> Program:
    return program_from_code(assemble(text), name, maps=MAPS, attach=ENTRY)


def empty() -> str:
    """Nothing: what every verification takes."""
    return END


def made_programs() -> Iterator[Program]:
    for make in (empty, logarithm, histogram, long_loop, branches):
        yield read_program(make.__name__, make())


def shipped() -> Iterator[tuple[str, Program]]:
    """The programs of the tools, with the tool's name."""
    for file in sorted((ROOT / "src" / "egpu" / "tools").glob("*/*.bpf.o")):
        for program in read_object(file.read_bytes(), file.name).programs:
            yield f"{file.parent.name} ", program


def walked(program: Program) -> int:
    """Instructions that exploration walks."""
    shape = structure.analyse(program, Policy.PROBE)
    exits = all(point.kind is AttachKind.EXIT for point in program.attach)
    setting = Setting(program, Policy.PROBE, 0, exits, LIMITS, shape)
    return Exploration(setting, liveness_of.analyse(shape), Recorder()).run().processed


def best_of(program: Program, times: int) -> float:
    """Seconds of the fastest of some verifications."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        verify(program, limits=LIMITS)
        best = min(best, time.process_time() - start)
    return best


def conformance() -> tuple[int, float]:
    """Cases verified, accepted or not, and the seconds that it took."""
    cases = [
        (program_from_code(case.code(), path.name), len(case.memory))
        for path in sorted(CASES.glob("*.data"))
        if (case := read_case(path)).asm
    ]
    start = time.process_time()
    for program, size in cases:
        try:
            verify(program, policy=Policy.EXECUTOR, memory_size=size)
        except EgpuError:
            continue
    return len(cases), time.process_time() - start


def oracle_corpus() -> tuple[int, float]:
    """Programs of the differential test, verified as it does, and the seconds that it took.

    Raises ImportError where what the tests need is not installed.
    """
    sys.path.insert(0, str(ROOT / "tests" / "verifier"))
    runs = importlib.import_module("differential").ci_runs()
    cases = [case for _, programs in runs for case in programs]
    start = time.process_time()
    for case in cases:
        case.ours()
    return len(cases), time.process_time() - start


def profile(name: str) -> int:
    every = [*made_programs(), *(program for _, program in shipped())]
    chosen = [each for each in every if each.name == name]
    if not chosen:
        print(f"no program {name}", file=sys.stderr)
        return 2
    profiler = cProfile.Profile()
    profiler.runcall(verify, chosen[0], limits=LIMITS)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    return 0


def programs_timed() -> Iterator[str]:
    """Print a row for each program. Gives the targets that it misses."""
    print(f"{'program':<28}{'insns':>8}{'walked':>10}{'ms':>10}{'insns/s':>12}")
    named = [("", program) for program in made_programs()]
    for tool, program in (*named, *shipped()):
        name = tool + program.name
        count = walked(program)
        # What takes long is as long each time.
        seconds = best_of(program, BEST_OF if count < RATE // 50 else 9)
        row = f"{name:<28}{len(program.code):>8}{count:>10,}{seconds * 1e3:>10.2f}"
        print(row + f"{count / seconds:>12,.0f}")
        if count >= LEAST_WALKED and count / seconds < RATE:
            yield f"{name}: {count / seconds:,.0f} instructions a second, must be {RATE:,}"
        if tool and seconds > TOOL_SECONDS:
            yield f"{name}: {seconds * 1e3:.2f} ms, must be {TOOL_SECONDS * 1e3:.0f}"


def corpora_timed() -> Iterator[str]:
    """Print how long many programs take. Gives the targets that they miss."""
    if CASES.is_dir():
        cases, seconds = conformance()
        print(f"\n{cases} conformance cases in {seconds:.2f} s")
    try:
        programs, seconds = oracle_corpus()
    except ImportError as error:
        print(f"the programs of the differential test need {error.name}: left out")
        yield f"the differential test: not timed, {error.name} is missing"
        return
    print(f"{programs:,} programs of the differential test in {seconds:.2f} s")
    if seconds > CORPUS_SECONDS:
        yield f"the differential test: {seconds:.1f} s, must be {CORPUS_SECONDS}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--profile", metavar="NAME", help="profile one program instead")
    action.add_argument("--check", action="store_true", help="fail where a target is missed")
    arguments = parser.parse_args()
    if arguments.profile:
        return profile(arguments.profile)
    missed = [*programs_timed(), *corpora_timed()]
    for target in missed:
        print(f"missed: {target}", file=sys.stderr)
    return int(arguments.check and bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
