"""No lanes of a warp are held together over a loop: why is said in ``egpu.codegen.rounds``."""

import re

import pytest
from codegen_programs import OUTPUT, RING, entry, leave, probe
from test_codegen_deques import PUSH_OWN, pushed
from test_codegen_hash import END, INSERT, THREAD
from test_codegen_lanes import RESERVED, SIZES

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import compile_probe

KEYS = MapSpec("keys", MapType.HASH, 8, 16, 64)
RECENT = MapSpec("keys", MapType.LRU_HASH, 8, 16, 64)
PROGRAMS = {
    "records": (OUTPUT.format(size=24), RING),
    "records of run-time size": (SIZES, RING),
    "reserved records": (RESERVED, RING),
    "hash map": (THREAD + INSERT.format(flags=0) + END, KEYS),
    "LRU map": (THREAD + INSERT.format(flags=0) + END, RECENT),
    "queue": (THREAD + PUSH_OWN.format(flags=0) + END, pushed(MapType.QUEUE, 64)),
    "stack": (THREAD + PUSH_OWN.format(flags=0) + END, pushed(MapType.STACK, 64)),
}
_LABEL = re.compile(r"(\$\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)? (\$\w+);")


def ways_of(lines):
    """The places that each line can be followed by."""
    labels = {match[1]: n for n, line in enumerate(lines) if (match := _LABEL.match(line))}
    ways = []
    for n, line in enumerate(lines):
        branch = _BRANCH.search(line)
        on = [] if branch and not line.startswith("@") else [n + 1]
        ways.append([at for at in on if at < len(lines)] + ([labels[branch[1]]] if branch else []))
    return ways


def reached(starts, ways, barred):
    """Every place that can be come to from ``starts`` without those in ``barred``."""
    found, ahead = set(), [at for at in starts if at not in barred]
    while ahead:
        at = ahead.pop()
        if at not in found:
            found.add(at)
            ahead += [on for on in ways[at] if on not in barred]
    return found


def held_over_loops(lines):
    """(line of an activemask, line of a .sync that uses it) with a loop on the way."""
    ways = ways_of(lines)
    masks = {n for n, line in enumerate(lines) if "activemask" in line}
    found = []
    for mask in masks:
        after = reached(ways[mask], ways, masks)
        for sync in (n for n in after if ".sync" in lines[n]):
            between = {at for at in after if sync in reached([at], ways, masks)}
            if any(at in reached(ways[at], ways, masks) for at in between):
                found.append((mask, sync))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("point", [entry(), leave()], ids=["entry", "exit"])
def test_no_mask_is_held_over_a_loop(name, point):
    text, spec = PROGRAMS[name]
    lines = compile_probe(probe(text, spec, points=(point,)), point=point).text.splitlines()
    if lines[-1].startswith("bar.warp.sync"):  # an entry's: all lanes of a warp have the same mask
        lines.pop()
    assert any(_BRANCH.search(line) for line in lines)
    assert held_over_loops(lines) == []


LARGE = pushed(MapType.QUEUE, 8, size=264)
POP_LARGE = """
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -264
call 88
mov %r0, 0
exit
"""


@pytest.mark.parametrize(("text", "spec"), [(SIZES, RING), (POP_LARGE, LARGE)])
def test_where_loops_copy_no_lane_meets_another(text, spec):
    """Masks of single lanes, several in one place, are no better than one that is too old."""
    lines = compile_probe(probe(text, spec, points=(leave(),)), point=leave()).text.splitlines()
    assert [line for line in lines if ".sync" in line] == []


def test_what_is_looked_for_is_found():
    """A round that all lanes end together, as it once was."""
    text = "$round:\nactivemask.b32 %r1;\n$look:\n@%p1 bra $look;\nbar.warp.sync %r1;\nbra $round;"
    assert held_over_loops(text.splitlines()) == [(1, 4)]
    text = text.replace("@%p1 bra $look;\n", "")  # a mask of its own in each round
    assert held_over_loops(text.splitlines()) == []
    assert held_over_loops(["activemask.b32 %r1;", "shfl.sync.idx.b32 %r2;"]) == []
