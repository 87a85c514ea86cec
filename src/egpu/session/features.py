"""What programs use of the agent beyond maps, and what the agent found out for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from egpu.agent.protocol import Feature
from egpu.bpf.arith import signed
from egpu.bpf.helpers import HELPERS
from egpu.session.arenas import Arena
from egpu.verifier import VerifiedProgram

_BY_BODY = {
    "ktime_get_ns": Feature.CLOCK,
    "stackid": Feature.STACKS,
    "probe_read": Feature.ALLOCATIONS,
    "probe_read_text": Feature.ALLOCATIONS,
}  # device bodies of helpers


@dataclass(frozen=True, slots=True)
class Clock:
    """How well one context's device clock was compared with the host's CLOCK_MONOTONIC.

    A time that a program got is wrong by at most ``error_ns``, plus what the clocks went apart
    since: ``drift_ns`` (signed) in ``span_ns`` until the process ended, both 0 if it was not
    compared again.  ``error_ns`` is 0 if the clock could not be compared: times are the device's.
    """

    pid: int
    device: str
    error_ns: int
    drift_ns: int
    span_ns: int


def features_of(programs: Iterable[VerifiedProgram]) -> Feature:
    """The features that the helpers of ``programs`` need."""
    found = Feature(0)
    for program in programs:
        for number in program.facts.helpers:
            found |= _BY_BODY.get(HELPERS[number].body, Feature(0))
    return found


def clocks(arenas: Sequence[Arena]) -> tuple[Clock, ...]:
    """The comparisons of every context so far."""
    return tuple(
        Clock(
            arena.pid,
            arena.device.name,
            arena.host.control("clock_error"),
            signed(arena.host.control("clock_drift"), 64),
            arena.host.control("clock_span"),
        )
        for arena in arenas
    )
