"""What programs of Linux and of the GPU may do with a map that both have.

Each side has a copy, and a reader gets the sum: right as long as both only add to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egpu.bpf.program import MapSpec
from egpu.errors import UnsupportedError
from egpu.loader.programs import LoadedProgram
from egpu.session.additive import added_to_only


def check_linux(program: LoadedProgram, place: str, maps: Sequence[MapSpec]) -> None:
    """UnsupportedError if a program for Linux does more than add to one of its ``maps``."""
    added = _added(program)
    for index, spec in enumerate(maps):
        if index not in added:
            raise UnsupportedError(
                f"program {program.name} at {place}: it does more with map {spec.name} than "
                "add to it, and Linux and the GPU do not see each other's values",
                needs="atomic additions whose result is not used, or a function that launches "
                "kernels as the place (cuLaunchKernel of libcuda.so.1, cudaLaunchKernel)",
            )


def check_gpu(programs: Iterable[LoadedProgram], shared: dict[int, MapSpec]) -> None:
    """UnsupportedError if an attached program does more than add to a map of ``shared``, those that
    programs of Linux have, by the loader's numbers."""
    for program in programs:
        added = _added(program) if program.points else frozenset(range(len(program.numbers)))
        for index, number in enumerate(program.numbers):
            if number in shared and index not in added:
                raise UnsupportedError(
                    f"program {program.name} reads or writes map {shared[number].name}, "
                    "which programs of Linux add to",
                    needs="atomic additions only: each side has values of its own",
                )


def _added(program: LoadedProgram) -> frozenset[int]:
    if program.verified is None:
        return frozenset()
    return added_to_only([program.verified], len(program.numbers))
