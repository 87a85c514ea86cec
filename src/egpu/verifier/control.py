"""Basic blocks and what a branch decides: its region, up to the place where its ways meet again.

The meeting place of a branch is its immediate post-dominator; the region is every block between.
Blocks that cannot reach the end of their function (endless loops that no value takes) count as if
they could leave from anywhere, which makes regions larger, never smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from egpu.bpf.isa import Kind
from egpu.verifier.structure import Step, Structure

END = -1  # the end of the function as a meeting place


@dataclass(slots=True, eq=False)  # never changed; frozen ones take three times as long to make
class Block:
    """Instructions that run one after the other; ``successors`` and ``predecessors`` are blocks."""

    index: int
    function: int
    steps: tuple[Step, ...]
    successors: tuple[int, ...]
    predecessors: tuple[int, ...]
    last: Step


@dataclass(slots=True, eq=False)
class Graph:
    """The blocks of a program; ``block_of`` by pc of an instruction; ``meets`` the block where the
    ways out of a block meet again, END for the end of the function."""

    blocks: tuple[Block, ...]
    block_of: tuple[int, ...]
    meets: tuple[int, ...]
    regions: dict[int, frozenset[int]] = field(default_factory=dict)  # as asked for

    def region(self, block: int) -> frozenset[int]:
        """The blocks that may run after ``block`` ends and before its ways meet again."""
        if block in self.regions:
            return self.regions[block]
        stop = self.meets[block]
        seen: set[int] = set()
        work = [s for s in self.blocks[block].successors if s != stop]
        while work:
            index = work.pop()
            if index not in seen:
                seen.add(index)
                work.extend(s for s in self.blocks[index].successors if s != stop)
        self.regions[block] = frozenset(seen)
        return self.regions[block]

    def branches(self) -> Iterable[Block]:
        """The blocks that end with a conditional jump of two ways."""
        return (b for b in self.blocks if b.last.kind is Kind.JUMP and len(b.successors) > 1)


def analyse(structure: Structure) -> Graph:
    """The graph of ``structure``."""
    runs = structure.runs
    block_of: list[int] = []
    for index, run in enumerate(runs):
        block_of += [index] * (run[-1].following - run[0].pc)
    successors = [_successors(run[-1], block_of) for run in runs]
    predecessors: list[list[int]] = [[] for _ in runs]
    for index, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(index)
    function_of = structure.function_of
    blocks = tuple(
        Block(index, function_of[run[0].pc], run, after, tuple(before), run[-1])
        for index, (run, after, before) in enumerate(
            zip(runs, successors, predecessors, strict=True)
        )
    )
    return Graph(blocks, tuple(block_of), _meets(blocks))


_JUMP, _JUMP_ALWAYS, _EXIT = Kind.JUMP, Kind.JUMP_ALWAYS, Kind.EXIT


def _successors(last: Step, block_of: list[int]) -> tuple[int, ...]:
    """The blocks after an instruction, each once."""
    kind = last.kind
    if kind is _EXIT:
        return ()
    if kind is _JUMP_ALWAYS:
        return (block_of[last.target],)
    following = block_of[last.following]
    if kind is _JUMP and (target := block_of[last.target]) != following:
        return following, target
    return (following,)


def _meets(blocks: tuple[Block, ...]) -> tuple[int, ...]:
    """Immediate post-dominators (Cooper, Harvey and Kennedy's iteration over the reversed graph).

    The functions share one end: they have no blocks in common, so it separates them.
    """
    end = len(blocks)
    if all(successor > block.index for block in blocks for successor in block.successors):
        return _meets_ahead(blocks)
    leaves = [not block.successors for block in blocks]
    order = _postorder(blocks, leaves)
    rank = {block: place for place, block in enumerate(order)}
    rank[end] = len(order)
    above: list[int | None] = [None] * end + [end]
    changed = True
    while changed:
        changed = False
        for block in reversed(order):
            found: int | None = end if leaves[block] else None
            for successor in blocks[block].successors:
                if above[successor] is not None:
                    found = successor if found is None else _common(above, rank, found, successor)
            if found != above[block]:
                above[block] = found
                changed = True
    return tuple(END if a == end or a is None else a for a in above[:end])


def _meets_ahead(blocks: tuple[Block, ...]) -> tuple[int, ...]:
    """The same where nothing jumps back: backwards once, in the order of the blocks."""
    end = len(blocks)
    above = [end] * (end + 1)
    for block in reversed(blocks):
        successors = block.successors
        if successors:
            found = successors[0]
            for other in successors[1:]:
                while found != other:
                    if found < other:
                        found = above[found]
                    else:
                        other = above[other]  # noqa: PLW2901
            above[block.index] = found
    return tuple(END if a == end else a for a in above[:end])


def _postorder(blocks: tuple[Block, ...], leaves: list[bool]) -> list[int]:
    """Blocks by depth-first search from the ends backwards; marks what reaches none as leaving."""
    order: list[int] = []
    seen: set[int] = set()
    roots = [b.index for b in blocks if leaves[b.index]]
    roots += [b.index for b in reversed(blocks) if not leaves[b.index]]
    for root in roots:
        if root in seen:
            continue
        leaves[root] = True  # an end, or a block from which no end is reached
        seen.add(root)
        work = [(root, iter(blocks[root].predecessors))]
        while work:
            block, ahead = work[-1]
            following = next((p for p in ahead if p not in seen), None)
            if following is None:
                work.pop()
                order.append(block)
            else:
                seen.add(following)
                work.append((following, iter(blocks[following].predecessors)))
    return order


def _common(above: list[int | None], rank: dict[int, int], a: int, b: int) -> int:
    """The nearest block that every way from ``a`` and from ``b`` passes."""
    while a != b:
        while rank[a] < rank[b]:
            upper = above[a]
            assert upper is not None, "processed blocks have a post-dominator"
            a = upper
        while rank[b] < rank[a]:
            upper = above[b]
            assert upper is not None, "processed blocks have a post-dominator"
            b = upper
    return a
