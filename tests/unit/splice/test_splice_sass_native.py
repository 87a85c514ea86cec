"""Machine code that is looked through in C comes out as it does word by word."""

import random
import threading

import pytest
from sass_corpus import ARCHS, KERNELS, cubin, needs_tools, runs_on

from egpu.image.cubin import open_cubin
from egpu.image.cubin_edit import take_apart
from egpu.splice import sass_uniform
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    LATE_READERS,
    LOADS,
    NO_SCOREBOARD,
    OPCODE,
    READ_SCOREBOARD,
    SETMAXREG,
    STALL,
    ULDC,
    WRITE_SCOREBOARD,
    Field,
    bytes_of,
)
from egpu.splice.sass_rules import EVERY_RULE, Rule, tracked, with_scoreboards

RULES = (Rule.LATE_READS, Rule.LANDED_LOADS, Rule.VISIBLE_SCOREBOARD)
OPCODES = (
    *(base | form << 9 for base in sorted(LOADS | LATE_READERS) for form in (1, 4, 7)),
    *(ULDC, SETMAXREG, 0x290, 0x883, 0x9F0, 0x5B4, 0x81C, 0xC24, 0x947, 0x355, 0x30A),
)


def words(seed, count):
    """Of opcodes that something is known of, half of them as they are before they are tracked."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        word = OPCODE.set(chance.getrandbits(128), chance.choice(OPCODES))
        word = STALL.set(word, chance.choice((0, 1, 2, 5, 15)))
        for field in (WRITE_SCOREBOARD, READ_SCOREBOARD):
            word = field.set(word, chance.choice((NO_SCOREBOARD, 0, 5)))
        if chance.random() < 0.1:
            word = Field(16, 8).set(word, 255)  # a load into nothing
        found.append(word)
    return tuple(found)


@pytest.mark.parametrize("without", [(), *((rule,) for rule in RULES), RULES])
def test_scoreboards(without):
    rules = EVERY_RULE - {*without}
    code = words(len(without), 2000)
    found = tuple(with_scoreboards(Code.of(bytes_of(code)), rules))
    assert found == tracked(code, rules)
    assert (found != code) == bool({*RULES[:2]} & rules)


def test_nothing_is_copied_that_is_not_changed():
    code = Code.of(bytes_of(tracked(words(1, 100), EVERY_RULE)))
    assert with_scoreboards(code, EVERY_RULE) is code
    empty = Code.of(b"")
    assert with_scoreboards(empty, EVERY_RULE) is empty


def used_word_by_word(code):
    found = {what: set() for what in sass_uniform._What}
    for word in code:
        for what, at, span in sass_uniform._named_by(sass_uniform._kind_of(word)):
            first = Field(at, sass_uniform._WIDTHS[what]).of(word)
            if what is sass_uniform._What.REGISTER and first == sass_uniform.URZ:
                continue  # it is none
            if span == sass_uniform._PAIR:
                found[what] |= {first, first | 1}
            else:
                found[what] |= {*range(first, first + span + 1)}
        if OPCODE.of(word) == 0x883:
            found[sass_uniform._What.PREDICATE] |= {*range(sass_uniform.UNIFORM_PREDICATES)}
    limits = (
        sass_uniform.UNIFORM_REGISTERS,
        sass_uniform.UNIFORM_PREDICATES,
        sass_uniform.BARRIERS,
    )
    return tuple(
        {number for number in each if number < limit}
        for each, limit in zip(found.values(), limits, strict=True)
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 300])
@pytest.mark.parametrize("seed", range(5))
def test_uniform_registers(count, seed):
    code = words(seed, count)
    found = sass_uniform.usage(code)
    assert (found.registers, found.predicates, found.barriers) == used_word_by_word(code)


@needs_tools
@pytest.mark.parametrize("arch", ARCHS)
def test_uniform_registers_of_kernels(arch):
    for path in sorted(KERNELS.glob("*.ptx")):
        if not runs_on(path.read_text(), arch):
            continue
        for part in take_apart(open_cubin(cubin(path.stem, arch))).parts:
            if part.name.startswith(".text."):
                code = Code.of(part.data)
                found = sass_uniform.usage_of(code)
                expected = used_word_by_word(code)
                assert (found.registers, found.predicates, found.barriers) == expected
                assert tuple(with_scoreboards(code, EVERY_RULE)) == tracked(tuple(code), EVERY_RULE)


def test_kinds_that_two_threads_meet_at_a_time(monkeypatch):
    """A rehearsal is beside what kernels ask for.  A table that names a field which the places do
    not have yet would have the library look behind them."""
    named, places = sass_uniform._Named(), sass_uniform.Places
    first, second = threading.Event(), threading.Event()

    def slowly(fields):
        made = places(fields)
        if not first.is_set():
            first.set()
            second.wait(0.2)  # the other would be done
        return made

    def look(opcode):
        sass_uniform.usage([OPCODE.set(0, opcode)])

    monkeypatch.setattr(sass_uniform, "_NAMED", named)
    monkeypatch.setattr(sass_uniform, "Places", slowly)
    one = threading.Thread(target=look, args=(0x290,))
    one.start()
    assert first.wait(100)
    look(0x5B4)
    second.set()
    one.join(100)
    assert named.places.count == len(named.fields)
