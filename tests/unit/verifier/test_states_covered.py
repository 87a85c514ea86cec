"""When one state covers another: values that are one object in both, and links across them."""

import pytest

from egpu.verifier.scalar import ANY, S64
from egpu.verifier.state import Frame, Pointer, State, write_stack
from egpu.verifier.subsume import Live, state_covers
from egpu.verifier.verified import Region

LIVE = [Live(0b111110, (1 << 128) - 1, 0b111110, (1 << 128) - 1)]
WIDE, NARROW = ANY[64], ANY[8]


def state(*values, slot=None, references=()):
    frame = Frame([None, *values, *(None,) * (10 - len(values))], {}, -1)
    if slot is not None:
        write_stack(frame, -8, 8, slot)
    return State([frame], references, 0)


FIRST, SECOND = WIDE.linked(1), WIDE.linked(2)
NULL = Pointer(Region.MAP_VALUE, 0, null=3)
OTHER_NULL = NULL._replace(null=4)
CASES = {
    "the same objects": (state(FIRST, FIRST), state(FIRST, FIRST), True),
    "a link that both have by another number": (state(FIRST, FIRST), state(SECOND, SECOND), True),
    "one object, and another number for its link": (
        state(FIRST, FIRST), state(FIRST, SECOND), False),
    "one object whose link another value takes": (
        state(FIRST, SECOND), state(FIRST, FIRST), False),
    "one object on the stack": (
        state(FIRST, slot=FIRST), state(SECOND, slot=FIRST), False),
    "a link on the stack by another number": (
        state(FIRST, slot=FIRST), state(SECOND, slot=SECOND), True),
    "fewer values": (state(WIDE, FIRST), state(NARROW, FIRST), True),
    "more values": (state(NARROW, FIRST), state(WIDE, FIRST), False),
    "what is not linked covers what is": (state(WIDE, WIDE), state(FIRST, FIRST), True),
    "what is linked does not cover what is not": (state(FIRST, FIRST), state(WIDE, WIDE), False),
    "nor if one of them is an object of both": (state(FIRST, FIRST), state(FIRST, WIDE), False),
    "nor on the stack": (state(FIRST, slot=FIRST), state(WIDE, slot=WIDE), False),
    "one value may lack its link": (state(FIRST, SECOND), state(WIDE, NARROW), True),
    "a constant twice": (state(FIRST, FIRST), state(S64.constant(7), S64.constant(7)), True),
    "two constants": (state(FIRST, FIRST), state(S64.constant(7), S64.constant(8)), False),
    "a constant for each of two links": (
        state(FIRST, SECOND), state(S64.constant(7), S64.constant(7)), True),
    "pointers that one test decides": (state(NULL, NULL), state(OTHER_NULL, OTHER_NULL), True),
    "pointers that two tests decide": (state(NULL, NULL), state(NULL, OTHER_NULL), False),
    "a record by another number": (
        state(NULL._replace(reference=3), references=(3,)),
        state(OTHER_NULL._replace(reference=4), references=(4,)),
        True,
    ),
    "another record is held": (
        state(NULL._replace(reference=3), references=(3,)),
        state(NULL._replace(reference=3), references=(4,)),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_covers(name):
    old, new, wanted = CASES[name]
    assert state_covers(old, new, LIVE) is wanted


def test_numbers_that_do_not_matter():
    live = [Live(0b111110, 0, 0, 0)]
    assert state_covers(state(NARROW, FIRST), state(WIDE, SECOND), live)
    assert not state_covers(state(NARROW, FIRST), state(NULL, SECOND), live)
