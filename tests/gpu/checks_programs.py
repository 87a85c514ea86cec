"""Programs on the device: the public conformance cases, and increments that must not get lost."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from building import HERE, Built
from cuda.bindings import driver
from observing import CheckError, plain, require

from egpu import session
from egpu.bpf import interp
from egpu.bpf.conformance import Case, read_case
from egpu.bpf.insn import program_from_code
from egpu.cli.cuda_device import run_executor
from egpu.codegen import compile_executor_ptx
from egpu.errors import EgpuError
from egpu.sim import SimulatedDevice
from egpu.verifier import Policy, VerifiedProgram, verify

LANES = 32
INCREMENTS = 100_000_000
EXECUTABLE = 250


@contextmanager
def primary_context() -> Iterator[None]:
    """Holds the device's context, so that it is not made anew for every case."""
    for answer in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(0)):
        require(int(answer[0]) == 0, f"the driver answers {answer[0]!r}")
    try:
        yield
    finally:
        driver.cuDevicePrimaryCtxRelease(0)


def different_memories(case: Case) -> list[bytearray]:
    """A block per lane: the case's own for lane 0, noise of the same size for the others."""
    noise = random.Random(case.name)
    blocks = [bytearray(case.memory)]
    return blocks + [bytearray(noise.randbytes(len(case.memory))) for _ in range(LANES - 1)]


def run_case(case: Case, verified: VerifiedProgram) -> list[str]:
    """What is wrong with one case: alone, and with 32 lanes on different memory."""
    text = compile_executor_ptx(verified)
    wrong = []
    (alone,) = run_executor(text, [bytearray(case.memory)])
    if alone != case.expected:
        wrong.append(f"{case.name}: r0 {alone:#x}, expected {case.expected:#x}")
    blocks, expected_blocks = different_memories(case), different_memories(case)
    results = run_executor(text, blocks)
    for lane, block in enumerate(expected_blocks):
        expected = interp.run(verified.program, block)
        if results[lane] != expected:
            wrong.append(f"{case.name}, lane {lane}: r0 {results[lane]:#x}, expected {expected:#x}")
        if blocks[lane] != block:
            wrong.append(f"{case.name}, lane {lane}: memory differs")
    return wrong


def run_cases(paths: Iterable[Path], executable: int) -> str:
    """Cases on 1 lane and on 32, against their answers and the interpreter's."""
    wrong, refused, ran = [], [], 0
    with primary_context():
        for path in sorted(paths):
            case = read_case(path)
            size = len(case.memory)
            try:
                program = program_from_code(case.code(), case.name)
                verified = verify(program, policy=Policy.EXECUTOR, memory_size=size)
            except EgpuError as error:
                refused.append(f"{case.name}: {error}")
                continue
            wrong += run_case(case, verified)
            ran += 1
    require(not wrong, f"{len(wrong)} wrong: " + "\n  ".join(wrong[:20]))
    require(ran == executable, f"{ran} cases ran, expected {executable}; refused: {refused}")
    return f"{ran} cases right on 1 and {LANES} lanes; refused: {len(refused)}"


def conformance(built: Built) -> str:
    """The public suite."""
    if built.conformance is None:
        raise CheckError("the suite's cases are not on this machine (--conformance DIR)")
    return run_cases((built.conformance / "tests").glob("*.data"), EXECUTABLE)


def own_cases(_built: Built) -> str:
    """egpu's own cases, such as reads of nothing, all of which every executor takes."""
    paths = list((HERE.parent / "conformance" / "cases").glob("*.data"))
    return run_cases(paths, len(paths))


def probe(name: str) -> str:
    return str(HERE / "probes" / f"{name}.bpf.o")


@contextmanager
def finished(built: Built, workload: str, name: str) -> Iterator[session.Session]:
    """The session of a finished run of ``workload`` under one of our objects, its maps readable."""
    with session.run([built.program(workload)], programs=probe(name)) as running:
        code = running.wait()
        require(code == 0, f"{workload}: exit {code}")
        require(not running.stale(), running.stale())
        yield running


def increments(built: Built) -> str:
    """10^8 threads add one to a per-SM map: `*v += 1` loses none, and agrees with the atomics."""
    with finished(built, "increments", "increments") as run:
        per_sm, shared = run.maps["per_sm"], run.maps["shared"]
        counts = {"plain": per_sm[0], "atomic": per_sm[1], "shared": shared[0]}
        used = sum(1 for value in per_sm.per_sm(0) if value)
    require(set(counts.values()) == {INCREMENTS}, f"expected {INCREMENTS} of each: {counts}")
    return f"{INCREMENTS:,} counted on {used} SMs, three ways"


def one_of_two(built: Built) -> str:
    """A probe on one of two kernels that write the same variables."""
    unprobed = plain([built.program("runtime_static")])
    expected = unprobed.last["kernels"]["writer_probed"]["threads"]
    with finished(built, "runtime_static", "one_kernel") as run:  # it exits 1 on a wrong result
        counts = (run.maps["counts"][0], run.maps["counts"][1])
    require(counts == (expected, expected), f"counted {counts}, expected {expected}")
    return f"{expected:,} entries and exits"


def same_as_simulated(built: Built) -> str:
    """The demo's five kernels give the same bytes on the device and on the simulated one."""
    argv = [str(built.demo), "--json", "--launches", "3", "--size", "5000"]
    real = plain(argv)
    require(real.code == 0, f"demo: exit {real.code}: {real.errors[-800:]}")
    with SimulatedDevice() as device:
        simulated = plain(argv, **device.environment())
    require(simulated.code == 0, f"demo, simulated: exit {simulated.code}: {simulated.errors}")
    require(real.output == simulated.output, f"{real.output}\n{simulated.output}")
    return f"digest {real.last['digest']} on both"


CHECKS = (conformance, own_cases, increments, one_of_two, same_as_simulated)
