"""The tables of machine code against the vendor's disassembler."""

import functools
import itertools
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from sass_corpus import (
    ARCHS,
    KERNELS,
    NVDISASM,
    Line,
    assemble,
    cubin,
    disassembled,
    needs_tools,
    runs_on,
)

from egpu.splice import sass_uniform as tables
from egpu.splice.sass_encoding import (
    ALL_SCOREBOARDS,
    BRA,
    BSSY,
    BSYNC,
    CALL,
    CS2R,
    EXIT,
    NOP,
    OPCODE,
    PT,
    READ_SCOREBOARD,
    RELATIVE,
    RET,
    SETMAXREG,
    SIZE,
    SR_CLOCK,
    SR_GLOBALTIMER,
    STALL,
    UPT,
    URZ,
    WAIT,
    YIELD,
    Field,
    branch,
    bytes_of,
    constant_of,
    copy_register,
    distance_of,
    instruction,
    is_store,
    read_clock,
    with_distance,
    words_of,
)

pytestmark = needs_tools
MIXED = Path(__file__).parent / "machine_code"
SETMAXNREG = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k() .reqntid 384, 1, 1 .maxnreg 168 {
setmaxnreg.inc.sync.aligned.u32 240;
ret;
}
"""

# A division that the assembler puts into a function of its own, called where lanes have parted.
DIVIDING = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 q) {
.reg .pred %p; .reg .b64 %rd<5>;
ld.param.u64 %rd1, [p];
ld.param.u64 %rd2, [q];
ld.global.u64 %rd3, [%rd1];
setp.eq.u64 %p, %rd3, 0;
@%p bra $done;
div.u64 %rd4, %rd2, %rd3;
st.global.u64 [%rd1], %rd4;
$done:
st.global.u64 [%rd1+8], %rd3;
ret;
}
"""


@functools.cache
def instructions(arch):
    """Every instruction of the corpus, once."""
    images = [
        assemble(path.read_text(), f"sm_{arch}") for path in sorted(MIXED.glob("mixed_*.ptx"))
    ]
    for path in sorted(KERNELS.glob("*.ptx")):
        if runs_on(path.read_text(), arch):
            images.append(cubin(path.stem, arch))
    if arch == "90":
        images.append(assemble(SETMAXNREG, "sm_90a"))
    found = {}
    for image in images:
        for lines in disassembled(image).values():
            found.update({line.word: line for line in lines})
    return tuple(found.values())


def operands(line):
    return re.sub(r"^@!?\w+\s+", "", line.text)


# Memory descriptors, which the disassembler shows from sm_90 on.
HIDDEN = ("LD", "LDG", "ST", "STG", "RED", "ATOM", "ATOMG")


@pytest.mark.parametrize("arch", ARCHS)
def test_uniform_registers_are_where_the_tables_say(arch):
    known = 0
    for line in instructions(arch):
        fields = tables.register_fields(line.word)
        shown = sorted(int(each) for each in re.findall(r"\bUR(\d+)", operands(line)))
        if fields is None:
            continue
        known += 1
        found = sorted(Field(at, 6).of(line.word) for at in fields)
        found = [each for each in found if each != URZ]
        if arch != "90" and line.name.split(".")[0] in HIDDEN and len(found) == 1:
            assert shown == []
        else:
            assert found == shown, line
    assert known > 0.99 * len(instructions(arch))


@pytest.mark.parametrize("arch", ARCHS)
def test_uniform_predicates_are_where_the_tables_say(arch):
    for line in instructions(arch):
        fields = tables.predicate_fields(line.word)
        if fields is not None:
            found = sorted(Field(at, 3).of(line.word) for at in fields)
            shown = sorted(int(each) for each in re.findall(r"\bUP(\d)", line.text))
            assert [each for each in found if each != UPT] == shown, line


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_unknown_is_taken_for_everything(arch):
    for line in instructions(arch):
        usage = tables.usage([line.word])
        for kind, named in (
            ("UR", usage.registers),
            ("UP", usage.predicates),
            ("B", usage.barriers),
        ):
            shown = {int(each) for each in re.findall(rf"\b{kind}(\d+)\b", line.text)}
            assert shown <= named, line


# What has an opcode of its own: reductions of floating-point numbers, copies to shared memory.
ADDING = """
.version 7.1
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .f32 x) {
.reg .b64 %a; .reg .f32 %f; .reg .b32 %s, %t; .reg .f64 %d;
.shared .align 16 .b8 sm[64];
ld.param.u64 %a, [p]; ld.param.f32 %f, [x]; mov.u32 %s, sm; mov.u32 %t, %tid.x;
cp.async.cg.shared.global [%s], [%a], 16;
cvt.f64.f32 %d, %f;
atom.shared.add.u32 _, [%s+16], %t;
red.global.add.f64 [%a+16], %d;
red.global.add.f32 [%a], %f;
ret;
}
"""
HOPPER = (Path(__file__).parent / "machine_code" / "hopper.ptx").read_text()


def test_what_tensor_kernels_use_is_covered():
    """TMA, mbarriers, wgmma, elect: none of their uniform registers is taken for a free one."""
    (lines,) = disassembled(assemble(HOPPER, "sm_90a")).values()
    names = {line.name.split(".")[0] for line in lines}
    assert {"UTMALDG", "UTMASTG", "UBLKCP", "SYNCS", "HGMMA", "ELECT"} <= names
    for line in lines:
        used = tables.usage([line.word])
        for kind, named in (("UR", used.registers), ("UP", used.predicates)):
            shown = {int(each) for each in re.findall(rf"\b{kind}(\d+)\b", line.text)}
            assert shown <= named, line
    everything = tables.usage([line.word for line in lines])
    assert len(everything.registers) < 48


# Instructions of sm_90 that tensor libraries have and the corpus has not, and how they read.
RARE = tuple(
    (int(line.split(" ", 1)[0], 16), line.split(" ", 1)[1])
    for line in (MIXED / "rare_sm_90.txt").read_text().splitlines()
)
PLACE = re.compile(r"(\bBRA.*?|\bBRXU.*?),? -?0x[0-9a-f]+$")  # jumps depend on where they stand


def shown_as(words, arch="SM90"):
    """The text of instructions by themselves."""
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(bytes_of(words))
        file.flush()
        done = subprocess.run(
            [NVDISASM, "-b", arch, file.name], capture_output=True, text=True, check=True
        )
    return re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", done.stdout, re.MULTILINE)


def test_rare_instructions_read_as_they_should():
    shown = [PLACE.sub(r"\1", text) for text in shown_as([word for word, _ in RARE])]
    assert shown == [text for _, text in RARE]


@pytest.mark.parametrize(("word", "text"), [pytest.param(*row, id=row[1][:30]) for row in RARE])
def test_uniform_registers_of_rare_instructions(word, text):
    """Each field of the tables, set to another register, shows as that register; and no register
    is shown that the tables do not have."""
    named = tables._named_by(tables._kind_of(word))
    places = [Field(at, 6) for what, at, _ in named if what is tables._What.REGISTER]
    changed = [field.set(word, register) for field in places for register in (8, 24, 48)] or [word]
    for other, shown in zip(changed, shown_as(changed), strict=True):
        used = tables.usage([other])
        for kind, found in (("UR", used.registers), ("UP", used.predicates)):
            assert {int(each) for each in re.findall(rf"\b{kind}(\d+)\b", shown)} <= found, shown
    seen = {int(each) for each in re.findall(r"\bUR(\d+)\b", text)}
    assert len(seen) <= len(places)


def test_every_row_of_the_tables_is_seen():
    seen = {OPCODE.of(line.word) for arch in ARCHS for line in instructions(arch)}
    seen |= {OPCODE.of(word) for word, _ in RARE}
    rows = {*tables.ALWAYS, *tables.SOMETIMES, *tables._PREDICATES, *tables._BARRIER_OPCODES}
    # LDS with a uniform register stands for a saved start: test_splice_sass.py.
    assert sorted(hex(each) for each in rows - seen - {0x942}) == []


@pytest.mark.parametrize("arch", ARCHS)
def test_stores_are_the_stores(arch):
    names = set()
    late = ("ST", "STG", "STS", "STL", "RED", "REDG", "ATOM", "ATOMG", "ATOMS", "LDGSTS", "STSM")
    for line in (*instructions(arch), *disassembled(assemble(ADDING, f"sm_{arch}"))["k"]):
        name = line.name.split(".")[0]
        names.add(name)
        assert is_store(line.word) == (name in late), line
    assert {"STG", "ST", "STS", "STL", "ATOMG", "ATOMS", "LDGSTS"} <= names


@pytest.mark.parametrize("arch", ARCHS)
def test_constant_banks_are_read_from_the_word(arch):
    for line in instructions(arch):
        shown = re.search(r"c\[0x(\w+)\]\[0x(\w+)\]", line.text)
        if shown and not line.name.startswith("BAR"):
            assert constant_of(line.word) == (int(shown[1], 16), int(shown[2], 16)), line
        elif re.search(r"\bc\[", line.text):
            assert constant_of(line.word) is not None, line


def named_places(data):
    """(instruction, bytes from the one behind it to its place), by the disassembler's labels."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(data)
        file.flush()
        shown = subprocess.run(
            [NVDISASM, "-c", "-hex", file.name], capture_output=True, text=True, check=True
        ).stdout
    labels, offset = {}, 0
    for line in shown.splitlines():
        if section := re.match(r"\.text\.(\S+):", line):
            name, offset = section[1], 0
            labels[name] = 0
        elif found := re.match(r"\s+/\*([0-9a-f]{4,})\*/", line):
            offset = int(found[1], 16) + SIZE
        elif label := re.match(r"(\.L_x_\d+|\$\S+):", line):
            labels[label[1]] = offset
    for lines in disassembled(data).values():
        for line in lines:
            if place := re.search(r"`\((\S+)\)$", line.text):
                yield line, labels[place[1]] - line.offset - SIZE


@pytest.mark.parametrize("arch", ARCHS)
def test_jumps_go_where_the_disassembler_says(arch):
    found = set()
    images = [cubin("functions", arch), cubin("plain", arch), assemble(DIVIDING, f"sm_{arch}")]
    for line, distance in itertools.chain(*map(named_places, images)):
        found.add(OPCODE.of(line.word))
        assert distance_of(line.word, int(arch)) == distance, line
        if OPCODE.of(line.word) == BRA:
            assert with_distance(line.word, int(arch), distance) == line.word
    assert {BRA, BSSY, CALL, RET} <= found <= RELATIVE


def raw(words, arch):
    """What the disassembler makes of bare instructions."""
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(bytes_of(words))
        file.flush()
        done = subprocess.run(
            [NVDISASM, "-b", f"SM{arch}", file.name], capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return re.findall(r"/\*[0-9a-f]{4}\*/\s+(.*?)\s*;", done.stdout)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_emitted_is_what_was_meant(arch):
    nops = [instruction(NOP)] * 40
    words = [
        instruction(NOP, stall=0),
        instruction(EXIT),
        instruction(EXIT, guard=0b1010, second=3),
        copy_register(7, 12, guard=1),
        read_clock(8, SR_CLOCK),
        read_clock(10, SR_GLOBALTIMER),
        branch(int(arch), 0x100),
        branch(int(arch), -0x60, guard=0b1000, second=2, wait=ALL_SCOREBOARDS),
        instruction(BSYNC),
    ]
    shown = raw([*words, *nops], arch)[: len(words)]
    assert shown == [
        "NOP",
        "EXIT",
        "@!P2 EXIT P3",
        "@P1 MOV R7, R12",
        "CS2R R8, SR_CLOCKLO",
        "CS2R R10, SR_GLOBALTIMERLO",
        "BRA 0x170",
        "@!P0 BRA P2, 0x20",
        "BSYNC B0",
    ]
    assert words_of(bytes_of(words)) == words


@pytest.mark.parametrize("arch", ARCHS)
def test_every_stall_is_legal(arch):
    """The yield bit must be clear with no stall and with long ones; the disassembler objects."""
    for opcode in (NOP, EXIT, BRA, CS2R, BSSY):
        raw([instruction(opcode, stall=stall) for stall in range(16)], arch)
    with pytest.raises(AssertionError, match="undefined value"):
        raw([YIELD.set(STALL.set(instruction(NOP), 0), 1)], arch)


def test_control_bits():
    word = instruction(NOP, stall=3, wait=0b101, scoreboard=2)
    assert (STALL.of(word), WAIT.of(word), READ_SCOREBOARD.of(word)) == (3, 0b101, 2)
    assert Field(12, 4).of(word) == PT
    assert SETMAXREG in {OPCODE.of(line.word) for line in instructions("90")}
    assert isinstance(instructions("90")[0], Line)
