"""Machine-code splicing of every kernel of the corpus, judged by the vendor's disassembler."""

import re

import pytest
from sass_corpus import ARCHS, KERNELS, assemble, cubin, disassembled, needs_tools, runs_on
from splice_probes import ENTRY, EVERYTHING, EXIT, LAYOUT, count, value

from egpu.codegen.device_code import RelocKind
from egpu.errors import InputError, UnsupportedError
from egpu.image.cubin import list_cubin_kernels, open_cubin
from egpu.image.cubin_alone import alone
from egpu.image.cubin_attributes import read_attributes, write_attributes
from egpu.image.cubin_contents import contents_of
from egpu.image.cubin_edit import put_together, read_symbols, take_apart
from egpu.image.cubin_kernel import open_kernel
from egpu.maps.layout import LAUNCH_BLOCK_SIZE
from egpu.splice.sass import splice_sass
from egpu.splice.sass_code import Code
from egpu.splice.sass_encoding import (
    BRA,
    DESTINATION,
    GUARD,
    LDS,
    NO_SCOREBOARD,
    OPCODE,
    READ_SCOREBOARD,
    SECOND_GUARD,
    SIZE,
    WAIT,
    distance_of,
    words_of,
)
from egpu.splice.sass_encoding import (
    EXIT as EXIT_OPCODE,
)
from egpu.splice.sass_kernel import code_around

pytestmark = needs_tools

# Kernels that cannot have these probes, and why.
REFUSED = {
    "clang_kernel": "reads __constant__ memory",
    "constant_pointer": "reads __constant__ memory",
    "globals": "reads __constant__ memory",
    "handed_over": "divides its registers",
}


def kernels():
    for path in sorted(KERNELS.glob("*.ptx")):
        text = path.read_text()
        for name in re.findall(r"\.entry\s+([\w$]+)", text):
            for arch in ARCHS:
                if runs_on(text, arch):
                    yield pytest.param(path.stem, name, arch, id=f"{path.stem}-{name}-{arch}")


every_kernel = pytest.mark.parametrize(("stem", "name", "arch"), list(kernels()))


def text_of(data, name):
    parts = take_apart(open_cubin(data))
    return words_of(parts.parts[open_kernel(parts, name).text].data)


def target_of(words, index, arch):
    return index + 1 + distance_of(words[index], arch) // SIZE


@every_kernel
def test_every_kernel_takes_every_probe(stem, name, arch):
    original = cubin(stem, arch)
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[name]):
            splice_sass(original, name, EVERYTHING, LAYOUT, assemble)
        return
    spliced = splice_sass(original, name, EVERYTHING, LAYOUT, assemble)
    lines = disassembled(spliced.image)
    before, after = text_of(original, name), text_of(spliced.image, name)
    assert [line.word for line in lines[name]] == after
    check_structure(before, after, int(arch), spliced)
    # The other kernels are gone, and functions that it calls are what they were.
    unchanged = disassembled(original)
    others = {each.name for each in list_cubin_kernels(open_cubin(original))} - {name}
    assert set(lines) <= set(unchanged) - others
    for other in set(lines) - {name}:
        assert [line.word for line in lines[other]] == [line.word for line in unchanged[other]]


def check_structure(before, after, arch, spliced):
    size = len(before)
    # The entry: a jump behind the original code, which comes back to the second instruction.
    assert OPCODE.of(after[0]) == BRA
    assert target_of(after, 0, arch) >= size
    back = [
        index
        for index in range(size, len(after))
        if OPCODE.of(after[index]) == BRA and target_of(after, index, arch) == 1
    ]
    assert len(back) == 1
    assert OPCODE.of(after[back[0] - 1]) == OPCODE.of(before[0])
    assert DESTINATION.of(after[back[0] - 1]) == DESTINATION.of(before[0])
    # Every way out: the same lanes go to one place, and nothing else has moved.
    places = set()
    for index, (was, now) in enumerate(zip(before, after, strict=False)):
        if index == 0:
            continue
        if OPCODE.of(was) == EXIT_OPCODE:
            assert OPCODE.of(now) == BRA
            assert (GUARD.of(now), SECOND_GUARD.of(now)) == (GUARD.of(was), SECOND_GUARD.of(was))
            places.add(target_of(after, index, arch))
        else:
            assert OPCODE.of(now) == OPCODE.of(was)
    assert len(places) == 1
    assert size <= places.pop() < len(after)
    assert spliced.exit_sites == sum(OPCODE.of(word) == EXIT_OPCODE for word in before)
    # Every branch of the appended code lands in the kernel.
    for index in range(size, len(after)):
        if OPCODE.of(after[index]) == BRA:
            assert 0 <= target_of(after, index, arch) < len(after)
    assert not [word for word in after[size:] if OPCODE.of(word) == LDS]


@every_kernel
def test_what_the_driver_reads_is_right(stem, name, arch):
    if name in REFUSED:
        pytest.skip("cannot be spliced, see above")
    original = cubin(stem, arch)
    spliced = splice_sass(original, name, EVERYTHING, LAYOUT, assemble)
    was = open_kernel(take_apart(open_cubin(original)), name)
    parts = take_apart(open_cubin(spliced.image))
    now = open_kernel(parts, name)
    assert now.parameters[:-1] == was.parameters
    assert now.parameters[-1] == (spliced.hidden_offset, LAUNCH_BLOCK_SIZE)
    assert now.parameter_size == spliced.hidden_offset + LAUNCH_BLOCK_SIZE
    assert spliced.hidden_offset == -(-was.parameter_size // 8) * 8
    assert spliced.parameters == len(was.parameters)
    assert len(parts.parts[now.constants].data) >= now.bank_offset + now.parameter_size
    assert now.registers == spliced.registers >= was.registers == spliced.was_registers
    text = parts.parts[now.text]
    assert now.symbol.size == len(text.data)
    assert len(text.data) % 128 == 0
    if text.info >> 24:
        assert text.info >> 24 == now.registers
    words = words_of(text.data)
    exits = [index * SIZE for index, word in enumerate(words) if OPCODE.of(word) == EXIT_OPCODE]
    assert list(now.attribute("EXIT_INSTR_OFFSETS").words()) == exits
    # The kernel's registers as the disassembler names them.
    highest = max(
        int(register)
        for line in disassembled(spliced.image)[name]
        for register in re.findall(r"(?<!U)\bR(\d+)\b", line.text)
    )
    assert now.registers >= highest + 2
    assert [each.name for each in list_cubin_kernels(open_cubin(spliced.image))] == [name]


@pytest.mark.parametrize(
    "name", ["sm_80.cubin", "sm_90.cubin", "abi7_sm_90.cubin", "lineinfo_sm_90a.cubin"]
)
def test_cubins_as_compilers_wrote_them(name):
    """Both versions of the ABI, several kernels, shared memory, line information."""
    original = (KERNELS.parents[1] / "images" / name).read_bytes()
    opened = open_cubin(original)
    for kernel in list_cubin_kernels(opened):
        spliced = splice_sass(original, kernel.name, EVERYTHING, LAYOUT, assemble)
        before, after = text_of(original, kernel.name), text_of(spliced.image, kernel.name)
        lines = disassembled(spliced.image)[kernel.name]
        assert [line.word for line in lines] == after
        check_structure(before, after, opened.arch, spliced)
        (twin,) = list_cubin_kernels(open_cubin(spliced.image))
        assert (twin.name, twin.shared) == (kernel.name, kernel.shared)
        assert spliced.image[7:9] == original[7:9]
        assert spliced.image[48:52] == original[48:52]


@pytest.mark.parametrize("name", ["handed_over", "chained", "clustered"])
def test_what_only_sm_90a_has_takes_counters(name):
    """Registers that warps hand to each other, early starts, and blocks that meet in clusters."""
    original = cubin("hopper", "90")
    spliced = splice_sass(original, name, [count(ENTRY), count(EXIT)], LAYOUT, assemble)
    before, after = text_of(original, name), text_of(spliced.image, name)
    lines = disassembled(spliced.image)[name]
    assert [line.word for line in lines] == after
    check_structure(before, after, 90, spliced)
    special = {"handed_over": "USETMAXREG", "chained": "ACQBULK", "clustered": "UCGABAR"}[name]
    assert any(special in line.text for line in lines)
    if name == "handed_over":  # what it begins with is what its warps divide
        assert spliced.registers == spliced.was_registers == 168


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", [ENTRY, EXIT])
def test_one_kind_alone(arch, kind):
    original = cubin("plain", arch)
    spliced = splice_sass(original, "early_exits", (count(kind),), LAYOUT, assemble)
    disassembled(spliced.image)
    before, after = text_of(original, "early_exits"), text_of(spliced.image, "early_exits")
    if kind is ENTRY:
        assert (spliced.entry_sites, spliced.exit_sites) == (1, 0)
        assert after[1 : len(before)] == before[1:]
    else:
        assert spliced.entry_sites == 0
        assert after[0] == before[0]


def test_the_saved_start_lies_above_everything():
    spliced = splice_sass(cubin("plain", "90"), "vector_add", EVERYTHING, LAYOUT, assemble)
    lines = disassembled(spliced.image)["vector_add"]
    saved = [line for line in lines if line.name == "CS2R"]
    assert [re.findall(r"R(\d+)|(SR_\w+)", line.text) for line in saved[-2:]] == [
        [(str(register), ""), ("", name)]
        for register, name in zip(
            (spliced.registers - 6, spliced.registers - 4),
            ("SR_GLOBALTIMERLO", "SR_CLOCKLO"),
            strict=True,
        )
    ]
    moved = {line.text for line in lines if line.name == "MOV" and "UR" not in line.text}
    for register in range(spliced.registers - 6, spliced.registers - 2):
        assert any(text.endswith(f", R{register}") for text in moved)


def test_a_parameter_is_read_where_the_kernel_has_it():
    probes = (value(RelocKind.PARAMETER, 1),)
    lines = disassembled(
        splice_sass(cubin("plain", "90"), "vector_add", probes, LAYOUT, assemble).image
    )["vector_add"]
    added = [line.text for line in lines if line.offset >= 0x200]
    assert any("c[0x0][0x218]" in text for text in added)
    with pytest.raises(InputError, match="reads parameter 5, but kernel vector_add has 4"):
        splice_sass(
            cubin("plain", "90"),
            "vector_add",
            (value(RelocKind.PARAMETER, 4),),
            LAYOUT,
            assemble,
        )


def test_gaps_between_parameters_are_kept():
    original = cubin("plain", "90")
    kernel = open_kernel(take_apart(open_cubin(original)), "by_value")
    assert any(
        offset > end
        for (offset, _), end in zip(
            kernel.parameters[1:], (o + s for o, s in kernel.parameters), strict=False
        )
    )
    spliced = splice_sass(original, "by_value", (value(RelocKind.PARAMETER, 3),), LAYOUT, assemble)
    assert spliced.hidden_offset % 8 == 0


CALLING = """
.version 7.8
.target sm_80
.address_size 64
.visible .func (.param .b32 r) ending(.param .b32 a, .param .b64 p) {
.reg .b32 %a; .reg .b64 %p; .reg .pred %q;
ld.param.b32 %a, [a]; ld.param.b64 %p, [p];
setp.lt.u32 %q, %a, 5;
@!%q bra GO;
st.global.b32 [%p], %a;
exit;
GO: mad.lo.u32 %a, %a, %a, 3;
st.param.b32 [r], %a;
ret;
}
.visible .entry k(.param .u64 out) {
.reg .b32 %t, %v; .reg .b64 %o;
ld.param.u64 %o, [out];
mov.u32 %t, %tid.x;
{ .param .b32 ret0; .param .b32 p0; .param .b64 p1;
st.param.b32 [p0], %t; st.param.b64 [p1], %o;
call (ret0), ending, (p0, p1);
ld.param.b32 %v, [ret0]; }
st.global.b32 [%o], %v;
ret;
}
"""


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("starts", [True, False])
def test_threads_that_end_in_a_function_of_another_section(arch, starts):
    """Its ways out lead to a copy of the exit probe behind it (kept apart by ptxas -c)."""
    original = assemble(CALLING, f"sm_{arch}", "-c")
    probes = (value(RelocKind.START_CLOCK, at=EXIT),) if starts else (count(EXIT),)
    before = disassembled(original)
    assert [line.name for line in before["ending"]].count("EXIT") == 1
    spliced = splice_sass(original, "k", probes, LAYOUT, assemble)
    after = disassembled(spliced.image)["ending"]
    size = len(before["ending"])
    (way_out,) = (n for n, line in enumerate(before["ending"]) if line.name == "EXIT")
    words = [line.word for line in after]
    assert OPCODE.of(words[way_out]) == BRA
    assert GUARD.of(words[way_out]) == GUARD.of(before["ending"][way_out].word)
    assert size <= target_of(words, way_out, int(arch)) < len(words)
    stores = [line for line in after[:size] if line.name.startswith("ST")]
    assert all(READ_SCOREBOARD.of(line.word) != NO_SCOREBOARD for line in stores)
    assert spliced.exit_sites == 1 + sum(
        OPCODE.of(line.word) == EXIT_OPCODE for line in before["k"]
    )
    parts = take_apart(open_cubin(spliced.image))
    (symbol,) = (each for each in read_symbols(parts) if each.name == "ending")
    assert symbol.size == len(words) * SIZE == len(parts.parts[symbol.section].data)


def test_traps_are_not_covered():
    text = (
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k() {\n"
        ".reg .pred %q; .reg .b32 %a; mov.u32 %a, %tid.x; setp.eq.u32 %q, %a, 7; @%q trap;\nret;\n}"
    )
    original = assemble(text, "sm_90")
    spliced = splice_sass(original, "k", (count(EXIT),), LAYOUT, assemble)
    (trap,) = (line for line in disassembled(original)["k"] if line.name == "BPT.TRAP")
    assert spliced.uncovered == (f"trap at {trap.offset:#x}",)
    assert splice_sass(original, "k", (count(ENTRY),), LAYOUT, assemble).uncovered == ()


@pytest.mark.parametrize(("kernel", "free"), [("asserts", True), ("prints", False)])
def test_what_functions_of_the_driver_use(kernel, free):
    """A failed assertion ends everything, so that nobody's uniform registers matter any more."""
    parts = alone(contents_of(open_cubin(cubin("module", "90"))), kernel)
    target = open_kernel(parts, kernel)
    code = Code.of(parts.parts[target.text].data)
    assert code_around(parts, target, code).registers.isdisjoint({0, 1}) == free


# Refusals


def test_a_missing_kernel_is_refused():
    with pytest.raises(InputError, match="no kernel"):
        splice_sass(cubin("plain", "90"), "no", (count(ENTRY),), LAYOUT, assemble)


def test_other_architectures_are_refused():
    with pytest.raises(UnsupportedError, match="machine code for sm_120"):
        splice_sass(
            assemble((KERNELS / "functions.ptx").read_text(), "sm_120"),
            "function_table",
            (count(ENTRY),),
            LAYOUT,
            assemble,
        )


SETMAXNREG = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p) .reqntid 384, 1, 1 .maxnreg 168 {
.reg .b32 %a; .reg .b64 %y; .reg .pred %q;
ld.param.u64 %y, [p];
mov.u32 %a, %tid.x;
setp.lt.u32 %q, %a, 128;
@%q bra A;
setmaxnreg.inc.sync.aligned.u32 240;
bra B;
A: setmaxnreg.dec.sync.aligned.u32 24;
B: st.global.u32 [%y], %a;
ret;
}
"""


def test_a_kernel_that_divides_its_registers():
    original = assemble(SETMAXNREG, "sm_90a")
    spliced = splice_sass(original, "k", (count(ENTRY), count(EXIT)), LAYOUT, assemble)
    disassembled(spliced.image)
    assert spliced.registers == spliced.was_registers == 168
    with pytest.raises(UnsupportedError, match=r"setmaxnreg\), with probes that need"):
        splice_sass(original, "k", (value(RelocKind.START_CLOCK, at=EXIT),), LAYOUT, assemble)


def test_a_tensor_kernel():
    text = (KERNELS.parent / "machine_code" / "hopper.ptx").read_text()
    spliced = splice_sass(
        assemble(text, "sm_90a"), "k", (count(ENTRY), count(EXIT)), LAYOUT, assemble
    )
    disassembled(spliced.image)
    assert spliced.hidden_offset == 192  # behind a tensor map that lies at 64 bytes of the bank


@pytest.mark.parametrize("arch", ["80", "86", "89"])
def test_where_many_parameters_lie_depends_on_their_number(arch):
    """Before sm_90 more than 4352 bytes lie elsewhere in the bank, so none can be added there."""
    text = (
        ".version 8.1\n.target sm_80\n.address_size 64\n"
        ".visible .entry k(.param .align 8 .b8 p[{}]) {{ ret; }}\n"
    )

    def spliced(size):
        original = assemble(text.format(size), f"sm_{arch}")
        was = open_kernel(take_apart(open_cubin(original)), "k")
        image = splice_sass(original, "k", (count(ENTRY),), LAYOUT, assemble).image
        now = open_kernel(take_apart(open_cubin(image)), "k")
        assert now.bank_offset == was.bank_offset
        return now.bank_offset

    assert spliced(4320) != spliced(8000)
    with pytest.raises(UnsupportedError, match="PTX lays out otherwise"):
        spliced(4328)


def test_the_register_count_may_stand_in_the_section_alone():
    """Older assemblers have no other."""
    original = cubin("plain", "80")
    parts = take_apart(open_cubin(original))
    at = parts.find(".nv.info")
    rows = [each for each in read_attributes(parts.parts[at].data) if each.code != 0x2F]
    without = put_together(parts.with_data({at: write_attributes(rows)}))
    spliced = splice_sass(without, "vector_add", EVERYTHING, LAYOUT, assemble)
    expected = splice_sass(original, "vector_add", EVERYTHING, LAYOUT, assemble)
    assert (spliced.was_registers, spliced.registers) == (
        expected.was_registers,
        expected.registers,
    )
    now = open_kernel(take_apart(open_cubin(spliced.image)), "vector_add")
    assert now.registers == spliced.registers


@pytest.mark.parametrize("size", [4064, 4088, 4320, 4328, 8000, 32728])
def test_a_kernel_with_many_parameters(size):
    """Above 4352 bytes with the launch block all of them are described in another way."""
    text = (
        ".version 8.1\n.target sm_80\n.address_size 64\n"
        ".visible .entry k(.param .u32 n, .param .align 8 .b8 p[{}]) {{ ret; }}\n"
    )
    original = assemble(text.format(size - 8), "sm_90")
    spliced = splice_sass(original, "k", (count(ENTRY),), LAYOUT, assemble)
    disassembled(spliced.image)
    kernel = open_kernel(take_apart(open_cubin(spliced.image)), "k")
    assert kernel.parameters == ((0, 4), (8, size - 8), (size, LAUNCH_BLOCK_SIZE))
    large = kernel.attribute("KPARAM_INFO_V2") is not None
    assert large == (size + LAUNCH_BLOCK_SIZE > 4352)
    assert (kernel.attribute("KPARAM_INFO") is None) == large
    # What ptxas itself makes of such a list of parameters.
    same = assemble(
        text.format(size - 8).replace(") {", f", .param .align 8 .b8 q[{LAUNCH_BLOCK_SIZE}]) {{"),
        "sm_90",
    )
    expected = open_kernel(take_apart(open_cubin(same)), "k")
    for name in ("KPARAM_INFO", "KPARAM_INFO_V2", "CBANK_PARAM_SIZE"):
        assert kernel.attribute(name) == expected.attribute(name)
    if size == 32728:
        with pytest.raises(UnsupportedError, match="32 more do not fit into 32764"):
            splice_sass(
                assemble(text.format(32728), "sm_90"), "k", (count(ENTRY),), LAYOUT, assemble
            )


def test_the_first_instruction_keeps_its_waits():
    spliced = splice_sass(cubin("plain", "90"), "reduce", (count(ENTRY),), LAYOUT, assemble)
    after = text_of(spliced.image, "reduce")
    assert WAIT.of(after[0]) == WAIT.of(text_of(cubin("plain", "90"), "reduce")[0])
