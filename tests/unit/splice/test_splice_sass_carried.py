"""Which uniform values of an exit probe count as spoilt, by hand-made code."""

import pytest
from sass_corpus import ARCHS, needs_tools
from sass_text import disassemble
from sass_text import operands as named
from test_splice_sass_encoding import instructions

from egpu.splice.sass_carried import carried
from egpu.splice.sass_encoding import EXIT, GUARD, branch, bytes_of, instruction
from egpu.splice.sass_operands import Kind, operands
from egpu.splice.sass_predicates import predicates_written

pytestmark = needs_tools

LEAVES = instruction(EXIT)
WRITE = 0x00000000_00047AB9 | 0x000FE200_00000800 << 64
OTHER = 0x00008200_00047AB9 | 0x000FE200_00000800 << 64
READ = 0x00000004_00047C02 | 0x000FE200_08000F00 << 64
YIELDS = 0x00000000_00007946 | 0x000FE200_03800000 << 64
FROM_LANES = 0x00000000_020472CA | 0x000FE200_000E0000 << 64
COMPARES = 0x000000FF_0200720C | 0x000FDA00_03F05270 << 64
COMPARES_UNIFORM = 0x00000008_FF007C0C | 0x000FDA00_0BF05270 << 64
SECOND_RESULT = 0x000000FF_0200720C | 0x000FDA00_03825270 << 64
TOGETHER = 0x00000002_08047947 | 0x000FEA00_0B800000 << 64
WIDE = 0x00000006_04027E25 | 0x000FE200_0F8E0005 << 64
TEXTS = {
    WRITE: "ULDC UR4, c[0x0][0x0]",
    OTHER: "ULDC UR4, c[0x0][0x208]",
    READ: "MOV R4, UR4",
    YIELDS: "YIELD",
    FROM_LANES: "R2UR UR4, R2",
    COMPARES: "ISETP.NE.AND P0, PT, R2, RZ, PT",
    COMPARES_UNIFORM: "ISETP.NE.AND P0, PT, RZ, UR8, PT",
    SECOND_RESULT: "ISETP.NE.AND P1, P0, R2, RZ, PT",
    WIDE: "IMAD.WIDE.U32 R2, R4, R5, UR6",
}


def under(word, predicate):
    return GUARD.set(word, predicate)


def jump(over, predicate=7):
    return branch(90, over * 16, guard=predicate)


def spoilt(*words):
    """Whether UR4 is; in code that writes two things into it somewhere."""
    return 4 in carried((*words, LEAVES, WRITE, OTHER), 90)


def test_the_words_are_what_they_are_taken_for():
    (lines,) = disassemble([bytes_of([*TEXTS, TOGETHER])], "90")
    assert [line.text for line in lines][:-1] == list(TEXTS.values())
    assert lines[-1].text.startswith("BRA.DIV UR8, ")


def test_a_write_that_may_not_happen_is_none():
    assert not spoilt(WRITE, READ)
    assert spoilt(WRITE, YIELDS, READ)
    assert spoilt(WRITE, YIELDS, under(OTHER, 0), READ)
    assert not spoilt(WRITE, YIELDS, OTHER, READ)


def test_what_has_the_same_guard_reads_what_was_written():
    assert not spoilt(YIELDS, under(FROM_LANES, 0), under(READ, 0))
    assert spoilt(YIELDS, under(FROM_LANES, 0), under(READ, 1))
    assert spoilt(YIELDS, under(FROM_LANES, 0), under(READ, 8))
    assert spoilt(YIELDS, under(FROM_LANES, 0), READ)
    assert spoilt(YIELDS, under(FROM_LANES, 0), YIELDS, under(READ, 0))
    # Behind another comparison it is another guard.
    assert spoilt(YIELDS, under(FROM_LANES, 0), COMPARES, under(READ, 0))
    assert not spoilt(YIELDS, under(FROM_LANES, 1), COMPARES, under(READ, 1))
    # It counts for two in one register number of another kind as little.
    assert spoilt(YIELDS, under(OTHER, 0), under(READ, 0))


@pytest.mark.parametrize(
    ("before", "parts"),
    [
        ((COMPARES_UNIFORM,), False),
        ((COMPARES,), True),
        ((COMPARES_UNIFORM, COMPARES), True),
        ((COMPARES, COMPARES_UNIFORM), False),
        # The varying one reaches the branch around the other.
        ((COMPARES, jump(1, 1), COMPARES_UNIFORM), True),
        # It is the second predicate that another comparison writes.
        ((COMPARES_UNIFORM, SECOND_RESULT), True),
    ],
)
def test_a_branch_that_all_lanes_take_alike(before, parts):
    assert spoilt(*before, WRITE, jump(1, 0), READ) is parts


def test_a_branch_that_asks_whether_lanes_are_together_has_another_way():
    assert spoilt(WRITE, TOGETHER, READ)


def test_a_wide_product_reads_a_pair_of_uniform_registers():
    uniform = {number for kind, number in operands(WIDE).reads if kind is Kind.UNIFORM}
    assert uniform == {6, 7}


@pytest.mark.parametrize("arch", ARCHS)
def test_predicates_that_the_disassembler_names_as_written_are(arch):
    seen = set()
    for line in instructions(arch):
        try:
            writes = named(line.text).writes
        except AssertionError:
            continue  # an instruction that no probe has
        found = {("U" if uniform else "") + f"P{n}" for uniform, n in predicates_written(line.word)}
        wanted = {name for name in writes if name.lstrip("U")[0] == "P"}
        assert wanted <= found, line
        seen |= {line.name.split(".")[0] for _ in wanted}
    assert {"ISETP", "IADD3", "LOP3", "PLOP3", "UISETP", "UIADD3"} <= seen
