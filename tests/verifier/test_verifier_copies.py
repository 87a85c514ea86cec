"""Which registers hold the same number, against every way through random programs of copies."""

import itertools
import random

import pytest
from verifier_programs import END, VALUE, check

from egpu.errors import VerifierError

REGISTERS = (1, 2, 3, 4)
SLOTS = (-16, -24)
LOADS = "".join(f"ldxdw %r{r}, [%r6+{8 * (r % 2)}]\n" for r in REGISTERS)
PLACES = (*REGISTERS, *SLOTS)


def copies(rng):
    """Up to three copies from place to place."""
    return [tuple(rng.sample(PLACES, 2)) for _ in range(rng.randint(0, 3))]


def written(moves):
    """Copies as assembler text: r0 carries what goes from slot to slot."""
    text = ""
    for to, source in moves:
        text += f"ldxdw %r0, [%r10{source}]\n" if source < 0 else f"mov %r0, %r{source}\n"
        text += f"stxdw [%r10{to}], %r0\n" if to < 0 else f"mov %r{to}, %r0\n"
    return text


def program(branches, tested, used):
    """``branches``: pairs of copies, one for each way of a test of the lane's number."""
    text = "mov %r9, %r1\n" + VALUE.format(1) + LOADS
    text += "".join(f"stxdw [%r10{slot}], %r{1 + slot % 3}\n" for slot in SLOTS)
    text += "ldxw %r8, [%r9+232]\n"
    for number, (one, other) in enumerate(branches):
        text += f"mov %r7, %r8\nrsh %r7, {number}\nand %r7, 1\njeq %r7, 0, a{number}\n"
        text += f"{written(one)}ja b{number}\na{number}:\n{written(other)}b{number}:\n"
    text += f"{written([(1, tested)])}{'' if used == 1 else written([(2, used)])}"
    return (
        text + f"jgt %r1, 7, out\nadd %r6, %r{1 if used == 1 else 2}\nldxb %r0, [%r6]\nout:" + END
    )


def is_safe(branches, tested, used):
    """Whether what is tested is what is used, on every way."""
    for ways in itertools.product((0, 1), repeat=len(branches)):
        held = {place: place for place in REGISTERS}
        held |= {slot: 1 + slot % 3 for slot in SLOTS}
        for branch, way in zip(branches, ways, strict=True):
            for to, source in branch[way]:
                held[to] = held[source]
        held[1] = held[tested]
        if held[1] != held[used]:
            return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_a_test_bounds_copies_only(seed):
    rng = random.Random(seed)
    taken = 0
    for _ in range(80):
        branches = [(copies(rng), copies(rng)) for _ in range(rng.randint(1, 4))]
        tested, used = rng.sample(PLACES, 2)
        try:
            check(program(branches, tested, used))
        except VerifierError:
            continue
        taken += 1
        assert is_safe(branches, tested, used), (branches, tested, used)
    assert taken > 2
