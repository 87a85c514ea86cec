"""The PTX text that ptxas keeps in cubins, on what this machine's ptxas writes."""

import re
import subprocess
from pathlib import Path

import pytest

from egpu.image import MemberKind, choose_ptx, kept_ptx, list_kernels, open_image, ptx_text
from egpu.image.cubin import open_cubin
from egpu.image.ptx import parse
from egpu.image.ptx.syntax import Block, Instruction
from egpu.session.assemble import find_ptxas

HERE = Path(__file__).parents[1]
PTXAS = find_ptxas()
pytestmark = pytest.mark.skipif(PTXAS is None, reason="no ptxas on this machine")

WITH_LINES = """\
//
// a comment that mentions .target sm_20
.version 8.7
.target sm_90a
.address_size 64
	.file	1 "/tmp/a folder/k.py"
.visible .global .align 4 .b8 name[6] = {110, 0, 117, 108, 0, 0};
.visible .entry two(
	.param .u64 .ptr .global .align 1 two_param_0, // trailing
	.param .u32 two_param_1
)
.reqntid 128
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<4>;
$L__func_begin0:
	.loc	1 7 0                           // k.py:7:0
	ld.param.b64 	%rd1, [two_param_0];
	ld.param.b32 	%r1, [two_param_1];
	/* several
	lines */
	mov.u32 	%r2, %tid.x;
	.loc	1 8 12
	setp.ge.s32 	%p1, %r2, %r1;
	@%p1 bra 	$L__end;
	mul.wide.s32 	%rd2, %r2, 4;
	add.s64 	%rd3, %rd1, %rd2;
	.loc	1 9 12, function_name $L__info_string0, inlined_at 1 7 0
	st.global.b32 	[%rd3], %r2;
$L__end:
	ret;
$L__func_end0:
}
	.section	.debug_str
	{
$L__info_string0:
.b8 107
.b8 0
	}
"""
TEXTS = {
    "lines": (WITH_LINES, "sm_90a"),
    "nvcc": ((HERE / "splice" / "kernels" / "module.ptx").read_text(), "sm_90"),
    "several kernels": ((HERE / "images" / "kernels.ptx").read_text(), "sm_90"),
}


def assemble(folder, text, *options):
    (folder / "k.ptx").write_text(text)
    command = [PTXAS.path, *options, "k.ptx", "-o", "k.cubin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (folder / "k.cubin").read_bytes()


def instructions(block, text):
    """Every instruction's text in order, white space made the same."""
    out = []
    for each in block.statements:
        if isinstance(each, Block):
            out += instructions(each, text)
        elif isinstance(each, Instruction):
            words = re.sub(
                r"//[^\n]*|/\*.*?\*/", " ", text[each.span.start : each.span.end], flags=re.S
            )
            out.append(" ".join(words.split()))
    return out


def code_of(data):
    cubin = open_cubin(data)
    return {s.name: cubin.content(s) for s in cubin.sections if s.name.startswith(".text.")}


@pytest.mark.parametrize("options", [("-lineinfo",), ("-g",), ("--device-debug",)])
@pytest.mark.parametrize("name", TEXTS)
def test_the_text_is_the_one_that_was_assembled(tmp_path, name, options):
    text, arch = TEXTS[name]
    image = open_image(assemble(tmp_path, text, f"-arch={arch}", *options))
    (member,) = image.members
    (kept,) = kept_ptx(member)
    assert kept.kind is MemberKind.PTX
    recovered, original = parse(ptx_text(kept)), parse(text)
    assert [f.name for f in recovered.functions] == [f.name for f in original.functions]
    for ours, theirs in zip(recovered.functions, original.functions, strict=True):
        assert ours.parameters == theirs.parameters
        if theirs.body is not None:
            found = instructions(ours.body, recovered.text)
            assert found
            assert found == instructions(theirs.body, original.text)
    # what it gives is what the original gives
    assert code_of(assemble(tmp_path, ptx_text(kept), f"-arch={arch}")) == code_of(
        assemble(tmp_path, text, f"-arch={arch}")
    )
    assert all(kernel.has_ptx for kernel in list_kernels(member))


def test_lines_in_the_text_are_enough_without_an_option(tmp_path):
    image = open_image(assemble(tmp_path, WITH_LINES, "-arch=sm_90a"))
    chosen = choose_ptx(image, 90, kernel="two")
    assert (chosen.arch, chosen.suffix) == (90, "a")
    assert ".loc" not in ptx_text(chosen)


def test_none_is_kept_without_lines(tmp_path):
    text, arch = TEXTS["several kernels"]
    plain = "\n".join(
        line for line in text.splitlines() if not line.strip().startswith((".loc", ".file"))
    )
    (member,) = open_image(assemble(tmp_path, plain, f"-arch={arch}")).members
    assert kept_ptx(member) == ()
    (member,) = open_image(plain.encode()).members
    assert kept_ptx(member) == ()
