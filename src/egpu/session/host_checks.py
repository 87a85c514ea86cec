"""What programs on the host may ask: there is a waiting thread, and no launch."""

from __future__ import annotations

from egpu.bpf.helpers import HELPERS
from egpu.errors import UnsupportedError
from egpu.verifier import VerifiedProgram

TIMES = (5, 125, 160)  # bpf_ktime_get_ns and its like
# Helpers that mean the same on the host: of maps, times, the thread and its stack, numbers and
# printing.
STACKS = frozenset({27, 67})  # bpf_get_stackid, bpf_get_stack
_HELPERS = frozenset({1, 2, 3, *TIMES, 6, 7, 14, 15, 16, *STACKS, 174, 177})


def check_host(verified: VerifiedProgram) -> None:
    """UnsupportedError for what has no meaning on the host."""
    facts, name = verified.facts, verified.program.name
    read = sorted(facts.context_fields)
    if read:
        raise UnsupportedError(
            f"program {name}: it runs on the host and reads its context ({read[0]})",
            needs="a program that asks helpers and maps only: registers are not known there",
        )
    for number in sorted(facts.helpers - _HELPERS):
        raise UnsupportedError(
            f"program {name}: it runs on the host and calls {HELPERS[number].name}",
            needs=", ".join(HELPERS[each].name for each in sorted(_HELPERS) if each in HELPERS),
        )
