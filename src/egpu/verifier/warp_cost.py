"""P4: what one warp may have to execute, where its lanes come apart.

Lanes that are together pay once and go one way: no more than the worst thread.  To that comes every
instruction that lanes may reach apart from each other, as often as its loop (or its function) may
begin a turn: all sides of varying branches, up to where they meet.  A loop inside a loop may turn
at other times in each lane, so there every lane counts.
"""

from __future__ import annotations

from dataclasses import replace

from egpu.verifier.cost import COST_FIELDS, Spent, meter_of, spends, times
from egpu.verifier.counters import Counting
from egpu.verifier.structure import Structure
from egpu.verifier.verified import Cost, Uniformity

_LANES = 32


def warp_cost(
    structure: Structure, counting: Counting, uniformity: Uniformity, spent: Spent
) -> Cost:
    """The worst case of a warp; ``spent`` is that of a thread, with its meters."""
    thread = spent & COST_FIELDS
    most = Spent(times(thread, _LANES)).public()
    total = thread
    sums = [0] * len(counting.meters)
    steps, meter_at = structure.steps, counting.meter
    for pc in uniformity.control:
        meter, step = meter_at(pc), steps[pc]
        assert step is not None, "control comes to instructions"
        sums[meter.number] += spends(step)
    for meter in counting.meters.values():
        once = sums[meter.number]
        number = meter_of(spent, meter.number)
        apart = meter.nested and uniformity.control_varies(meter.pc)
        total += times(once, number * (_LANES if apart else 1))
    together = Spent(total).public()
    if not counting.reducible or together.instructions > most.instructions:
        return most
    return replace(together, ring_bytes=most.ring_bytes)  # every lane writes its own records
