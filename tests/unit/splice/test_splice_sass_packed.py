"""Uniform values of exit probes in the few registers that a kernel leaves."""

import functools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sass_flow
from sass_corpus import ARCHS, assemble, cubin, needs_tools
from sass_text import disassemble
from sass_text import operands as named
from test_splice_sass_carried import LEAVES, WRITE, YIELDS, jump, under
from test_splice_sass_encoding import instructions

from egpu import tools
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.object import read_object
from egpu.bpf.program import AttachKind
from egpu.codegen import Together, compile_probe
from egpu.errors import InternalError, UnsupportedError
from egpu.image.cubin import open_cubin
from egpu.image.cubin_edit import take_apart
from egpu.image.cubin_kernel import open_kernel
from egpu.maps import plan
from egpu.session.additive import additive_maps
from egpu.session.stamping import stamped_maps
from egpu.splice import sass, sass_packed
from egpu.splice.sass import splice_sass
from egpu.splice.sass_carried import carried
from egpu.splice.sass_choice import assembled
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    ALL_SCOREBOARDS,
    NO_SCOREBOARD,
    READ_SCOREBOARD,
    STALL,
    UNIFORM_REGISTERS,
    WAIT,
    bytes_of,
    words_of,
)
from egpu.splice.sass_kernel import code_around
from egpu.splice.sass_numbers import free_numbers, renamed
from egpu.splice.sass_packed import packed
from egpu.splice.sass_probe import ProbeSetting, _lift, assemble_probes
from egpu.splice.sass_ptx import AMPLE, Apart, Manner, Shape
from egpu.splice.sass_rules import EVERY_RULE, Rule
from egpu.splice.sass_same import Values, _may_write
from egpu.splice.sass_uniform import Usage, usage, usage_exact
from egpu.verifier import verify

sys.path.append(str(Path(__file__).resolve().parents[2] / "gpu"))
import few_uniforms

pytestmark = needs_tools

ROOT = Path(__file__).resolve().parents[3]
OBJECTS = {
    "kernelcount": Path(tools.__file__).parent / "kernelcount" / "kernelcount.bpf.o",
    "kernellat": Path(tools.__file__).parent / "kernellat" / "kernellat.bpf.o",
    "blocksched": Path(tools.__file__).parent / "blocksched" / "blocksched.bpf.o",
    "counters": ROOT / "bench" / "probes" / "counters.bpf.o",
    "records": ROOT / "bench" / "probes" / "records_room.bpf.o",
    "groups": ROOT / "tests" / "gpu" / "probes" / "groups.bpf.o",
}
# The free registers of kernels of cuDNN and PyTorch that leave few, and of what is none of them.
LEFT = ((2, 3), (60, 61), (2, 3, 62), (1, 2, 3, 62), (0, 1, 2, 3, 62), (2, 3, 60, 61, 62))
NEEDS = {"blocksched": 3}  # others need a pair


@functools.cache
def probes_of(name, rings="host"):
    """What a session makes of a tool: the programs' code and the layout of their maps."""
    whole = read_object(OBJECTS[name].read_bytes(), name)
    maps, programs = whole.maps, whole.programs
    if rings == "device":
        maps = tuple(
            replace(each, on_device=traits(each.type).storage is Storage.RING) for each in maps
        )
        sizes = stamped_maps([verify(replace(each, maps=maps)) for each in programs], maps)
        maps = tuple(replace(each, stamped=sizes.get(at, 0)) for at, each in enumerate(maps))
    verified = [verify(replace(each, maps=maps)) for each in programs]
    codes = []
    for each in verified:
        point = each.program.attach[0]
        alone = Together.ONE if point.kind is AttachKind.EXIT else Together.WARP
        codes.append(compile_probe(each, point=point, together=alone))
    return tuple(codes), plan(maps, 132, additive=additive_maps(verified, maps))


def setting(name, rings="host", arch=90):
    probes, layout = probes_of(name, rings)
    return ProbeSetting(arch, probes, layout, assemble)


def kernel(arch=90):
    return open_kernel(take_apart(open_cubin(cubin("plain", str(arch)))), "vector_add")


def leaving(*free):
    """What a kernel uses that leaves these uniform registers, and all else."""
    return Usage(frozenset(range(UNIFORM_REGISTERS)) - set(free), frozenset(), frozenset())


WITH_RINGS = [
    (name, rings)
    for name in OBJECTS
    for rings in ("host", "device")
    if rings == "host" or name in ("blocksched", "records", "groups")
]


@pytest.mark.parametrize(("name", "rings"), WITH_RINGS)
@pytest.mark.parametrize("free", LEFT)
def test_tools_fit_into_what_kernels_leave(name, rings, free):
    if len(free) < NEEDS.get(name, 2):
        pytest.skip("refused, as the next test has it")
    blocks = assembled(kernel(), setting(name, rings), None, leaving(*free), EVERY_RULE)
    words = blocks.exit.words
    assert usage_exact(renamed(words, free_numbers(words, leaving(*free))))[1] <= set(free)
    assert not carried(words, 90)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("name", "rings"), WITH_RINGS)
def test_tools_fit_on_other_architectures(name, rings, arch):
    arch = int(arch)
    around = leaving(2, 3, 62)
    blocks = assembled(kernel(arch), setting(name, rings, arch), None, around, EVERY_RULE)
    words = blocks.exit.words
    assert usage_exact(renamed(words, free_numbers(words, around)))[1] <= {2, 3, 62}
    assert not carried(words, arch)


@pytest.mark.parametrize("most", [24, 28, 32])
@pytest.mark.parametrize(("name", "rings"), WITH_RINGS)
def test_they_fit_when_ordinary_registers_are_few_too(name, rings, most):
    """Where values are put away and loaded again, the descriptor's copies are the same still."""
    manner = Manner(exit=most, apart=Apart.ALL_LOADED)
    words = assemble_probes(kernel(), setting(name, rings), manner).exit.words
    found = pack(*words, free=(2, 3, 62))
    assert found is not None
    assert not carried(found, 90)


@pytest.mark.parametrize("name", OBJECTS)
def test_without_a_pair_there_is_no_access_to_memory(name):
    with pytest.raises(UnsupportedError, match="uniform registers in a kernel that leaves 3 of"):
        assembled(kernel(), setting(name), None, leaving(1, 2, 62), EVERY_RULE)


def test_blocksched_needs_one_more():
    with pytest.raises(UnsupportedError, match="uniform registers in a kernel that leaves 2 of"):
        assembled(kernel(), setting("blocksched"), None, leaving(2, 3), EVERY_RULE)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", OBJECTS)
def test_where_there_is_room_nothing_is_packed(name, arch, monkeypatch):
    monkeypatch.setattr("egpu.splice.sass_choice.packed", None)  # would fail
    arch = int(arch)
    assembled(kernel(arch), setting(name, arch=arch), None, leaving(*range(30)), EVERY_RULE)


HOG = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry hog(.param .u64 out, .param .u32 rounds, .param .align 4 .b8 seeds[{size}])
{{
.reg .pred %p<3>; .reg .b32 %r<9>, %u<{count}>; .reg .b64 %d<3>;
ld.param.u64 %d1, [out];
ld.param.u32 %r1, [rounds];
{load}
mov.u32 %r2, %tid.x;
mul.wide.u32 %d2, %r2, 4;
add.s64 %d1, %d1, %d2;
mov.u32 %r3, 0;
mov.u32 %r4, 0;
again:
{change}
xor.b32 %r4, %r4, %u0;
st.global.u32 [%d1], %r4;
setp.eq.u32 %p1, %r2, %r3;
@%p1 exit;
add.s32 %r3, %r3, 1;
setp.lt.u32 %p2, %r3, %r1;
@%p2 bra again;
ret;
}}
"""


def hog(count):
    """A kernel with so many values that are the same in all lanes, which leave one by one."""
    each = range(count)
    load = "\n".join(f"ld.param.u32 %u{at}, [seeds+{4 * at}];" for at in each)
    change = "\n".join(
        f"mad.lo.s32 %u{at}, %u{(at + 1) % count}, %u{(at + 7) % count}, %u{at};" for at in each
    )
    text = HOG.format(size=4 * count, count=count, load=load, change=change)
    return assemble(text, "sm_90")


@pytest.mark.parametrize(("name", "rings"), WITH_RINGS)
def test_a_kernel_that_uses_nearly_all_gets_its_probes(name, rings):
    """Nothing that it uses is written, every value is written before it is read, and no group of
    lanes reads what another may have written: by the disassembler's words."""
    image = hog(56)
    parts = take_apart(open_cubin(image))
    target = open_kernel(parts, "hog")
    before = Code.of(parts.parts[target.text].data)
    around = code_around(parts, target, before)
    assert frozenset(range(UNIFORM_REGISTERS)) - around.registers == {0, 1, 2, 3, 62}
    spliced = splice_sass(image, "hog", *probes_of(name, rings), assemble)
    after = take_apart(open_cubin(spliced.image))
    data = after.parts[open_kernel(after, "hog").text].data
    (lines,) = disassemble([data], "90")
    appended = range(len(before), len(lines))
    begins = {
        line.target for line in lines[1 : len(before)] if line.target in appended
    }  # from every way out
    (begin,) = begins
    reached = words_of(data)[begin : lines[0].target]
    assert usage(reached).registers <= {0, 1, 2, 3, 62}
    assert not sass_flow.spoilt(lines, begin, appended)
    kept = set() if lines[0].target is None else written_by_entry(lines, appended)
    assert not sass_flow.unwritten(lines, begin, appended, kept)


def written_by_entry(lines, appended):
    found = sass_flow.written_at_end(lines, lines[0].target, appended)
    return {name for name in found if name[0] == "R"}


# Code by hand: an access to memory with a descriptor in UR4 or UR6, and what makes one.
LOW = 0x00000000_020472CA | 0x000FE200_000E0000 << 64
HIGH = 0x00000000_030572CA | 0x000FE200_000E0000 << 64
OTHER_LOW, OTHER_HIGH = LOW + (2 << 16), HIGH + (2 << 16)  # UR6, UR7
STORE = 0x00000004_06007986 | 0x000FE200_0C101904 << 64
OTHER_STORE = STORE + (2 << 64)
CHANGES = 0x00000001_02027810 | 0x000FE200_07FFE0FF << 64
CONSTANT = WRITE  # ULDC UR4, c[0x0][0x0]
READ_CONSTANT = 0x00000004_00047C02 | 0x000FE200_08000F00 << 64
CONSTANT_PAIR = 0x00000000_00047AB9 | 0x000FE200_00000A00 << 64
TEXTS = {
    CONSTANT_PAIR: "ULDC.64 UR4, c[0x0][0x0]",
    LOW: "R2UR UR4, R2",
    HIGH: "R2UR UR5, R3",
    OTHER_LOW: "R2UR UR6, R2",
    OTHER_HIGH: "R2UR UR7, R3",
    STORE: "STG.E desc[UR4][R6.64], R4",
    OTHER_STORE: "STG.E desc[UR6][R6.64], R4",
    CHANGES: "IADD3 R2, R2, 0x1, RZ",
    CONSTANT: "ULDC UR4, c[0x0][0x0]",
    READ_CONSTANT: "MOV R4, UR4",
}
COPIES = (LOW, HIGH, OTHER_LOW, OTHER_HIGH, STORE, OTHER_STORE, LEAVES)


def test_the_words_are_what_they_are_taken_for():
    (lines,) = disassemble([bytes_of(TEXTS)], "90")
    assert [line.text for line in lines] == list(TEXTS.values())


def pack(*words, free=(2, 3), rules=EVERY_RULE):
    return packed(words, 90, frozenset(free), rules)


def registers(words):
    return usage_exact(tuple(words))[1]


def test_copies_of_one_register_share():
    assert registers(pack(*COPIES)) == {2, 3}
    # Not with what is another value by then, or may be for lanes of a predicate.
    assert pack(LOW, HIGH, CHANGES, *COPIES[2:]) is None
    assert pack(LOW, HIGH, under(OTHER_LOW, 0), *COPIES[3:]) is None
    assert registers(pack(LOW, HIGH, CHANGES, *COPIES[2:], free=range(8, 12))) == {8, 9, 10, 11}
    # Nor where each of them changes on the way, if to the same.
    half = (LOW, HIGH, under(LOW, 0), OTHER_LOW, OTHER_HIGH, under(OTHER_LOW, 0))
    assert pack(*half, STORE, OTHER_STORE, LEAVES) is None
    # One after the other they need not be the same.
    assert registers(pack(LOW, HIGH, STORE, CHANGES, OTHER_LOW, OTHER_HIGH, OTHER_STORE, LEAVES))


def test_a_register_is_written_again_when_it_was_read():
    """What reads late has a scoreboard, and all are waited for before the next value."""
    words = (LOW, HIGH, STORE, CHANGES, OTHER_LOW, OTHER_HIGH, OTHER_STORE, LEAVES)
    found = pack(*words)
    assert READ_SCOREBOARD.of(found[2]) != NO_SCOREBOARD
    assert [at for at, word in enumerate(found) if WAIT.of(word) == ALL_SCOREBOARDS] == [0, 1, 4, 5]
    # What is right before is seen to have a scoreboard.
    early = STALL.set(READ_SCOREBOARD.set(STORE, 3), 1)
    at_once = pack(LOW, HIGH, early, *words[4:])
    assert STALL.of(at_once[2]) == 2
    without = pack(*words, rules=EVERY_RULE - {Rule.LATE_READS})
    assert READ_SCOREBOARD.of(without[2]) == NO_SCOREBOARD
    assert not any(WAIT.of(word) for word in without)


def test_a_value_of_several_pieces_is_alone():
    """A constant may be read behind a branch as long as nothing else is ever in its register."""
    across = (CONSTANT, jump(0, 0), READ_CONSTANT, OTHER_LOW, OTHER_HIGH, OTHER_STORE, LEAVES)
    assert pack(*across) is None
    assert registers(pack(*across, free=(2, 3, 62))) == {2, 3, 62}
    within = (CONSTANT, READ_CONSTANT, *across[3:])
    assert registers(pack(*within)) == {2, 3}
    waiting = (CONSTANT, YIELDS, READ_CONSTANT, *across[3:])
    assert pack(*waiting) is None
    found = pack(*waiting, free=(2, 3, 62))
    assert not carried(found, 90)


def test_what_nobody_reads_has_a_register_to_itself():
    """Nothing tells when it has landed."""
    words = (CONSTANT, OTHER_LOW, OTHER_HIGH, OTHER_STORE, LEAVES)
    assert pack(*words) is None
    assert registers(pack(*words, free=(2, 3, 62))) == {2, 3, 62}


def test_another_value_in_a_register_is_found(monkeypatch):
    monkeypatch.setattr(sass_packed, "_collide", lambda *_: False)
    packed.cache_clear()
    try:
        with pytest.raises(InternalError, match="another uniform value is read at 5"):
            pack(LOW, HIGH, CHANGES, *COPIES[2:])
        with pytest.raises(InternalError, match="another uniform value is read at"):
            pack(CONSTANT, OTHER_LOW, jump(0, 0), READ_CONSTANT, OTHER_HIGH, OTHER_STORE, LEAVES)
    finally:
        packed.cache_clear()


@pytest.mark.parametrize("arch", ARCHS)
def test_registers_that_the_disassembler_names_as_written_are(arch):
    seen = set()
    for line in instructions(arch):
        try:
            writes = named(line.text).writes
        except AssertionError:
            continue  # an instruction that no probe has
        numbers = [int(name[1:]) for name in writes if name[0] == "R"]
        assert all(_may_write(line.word, number) for number in numbers), line
        seen |= {line.name.split(".")[0] for _ in numbers}
    assert {"LDG", "LDC", "S2R", "IMAD", "SHF", "PRMT", "POPC"} <= seen


def test_what_is_read_holds_since_it_was_written():
    words = [LOW, CHANGES, LOW, under(LOW, 0), CONSTANT, LOW]
    values = Values(words, frozenset({0, 5}))
    found = [values.written(at, 4) for at in (0, 2, 3, 4, 5)]
    assert len(set(found)) == len(found)
    assert found[2] == 3  # of some lanes: of this instruction alone
    pair = Values([CONSTANT_PAIR], frozenset({0}))
    assert pair.written(0, 4) != pair.written(0, 5)
    assert Values([LOW, LOW], frozenset({0})).written(1, 4) == Values(
        [LOW, LOW], frozenset({0})
    ).written(0, 4)


@pytest.mark.parametrize("apart", [each for each in Apart if each not in AMPLE])
@pytest.mark.parametrize("size", [8, 24, 88, 340])
def test_the_launch_block_is_read_where_it_lies(apart, size):
    """Also through a register: code for one kernel is that for another, moved."""
    text = f".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .b8 p[{size}])"
    parts = take_apart(open_cubin(assemble(text + "\n{\nret;\n}\n", "sm_90")))
    target, given = open_kernel(parts, "k"), setting("records")
    moved = assemble_probes(target, given, Manner(apart=apart))
    assert moved.reads
    shape = Shape("k", target.parameters, target.parameter_size)
    (direct,) = _lift((shape,), given, Manner(apart=apart))
    assert moved.in_place(moved.exit.words) == list(direct.exit.words)


@pytest.mark.parametrize("left", [2, 3, 5])
def test_the_device_check_hides_registers_where_twins_are_made(left, monkeypatch):
    seen = []

    def chosen(*given):
        seen.append(frozenset(range(UNIFORM_REGISTERS)) - given[3].registers)
        return assembled(*given)

    monkeypatch.setattr(sass, "code_around", sass.code_around)
    monkeypatch.setattr(sass, "assembled", chosen)
    free = {2: {0, 1}, 3: {0, 1, 2}, 5: {0, 1, 2, 3, 62}}[left]
    few_uniforms.hide(left)
    splice_sass(hog(56), "hog", *probes_of("records"), assemble)
    assert seen == [free]
