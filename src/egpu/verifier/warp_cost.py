"""P4: what one warp may have to execute, where its lanes come apart.

Lanes that are together pay once and go one way: no more than the worst thread.  To that comes every
instruction that lanes may reach apart from each other, as often as its loop (or its function) may
begin a turn: all sides of varying branches, up to where they meet.  A loop inside a loop may turn
at other times in each lane, so there every lane counts.
"""

from __future__ import annotations

from egpu.verifier.cost import COST_FIELDS, RING_BYTES, Spent, instructions, meter_of, times
from egpu.verifier.counters import Counting
from egpu.verifier.verified import Cost, Uniformity

_LANES = 32


def warp_cost(counting: Counting, uniformity: Uniformity, spent: Spent) -> Cost:
    """The worst case of a warp; ``spent`` is that of a thread, with its meters."""
    thread = spent & COST_FIELDS
    most = Spent(times(thread, _LANES))
    if not counting.reducible:
        return most.public()
    total = thread
    for meter, once in counting.spent(uniformity.control).items():
        number = meter_of(spent, meter.number)
        apart = meter.nested and uniformity.control_varies(meter.pc)
        total += times(once, number * (_LANES if apart else 1))
    if instructions(total) > instructions(most):
        return most.public()
    # Every lane writes its own records.
    return Spent(total & ~RING_BYTES | most & RING_BYTES).public()
