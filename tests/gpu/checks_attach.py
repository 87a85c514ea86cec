"""Programs at launch calls on the host, and programs that are attached to a workload that runs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from building import Built
from host_maps import FIRST, PROGRAM, SECOND, Stepper
from observing import require

import egpu as api
from egpu.bpf.program import AttachKind, AttachPoint

CALLS = Path(__file__).resolve().parent / "probes" / "host_calls.bpf.o"
MADE, RETURNED = range(2)
THREADS, FOUND_MADE, FOUND_RETURNED = range(3)
MANY = 100_000_000  # threads of the workload "increments", in one launch


def at_launches_of(program: str) -> api.Object:
    """The probe with its host programs at the launches of nvcc's ``<<< >>>`` in one program."""
    made = api.Object(CALLS).bound()
    return api.Object(
        replace(
            made,
            programs=tuple(
                replace(
                    each,
                    attach=tuple(
                        AttachPoint(
                            point.kind, "cudaLaunchKernel", detail=f"{program}:cudaLaunchKernel"
                        )
                        if point.kind in (AttachKind.HOST_ENTRY, AttachKind.HOST_EXIT)
                        else point
                        for point in each.attach
                    ),
                )
                for each in made.programs
            ),
        )
    )


def sizes(count: int) -> list[tuple[str, int, int]]:
    """Launches of every shape, of two kernels."""
    return [
        (("first", "second")[number % 2], 1 + number * 7 % 500, 1 + number * 13 % 1024)
        for number in range(count)
    ]


def step(stepper: Stepper, launches: Sequence[tuple[str, int, int]]) -> None:
    for kernel, grid, block in launches:
        stepper.do(f"{kernel} {grid} {block}")


def host_calls(built: Built) -> str:
    """What a program sets before a launch is what all its threads find, through the driver's own
    calls and through the runtime's."""
    launches = sizes(400)
    with tempfile.TemporaryDirectory(prefix="egpu-check-") as folder:
        stepper = Stepper(Path(folder))
        with api.run(stepper.argv, programs=str(CALLS)) as session:
            step(stepper, launches)
            stepper.end(session)
            calls, sums = (session.maps[name].to_dict() for name in ("calls", "sums"))
    threads = [grid * block for _, grid, block in launches]
    wanted = {
        THREADS: sum(threads),
        FOUND_MADE: sum(number * count for number, count in enumerate(threads, 1)),
    }
    # A kernel runs while its launch returns: some of its threads may find that it has.
    least = sum(number * count for number, count in enumerate(threads))
    returned = sums.pop(FOUND_RETURNED)
    require(sums == wanted, f"sums are {sums}, not {wanted}")
    require(least <= returned <= wanted[FOUND_MADE], f"{returned} returned, at least {least}")
    require(calls == {MADE: 400, RETURNED: 400}, f"calls are {calls}")
    program = built.program("increments")
    with api.run([program], programs=at_launches_of(program)) as session:
        require(session.wait() == 0, "increments failed")
        calls, sums = (session.maps[name].to_dict() for name in ("calls", "sums"))
    require(calls == {MADE: 1, RETURNED: 1}, f"calls of the runtime are {calls}")
    wanted = {THREADS: MANY, FOUND_MADE: MANY, FOUND_RETURNED: sums[FOUND_RETURNED]}
    require(sums == wanted, f"sums are {sums}, not {wanted}")
    return f"{sum(threads):,} and {MANY:,} threads found their launch's number: exact"


def late_attach(built: Built) -> str:
    """Launches before, under and after programs that are attached while a workload runs."""
    del built
    launches = sizes(300)
    with tempfile.TemporaryDirectory(prefix="egpu-check-") as folder:
        stepper = Stepper(Path(folder))
        with api.start_idle(stepper.argv) as idle:
            step(stepper, launches[:50])
            with api.attach(idle, programs=str(PROGRAM)) as session:
                step(stepper, launches[50:250])
                session.detach()
                totals = session.maps["totals"].to_dict()
                rows = {row.name: (row.seen, row.probed) for row in session.kernels()}
            step(stepper, launches[250:])
            stepper.do("nothing")
            stepper._to.close()
            require(idle.process.wait(60) == 0, "the workload failed")
            stepper._from.close()
    threads = {
        kernel: sum(grid * block for name, grid, block in launches[50:250] if name == kernel)
        for kernel in ("first", "second")
    }
    found = {"first": totals[FIRST], "second": totals[SECOND]}
    require(found == threads, f"{found}, not {threads}")
    require(rows == {"first": (100, 100), "second": (100, 100)}, f"launches: {rows}")
    return f"{sum(threads.values()):,} threads of 200 of 300 launches: exact"


CHECKS = (host_calls, late_attach)
