"""Maps that the host changes while kernels use them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from building import Built
from host_maps import PROGRAM, Amount, Expected, Stepper, alternate, together
from observing import require

import egpu

AMOUNT = Amount(grid=100_000, block=96, times=30)


def host_maps(built: Built) -> str:
    """Updates before, between and during launches of two kernels on the same maps; totals exact."""
    del built
    options = egpu.Options(hash_maps=True, map_deletions=True)
    with tempfile.TemporaryDirectory(prefix="egpu-check-") as folder:
        stepper, expected = Stepper(Path(folder)), Expected()
        with egpu.run(stepper.argv, programs=PROGRAM, options=options) as session:
            maps = session.maps
            alternate(maps, stepper, expected, AMOUNT)
            ours, changes, median = together(maps, stepper, expected, AMOUNT)
            stepper.end(session)
            wrong = expected.wrong(maps, ours)
            require(not wrong, "; ".join(wrong))
            require(changes > 0, "no change was made while kernels ran")
            missed = [row.not_probed for row in session.kernels() if row.seen != row.probed]
            require(not missed, f"launches without probes: {missed}")
    threads = sum(expected.totals[number] for number in (0, 1))
    return (
        f"{threads:,} threads, {changes:,} changes meanwhile, "
        f"{median * 1e3:.2f} ms each call: exact"
    )


CHECKS = (host_maps,)
