"""Entry probes without a branch around one reduction, and lanes that the hardware elects."""

import re
from pathlib import Path

import pytest
from sass_corpus import ARCHS, assemble, cubin, disassembled, needs_tools
from test_splice_sass_encoding import instructions, shown_as

from egpu.bpf.object import read_object
from egpu.bpf.program import Level
from egpu.codegen import compile_probe
from egpu.maps import plan
from egpu.session.additive import additive_maps
from egpu.splice import sass_straight
from egpu.splice.sass import splice_sass
from egpu.splice.sass_encoding import (
    BASE,
    BRA,
    BSSY,
    BSYNC,
    GUARD,
    LDC,
    NOP,
    OPCODE,
    PREDICATE_RESULT,
    PT,
    RZ,
    SIZE,
    SOURCE_A,
    STALL,
    WAIT,
    YIELD,
    distance_of,
)
from egpu.splice.sass_lane import elects
from egpu.splice.sass_straight import straightened
from egpu.tools.registry import find_tool, load_object
from egpu.verifier import verify

pytestmark = needs_tools

SILENT = (0x024, 0x048)  # IMAD, VIMNMX: they have the bits and show no predicate
COUNTERS = Path(__file__).resolve().parents[3] / "bench" / "probes" / "counters.bpf.o"
HEAD = ".version 8.0\n.target sm_{arch}\n.address_size 64\n.visible .entry k(.param .u64 a) {{\n"
GUARDED = """
.reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %a<4>;
activemask.b32 %r1;
mov.u32 %r2, %lanemask_lt;
and.b32 %r2, %r2, %r1;
setp.eq.b32 %p1, %r2, 0;
ld.param.u64 %a1, [a];
mov.u32 %r3, %smid;
or.b32 %r3, %r3, %r2;
mul.wide.u32 %a2, %r3, 128;
add.s64 %a1, %a1, %a2;
popc.b32 %r4, %r1;
cvt.u64.u32 %a3, %r4;
@%p1 red.relaxed.gpu.global.add.u64 [%a1], %a3;
bar.warp.sync %r1;
ret;
}
"""


def probe(arch):
    """A kernel's instructions up to its EXIT."""
    text = HEAD.format(arch=arch) + GUARDED
    lines = disassembled(assemble(text, f"sm_{arch}"))["k"]
    end = next(n for n, line in enumerate(lines) if line.name == "EXIT" and "@" not in line.text)
    return [line.word for line in lines[: end + 1]]


def times(words):
    """The cycle at which each instruction issues, if nothing is waited for."""
    found, now = [], 0
    for word in words:
        found.append(now)
        now += STALL.of(word)
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_a_reduction_is_guarded_instead(arch):
    words = probe(arch)
    names = [line.split()[0] for line in shown_as(words, f"SM{arch}")]
    assert "BSSY" in names
    straight = straightened(words, int(arch))
    shown = shown_as(straight, f"SM{arch}")
    assert not [line for line in shown if re.search(r"\b(BSSY|BSYNC|BRA)\b", line)]
    (reduction,) = (line for line in shown if "RED" in line)
    assert re.match(r"@!?P\d RED", reduction)
    # What is left is the same, at the same distances, after the same waits.
    left = [row for row in zip(straight, times(straight), strict=True) if not idle(row[0])]
    was = [row for row in zip(words, times(words), strict=True) if not idle(row[0])]
    was = [row for row in was if OPCODE.of(row[0]) not in {BRA, BSSY, BSYNC}]
    for (word, then), (other, now) in zip(was, left, strict=True):
        assert then == now
        assert WAIT.of(other) | WAIT.of(word) == WAIT.of(other)
        own = (STALL, YIELD, WAIT, GUARD) if BASE.of(word) == 0x18E else (STALL, YIELD, WAIT)
        assert without(word, own) == without(other, own)
    assert len(straight) < len(words)


def without(word, fields):
    for field in fields:
        word = field.set(word, 0)
    return word


def idle(word):
    return OPCODE.of(word) == NOP


@pytest.mark.parametrize("arch", ARCHS)
def test_what_does_more_than_compute_stays_as_it_is(arch):
    """Loads would read from wrong addresses, votes would count lanes that were not meant."""
    words = probe(arch)
    branch = next(n for n, word in enumerate(words) if OPCODE.of(word) == BRA)
    others = {line.name.split(".")[0]: line.word for line in instructions(arch)}
    for name in ("LDG", "STG", "ATOMG", "VOTE", "SHFL", "BAR", "MATCH", "S2UR", "R2UR"):
        if name in others:
            changed = [*words]
            changed[branch + 1] = others[name]
            assert straightened(changed, int(arch)) == tuple(changed), name
    assert {"LDG", "STG", "VOTE", "SHFL", "BAR"} <= others.keys()
    # A constant's place may not come from a register.
    constant = next(line.word for line in instructions("90") if OPCODE.of(line.word) == LDC)
    changed = [*words]
    changed[branch + 1] = SOURCE_A.set(constant, RZ)
    assert straightened(changed, int(arch)) != tuple(changed)
    changed[branch + 1] = SOURCE_A.set(constant, 4)
    assert straightened(changed, int(arch)) == tuple(changed)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_predicate_must_live(arch):
    """An instruction inside that writes it, too, would switch lanes on."""
    words = probe(arch)
    branch = next(n for n, word in enumerate(words) if OPCODE.of(word) == BRA)
    own = GUARD.of(words[branch]) & 7
    for at in range(branch + 1, len(words) - 1):
        if BASE.of(words[at]) in sass_straight._WITH_RESULT:
            spoilt = [*words]
            spoilt[at] = PREDICATE_RESULT.set(spoilt[at], own)
            assert straightened(spoilt, int(arch)) == tuple(spoilt)


@pytest.mark.parametrize("arch", ARCHS)
def test_results_are_where_the_tables_say(arch):
    """Predicates that an instruction shows among its results are those of the fields; those of
    instructions without the fields show none."""
    bases = set()
    for line in instructions(arch):
        base = BASE.of(line.word)
        if base not in sass_straight._WITH_RESULT | sass_straight._WITHOUT:
            continue
        if base in bases:
            continue
        bases.add(base)
        fields = [PREDICATE_RESULT] if base in sass_straight._WITH_RESULT else []
        fields += [sass_straight._SECOND_RESULT] if base in sass_straight._WITH_TWO else []
        for field in fields if base not in SILENT else []:
            word = field.set(GUARD.set(line.word, PT), 3)
            assert re.search(r"\bU?P3\b", shown_as([word], f"SM{arch}")[0]), line
        if not fields:
            assert not re.match(r"(@\S+ )?\S+ P\d", line.text), line
    assert len(bases) > 12


def test_the_hardware_chooses_where_any_lane_will_do():
    read = read_object(COUNTERS.read_bytes(), COUNTERS.name)
    verified = [verify(program) for program in read.programs]
    codes = tuple(compile_probe(each, point=each.program.attach[0]) for each in verified)
    assert all(elects(each.text) for each in codes)
    layout = plan(read.maps, 132, additive=additive_maps(verified, read.maps))
    for arch in ARCHS:
        original = cubin("plain", arch)
        spliced = splice_sass(original, "vector_add", codes, layout, assemble)
        lines = disassembled(spliced.image)["vector_add"]
        added = lines[len(disassembled(original)["vector_add"]) :]
        entry = 1 + distance_of(lines[0].word, int(arch)) // SIZE
        names = {line.name.split(".")[0] for line in added}
        assert ("ELECT" in names) == (arch == "90")
        assert not names & {"BSSY", "BSYNC"}
        assert entry % 8 == 0
        if arch == "90":
            assert len([line for line in lines[entry:] if line.name != "NOP"]) <= 17
            leaving = lines[len(lines) - len(added) : entry]
            assert len([line for line in leaving if line.name != "NOP"]) <= 18


@pytest.mark.parametrize("arch", ARCHS)
def test_blocks_keep_their_branch(arch):
    """Of a block's warps one does what the program says; the others are to go around it."""
    entry = find_tool("kernelcount")
    loaded = load_object(entry)
    codes = tuple(compile_probe(verify(p), point=p.attach[0]) for p in loaded.programs)
    assert codes[0].level is Level.BLOCK
    spliced = splice_sass(
        cubin("plain", arch), "vector_add", codes, plan(loaded.maps, 132), assemble
    )
    lines = disassembled(spliced.image)["vector_add"]
    entry = 1 + distance_of(lines[0].word, int(arch)) // SIZE
    names = [line.name for line in lines[entry:]]
    assert names.count("BSSY") == names.count("BSYNC") == 1
    over = next(n for n, line in enumerate(lines[entry:], entry) if line.name == "BRA")
    target = over + 1 + distance_of(lines[over].word, int(arch)) // SIZE
    skipped = [line.name.split(".")[0] for line in lines[over + 1 : target]]
    assert target - over > 15
    assert [name for name in skipped if name.startswith("RED")] == [
        "RED" + "G" * (arch == "90")
    ] * 2


def test_the_hardware_does_not_choose_who_reads_its_own_index():
    text = (
        "activemask.b32 %e1_g0;\nmov.u32 %e1_g2, %lanemask_lt;\nand.b32 %e1_g2, %e1_g2, %e1_g0;\n"
        "setp.eq.b32 %e1_go, %e1_g2, 0;\n"
    )
    assert elects(text + "mov.u32 %r1, %smid;")
    for own in ("%tid.x", "%tid.z", "%laneid", "%lanemask_eq"):
        assert not elects(text + f"mov.u32 %r1, {own};")
    assert not elects(text.replace("setp.eq", "setp.ne"))


# A value that differs for the lanes that went around one reduction is added behind it, or is not.
BEHIND = """
.reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %a<4>;
ld.param.u64 %a1, [a];
mov.u32 %r1, %tid.x;
mul.wide.u32 %a2, %r1, 8;
add.s64 %a1, %a1, %a2;
and.b32 %r2, %r1, 1;
setp.eq.b32 %p1, %r2, 0;
mov.b64 %a2, 5;
@%p1 bra $around;
mul.wide.u32 {result}, %r1, 3;
red.relaxed.gpu.global.add.u64 [%a1], {result};
$around:
red.relaxed.gpu.global.add.u64 [%a1+8], %a2;
ret;
}}
"""


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("needed", [True, False])
def test_what_lanes_that_go_around_have_stays(arch, needed):
    text = HEAD.format(arch=arch) + BEHIND.format(result="%a2" if needed else "%a3")
    lines = disassembled(assemble(text, f"sm_{arch}"))["k"]
    end = next(n for n, line in enumerate(lines) if line.name == "EXIT" and "@" not in line.text)
    words = tuple(line.word for line in lines[: end + 1])
    assert BSSY in [OPCODE.of(word) for word in words]
    assert (straightened(words, int(arch)) == words) is needed
