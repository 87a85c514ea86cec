"""What a program does as one of many threads (threads.txt): races, load, ranges of indices."""

import itertools
import random
from dataclasses import replace

import pytest
from verifier_programs import END, ENTRY, EXIT, MAPS, VALUE, check, program, read_pairs, refusal

from egpu.bpf.asm import assemble
from egpu.bpf.context import FIELDS
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import AttachKind, AttachPoint, Level, MapSpec
from egpu.errors import VerifierError
from egpu.verifier import Limits, linear, verify
from egpu.verifier.linear import digits

PAIRS = read_pairs("threads.txt")
WARP = (AttachPoint(AttachKind.ENTRY, "*", Level.WARP),)
BLOCK = (AttachPoint(AttachKind.ENTRY, "*", Level.BLOCK),)


def warnings(verified, rules):
    return [str(w) for w in verified.warnings if w.rule in rules]


@pytest.mark.parametrize("name", PAIRS)
def test_accepted(name):
    pair = PAIRS[name]
    assert warnings(check(pair.accepted), {pair.rule}) == []


@pytest.mark.parametrize("name", PAIRS)
def test_refused_or_warned(name):
    pair = PAIRS[name]
    if pair.warned:
        assert warnings(check(pair.refused), {pair.rule}) == [pair.message]
    else:
        error = refusal(pair.refused)
        assert (error.rule, str(error)) == (pair.rule, pair.message)


def test_every_rule_has_a_pair():
    assert {pair.rule for pair in PAIRS.values()} == {"P2", "P8", "P11", "P12", "P13"}


# P8


def test_one_thread_of_a_block_has_thread_index_zero():
    guard = "".join(f"ldxw %r2, [%r1+{offset}]\njne %r2, 0, out\n" for offset in (200, 204, 208))
    text = guard + PAIRS["data-counter"].refused.replace("mov %r0, 0", "out:\nmov %r0, 0")
    assert refusal(text).rule == "P8"
    assert warnings(check(text, attach=BLOCK), {"P8"}) == []
    assert refusal(text, attach=WARP).rule == "P8"


def test_block_indices_by_helper():
    vector = "mov %r1, %r10\nadd %r1, -24\nmov %r2, %r10\nadd %r2, -16\nmov %r3, %r10\n"
    vector += "add %r3, -8\ncall {0}\n"
    compare = "".join(f"ldxdw %r1, [%r10-{o}]\njne %r1, 0, out\n" for o in (24, 16, 8))
    body = PAIRS["data-counter"].refused.replace("mov %r0, 0", "out:\nmov %r0, 0")
    text = (vector.format(503) + compare) + (vector.format(505) + compare) + body
    assert warnings(check(text), {"P8"}) == []
    assert refusal(text.replace("call 505", "call 508")).rule == "P8"


def test_own_part_of_one_value():
    """Each thread of a block its eight bytes, in a program that one block runs."""
    maps = (*MAPS[:4], MapSpec(".bss", MapType.ARRAY, 4, 8192, 1))
    text = "".join(f"ldxw %r2, [%r1+{o}]\njne %r2, 0, out\n" for o in (200, 204, 208, 216, 220))
    text += "lddw %r6, map_index_value 4\nldxw %r2, [%r1+212]\nlsh %r2, {0}\nadd %r6, %r2\n"
    text += "ldxdw %r3, [%r6]\nadd %r3, 1\nstxdw [%r6], %r3\nout:" + END

    def verdict(shift):
        code = assemble(text.format(shift))
        return verify(program_from_code(code, "p", maps=maps, attach=ENTRY))

    assert warnings(verdict(3), {"P8"}) == []
    code = assemble(text.format(3).replace("ldxw %r2, [%r1+212]", "ldxw %r2, [%r1+232]"))
    with pytest.raises(VerifierError) as caught:
        verify(program_from_code(code, "p", maps=maps, attach=ENTRY))
    assert caught.value.rule == "P8"


def number_of(text):
    """A sum of products written as "x*y + z"."""
    total = linear.number(0)
    for term in text.split(" + "):
        product = linear.number(1)
        for name in term.split("*"):
            factor = linear.number(int(name)) if name.isdigit() else linear.field(name)
            product = linear.multiply(product, factor)
        total = linear.add(total, product)
    return total


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("7", ""),
        ("thread_x", "thread_x"),
        ("thread_x + 5", "thread_x"),
        ("block_x*block_dim_x + thread_x", "thread_x block_x"),
        ("block_x*block_dim_x*8 + thread_x*8", "thread_x block_x"),
        ("block_x*1024 + thread_x", "thread_x block_x"),
        ("block_x*512 + thread_x", None),
        ("thread_y*block_dim_x + thread_x", "thread_x thread_y"),
        ("thread_y*block_dim_y + thread_x", None),
        ("block_x*grid_x + thread_x", None),
        ("block_x + thread_x", None),
        ("thread_x*thread_x", None),
        ("thread_x*4294967296", None),
        ("block_dim_x", None),
        ("block_y*grid_x*block_dim_x + block_x*block_dim_x + thread_x", "thread_x block_x block_y"),
    ],
)
def test_numbers_that_tell_threads_apart(text, told):
    found = digits(number_of(text))
    assert (None if found is None else found.indices) == (
        None if told is None else frozenset(told.split())
    )


def test_told_apart_by_enumeration():
    """What ``digits`` says is so for every small launch."""
    randomness = random.Random(5)
    names = ["thread_x", "thread_y", "block_x", "block_dim_x", "block_dim_y", "grid_x", "2", "3"]
    checked = 0
    for _ in range(4000):
        text = " + ".join(
            "*".join(randomness.choices(names, k=randomness.randrange(1, 4)))
            for _ in range(randomness.randrange(1, 4))
        )
        value = number_of(text)
        found = digits(value)
        if found is None or not found.indices:
            continue
        checked += 1
        for dims in itertools.product((1, 2, 3), repeat=3):
            extents = dict(zip(("block_dim_x", "block_dim_y", "grid_x"), dims, strict=True))
            seen = {}
            for indices in itertools.product(*(range(d) for d in dims)):
                place = dict(zip(("thread_x", "thread_y", "block_x"), indices, strict=True))
                fields = {**extents, **place}
                total = 0
                for term, factor in value.terms:
                    for name in term:
                        factor *= fields[name]  # noqa: PLW2901
                    total += factor
                own = tuple(place[name] for name in sorted(found.indices))
                assert seen.setdefault(total, own) == own, text
    assert checked > 100


# P10, P11, P12


def test_ring_of_a_block():
    text = read_pairs()["record"].accepted
    (warning,) = warnings(check(text), {"P10"})
    assert warning == (
        "insn 4 (call 131): one block of 1,024 threads writes up to 8,192 bytes, the ring holds "
        "4,096: records will be dropped; write a record once a warp (kprobe.warp/), count in a "
        "map, or enlarge the ring"
    )
    assert warnings(check(text, attach=WARP), {"P10"}) == []
    maps = (*MAPS[:2], replace(MAPS[2], max_entries=8192), *MAPS[3:])
    larger = program_from_code(assemble(text), "p", maps=maps, attach=ENTRY)
    assert warnings(verify(larger), {"P10"}) == []


def test_add_of_one_value_is_silent_where_one_lane_adds_and_on_per_sm_maps():
    text = PAIRS["add-of-one-value"].refused
    assert warnings(check(text, attach=WARP), {"P11"}) == []
    per_sm = "stw [%r10-4], 0\nlddw %r1, map_index 0\nmov %r2, %r10\nadd %r2, -4\ncall 1\n"
    per_sm += "jeq %r0, 0, out\nmov %r1, 1\nlock add [%r0], %r1\nout:" + END
    assert warnings(check(per_sm), {"P11"}) == []
    assert len(warnings(check(per_sm.replace("map_index 0", "map_index 1")), {"P11"})) == 1


ONE_ADDRESS = (
    "lddw %r6, map_index_value 4\nmov %r1, 1\n{0}" + 6 * "lock or [%r6], %r1\n" + "{1}" + END
)
LEADER = "".join(
    f"ldxw %r2, [%r9+{field.offset}]\njne %r2, 0, out\n"
    for field in FIELDS
    if field.name in {f"{unit}_{axis}" for unit in ("thread", "block") for axis in "xyz"}
)


def contended(text, **options):
    return [w for w in warnings(check(text, **options), {"P11"}) if "one address" in w]


def test_atomics_to_one_address_are_counted_against_a_budget():
    text = ONE_ADDRESS.format("", "")
    assert len(contended(text)) == 1
    assert "up to 6 atomics" in contended(text)[0]
    assert contended(text, limits=Limits(same_address=6)) == []
    assert len(contended(text, limits=Limits(same_address=5))) == 1
    apart = text.replace("or [%r6]", "or [%r6+8]", 2)
    assert contended(apart) == [], "4 and 2"


def test_atomics_to_one_address_by_one_thread_are_silent():
    assert contended("mov %r9, %r1\n" + ONE_ADDRESS.format(LEADER, "out:\n")) == []


@pytest.mark.parametrize(("index", "number"), [(0, 0), (1, 1)], ids=["per SM", "shared"])
def test_atomics_to_an_element_in_a_loop(index, number):
    text = VALUE.format(index) + "mov %r7, 0\nloop:\nmov %r1, 1\nlock or [%r6], %r1\nadd %r7, 1\n"
    assert len(contended(text + "jlt %r7, 5, loop" + END)) == number
    assert contended(text + "jlt %r7, 4, loop" + END) == []


# P15


@pytest.mark.parametrize("row", [r for r in FIELDS if r.maximum is not None and r.size == 4])
def test_fields_stay_below_their_maximum(row):
    """An index needs no test: its bound is known to be ``maximum`` and no less."""
    if row.maximum >= 1 << 16:
        pytest.skip("larger than a test map")
    attach = EXIT if row.exit_only else ENTRY
    text = f"lddw %r6, map_index_value 4\nldxw %r2, [%r1+{row.offset}]\nadd %r6, %r2\n"
    text += "ldxb %r0, [%r6]\nexit"

    def verdict(size):
        maps = (*MAPS[:4], MapSpec(".bss", MapType.ARRAY, 4, size, 1))
        return verify(program_from_code(assemble(text), "p", maps=maps, attach=attach))

    verdict(row.maximum + 1)
    with pytest.raises(VerifierError, match=f"offset from 0 to {row.maximum} is outside"):
        verdict(row.maximum)


def test_warnings_carry_rule_and_place():
    (warning,) = check(PAIRS["large-stack"].refused).warnings
    assert (warning.rule, warning.pc, warning.insn) == ("P12", 0, "stdw [%r10-264], 0")
    assert program(END).maps == MAPS
