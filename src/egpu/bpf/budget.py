"""What bounds loops whose number of turns nobody knows before they run: the budget of a run.

Each run of a program, in each thread, has one number of tokens.  A ``may_goto`` (BPF_JCOND of
linux/bpf.h, Linux 6.9) that falls through, a further turn of a budgeted loop and a call of a
budgeted ``bpf_loop`` take one each.  Once they are used up ``may_goto`` jumps, ``bpf_loop`` makes
no more calls, and a loop that would turn again ends the program with r0 = 0.  Linux has such a
counter for may_goto in each function that is called, of 2^23, or a time limit; how many turns there
are is not part of what may_goto promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LINUX_TURNS = 1 << 23  # BPF_MAX_LOOPS of linux/bpf.h


@dataclass(frozen=True, slots=True)
class Budget:
    """``turns``: the tokens of a run.  ``loops``: the loops that take one for every turn but the
    first, by the pc of their head, with the pcs of their bodies.  ``calls``: the pcs of the calls
    of bpf_loop that take one for each call that they make."""

    turns: int = LINUX_TURNS
    loops: Mapping[int, frozenset[int]] = field(default_factory=dict)
    calls: frozenset[int] = frozenset()

    def again(self, pc: int, target: int) -> bool:
        """Whether going from ``pc`` to ``target`` begins another turn of a budgeted loop."""
        return target in self.loops and pc in self.loops[target]


NO_BUDGET = Budget()


@dataclass(slots=True)
class Tokens:
    """The tokens of one run: ``left`` of them; ``short`` says that one was missing."""

    left: int
    short: bool = False

    def take(self) -> bool:
        """Take one; False if there is none."""
        if not self.left:
            self.short = True
            return False
        self.left -= 1
        return True
