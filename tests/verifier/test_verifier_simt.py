"""What holds for the lanes of a warp (simt.txt), and the dataflow behind it."""

import random

import pytest
from random_programs import Writer
from verifier_programs import check, read_pairs, refusal

from egpu.bpf.asm import assemble
from egpu.bpf.helpers import HELPERS, Arg, Helper, Ret
from egpu.bpf.insn import program_from_code
from egpu.bpf.program import AttachKind, AttachPoint, Level
from egpu.verifier import Policy, Uniformity, control, structure

PAIRS = read_pairs("simt.txt")
COLLECTIVE = Helper(
    699,
    "test_collective",
    (Arg.SCALAR,),
    Ret.SCALAR,
    "__u64 (*%s)(__u64 value)",
    "ktime_get_ns",
    4,
    collective=True,
)
WARP = (AttachPoint(AttachKind.ENTRY, "*", Level.WARP),)


@pytest.fixture(autouse=True)
def collective(monkeypatch):
    monkeypatch.setitem(HELPERS, COLLECTIVE.id, COLLECTIVE)


@pytest.mark.parametrize("name", PAIRS)
def test_accepted(name):
    check(PAIRS[name].accepted)


@pytest.mark.parametrize("name", PAIRS)
def test_refused(name):
    error = refusal(PAIRS[name].refused)
    assert (error.rule, str(error)) == (PAIRS[name].rule, PAIRS[name].message)


def test_no_real_helper_is_collective():
    assert [h.name for h in HELPERS.values() if h.collective] == ["test_collective"]


def test_one_lane_of_a_warp_is_never_together():
    error = refusal("mov %r1, 1\ncall 699\nmov %r0, 0\nexit", attach=WARP)
    assert error.rule == "P7"
    assert "not all of them may come" in error.message


def test_facts_are_frozen_and_by_instruction():
    facts = check("ldxw %r2, [%r1+232]\njeq %r2, 0, out\ncall 5\nout:\nmov %r0, 0\nexit").facts
    uniformity = facts.uniformity
    assert isinstance(uniformity, Uniformity)
    assert uniformity.control == {2}
    assert uniformity.register_varies(1, 2)
    assert not uniformity.register_varies(1, 1)
    assert uniformity.register_varies(3, 0)
    with pytest.raises(AttributeError):
        uniformity.control = frozenset()
    with pytest.raises(TypeError):
        uniformity.varying[0] = 0


@pytest.mark.parametrize(
    ("offset", "warp", "launch"),
    [(176, True, True), (188, True, True), (112, True, True), (240, True, True), (288, True, True),
     (200, True, False), (224, True, False), (228, True, False),
     (212, False, False), (232, False, False), (264, False, False)],
)  # fmt: skip
def test_fields_by_scope(offset, warp, launch):
    size = "dw" if offset in (112, 240, 264, 288) else "w"
    facts = check(f"ldx{size} %r2, [%r1+{offset}]\nmov %r0, 0\nexit").facts
    assert facts.uniformity.register_varies(1, 2) is not warp
    assert facts.launch.register_varies(1, 2) is not launch


def test_per_sm_pointers_are_one_for_a_warp_and_many_for_a_launch():
    text = "stw [%r10-4], 0\nlddw %r1, map_index 0\nmov %r2, %r10\nadd %r2, -4\ncall 1\n"
    facts = check(text + "jeq %r0, 0, out\ncall 5\nout:\nmov %r0, 0\nexit").facts
    assert not facts.uniformity.register_varies(6, 0)
    assert facts.launch.register_varies(6, 0)
    assert facts.uniformity.control == frozenset()
    assert facts.launch.control == {7}


def post_dominators(graph):
    """By definition: x post-dominates b if without x no end can be reached from b."""
    found = {}
    for block in graph.blocks:
        above = []
        for other in graph.blocks:
            seen, work = set(), [block.index]
            while work:
                index = work.pop()
                if index not in seen and index != other.index:
                    seen.add(index)
                    work += graph.blocks[index].successors
            if other.index != block.index and all(graph.blocks[i].successors for i in seen):
                above.append(other.index)
        found[block.index] = above
    return found


def test_meeting_places_are_the_nearest_post_dominators():
    branches = 0
    for seed in range(60):
        code = assemble(Writer(random.Random(seed)).program())
        graph = control.analyse(structure.analyse(program_from_code(code, "p"), Policy.EXECUTOR))
        above = post_dominators(graph)
        for block in graph.blocks:
            branches += len(block.successors) > 1
            meets = graph.meets[block.index]
            if meets == control.END:
                assert above[block.index] == []
                continue
            # The nearest has all others above itself.
            assert set(above[block.index]) == {meets, *above[meets]}
    assert branches > 100
