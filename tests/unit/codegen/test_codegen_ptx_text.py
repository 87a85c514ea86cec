"""From LLVM's kernel to text inside another kernel."""

import pytest

from egpu.codegen.device_code import Relocation, RelocKind
from egpu.codegen.ptx_text import embed, tokens
from egpu.errors import InternalError

MODULE = """
.version 6.2
.target sm_70
.address_size 64
	// .globl	k
.visible .entry k()
{{
	.local .align 8 .b8 	__local_depot0[16];
	.reg .b64 	%SP;
	.reg .b64 	%SPL;
	.reg .pred 	%p<2>;
	.reg .b32 	%r<3>;

// %bb.0:
	{body}
}}
{after}
"""


def embedded(body, after=""):
    return embed(MODULE.format(body=body, after=after), "e1")


def test_names_are_its_own():
    kernel = embedded(
        "mov.b64 %SPL, __local_depot0;\ncvta.local.u64 %SP, %SPL;\nmov.u32 %r1, %tid.x;\n"
        "setp.eq.b32 %p1, %r1, 0;\n@%p1 bra $L__BB0_2;\nadd.s32 %r2, %r1, %r9;\n$L__BB0_2:\nret;"
    )
    assert kernel.declarations == (
        ".local .align 8 .b8 egpu_e1_local[16];",
        ".reg .b64 %e1_SP;",
        ".reg .b64 %e1_SPL;",
        ".reg .pred %e1_p<2>;",
        ".reg .b32 %e1_r<3>;",
    )
    assert kernel.statements == (
        "mov.b64 %e1_SPL, egpu_e1_local;",
        "cvta.local.u64 %e1_SP, %e1_SPL;",
        "mov.u32 %e1_r1, %tid.x;",
        "setp.eq.b32 %e1_p1, %e1_r1, 0;",
        "@%e1_p1 bra $egpu_e1_L__BB0_2;",
        "add.s32 %e1_r2, %e1_r1, %e1_r9;",
        "$egpu_e1_L__BB0_2:",
    )
    assert kernel.diverges


def test_strings_stay_as_they_are():
    kernel = embedded('.pragma "nounroll"; // not "this"\n.pragma  "used_bytes_mask 0x3";\nret;')
    assert kernel.statements == ('.pragma "nounroll";', '.pragma "used_bytes_mask 0x3";')


def test_returns_go_to_the_end():
    kernel = embedded("@%p1 ret;\nmov.u32 %r1, 7;\nret;\n$L__BB0_1:\nmov.u32 %r1, 8;\nret;")
    assert kernel.statements == (
        "@%e1_p1 bra $egpu_e1_end;",
        "mov.u32 %e1_r1, 7;",
        "bra $egpu_e1_end;",
        "$egpu_e1_L__BB0_1:",
        "mov.u32 %e1_r1, 8;",
    )
    assert kernel.end == "$egpu_e1_end"
    assert kernel.diverges


def test_straight_code_stays_together():
    assert not embedded("mov.u32 %r1, 7;\nbra.uni $L__BB0_1;\n$L__BB0_1:\nret;").diverges


def test_nested_scopes_keep_their_registers():
    kernel = embedded("{ .reg .pred p; setp.ge.u32 p, %r1, %r2; @p mov.b32 %r1, %r2; }\nret;")
    assert kernel.statements == (
        "{",
        ".reg .pred p;",
        "setp.ge.u32 p, %e1_r1, %e1_r2;",
        "@p mov.b32 %e1_r1, %e1_r2;",
        "}",
    )


def test_unpacking_moves_and_addresses():
    kernel = embedded("mov.b64 {%r1, %r2}, %SP;\nst.global.b32 [%SP+-8], %r1;\nret;")
    assert kernel.statements == (
        "mov.b64 {%e1_r1, %e1_r2}, %e1_SP;",
        "st.global.b32 [%e1_SP+-8], %e1_r1;",
    )


def test_symbols():
    kernel = embedded("mov.b64 %SP, __egpu_launch_16;\nmov.b64 %SPL, __egpu_sm_slots;\nret;")
    assert kernel.relocations == (
        Relocation(RelocKind.LAUNCH, 16),
        Relocation(RelocKind.SM_SLOTS),
    )


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("add.s64 %SP, %SP, __egpu_map_0;", "symbol __egpu_map_0 stands in"),
        ("@%p1 mov.b64 %SP, __egpu_map_0;", "symbol __egpu_map_0 stands in"),
        ("mov.b64 %SP, __egpu_nothing_0;", "unknown symbol __egpu_nothing_0"),
        ("mov.b64 %SP, __egpu_map_;", "unknown symbol __egpu_map_"),
        ("exit;", "contains exit"),
        ("trap;", "contains trap"),
        ("call.uni (retval0), f, (param0);", "contains call.uni"),
        ("brx.idx %r1, $L_brx_0;", "contains brx.idx"),
        ("bar.sync 0;", "contains bar.sync"),
        (".shared .b32 x;", "contains .shared"),
    ],
)
def test_what_cannot_stand_in_a_kernel(statement, message):
    with pytest.raises(InternalError, match=message):
        embedded(f"{statement}\nret;")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (".global .align 4 .b8 table[4] = {1, 2, 3, 4};", ""),
        (".const .b32 x;", ""),
        (".func f() { ret; }", ""),
        ("", ".visible .entry other() { ret; }"),
        ("", ".func f() { ret; }"),
    ],
)
def test_nothing_at_module_scope(before, after):
    with pytest.raises(InternalError, match="the compiled probe"):
        embed(before + MODULE.format(body="ret;", after=after), "e1")


def test_tokens():
    assert list(
        tokens("@!%p1 ld.global.v2.b64 {%rd1, %rd2}, [%rd3+16]; // text\n/* x */ $L_1:")
    ) == [
        *("@", "!", "%p1", "ld.global.v2.b64", "{", "%rd1", ",", "%rd2", "}", ",", "["),
        *("%rd3", "+", "16", "]", ";", "$L_1", ":"),
    ]
