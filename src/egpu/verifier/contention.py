"""P11: atomics of one thread to one address that all threads of a launch share, counted by place.

Such atomics of all threads run one after the other.  How often a place is reached is known from the
meters of the walk: as often as its innermost loop, or its function, may begin.
"""

from __future__ import annotations

from collections.abc import Iterator

from egpu.bpf.isa import Kind
from egpu.bpf.maptypes import traits
from egpu.verifier import linear
from egpu.verifier.cost import Spent, meter_of
from egpu.verifier.counters import Counting
from egpu.verifier.races import Known
from egpu.verifier.report import Refusal
from egpu.verifier.structure import Step
from egpu.verifier.verified import Operand, Region

_Address = tuple[int, int]  # map and offset, or -1 and the pc of the only atomic known to go there
_Places = list[tuple[Step, int]]  # atomics, and how often a thread may come to each


def contention(known: Known, counting: Counting, worst: Spent) -> Iterator[Refusal]:
    """A warning for each address with more atomics of one thread than the limit."""
    limit = known.setting.limits.same_address
    found: dict[_Address, _Places] = {}
    for step in known.setting.structure.of_kind(Kind.ATOMIC):
        operand = known.frames.operand(step.pc, step.dst)
        if operand is None or not _shared(known, operand):
            continue
        address = _address(known, step, operand)
        found.setdefault(address, []).append((step, _times(counting, worst, step)))
    for places in found.values():
        if _total(places) > limit:
            # What all threads share, and whether one alone comes there, take dataflows of their
            # own: asked last.
            places = [place for place in places if _met(known, place[0])]  # noqa: PLW2901
        if _total(places) > limit:
            yield _warning(known, places)


def _total(places: _Places) -> int:
    return sum(times for _, times in places)


def _met(known: Known, step: Step) -> bool:
    """Whether threads of a launch may meet at the address of ``step``: it is the same for all, and
    more than one thread executes it."""
    if known.launch.register_varies(step.pc, step.dst):
        return False
    return not known.threads.owner(step.pc, step.dst) >= linear.INDICES


def _warning(known: Known, places: _Places) -> Refusal:
    most = max(places, key=lambda place: place[1])[0]
    operand = known.frames.operand(most.pc, most.dst)
    index = None if operand is None else operand.map
    name = "a map" if index is None else f"map {known.setting.map(index).name}"
    others = [f"insn {step.pc}" for step, _ in places if step is not most]
    text = f"up to {_total(places)} atomics of a thread go to one address of {name} that all "
    text += "threads share"
    if others:
        text += f" (with {' and '.join(others)})"
    return Refusal(
        "P11",
        f"{text}: each waits for those of all other threads",
        most.pc,
        "sum in a register and add once, add once a warp (kprobe.warp/), or use a PERCPU_ARRAY; "
        f"or allow more than {known.setting.limits.same_address} (egpu verify --atomic-budget, "
        "Limits.same_address)",
    )


def _shared(known: Known, operand: Operand) -> bool:
    """Whether it is memory of one map that all SMs and threads share."""
    if operand.regions != {Region.MAP_VALUE} or operand.map is None:
        return False
    kind = traits(known.setting.map(operand.map).type)
    return not (kind.per_sm or kind.per_thread)


def _address(known: Known, step: Step, operand: Operand) -> _Address:
    """The same for atomics that certainly go to the same address."""
    if operand.map is None or operand.offset is None:
        return -1, step.pc
    single = known.setting.map(operand.map).max_entries == 1
    return (operand.map, operand.offset + step.off) if single else (-1, step.pc)


def _times(counting: Counting, worst: Spent, step: Step) -> int:
    """How often one thread may come to ``step``."""
    if not counting.reducible:
        return worst.public().atomics
    return meter_of(worst, counting.meter(step.pc).number)
