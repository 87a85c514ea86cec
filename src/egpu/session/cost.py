"""What a session itself did, and what its probes cost at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from egpu.agent.twin import LaunchCost, ProcessStats
from egpu.bpf.program import AttachKind
from egpu.session.ring import RingTotals
from egpu.session.twins import TwinReport
from egpu.verifier import VerifiedProgram


@dataclass(frozen=True, slots=True)
class SessionCost:
    """What egpu itself did.

    ``build_ms``: building all ``twins``, in milliseconds, of which ``cached`` were not assembled
    anew; ``images`` were read for them, or ahead of them.  ``instructions``: most BPF instructions
    that all probes together add to one thread, ``site_instructions``: of these at one site.
    ``run_ms``: the started process, so far or until it ended.  ``runs_cut_short``: runs of programs
    that lacked turns (``egpu.bpf.budget``).  ``launches``: what the agents measured, over all
    processes.
    """

    twins: int
    images: int
    cached: int
    build_ms: float
    instructions: int
    records_dropped: int
    records_missing: int
    runs_cut_short: int = 0
    site_instructions: int = 0
    run_ms: float = 0.0
    launches: LaunchCost = field(default_factory=LaunchCost)


def cost_of(
    twins: Iterable[TwinReport],
    verified: Sequence[VerifiedProgram],
    rings: Sequence[RingTotals],
    processes: Iterable[ProcessStats],
    *,
    images: int,
    cut_short: int,
    run_ms: float,
) -> SessionCost:
    """The cost of these twins, programs, rings and processes."""
    built = [report for report in twins if not report.reason]
    return SessionCost(
        twins=len(built),
        images=images,
        cached=sum(report.cached for report in built),
        build_ms=sum(report.build_ms for report in built),
        instructions=sum(program.cost.instructions for program in verified),
        records_dropped=sum(total.dropped for total in rings),
        records_missing=sum(total.holes for total in rings),
        runs_cut_short=cut_short,
        site_instructions=max(_by_site(verified).values(), default=0),
        run_ms=run_ms,
        launches=sum((each.cost for each in processes), LaunchCost()),
    )


def _by_site(verified: Iterable[VerifiedProgram]) -> Counter[AttachKind]:
    """Worst-case instructions by kind of site; programs of one kind may share their sites."""
    found: Counter[AttachKind] = Counter()
    for each in verified:
        for kind in {point.kind for point in each.program.attach}:
            found[kind] += each.cost.instructions
    return found
