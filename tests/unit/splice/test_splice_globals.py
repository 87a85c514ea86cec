"""Module variables of a twin are those of the original module."""

from pathlib import Path

import pytest
from splice_probes import ENTRY, LAYOUT, count

from egpu.errors import UnsupportedError
from egpu.image.ptx import parse
from egpu.splice import splice_ptx

KERNELS = Path(__file__).parent / "kernels"
HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"


def twin(declarations, body):
    module = parse(f"{HEAD}{declarations} .entry k() {{\n{body}\nret; }}")
    return splice_ptx(module, "k", (count(ENTRY),), LAYOUT)


def rewritten(declarations, body):
    """The kernel's own lines in the twin."""
    lines = twin(declarations, body).text.splitlines()
    end = lines.index("}", lines.index("bar.warp.sync %r1;"))
    return [line for line in lines[end + 1 :] if line and line != "ret; }"]


def through(instruction, index=0, extra=""):
    return (
        "{ .reg .b64 __egpu_address_0; "
        f"ld.const.b64 __egpu_address_0, [__egpu_globals+{8 * index}];{extra} {instruction} }}"
    )


A = "__egpu_address_0"
ADD8 = f" add.s64 {A}, {A}, 8;"


@pytest.mark.parametrize(
    ("instruction", "becomes"),
    [
        ("mov.u64 %rd1, x;", through(f"mov.u64 %rd1, {A};")),
        ("mov.u64 %rd1, x+8;", through(f"mov.u64 %rd1, {A};", extra=ADD8)),
        ("cvta.global.u64 %rd1, x;", through(f"cvta.global.u64 %rd1, {A};")),
        ("ld.global.u32 %r1, [x];", through(f"ld.global.u32 %r1, [{A}];")),
        ("ld.global.v2.u32 {%r1,%r2}, [x+8];", through(f"ld.global.v2.u32 {{%r1,%r2}}, [{A}+8];")),
        ("@!%p1 st.global.u32 [x + -4], 5;", through(f"@!%p1 st.global.u32 [{A} + -4], 5;")),
        ("atom.global.add.u32 %r1, [x], 1;", through(f"atom.global.add.u32 %r1, [{A}], 1;")),
        ("red.add.u32 [x], %r1;", through(f"red.add.u32 [{A}], %r1;")),
        ("ld.global.u32 %r1, [%rd1];", "ld.global.u32 %r1, [%rd1];"),
        ("ld.shared.u32 %r1, [s+4];", "ld.shared.u32 %r1, [s+4];"),
    ],
)
def test_global_variables(instruction, becomes):
    declarations = ".visible .global .u32 x[4]; .shared .u32 s[4];"
    assert rewritten(declarations, f"mov.u64 %rd9, x;\n{instruction}")[1:] == [becomes]


def test_an_instruction_with_two_variables():
    (line,) = rewritten(".global .u32 x; .global .u32 y;", "cp.async.ca.foo [y], [x], 4;")
    assert line == (
        "{ .reg .b64 __egpu_address_0, __egpu_address_1; "
        "ld.const.b64 __egpu_address_0, [__egpu_globals+8]; "
        "ld.const.b64 __egpu_address_1, [__egpu_globals+0]; "
        "cp.async.ca.foo [__egpu_address_0], [__egpu_address_1], 4; }"
    )


CONSTANTS = ".const .f32 c[4];"


@pytest.mark.parametrize(
    ("instruction", "becomes"),
    [
        ("ld.const.f32 %f1, [c+8];", through(f"ld.f32 %f1, [{A}+8];")),
        ("ld.const.v4.f32 {%f1,%f2}, [%rd1+4];", "ld.v4.f32 {%f1,%f2}, [%rd1+4];"),
        ("mov.u64 %rd1, c;", through(f"mov.u64 %rd1, {A};")),
        ("cvta.const.u64 %rd2, c;", through(f"mov.b64 %rd2, {A};")),
        ("cvta.const.u64 %rd2, %rd1;", "mov.b64 %rd2, %rd1;"),
        ("cvta.to.const.u64 %rd2, %rd1;", "mov.b64 %rd2, %rd1;"),
        ("mov.u64 %rd1, __cudart_table;", "cvta.const.u64 %rd1, __cudart_table;"),
        ("ld.const.u32 %r1, [__cudart_table+4];", "ld.const.u32 %r1, [__cudart_table+4];"),
    ],
)
def test_constant_variables(instruction, becomes):
    declarations = CONSTANTS + ".const .u32 __cudart_table[2] = {1, 2};"
    assert rewritten(declarations, f"mov.u64 %rd9, c;\n{instruction}")[1:] == [becomes]


@pytest.mark.parametrize(
    "instruction",
    ["isspacep.const %p1, %rd1;", "prefetch.const.tensormap [%rd1];", "ld.const.u32 %r1, [16];"],
)
def test_what_needs_the_original_constant_bank_is_refused(instruction):
    with pytest.raises(UnsupportedError, match="constant bank of the original module"):
        twin(CONSTANTS, f"mov.u64 %rd1, c; {instruction}")
    # Without a constant variable of the module nothing changes.
    if instruction.startswith("isspacep"):
        assert rewritten("", instruction) == [instruction]


def test_pointers_to_constants_in_parameters_are_refused():
    module = parse(
        f"{HEAD}{CONSTANTS}.entry k(.param .u64 .ptr .const .align 4 p) "
        "{ ld.const.f32 %f1, [c]; ret; }"
    )
    with pytest.raises(UnsupportedError, match="takes pointers to constant memory"):
        splice_ptx(module, "k", (count(ENTRY),), LAYOUT)


@pytest.mark.parametrize(
    "name", ["$str", "$str1", "$str$2", "__unnamed_1", "_$_str", "_$_str_$_4", "__cudart_i2opi_f"]
)
def test_constants_of_the_compiler_stay(name):
    image = twin(f".global .u8 {name}[4] = {{1, 2, 3}};", f"mov.u64 %rd1, {name};")
    assert image.globals == ()
    assert image.globals_table == ""
    assert f".global .u8 {name}[4] = {{1, 2, 3}};" in image.text


@pytest.mark.parametrize(
    ("declaration", "use"),
    [
        (".global .u8 $str[4];", "mov.u64 %rd1, $str;"),  # no content of its own
        (".global .u32 __unnamed_1 = 3;", "st.global.u32 [__unnamed_1], 1;"),  # written
        (".global .u64 $str = x; .global .u32 x;", "mov.u64 %rd1, $str;"),  # holds an address
        (".global .u8 strings[4] = {1, 2, 3};", "mov.u64 %rd1, strings;"),  # a user's name
        (".global .attribute(.managed) .u32 m;", "ld.global.u32 %r1, [m];"),
        (".common .global .u32 m;", "ld.global.u32 %r1, [m];"),
        (".extern .global .u32 m;", "ld.global.u32 %r1, [m];"),
        (".extern .global .u32 m; .visible .global .u32 m = 1;", "ld.global.u32 %r1, [m];"),
    ],
)
def test_everything_else_is_the_original_s(declaration, use):
    image = twin(declaration, use)
    name = use.partition("[")[2].partition("]")[0] or use.rpartition(" ")[2][:-1]
    assert name in image.globals
    assert len(set(image.globals)) == len(image.globals)
    table = f".visible .const .align 8 .b64 __egpu_globals[{len(image.globals)}];"
    assert table in image.text
    assert declaration.partition(";")[0] + ";" not in image.text


def test_functions_use_the_table_too():
    module = parse(
        f"{HEAD}.global .u32 x; .func f() {{ st.global.u32 [x], 1; ret; }}"
        ".entry k() { call f; ret; }"
    )
    image = splice_ptx(module, "k", (count(ENTRY),), LAYOUT)
    assert "st.global.u32 [__egpu_address_0], 1;" in image.text
    assert image.globals == ("x",)


def test_a_local_name_that_hides_a_variable_is_refused():
    with pytest.raises(UnsupportedError, match="declares x again"):
        twin(
            ".global .u32 x; .func f() { st.global.u32 [x], 1; ret; }",
            "call f; { .reg .b32 x; mov.u32 x, 1; }",
        )


def test_addresses_read_from_a_variable_are_those_of_the_original():
    """``pointer`` holds an address in its module: both come through the table."""
    module = parse((KERNELS / "module.ptx").read_text())
    image = splice_ptx(module, "globals", (count(ENTRY),), LAYOUT)
    assert image.globals == ("counter", "pair", "pointer", "coefficients", "managed", "tile")
    names = [each.name for each in parse(image.text).variables]
    assert names == ["__egpu_globals"]
