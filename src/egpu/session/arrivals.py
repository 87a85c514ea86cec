"""``kretprobe.block`` programs, which meet in a map of egpu (``egpu.bpf.block_exits``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from egpu.bpf.block_exits import leaves_blocks, with_arrival
from egpu.bpf.own_maps import BLOCKS, own_map
from egpu.bpf.program import Program
from egpu.maps import HashView
from egpu.session.arenas import Arenas
from egpu.verifier import Limits, Policy, VerifiedProgram, verify


def verify_all(
    programs: Sequence[Program], policy: Policy = Policy.PROBE, limits: Limits | None = None
) -> tuple[VerifiedProgram, ...]:
    """``programs``, all over the same maps, verified as they are attached.

    What is wrong with a program is said of its own instructions: one that gets an arrival is
    verified before and after.  Raises as ``verify`` does.
    """
    limits = limits or Limits()
    found = []
    for number, program in enumerate(programs):
        if program.on_host:  # where it runs alone
            found.append(verify(program, policy=policy, limits=replace(limits, lost_updates=True)))
            continue
        verified = verify(program, policy=policy, limits=limits)
        if leaves_blocks(program):
            verified = verify(with_arrival(program, number), policy=policy, limits=limits)
        found.append(verified)
    return tuple(found)


def missed_blocks(arenas: Arenas) -> str:
    """A sentence about blocks whose last exit was not found, by the last snapshots; "" if none."""
    index = own_map(arenas.maps, BLOCKS)
    if index is None:
        return ""
    view = HashView(arenas.maps[index], lambda: arenas.copies(index))
    missed = view.counter("full") + view.counter("busy")
    if not missed:
        return ""
    return f"kretprobe.block missed blocks: {missed} exits of threads found no place to meet"
