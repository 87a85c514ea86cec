"""Each hazard has a rule; without the rule, the damage is in the bytes."""

from dataclasses import replace
from pathlib import Path

import pytest
import sass_text
from sass_corpus import ARCHS, assemble, cubin, disassembled, needs_tools
from splice_probes import COUNT_RELOCATIONS, ENTRY, EVERYTHING, EXIT, LAYOUT, code, count, value
from test_splice_sass_encoding import instructions

from egpu import tools
from egpu.bpf.object import read_object
from egpu.bpf.program import AttachPoint, Level
from egpu.codegen import Together, compile_probe
from egpu.codegen.device_code import Relocation, RelocKind
from egpu.errors import UnsupportedError
from egpu.image.cubin import open_cubin
from egpu.image.cubin_edit import put_together, take_apart
from egpu.image.cubin_kernel import open_kernel
from egpu.maps import plan
from egpu.session.additive import additive_maps
from egpu.splice.sass import splice_sass
from egpu.splice.sass_carried import carried, pairs_named
from egpu.splice.sass_choice import assembled
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    ALL_SCOREBOARDS,
    BARRIER,
    BASE,
    BRA,
    BREAK,
    BSSY,
    BSYNC,
    CS2R,
    DESTINATION,
    GUARD,
    LDC,
    LOADS,
    MOV,
    NO_SCOREBOARD,
    OPCODE,
    READ_SCOREBOARD,
    RZ,
    SECOND_GUARD,
    SIZE,
    SLOW,
    SOURCE_B,
    STACK_POINTER,
    STALL,
    UNIFORM_REGISTERS,
    WAIT,
    WRITE_SCOREBOARD,
    YIELD,
    YIELD_OP,
    Field,
    bytes_of,
    distance_of,
    instruction,
    is_store,
    loads_stack_pointer,
    words_of,
)
from egpu.splice.sass_encoding import EXIT as EXIT_OPCODE
from egpu.splice.sass_numbers import free_numbers, renamed
from egpu.splice.sass_probe import ProbeBlock, ProbeBlocks, ProbeSetting, assemble_probes
from egpu.splice.sass_ptx import Apart, Manner
from egpu.splice.sass_rules import EVERY_RULE, Rule, settled, without_meetings
from egpu.splice.sass_splice import Care, Splice
from egpu.splice.sass_uniform import NOTHING, Usage, usage, usage_exact
from egpu.tools.registry import find_tool, load_object
from egpu.verifier import verify

pytestmark = needs_tools

# Lanes that do different things, with a mask of the lanes that are there: uniform values.
BY_LANE = """
.reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %rd<6>;
activemask.b32 %r1;
mov.b64 %rd1, __egpu_launch_0;
mov.u32 %r2, %laneid;
and.b32 %r3, %r2, 1;
setp.eq.b32 %p1, %r3, 0;
@%p1 bra $even;
mov.b64 %rd2, __egpu_map_0;
add.s64 %rd3, %rd1, %rd2;
red.relaxed.gpu.global.add.u64 [%rd3], 1;
$even:
popc.b32 %r4, %r1;
st.global.b32 [%rd1+8], %r4;
bar.warp.sync %r1;
"""
# A loop around a compare-and-swap, in which the assembler lets a warp yield.
SWAPPING = """
.reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<8>;
activemask.b32 %r1;
mov.u32 %r2, %lanemask_lt;
and.b32 %r2, %r2, %r1;
setp.ne.b32 %p1, %r2, 0;
@%p1 bra $done;
mov.b64 %rd1, __egpu_launch_0;
ld.relaxed.gpu.global.b64 %rd2, [%rd1];
$again:
add.s64 %rd3, %rd2, 48;
atom.relaxed.gpu.global.cas.b64 %rd4, [%rd1], %rd2, %rd3;
setp.eq.b64 %p2, %rd4, %rd2;
mov.b64 %rd2, %rd4;
@!%p2 bra $again;
$done:
bar.warp.sync %r1;
"""


# A loop whose bound is the same for all threads of the grid, with a barrier in it.
LOOPING = """
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<6>;
mov.b64 %rd1, __egpu_launch_0;
mov.u32 %r2, %nctaid.x;
mov.u32 %r3, %ctaid.y;
mul.lo.u32 %r2, %r2, %r3;
mov.u32 %r4, %laneid;
$again:
add.s32 %r4, %r4, %r2;
st.global.b32 [%rd1+8], %r4;
setp.lt.s32 %p1, %r4, %r2;
@%p1 bra $again;
st.global.b32 [%rd1+16], %r2;
"""


def looping():
    return code(LOOPING, Relocation(RelocKind.LAUNCH, 0), kind=EXIT, level=Level.WARP)


def by_lane():
    return code(BY_LANE, *COUNT_RELOCATIONS, kind=EXIT, level=Level.WARP)


def swapping():
    return code(SWAPPING, Relocation(RelocKind.LAUNCH, 0), kind=EXIT, level=Level.WARP)


def text_of(image, name):
    parts = take_apart(open_cubin(image))
    return words_of(parts.parts[open_kernel(parts, name).text].data)


class Spliced:
    """A splice with some rules, and where its pieces lie."""

    def __init__(self, stem, name, probes, rules, *, arch="90", original=None):
        original = original or cubin(stem, arch)
        self.arch = int(arch)
        self.result = splice_sass(original, name, probes, LAYOUT, assemble, rules=rules)
        self.before = text_of(original, name)
        self.after = text_of(self.result.image, name)
        self.lines = disassembled(self.result.image)[name]
        self.size = len(self.before)

    def target(self, index):
        return index + 1 + distance_of(self.after[index], self.arch) // SIZE

    @property
    def exits(self):
        return [n for n, word in enumerate(self.before) if OPCODE.of(word) == EXIT_OPCODE]

    @property
    def exit_start(self):
        return self.target(self.exits[0])

    @property
    def exit_block(self):
        start = self.exit_start
        end = self.target(0) if OPCODE.of(self.after[0]) == BRA else len(self.after)
        return self.after[start : end if end > start else len(self.after)]


def with_and_without(rule, find, stem, name, probes, **more):
    """``find`` says what is wrong: nothing with every rule, something without this one."""
    right = Spliced(stem, name, probes, EVERY_RULE, **more)
    assert find(right) == []
    broken = Spliced(stem, name, probes, EVERY_RULE - {rule}, **more)
    assert find(broken) != []


@pytest.mark.parametrize("arch", ARCHS)
def test_late_reads(arch):
    def untracked(spliced):
        return [
            word
            for word in spliced.after[: spliced.size]
            if is_store(word)
            and READ_SCOREBOARD.of(word) == WRITE_SCOREBOARD.of(word) == NO_SCOREBOARD
        ]

    with_and_without(Rule.LATE_READS, untracked, "plain", "vector_add", (count(EXIT),), arch=arch)


def test_late_reads_of_an_entry_probe():
    def untracked(spliced):
        return [
            word
            for word in spliced.after[spliced.size :]
            if is_store(word)
            and READ_SCOREBOARD.of(word) == WRITE_SCOREBOARD.of(word) == NO_SCOREBOARD
        ]

    probes = (value(RelocKind.PARAMETER, 0),)
    with_and_without(Rule.LATE_READS, untracked, "plain", "vector_add", probes)


@pytest.mark.parametrize("arch", ARCHS)
def test_visible_scoreboard(arch):
    def too_soon(spliced):
        return [
            now
            for was, now in zip(spliced.before, spliced.after, strict=False)
            if READ_SCOREBOARD.of(was) != READ_SCOREBOARD.of(now)
            and is_store(was)
            and STALL.of(now) < 2
        ]

    # A store with the shortest stall and no scoreboard.
    original = cubin("plain", arch)
    parts = take_apart(open_cubin(original))
    at = open_kernel(parts, "vector_add").text
    words = [
        STALL.set(READ_SCOREBOARD.set(word, NO_SCOREBOARD), 1) if is_store(word) else word
        for word in words_of(parts.parts[at].data)
    ]
    quick = put_together(parts.with_data({at: bytes_of(words)}))
    with_and_without(
        Rule.VISIBLE_SCOREBOARD,
        too_soon,
        "plain",
        "vector_add",
        (count(EXIT),),
        arch=arch,
        original=quick,
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_visible_scoreboard_of_the_last_instruction(arch):
    """The assembler counts on an EXIT behind it, which waits for nothing."""
    parts = take_apart(open_cubin(cubin("plain", arch)))
    kernel = open_kernel(parts, "vector_add")
    text = Code.of(parts.parts[kernel.text].data)
    load = next(word for word in text if BASE.of(word) in LOADS)
    last = STALL.set(WRITE_SCOREBOARD.set(load, 0), 1)
    block = ProbeBlock((last, instruction(EXIT_OPCODE)), 0, 8, 0)
    blocks = ProbeBlocks(block, None, 64, 0, ())

    def stall(rules):
        work = Splice(kernel, text, int(arch), blocks, Care(NOTHING, 0, rules))
        after = list(work.text())[len(text) :]
        at = next(at for at, word in enumerate(after) if OPCODE.of(word) == OPCODE.of(load))
        assert WAIT.of(after[at + 1]) == ALL_SCOREBOARDS
        return STALL.of(after[at])

    assert stall(EVERY_RULE) == 2
    assert stall(EVERY_RULE - {Rule.VISIBLE_SCOREBOARD}) == 1


def test_landed_loads():
    def in_flight(spliced):
        return [
            word
            for word in (spliced.after[spliced.exit_start], tail_of(spliced)[0])
            if WAIT.of(word) != ALL_SCOREBOARDS
        ]

    with_and_without(Rule.LANDED_LOADS, in_flight, "plain", "vector_add", EVERYTHING)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["vector_add", "early_exits", "matmul", "switch_table"])
def test_landed_loads_of_an_entry_probe_alone(arch, name):
    """Without a saved clock the displaced instruction comes first behind the probe, and waits."""

    def in_flight(spliced):
        return [word for word in tail_of(spliced)[:1] if WAIT.of(word) != ALL_SCOREBOARDS]

    with_and_without(Rule.LANDED_LOADS, in_flight, "plain", name, (count(ENTRY),), arch=arch)


def tail_of(spliced):
    """What follows the entry probes: the saved clocks, the first instruction, the jump back."""
    back = [
        index
        for index in range(spliced.size, len(spliced.after))
        if OPCODE.of(spliced.after[index]) == BRA and spliced.target(index) == 1
    ]
    begin = back[0] - 1
    while OPCODE.of(spliced.after[begin - 1]) == CS2R:
        begin -= 1
    return spliced.after[begin : back[0] + 1]


def test_register_margin():
    def short(spliced):
        registers = spliced.result.registers
        saved = max(DESTINATION.of(line.word) + 1 for line in spliced.lines if line.name == "CS2R")
        return [registers] if registers < saved + 3 else []

    with_and_without(Rule.REGISTER_MARGIN, short, "plain", "vector_add", EVERYTHING)


@pytest.mark.parametrize("arch", ARCHS)
def test_second_predicate(arch):
    original = cubin("plain", arch)
    parts = take_apart(open_cubin(original))
    at = open_kernel(parts, "vector_add").text
    words = words_of(parts.parts[at].data)
    first = next(n for n, word in enumerate(words) if OPCODE.of(word) == EXIT_OPCODE)
    words[first] = SECOND_GUARD.set(words[first], 0b1001)
    doubled = put_together(parts.with_data({at: bytes_of(words)}))
    shown = disassembled(doubled)["vector_add"][first].text
    assert shown == "@P0 EXIT !P1"

    def wrong(spliced):
        now = spliced.after[first]
        same = (GUARD.of(now), SECOND_GUARD.of(now)) == (0, 0b1001)
        return [] if same else [spliced.lines[first].text]

    with_and_without(
        Rule.SECOND_PREDICATE,
        wrong,
        "plain",
        "vector_add",
        (count(EXIT),),
        arch=arch,
        original=doubled,
    )


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("stall", "turn"), [(11, 1), (13, 0), (2, 1)])
def test_exit_stall(arch, stall, turn):
    """As ptxas has it in kernels of tests/gpu/workloads/hogging.cu: a predicate is read right
    behind the EXIT that comes after the comparison."""
    original = cubin("plain", arch)
    parts = take_apart(open_cubin(original))
    at = open_kernel(parts, "vector_add").text
    words = words_of(parts.parts[at].data)
    first = next(n for n, word in enumerate(words) if OPCODE.of(word) == EXIT_OPCODE)
    words[first] = YIELD.set(STALL.set(words[first], stall), turn)
    slow = put_together(parts.with_data({at: bytes_of(words)}))

    def wrong(spliced):
        now = spliced.after[first]
        expected = (stall, turn) if stall > 5 else (5, 1)  # a jump takes 5
        same = (STALL.of(now), YIELD.of(now)) == expected
        return [] if same else [spliced.lines[first].text]

    every = ("plain", "vector_add", (count(EXIT),))
    if stall > 5:
        with_and_without(Rule.EXIT_STALL, wrong, *every, arch=arch, original=slow)
    else:
        assert wrong(Spliced(*every, EVERY_RULE, arch=arch, original=slow)) == []


@pytest.mark.parametrize("arch", ARCHS)
def test_exit_stall_of_an_exit_that_is_a_kernel_s_first_instruction(arch):
    """It is jumped to from where it is put, and of entry probes that lanes leave one by one."""
    original = cubin("plain", arch)
    parts = take_apart(open_cubin(original))
    at = open_kernel(parts, "vector_add").text
    words = words_of(parts.parts[at].data)
    exit_at = next(n for n, word in enumerate(words) if OPCODE.of(word) == EXIT_OPCODE)
    words[0] = YIELD.set(STALL.set(GUARD.set(words[exit_at], 0), 11), 1)
    slow = put_together(parts.with_data({at: bytes_of(words)}))
    probes = (count(ENTRY), count(EXIT))
    for rules, stall in ((EVERY_RULE, 11), (EVERY_RULE - {Rule.EXIT_STALL}, 5)):
        spliced = Spliced("plain", "vector_add", probes, rules, arch=arch, original=slow)
        moved = [
            word
            for word in spliced.after[len(words) :]
            if OPCODE.of(word) == BRA and GUARD.of(word) == 0
        ]
        assert [STALL.of(word) for word in moved] == [stall]


# Loads that ptxas may not leave out, although nothing needs what they load.
UNUSED = """
.reg .b32 %v<4>; .reg .b64 %at<2>;
{at}
ld.volatile.global.b32 %v1, [%at1];
ld.volatile.b32 %v2, [%at1+4];
"""


def landing(words):
    """Loads that nothing tells the end of."""
    return [
        word
        for word in words
        if BASE.of(word) in LOADS
        and DESTINATION.of(word) != RZ
        and WRITE_SCOREBOARD.of(word) == NO_SCOREBOARD
    ]


@pytest.mark.parametrize("arch", ARCHS)
def test_landed_loads_that_nothing_needs(arch):
    """The kernel's would land in the exit probe."""
    head = f".version 8.0\n.target sm_{arch}\n.address_size 64\n.visible .entry k(.param .u64 a)"
    text = f"{head}\n{{{UNUSED.format(at='ld.param.b64 %at1, [a];')}\nret;\n}}\n"
    original = assemble(text, f"sm_{arch}")
    assert len(landing(text_of(original, "k"))) == 2
    with_and_without(
        Rule.LANDED_LOADS,
        lambda spliced: landing(spliced.after[: spliced.size]),
        "",
        "k",
        (count(EXIT),),
        arch=arch,
        original=original,
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_landed_loads_of_an_entry_probe_that_nothing_needs(arch):
    """They would land in the kernel, behind what waits for all that has a scoreboard."""
    text = UNUSED.format(at="mov.b64 %at1, __egpu_launch_0;")
    probe = code(text, Relocation(RelocKind.LAUNCH, 0))
    with_and_without(
        Rule.LANDED_LOADS,
        lambda spliced: landing(spliced.after[spliced.size :]),
        "plain",
        "vector_add",
        (probe,),
        arch=arch,
    )


# A reduction whose registers are free for what comes behind it, as ptxas knows.
REDUCED = """
.reg .b64 %at<2>, %r<4>; .reg .b32 %lane; .reg .pred %others;
mov.b64 %at1, __egpu_launch_0;
mov.u32 %lane, %laneid;
setp.gt.u32 %others, %lane, 7;
red.relaxed.gpu.global.add.u64 [%at1], 1;
@%others bra $done;
mov.b64 %r1, __egpu_start_time;
mov.b64 %r2, %globaltimer;
sub.s64 %r3, %r2, %r1;
red.relaxed.gpu.global.add.u64 [%at1+8], %r3;
$done:
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_what_a_load_that_is_taken_out_came_after_is_waited_for(arch):
    """The load that stands for the saved start comes behind what was begun before it.  The copy in
    its place does not, unless it waits."""

    def early(spliced):
        block = spliced.exit_block
        copies = [
            at
            for at, word in enumerate(block)
            if OPCODE.of(word) == MOV and SOURCE_B.of(word) >= spliced.result.registers - 4
        ]
        assert len(copies) == 2
        assert any(is_store(word) for word in block[: copies[0]])
        return [at for at in copies if WAIT.of(block[at]) != ALL_SCOREBOARDS]

    relocations = (Relocation(RelocKind.LAUNCH, 0), Relocation(RelocKind.START_TIME, 0))
    probe = code(REDUCED, *relocations, kind=EXIT)
    with_and_without(Rule.LANDED_LOADS, early, "plain", "vector_add", (probe,), arch=arch)


def test_what_the_assembler_gives_no_scoreboard_gets_one_where_loads_are_taken_out():
    """A reduction whose sources the load overwrites, a special register that landed before it."""
    reduces = 0x00000004_0200798E | 0x000FE200_0C10E500 << 64
    reads = 0x00000000_00007919 | 0x000FE200_00002100 << 64
    assert is_store(reduces)
    assert {READ_SCOREBOARD.of(reduces), WRITE_SCOREBOARD.of(reads)} == {NO_SCOREBOARD}
    reduced, read = settled((reduces, reads), EVERY_RULE)
    assert (READ_SCOREBOARD.of(reduced), WRITE_SCOREBOARD.of(read)) == (5, 5)
    assert min(STALL.of(reduced), STALL.of(read)) >= 2
    assert settled((reduces, reads), EVERY_RULE - {Rule.LATE_READS}) == (reduces, read)
    assert settled((reduces, reads), EVERY_RULE - {Rule.LANDED_LOADS}) == (reduced, reads)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_takes_as_long_as_it_takes(arch):
    """The table names what the disassembler shows under these names, and nothing else."""
    names = {}
    for line in instructions(arch):
        names.setdefault(BASE.of(line.word), set()).add(line.name.split(".")[0])
    slow = set(sass_text.SLOW.split()) - {"ATOM", "ATOMG"}
    for base, found in names.items():
        assert found <= slow if base in SLOW else not found & slow, found
    assert len(names.keys() & SLOW) > 8


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["vector_add", "early_exits", "matmul", "switch_table"])
def test_own_uniforms(arch, name):
    def shared(spliced):
        kernel, probe = usage(spliced.before), usage(spliced.exit_block)
        return [
            *sorted(kernel.registers & probe.registers),
            *sorted(kernel.predicates & probe.predicates),
            *sorted(kernel.barriers & probe.barriers),
        ]

    with_and_without(Rule.OWN_UNIFORMS, shared, "plain", name, (count(EXIT),), arch=arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_no_carried_uniforms(arch):
    """Probes that carry some are assembled again, with values that seem to differ by lane."""

    def carries(spliced):
        return sorted(carried(tuple(spliced.exit_block), spliced.arch))

    rule = Rule.NO_CARRIED_UNIFORMS
    with_and_without(rule, carries, "plain", "vector_add", (looping(),), arch=arch)
    fine = Spliced("plain", "vector_add", (count(EXIT),), EVERY_RULE, arch=arch)
    assert not carries(fine)


def test_yields_stay_and_nothing_uniform_lives_across_them():
    """A lane that tries again can wait for one of its own warp, which runs when the warp yields."""
    spliced = Spliced("plain", "vector_add", (swapping(),), EVERY_RULE)
    block = tuple(spliced.exit_block)
    yields = [at for at, word in enumerate(block) if OPCODE.of(word) == YIELD_OP]
    assert len(yields) == 1
    assert not carried(block, 90)
    # Of a value that is read behind it, and was written right before, another group's is read.
    load = 0x00000A00_FF047B82 | 0x000FE200_00000800 << 64  # LDC R4, c[0x0][0x28]
    write = 0x00000000_00047AB9 | 0x000FE200_00000A00 << 64  # ULDC.64 UR4
    read = 0x00000004_00047C02 | 0x000FE200_08000F00 << 64  # MOV R4, UR4
    other = 0x00008200_00047AB9 | 0x000FE200_00000A00 << 64
    waits = block[yields[0]]
    leaves = next(word for word in block if OPCODE.of(word) == EXIT_OPCODE)
    assert carried((other, write, load, read, leaves), 90) == frozenset()
    assert carried((other, write, waits, read, leaves), 90) == {4}
    # Likewise a uniform predicate: UISETP writes UP0, USEL reads it.
    compares = 0x000FE200_0BF05070_00000005_0400728C
    chooses = 0x000FE200_08000000_00000005_04047287
    assert carried((compares, chooses, leaves), 90) & {64} == frozenset()
    assert carried((compares, waits, chooses, leaves), 90) & {64} == {64}


# Lanes part in a loop, each for as long as it likes, and go on together.
PARTING = """
.reg .pred %p<3>; .reg .b32 %r<5>; .reg .b64 %rd<4>;
mov.b64 %rd1, __egpu_launch_0;
mov.u32 %r1, %laneid;
$again:
ld.relaxed.gpu.global.b32 %r2, [%rd1+8];
add.s32 %r1, %r1, %r2;
setp.lt.s32 %p1, %r1, 99;
@%p1 bra $again;
ld.relaxed.gpu.global.b32 %r3, [%rd1+16];
add.s32 %r3, %r3, %r1;
st.global.b32 [%rd1+24], %r3;
"""


def parting(level=Level.WARP):
    return code(PARTING, Relocation(RelocKind.LAUNCH, 0), kind=EXIT, level=level)


@pytest.mark.parametrize("probes", [(parting(),), (parting(), parting())])
def test_no_meeting(probes):
    def barriers(spliced):
        return [word for word in spliced.exit_block if OPCODE.of(word) in (BSSY, BSYNC, BREAK)]

    with_and_without(Rule.NO_MEETING, barriers, "plain", "vector_add", probes)


def greedy():
    """A probe with more values at a time than 32 registers hold."""
    numbers = range(24)
    loads = "".join(f"ld.volatile.global.b64 %v{n}, [%rd1+{8 * n}];\n" for n in numbers)
    stores = "".join(f"st.volatile.global.b64 [%rd1+{8 * n}], %v{23 - n};\n" for n in numbers)
    text = ".reg .b64 %rd1, %v<24>;\nmov.b64 %rd1, __egpu_launch_0;\n" + loads + stores
    return code(text, Relocation(RelocKind.LAUNCH, 0), kind=EXIT)


def late_pointers(spliced):
    """Loads of the stack pointer that nothing waits for, in the kernel or behind its entry."""
    first = OPCODE.of(spliced.after[0]) == BRA
    kernel = [*spliced.after[: spliced.size], *(tail_of(spliced) if first else [])]
    return [word for word in kernel if loads_stack_pointer(word)]


@pytest.mark.parametrize("entry", [True, False])
def test_late_stack_pointer(entry):
    """The kernel's own load may land after the exit probe's."""
    probes = (count(ENTRY), greedy()) if entry else (greedy(),)
    with_and_without(Rule.LATE_STACK_POINTER, late_pointers, "plain", "vector_add", probes)
    spliced = Spliced("plain", "vector_add", probes, EVERY_RULE)
    assert any(line.name.startswith("STL") for line in spliced.lines)
    assert spliced.result.registers <= 32
    # The probe's own is waited for: ptxas needs it for what it puts there.
    (own, *others) = spliced.exit_block
    assert (OPCODE.of(own), DESTINATION.of(own)) == (LDC, STACK_POINTER)
    assert WRITE_SCOREBOARD.of(own) != NO_SCOREBOARD
    assert not [word for word in others if loads_stack_pointer(word)]


# Lanes part in a loop, and another one waits for them with a mask that was taken before.
GATHERING = PARTING.replace("mov.u32 %r1, %laneid;", "mov.u32 %r1, %laneid; activemask.b32 %r4;")
GATHERING = GATHERING.replace("st.global", "bar.warp.sync %r4; st.global")
assert GATHERING.count("%r4") == 2


@pytest.mark.parametrize("arch", ARCHS)
def test_meeting_again(arch):
    """The first instruction of such an entry probe names a barrier, the last meets at it."""
    probe = code(GATHERING, Relocation(RelocKind.LAUNCH, 0), kind=ENTRY, level=Level.THREAD)

    def apart(spliced):
        begin = spliced.target(0)
        (first, *_), last = spliced.after[begin:], tail_of(spliced)
        at = spliced.after.index(last[0], begin) - 1
        met = spliced.after[at]
        same = BARRIER.of(first) == BARRIER.of(met)
        fine = OPCODE.of(first) == BSSY and OPCODE.of(met) == BSYNC and same
        others = [
            word
            for word in spliced.after[begin + 1 : at]
            if OPCODE.of(word) in (BSSY, BSYNC, BREAK) and BARRIER.of(word) == BARRIER.of(first)
        ]
        leads = fine and spliced.target(begin) == at + 1
        return [] if leads and not others else [first, met]

    with_and_without(Rule.MEETING_AGAIN, apart, "plain", "vector_add", (probe,), arch=arch)


def test_lanes_that_meet_in_an_entry_probe_need_no_other_barrier():
    """Around what one lane does there is one already."""
    for probe in (count(ENTRY), by_lane_at_entry()):
        spliced = Spliced("plain", "vector_add", (probe,), EVERY_RULE)
        begin = spliced.target(0)
        names = [OPCODE.of(word) for word in spliced.after[begin:]]
        assert names.count(BSSY) == names.count(BSYNC) <= 1


def by_lane_at_entry():
    text = BY_LANE.replace("bar.warp.sync %r1;", "")
    return code(text, *COUNT_RELOCATIONS, kind=ENTRY, level=Level.THREAD)


def test_the_stack_pointer_stays_where_no_exit_probe_has_a_stack():
    """And in kernels that keep something on theirs, and wait for it."""
    for probes in ((count(EXIT),), (count(ENTRY), count(EXIT))):
        assert len(late_pointers(Spliced("plain", "vector_add", probes, EVERY_RULE))) == 1


def test_every_manner_is_held_to_the_registers_that_cost_nothing():
    """Records of each warp: fine in 32 registers as long as the assembler is told so."""
    path = Path(__file__).parents[3] / "bench" / "probes" / "records.bpf.o"
    read = read_object(path.read_bytes(), path.name)
    verified = verify(read.programs[0])
    made = compile_probe(verified, point=read.programs[0].attach[0])
    layout = plan(read.maps, 132)
    kernel = open_kernel(take_apart(open_cubin(cubin("plain", "90"))), "early_exits")
    setting = ProbeSetting(90, (made,), layout, assemble)
    free = assemble_probes(kernel, setting, Manner(apart=Apart.EVERYTHING)).exit
    spliced = splice_sass(cubin("plain", "90"), "early_exits", (made,), layout, assemble)
    assert free.registers > 32 >= spliced.registers
    assert not spliced.costs_blocks


def test_what_takes_an_instruction_s_place_takes_as_long():
    """What stands before it counts on the time until what comes behind."""

    blocks = [
        Spliced("plain", "vector_add", (parting(), parting()), rules).exit_block[1:]
        for rules in (EVERY_RULE, EVERY_RULE - {Rule.NO_MEETING})
    ]
    replaced, original = (
        [(STALL.of(word), YIELD.of(word), WAIT.of(word)) for word in block] for block in blocks
    )
    assert replaced == original
    assert [OPCODE.of(word) for word in blocks[0]] != [OPCODE.of(word) for word in blocks[1]]
    assert {STALL.of(word) for word in blocks[1] if OPCODE.of(word) in (BSSY, BSYNC)} > {5}


@pytest.mark.parametrize("arch", ARCHS)
def test_probes_behind_a_branch_keep_uniform_values_for_a_few_instructions(arch):
    """The last manner: it leaves none that live across branches where others do."""
    layout, made = leaving(1, AttachPoint(EXIT, "*", Level.WARP))
    kernel = open_kernel(take_apart(open_cubin(cubin("plain", arch))), "vector_add")
    setting = ProbeSetting(int(arch), (made,), layout, assemble)
    words = {
        apart: without_meetings(
            assemble_probes(kernel, setting, Manner(apart=apart)).exit.words, EVERY_RULE
        )
        for apart in (Apart.NOTHING, Apart.EVERYTHING_BRANCHED)
    }
    assert carried(words[Apart.NOTHING], int(arch)) or arch != "90"
    assert not carried(words[Apart.EVERYTHING_BRANCHED], int(arch))


def leaving(number, point, together=Together.ONE):
    """A layout and one of the programs of the device check that threads leave by."""
    path = Path(__file__).parents[2] / "gpu" / "probes" / "leaving.bpf.o"
    read = read_object(path.read_bytes(), path.name)
    verified = verify(replace(read.programs[number], attach=(point,)))
    return plan(read.maps, 132), compile_probe(verified, point=point, together=together)


@pytest.mark.parametrize("arch", ARCHS)
def test_threads_part_in_an_exit_probe_and_let_each_other_run(arch):
    """A hash map, a ring and loops: lanes try again, so the assembler lets the warp yield."""
    layout, made = leaving(1, AttachPoint(EXIT, "*", Level.THREAD))
    spliced = splice_sass(cubin("plain", arch), "vector_add", (made,), layout, assemble)
    lines = [line.text for line in disassembled(spliced.image)["vector_add"]]
    assert sum("YIELD" in line for line in lines) > 2
    assert any("CAS" in line for line in lines)
    unwanted = ("BSSY", "BSYNC", "WARPSYNC", "SHFL", "LDS")
    assert not [line for line in lines if any(name in line for name in unwanted)]


@pytest.mark.parametrize("arch", ARCHS)
def test_all_lanes_come_out_of_an_entry_probe_in_one_place(arch):
    """Where the assembler copies the end of the probe, a load that it does not copy joins them."""
    layout, made = leaving(0, AttachPoint(ENTRY, "*", Level.THREAD), Together.WARP)
    parts = take_apart(open_cubin(cubin("plain", arch)))
    kernel = open_kernel(parts, "vector_add")
    setting = ProbeSetting(int(arch), (made,), layout, assemble)
    ends = {
        joined: sum(
            OPCODE.of(word) == EXIT_OPCODE
            for word in assemble_probes(kernel, setting, Manner(joined=joined)).entry.words
        )
        for joined in (False, True)
    }
    assert ends[False] > 1 or arch != "90"
    assert ends[True] == 1
    spliced = splice_sass(cubin("plain", arch), "vector_add", (made,), layout, assemble)
    lines = [line.text for line in disassembled(spliced.image)["vector_add"]]
    assert not any("LDS" in line for line in lines)


def test_lanes_do_not_work_together_in_an_exit_probe():
    lines = "activemask.b32 %r1; shfl.sync.idx.b32 %r2, %r1, 0, 31, %r1;"
    text = f".reg .b32 %r<3>; .reg .b64 %rd1; mov.b64 %rd1, __egpu_launch_0; {lines}"
    shuffling = code(
        f"{text} st.global.b32 [%rd1], %r2;", Relocation(RelocKind.LAUNCH, 0), kind=EXIT
    )
    with pytest.raises(UnsupportedError, match="lanes of a warp work together"):
        splice_sass(cubin("plain", "90"), "vector_add", (shuffling,), LAYOUT, assemble)


def test_every_rule_is_tested():
    tested = {name.removeprefix("test_").upper() for name in globals() if name.startswith("test_")}
    assert {rule.name for rule in Rule} <= tested
    assert all(len(rule.value) > 40 for rule in Rule)


def test_probes_at_the_warp_level_follow_each_other_in_one_lane():
    """The others end before the first of them begins, so that nothing of theirs can be spoilt."""
    spliced = Spliced("plain", "vector_add", (swapping(), swapping()), EVERY_RULE)
    ends = [
        index for index, word in enumerate(spliced.exit_block) if OPCODE.of(word) == EXIT_OPCODE
    ]
    assert GUARD.of(spliced.exit_block[ends[0]]) != 7
    swaps = [n for n, line in enumerate(spliced.lines) if "CAS" in line.text]
    assert len(swaps) == 2
    assert min(swaps) > spliced.exit_start + ends[0]


def test_a_kernel_without_free_barriers_is_refused():
    original = cubin("plain", "90")
    parts = take_apart(open_cubin(original))
    at = open_kernel(parts, "vector_add").text
    words = words_of(parts.parts[at].data)
    padding = len(words) - 16
    everything = [0x000FE200_03800000_00000000_00000941 | n << 16 | 7 << 12 for n in range(16)]
    words[padding:] = everything  # never executed, but who knows
    full = put_together(parts.with_data({at: bytes_of(words)}))
    looping = count(EXIT)
    block = Spliced("plain", "vector_add", (swapping(),), EVERY_RULE).exit_block
    if usage(block).barriers:
        with pytest.raises(UnsupportedError, match="convergence barriers in a kernel that uses 16"):
            splice_sass(full, "vector_add", (swapping(),), LAYOUT, assemble)
    assert splice_sass(full, "vector_add", (looping,), LAYOUT, assemble).exit_sites


def test_a_reduction_of_floating_point_numbers_is_tracked_too():
    """It has an opcode of its own, and is often the last thing that a kernel does."""
    text = (
        ".version 7.1\n.target sm_80\n.address_size 64\n"
        ".visible .entry k(.param .u64 p, .param .f32 x) {\n.reg .b64 %a; .reg .f32 %f;\n"
        "ld.param.u64 %a, [p]; ld.param.f32 %f, [x];\nred.global.add.f32 [%a], %f;\nret;\n}\n"
    )
    original = assemble(text, "sm_90")
    spliced = Spliced("", "k", (count(EXIT),), EVERY_RULE, original=original)
    reductions = [n for n, line in enumerate(spliced.lines) if "ADD.F32" in line.text]
    assert len(reductions) == 1
    assert READ_SCOREBOARD.of(spliced.before[reductions[0]]) == NO_SCOREBOARD
    assert READ_SCOREBOARD.of(spliced.after[reductions[0]]) != NO_SCOREBOARD
    assert STALL.of(spliced.after[reductions[0]]) >= 2


def counters():
    path = Path(tools.__file__).parent / "kernelcount" / "kernelcount.bpf.o"
    read = read_object(path.read_bytes(), path.name)
    verified = [verify(program) for program in read.programs]
    probes = tuple(compile_probe(each, point=each.program.attach[0]) for each in verified)
    return probes, plan(read.maps, 132, additive=additive_maps(verified, read.maps))


def test_one_lane_adds_without_adding_up_over_lanes():
    """What codegen makes of a tool's counters: no vote is taken for one lane's sum, and addresses
    are multiplied out by one instruction each."""
    probes, layout = counters()
    original = cubin("plain", "90")
    spliced = splice_sass(original, "vector_add", probes, layout, assemble)
    size = len(text_of(original, "vector_add"))
    added = disassembled(spliced.image)["vector_add"][size:]
    assert not [line.text for line in added if line.name.startswith("UFLO")]
    entry = 1 + distance_of(text_of(spliced.image, "vector_add")[0], 90) // SIZE
    leaving = added[: entry - size]
    assert not [line.text for line in leaving if line.name.startswith("UIMAD")]
    assert 0 < len([line for line in leaving if line.name != "NOP"]) <= EXIT_INSTRUCTIONS


EXIT_INSTRUCTIONS = 22  # of kernelcount: what each warp of each block pays


def durations():
    """kernellat's programs, and the layout of its maps."""
    loaded = load_object(find_tool("kernellat"))
    codes = tuple(compile_probe(verify(p), point=p.attach[0]) for p in loaded.programs)
    return codes, plan(loaded.maps, 132)


def test_what_is_no_pair_takes_single_uniform_registers():
    """What PyTorch's reductions leave: two pairs, and one beside a number that is used."""
    probes, layout = durations()
    parts = take_apart(open_cubin(cubin("plain", "90")))
    kernel = open_kernel(parts, "vector_add")
    setting = ProbeSetting(90, probes, layout, assemble)

    def chosen(free):
        taken = frozenset(range(UNIFORM_REGISTERS)) - set(free)
        around = Usage(taken, frozenset(), frozenset())
        words = without_meetings(
            assembled(kernel, setting, None, around, EVERY_RULE).exit.words, EVERY_RULE
        )
        return words, dict(free_numbers(words, around).registers)

    words, numbers = chosen((0, 1, 2, 3, 62))
    assert len(set(numbers.values())) == len(numbers)
    assert 62 in numbers.values()
    for pair in pairs_named(words):
        assert numbers[pair] in (0, 2)
        assert [old for old, new in numbers.items() if new == numbers[pair] + 1] in ([], [pair + 1])
    # Without a pair there is no access to memory, however the probe is assembled.
    with pytest.raises(UnsupportedError, match="uniform registers in a kernel that leaves 3 of"):
        chosen((1, 2, 62))
    # Where there are pairs enough, all stay together.
    words, numbers = chosen(range(10, 30))
    assert all(new % 2 == old % 2 for old, new in numbers.items())


def test_a_pair_begins_at_an_even_number():
    """A kernel's instruction that names an odd register leaves the one behind it."""
    moved = Field(16, 6).set(0xC82 | 4 << 64 + 8, 61)  # UMOV UR61, UR4
    assert OPCODE.of(moved) == 0xC82
    assert 62 not in usage([moved]).registers
    assert {60, 61} <= usage([Field(16, 6).set(moved, 60)]).registers


@pytest.mark.parametrize("free", [(60, 61), (0, 1), (60, 61, 62), (2, 3, 40, 41)])
def test_few_free_uniform_registers_are_enough(free):
    """Where a kernel leaves one pair, masks are kept in ordinary registers."""
    probes, layout = counters()
    parts = take_apart(open_cubin(cubin("plain", "90")))
    kernel = open_kernel(parts, "vector_add")
    taken = frozenset(range(UNIFORM_REGISTERS)) - set(free)
    around = Usage(taken, frozenset(), frozenset())
    setting = ProbeSetting(90, probes, layout, assemble)
    blocks = assembled(kernel, setting, None, around, EVERY_RULE)
    words = blocks.exit.words
    named = usage_exact(renamed(words, free_numbers(words, around)))[1]
    assert named <= set(free)
    nothing = Usage(taken | set(free), frozenset(), frozenset())
    with pytest.raises(UnsupportedError, match="uniform registers"):
        assembled(kernel, setting, None, nothing, EVERY_RULE)
