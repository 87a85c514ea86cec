"""The executors of ``egpu exec`` and the conformance plugin: one program, one memory block, r0."""

from __future__ import annotations

import enum
from collections.abc import Callable

from egpu.bpf.program import Program
from egpu.verifier import Limits, Policy, VerifiedProgram, verify


class Executor(enum.Enum):
    """Where a program runs."""

    INTERP = "interp"  # the reference interpreter; the program is not verified
    HOST = "host"  # compiled for this CPU
    SIM = "sim"  # compiled to PTX, on the simulated device
    CUDA = "cuda"  # compiled to PTX, on a GPU


def interpret(program: Program, memory: bytearray) -> tuple[int, tuple[str, ...]]:
    """r0 of ``program`` as the interpreter has it, and the lines that it printed; ``memory`` is
    changed in place."""
    from egpu.bpf import MapState  # noqa: PLC0415
    from egpu.bpf.interp import run  # noqa: PLC0415
    from egpu.bpf.own_maps import PRINT_RING, own_map, with_own_maps  # noqa: PLC0415

    program = with_own_maps(program)
    states = [MapState(spec) for spec in program.maps]
    result = run(program, memory, maps=states)
    ring = own_map(program.maps, PRINT_RING)
    lines = states[ring].records if ring is not None else []
    return result, tuple(line.decode("utf-8", "replace") for line in lines)


def execute(
    executor: Executor, program: Program, memory: bytearray, limits: Limits | None = None
) -> int:
    """r0 of ``program`` as an unsigned 64-bit number; ``memory`` is changed in place.  ``limits``
    are the verifier's, where it is asked.

    Raises VerifierError if the program is refused (all executors but the interpreter), and
    DeviceFault or UnsupportedError from where it runs.
    """
    if executor is Executor.INTERP:
        from egpu.bpf.interp import run  # noqa: PLC0415

        return run(program, memory)
    verified = verify(
        program, policy=Policy.EXECUTOR, limits=limits or Limits(), memory_size=len(memory)
    )
    return _COMPILED[executor](verified, memory)


def _host(verified: VerifiedProgram, memory: bytearray) -> int:
    from egpu.codegen import run_host  # noqa: PLC0415

    return run_host(verified, memory)


def _sim(verified: VerifiedProgram, memory: bytearray) -> int:
    from egpu.codegen import compile_executor_ptx  # noqa: PLC0415
    from egpu.sim.executor import run_executor  # noqa: PLC0415

    ((result, after),) = run_executor(compile_executor_ptx(verified), [bytes(memory)])
    memory[:] = after
    return result


def _cuda(verified: VerifiedProgram, memory: bytearray) -> int:
    from egpu.cli.cuda_device import run_executor  # noqa: PLC0415
    from egpu.codegen import compile_executor_ptx  # noqa: PLC0415

    (result,) = run_executor(compile_executor_ptx(verified), [memory])
    return result


_COMPILED: dict[Executor, Callable[[VerifiedProgram, bytearray], int]] = {
    Executor.HOST: _host,
    Executor.SIM: _sim,
    Executor.CUDA: _cuda,
}
