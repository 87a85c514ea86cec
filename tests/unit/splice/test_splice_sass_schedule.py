"""Straight probes in a better order, and what instructions read and write."""

import itertools
import re
from pathlib import Path

import pytest
from sass_corpus import ARCHS, assemble, cubin, disassembled, needs_tools
from test_splice_sass_encoding import instructions

from egpu.bpf.object import read_object
from egpu.codegen import Launch, compile_probe
from egpu.maps import plan
from egpu.session.additive import additive_maps
from egpu.splice.sass import splice_sass
from egpu.splice.sass_encoding import (
    BASE,
    CS2R,
    DESTINATION,
    EXIT,
    GUARD,
    NOP,
    OPCODE,
    READ_SCOREBOARD,
    REUSE,
    S2R,
    SIZE,
    SOURCE_A,
    STALL,
    WAIT,
    WRITE_SCOREBOARD,
    YIELD,
    branch,
    distance_of,
    instruction,
)
from egpu.splice.sass_operands import Kind, operands
from egpu.splice.sass_schedule import scheduled
from egpu.splice.sass_straight import straightened
from egpu.verifier import verify

pytestmark = needs_tools

PROBES = Path(__file__).resolve().parents[3] / "bench" / "probes"
NAMES = {
    "R": Kind.REGISTER,
    "P": Kind.PREDICATE,
    "UR": Kind.UNIFORM,
    "UP": Kind.UNIFORM_PREDICATE,
}
NAMED = re.compile(r"(?<![\w.])(U?[RP])(\d+)(\.64)?(?![\w`])")
RED = 0x18E
CONTROL = (STALL, YIELD, WRITE_SCOREBOARD, READ_SCOREBOARD, WAIT, REUSE)


def codes_of(name, launch=Launch.DIRECT):
    read = read_object((PROBES / name).read_bytes(), name)
    verified = [verify(program) for program in read.programs]
    codes = tuple(
        compile_probe(each, point=each.program.attach[0], launch=launch) for each in verified
    )
    return codes, plan(read.maps, 132, additive=additive_maps(verified, read.maps))


def spliced(codes, layout, kernel="vector_add", arch="90", stem="plain"):
    """The kernel with the probes; the words of the exit and of the entry probe."""
    original = cubin(stem, arch)
    made = splice_sass(original, kernel, codes, layout, assemble)
    lines = disassembled(made.image)[kernel]
    entry = 1 + distance_of(lines[0].word, int(arch)) // SIZE
    added = len(disassembled(original)[kernel])
    return made, lines[added:entry], lines[entry:]


def raw(name, monkeypatch):
    """Blocks of a set of probes as they were before and after they were put in order."""
    seen = []
    codes, layout = codes_of(name)
    import egpu.splice.sass_probe as lifting  # noqa: PLC0415

    lifting._general.cache_clear()
    monkeypatch.setattr(
        lifting, "scheduled", lambda words: seen.append(tuple(words)) or scheduled(words)
    )
    spliced(codes, layout)
    lifting._general.cache_clear()
    assert seen
    return seen


@pytest.mark.parametrize("arch", ARCHS)
def test_operands_are_those_that_the_disassembler_names(arch):
    bases = set()
    for line in instructions(arch):
        found = operands(line.word)
        if found is None:
            continue
        bases.add(BASE.of(line.word))
        named = set()
        for kind, number, pair in NAMED.findall(line.text):
            named |= {(NAMES[kind], int(number) + half) for half in range(1 + bool(pair))}
        assert named <= found.reads | found.writes, line
        body = re.sub(r"^(@!?\w+\s+)?\S+\s*", "", line.text)
        first = NAMED.match(body)
        if first and BASE.of(line.word) != RED:
            assert (NAMES[first[1]], int(first[2])) in found.writes, line
            for kind, number, _ in NAMED.findall(body[first.end() :]):
                known = found.reads | found.writes
                assert (NAMES[kind], int(number)) in known, line
    assert len(bases) > 15


def without_control(word):
    for field in CONTROL:
        word = field.set(word, 0)
    return word


def meaning(words):
    """What every reduction adds where, as the ways in which its operands were computed."""
    state, found = {}, []
    for word in words:
        known = operands(word)
        if known is None:
            assert OPCODE.of(word) in (NOP, EXIT)
            continue
        computes = without_control(word)
        value = (computes, tuple(state.get(read, read) for read in sorted(known.reads, key=str)))
        for written in known.writes:
            state[written] = value
        if BASE.of(word) == RED:
            found.append(value)
    return found


@pytest.mark.parametrize("name", ["counters.bpf.o", "entry_exit_warp.bpf.o", "threads.bpf.o"])
def test_another_order_means_the_same(name, monkeypatch):
    for words in raw(name, monkeypatch):
        after = scheduled(words)
        assert after != words
        assert meaning(after) == meaning(words)
        idle = [word for word in words if OPCODE.of(word) == NOP]
        assert len(after) == len(words) - len(idle)
        tracked = [at for at, word in enumerate(after) if WRITE_SCOREBOARD.of(word) < 6]
        waits = [at for at, word in enumerate(after) if WAIT.of(word)]
        assert len(tracked) >= 2
        assert max(tracked) < min(waits)
        assert all(YIELD.of(word) for word in after if 0 < STALL.of(word) < 12)
        assert scheduled(after) == after


def test_stalls_and_waits_are_enough(monkeypatch):
    for name in ("counters.bpf.o", "threads.bpf.o"):
        for words in raw(name, monkeypatch):
            after = scheduled(words)
            begun, now = {}, 0
            for at, word in enumerate(after[:-1]):
                begun[at] = now
                now += STALL.of(word)
            for at, then in itertools.combinations(range(len(after) - 1), 2):
                one, other = operands(after[at]), operands(after[then])
                shared = one.writes & other.reads
                if not shared or any(
                    shared <= operands(after[n]).writes for n in range(at + 1, then)
                ):
                    continue
                if one.tracked:
                    own = 1 << WRITE_SCOREBOARD.of(after[at])
                    waited = any(WAIT.of(after[n]) & own for n in range(at + 1, then + 1))
                    assert waited
                    assert begun[then] - begun[at] >= 2
                    continue
                least = max(
                    {Kind.REGISTER: 5, Kind.PREDICATE: 13, Kind.UNIFORM: 6}.get(kind, 1)
                    for kind, _ in shared
                )
                assert begun[then] - begun[at] >= least


def test_what_is_not_known_stays_as_it_is(monkeypatch):
    words = list(raw("counters.bpf.o", monkeypatch)[0])
    others = {line.name.split(".")[0]: line.word for line in instructions("90")}
    for name in ("LDG", "STG", "ATOMG", "SHFL", "BAR", "MATCH", "R2UR", "MUFU", "BSSY"):
        changed = [*words[:2], others[name], *words[2:]]
        assert scheduled(changed) == tuple(changed), name
    changed = [*words[:2], branch(90, SIZE), *words[2:]]
    assert scheduled(changed) == tuple(changed)
    ends = [*words[:-1], GUARD.set(words[-1], 0)]
    assert scheduled(ends) == tuple(ends)
    # A reduction reads late: nothing may be written over what it reads.
    addition = next(at for at, word in enumerate(words) if BASE.of(word) == RED)
    special = next(word for word in words if OPCODE.of(word) == S2R)
    over = DESTINATION.set(special, SOURCE_A.of(words[addition]))
    changed = [*words[: addition + 1], over, *words[addition + 1 :]]
    assert scheduled(changed) == tuple(changed)
    beside = DESTINATION.set(special, 200)
    changed = [*words[: addition + 1], beside, *words[addition + 1 :]]
    assert scheduled(changed) != tuple(changed)


def test_lanes_that_would_end_go_along_at_an_exit():
    codes, layout = codes_of("counters.bpf.o")
    _, leaving, _ = spliced((codes[1],), layout)
    names = [line.text for line in leaving if line.name != "NOP"]
    assert not [text for text in names if re.match(r"@!?P\d EXIT", text)]
    assert len([text for text in names if re.match(r"@!?P\d REDG", text)]) == 1
    # Whose other lanes do more than compute they end as before.
    end = instruction(EXIT)
    some = GUARD.set(end, 1)
    load = next(line.word for line in instructions("90") if line.name.startswith("LDG"))
    for words in ([some, load, end], [some, end, end], [some, end, instruction(NOP)]):
        assert straightened(words, 90) == tuple(words)


def test_what_lands_late_does_not_land_over_what_came_after(monkeypatch):
    """A reading of the clock that nothing reads, and a constant in the same register."""
    words = raw("counters.bpf.o", monkeypatch)[1]
    at = next(n for n, word in enumerate(words) if BASE.of(word) == RED)
    clock = next(word for word in words if OPCODE.of(word) == CS2R)
    constant = next(word for word in words if OPCODE.of(word) == 0x224)
    late = DESTINATION.set(clock, DESTINATION.of(constant))
    after = scheduled([*words[:at], late, constant, *words[at:]])
    begun = list(itertools.accumulate((STALL.of(word) for word in after), initial=0))
    clocks = [n for n, word in enumerate(after) if OPCODE.of(word) == CS2R]
    constants = [n for n, word in enumerate(after) if OPCODE.of(word) == 0x224]
    assert begun[constants[-1]] - begun[clocks[-1]] >= 9
