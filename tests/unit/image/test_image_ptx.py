"""The PTX parser, one construct a test; inputs as text."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from egpu.errors import InputError
from egpu.image.ptx import parse
from egpu.image.ptx.syntax import (
    Address,
    Block,
    Directive,
    Immediate,
    Instruction,
    Label,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)

KERNELS = sorted((Path(__file__).parents[1] / "splice" / "kernels").glob("*.ptx"))
HEAD = ".version 9.0\n.target sm_90a, debug\n.address_size 64\n"


def body(text):
    """Statements of a kernel with this body."""
    return parse(f"{HEAD}.entry k() {{ {text} }}").entry("k").body.statements


def operands(text, declarations=""):
    statement = body(f"{declarations} {text}")[-1]
    assert isinstance(statement, Instruction)
    return statement.operands


def variable(text):
    (found,) = parse(HEAD + text).variables
    return found


def test_header():
    module = parse("// c\n/* c\n c */ .version 9.0 .target sm_90a, debug // c\n.address_size 64")
    assert (module.version, module.target, module.options) == ((9, 0), "sm_90a", ("debug",))
    assert module.address_size == 64
    span = module.version_span
    assert module.text[span.start : span.end] == ".version 9.0"


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_spans_cover_what_they_name(path):
    """Every byte outside the spans of top-level items is blank, comment or header."""
    module = parse(path.read_text())
    items = [*module.variables, *module.functions, *module.directives]
    spans = sorted({(item.span.start, item.span.end) for item in items})
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start
    for function in module.functions:
        text = module.text[function.span.start : function.span.end]
        assert function.name in text
        assert text[-1] in "};"
        stack = [function.body] if function.body else []
        while stack:
            block = stack.pop()
            assert module.text[block.span.start] + module.text[block.span.end - 1] == "{}"
            at = block.span.start
            for statement in block.statements:
                assert at <= statement.span.start < statement.span.end <= block.span.end
                if not isinstance(statement, Variable):
                    at = statement.span.end
                piece = module.text[statement.span.start : statement.span.end]
                if isinstance(statement, Instruction):
                    assert piece.endswith(";")
                    assert statement.opcode in piece
                stack += [statement] if isinstance(statement, Block) else []


def test_instruction_parts_and_guards():
    guarded, plain, spaced = body(
        ".reg .pred p; @!p ld.global.L1::no_allocate.v2.u32 {%r1, %r2}, [%rd1]; ret; ld .global .u32 %r1, [%rd1];"  # noqa: E501
    )[1:]
    assert (guarded.guard, guarded.guard_negated) == ("p", True)
    assert guarded.parts == ("ld", "global", "L1::no_allocate", "v2", "u32")
    assert (plain.opcode, plain.operands, plain.guard) == ("ret", (), None)
    assert spaced.opcode == "ld.global.u32"


@pytest.mark.parametrize(
    ("text", "bits", "is_float"),
    [
        ("5", 5, False),
        ("-1", 2**64 - 1, False),
        ("0x10U", 16, False),
        ("017", 15, False),
        ("0b101", 5, False),
        ("0f3F800000", 0x3F800000, True),
        ("0d3FF0000000000000", 0x3FF0000000000000, True),
        ("-0f3F800000", 0xBF800000, True),
        ("1.5", 0x3FF8000000000000, True),
        ("-1.5e0", 0xBFF8000000000000, True),
        ("(3+4)*2-1", 13, False),
        ("1<<4|3", 19, False),
        ("-7/2", 2**64 - 3, False),
        ("~0", 2**64 - 1, False),
    ],
)
def test_immediates(text, bits, is_float):
    assert operands(f"mov.b64 %rd1, {text};")[1] == Immediate(text, bits, is_float)


def test_registers_are_what_reg_declares():
    declarations = ".reg .b32 a, b; .reg .pred p<3>; .reg .v4 .f32 v;"
    assert operands("x.y a, v.x, p2, p3, %tid.x, _, !p0;", declarations) == (
        Register("a"),
        Register("v.x"),
        Register("p2"),
        Symbol("p3"),
        Register("%tid.x"),
        Register("_"),
        Register("p0", negated=True),
    )
    inner, outer = body("{ .reg .b32 t; mov.u32 t, t; } mov.u32 t, 1;")
    assert inner.statements[1].operands == (Register("t"), Register("t"))
    assert outer.operands[0] == Symbol("t")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("[%rd1]", Address(Register("%rd1"))),
        ("[%rd1+-8]", Address(Register("%rd1"), -8)),
        ("[%rd1 + 4*3]", Address(Register("%rd1"), 12)),
        ("[k_param_0+0x10]", Address(Symbol("k_param_0"), 16)),
        ("[x - 4]", Address(Symbol("x"), -4)),
        ("[256]", Address(None, 256)),
        (
            "[%rd1, {%r1, %r2}]",
            Address(Register("%rd1"), 0, (Vector((Register("%r1"), Register("%r2"))),)),
        ),
        ("[t, s, {%f1}]", Address(Symbol("t"), 0, (Symbol("s"), Vector((Register("%f1"),))))),
    ],
)
def test_addresses(text, address):
    assert operands(f"ld.u32 %r1, {text};")[1] == address


def test_pairs_and_vectors():
    assert operands("setp.eq.u32 %p1|%p2, %r1, 2;")[0] == Pair(Register("%p1"), Register("%p2"))
    assert operands("setp.eq.u32 _|%p2, %r1, 2;")[0] == Pair(Register("_"), Register("%p2"))
    assert operands("mov.b64 {%r1, _}, %rd1;")[0] == Vector((Register("%r1"), Register("_")))
    assert operands("mov.u64 %rd1, table+8;")[1] == Symbol("table", 8)


def test_calls():
    direct, bare, indirect = body(
        "call.uni (retval0),\n f, \n(param0, param1)\n; call g;"
        "proto : .callprototype (.param .b32 _) _ (.param .b64 _); call (r), %rd1, (p), proto;"
    )[:2] + body("call (r), %rd1, (p), proto;")
    assert direct.operands == (
        Vector((Symbol("retval0"),), call_list=True),
        Symbol("f"),
        Vector((Symbol("param0"), Symbol("param1")), call_list=True),
    )
    assert bare.operands == (Symbol("g"),)
    assert indirect.operands[1] == Register("%rd1")
    assert indirect.operands[3] == Symbol("proto")


def test_labels_scopes_and_directives():
    statements = body(
        '$L_1: .pragma "nounroll"; .loc 1 2 3, function_name $L_i+4, inlined_at 1 5 6\n'
        "t: .branchtargets $L_1, $L_2; { { ret; } } $L_2: brx.idx.uni %r1, t;"
    )
    kinds = [type(each) for each in statements]
    assert kinds == [Label, Directive, Directive, Directive, Block, Label, Instruction]
    assert statements[2].text.endswith("inlined_at 1 5 6")
    assert (statements[3].label, statements[3].name) == ("t", ".branchtargets")
    assert isinstance(statements[4].statements[0], Block)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".global .align 8 .u64 x;", ("x", "global", "u64", 8, 8, 1, (), "")),
        (".visible .const .f32 c[2][3];", ("c", "const", "f32", 4, 24, 1, (2, 3), "visible")),
        (".extern .shared .align 16 .b8 s[];", ("s", "shared", "b8", 16, 0, 1, (0,), "extern")),
        (".common .global .v4 .f32 v;", ("v", "global", "f32", 16, 16, 4, (), "common")),
        (".weak .global .u8 b[4] = {1,2,3,4};", ("b", "global", "u8", 1, 4, 1, (4,), "weak")),
        (".global .texref t;", ("t", "global", "texref", 8, 8, 1, (), "")),
        (
            ".global .attribute(.managed) .align 4 .u32 m = 7;",
            ("m", "global", "u32", 4, 4, 1, (), ""),
        ),
        (".global .b8 p[8] = {0xFF(f), 0xFF00(f)};", ("p", "global", "b8", 1, 8, 1, (8,), "")),
        (".const .u64 t[2] = {f, generic(x)+4};", ("t", "const", "u64", 8, 16, 1, (2,), "")),
    ],
)
def test_variables(text, expected):
    v = variable(text)
    assert (v.name, v.space, v.type, v.align, v.size, v.vector, v.dims, v.linkage) == expected


def test_several_declarators_share_a_span():
    first, second, third = body(".reg .b32 %r<5>, a, b;")
    assert (first.name, first.count, second.name, third.name) == ("%r", 5, "a", "b")
    assert first.span == second.span == third.span


def test_initial_values_are_kept_as_written():
    assert variable(".global .u32 a[2][2] = {{1, 2}, {3, 4}};").initializer == "{{1, 2}, {3, 4}}"


def test_parameters_have_their_place():
    function = parse(
        HEAD
        + """.visible .entry k(.param .u8 a, .param .align 16 .b8 b[20],
        .param .u64 .ptr .global .align 128 c, .param .u16 d, .param .v2 .f32 e)
        .maxntid 256, 1, 1 .reqnctapercluster 2, 1, 1 .explicitcluster .pragma "x"; { }"""
    ).entry("k")
    places = [(p.name, p.offset, p.size, p.align) for p in function.parameters]
    assert places == [
        ("a", 0, 1, 1),
        ("b", 16, 20, 16),
        ("c", 40, 8, 8),
        ("d", 48, 2, 2),
        ("e", 56, 8, 8),
    ]
    assert [each.text for each in function.directives] == [
        ".maxntid 256, 1, 1",
        ".reqnctapercluster 2, 1, 1",
        ".explicitcluster",
        '.pragma "x";',
    ]
    assert function.linkage == "visible"


@pytest.mark.parametrize("written", ["k", "k ()", "k\n(\n)"])
def test_the_place_of_a_parameter_list(written):
    module = parse(f"{HEAD}.entry {written} {{ ret; }}")
    span = module.entry("k").parameters_span
    assert module.text[span.start : span.end] == written.partition("k")[2].strip()


def test_functions_declarations_and_aliases():
    module = parse(
        HEAD
        + """.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b) ;
        .weak .func f (.reg .u32 x) .noreturn { trap; }
        .func g(); .alias g, f; .visible .func .attribute(.unified(1,2)) h;"""
    )
    assert [(f.name, f.linkage, f.body is None) for f in module.functions] == [
        ("vprintf", "extern", True),
        ("f", "weak", False),
        ("g", "", True),
        ("h", "visible", True),
    ]
    assert module.functions[0].returns[0].name == "r"
    assert module.directives[0].text == ".alias g, f;"
    with pytest.raises(KeyError):
        module.entry("f")


def test_debug_sections_are_kept_whole():
    module = parse(
        HEAD
        + """.file 1 "a \\"b\\".cu", 12, 34
        .section .debug_str { $L__info: .b8 1,2,3 \n .b8 4 \n .b64 $L_end-$L_begin \n }
        .section\t.debug_line\t{\t}"""
    )
    assert [each.name for each in module.directives] == [".file", ".section", ".section"]
    assert module.directives[1].text.endswith("}")


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("", "line 1, column 1", "expected '.version'"),
        (".version x", "line 1, column 10", "a version"),
        (".version 9.0\n", "line 2, column 1", "no .target"),
        (HEAD + ".entry k() {\n  ld.u32 %r1 [%r2];\n}", "line 5, column 14", "expected ','"),
        (HEAD + ".entry k() { ret", "line 4, column 17", "expected an operand"),
        (HEAD + ".entry k() {", "line 4, column 13", "a statement"),
        (HEAD + "/* no end", "line 4, column 1", "comment does not end"),
        (HEAD + '.pragma "x;\n', "line 4, column 9", "string does not end"),
        (HEAD + ".global .u32 x = ;", "line 4, column 18", "initial value"),
        (HEAD + ".global .u33 x;", "line 4, column 9", "a type"),
        (HEAD + ".global .align 3 .u32 x;", "line 4, column 16", "power of two"),
        (HEAD + ".global .u32 x[-1];", "line 4, column 16", "negative"),
        (HEAD + ".global .u32 x[1/0];", "line 4, column 17", "no value"),
        (HEAD + ".nonsense", "line 4, column 1", "unknown directive"),
        (HEAD + ".entry k() { mov.u32 %r1, 0xZ; }", "line 4, column 27", "malformed number"),
        (HEAD + ".entry k() { mov.u32 %r1, 089; }", "line 4, column 27", "octal"),
        (HEAD + ".entry k() { mov.u32 %r1, 'a'; }", "line 4, column 27", "cannot stand"),
        (HEAD + ".entry k() { mov.u32 %r1, a[1]; }", "line 4, column 28", "array indexing"),
    ],
)
def test_errors_say_where_and_what(text, where, says):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert where in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "tail",
    [
        ".entry k() {" + "{" * 100_000,
        ".entry k() { mov.b32 %r1, " + "(" * 100_000,
        ".entry k() { mov.b32 " + "{" * 100_000,
        ".entry k() { mov.b32 %r1, " + "-" * 100_000 + "1;}",
        ".entry k() { ld.u32 %r1, " + "[%r1, " * 100_000,
        ".global .b8 x[" + "9999*" * 50_000 + "1];",
        ".global .b8 x" + "[9]" * 50_000 + ";",
        "/*" * 100_000,
        ".section .d " + "{" * 100_000,
        ".global .b8 x = " + "(" * 100_000,
    ],
)
def test_deep_nesting_is_an_error_and_quick(tail):
    begin = time.process_time()
    with pytest.raises(InputError):
        parse(HEAD + tail)
    assert time.process_time() - begin < 10  # 0.1 s alone; quadratic work would take minutes


def test_a_megabyte_parses_quickly():
    head, _, rest = KERNELS[-1].read_text().partition(".address_size 64")
    text = head + ".address_size 64" + rest * (1 + 1_000_000 // len(rest))
    begin = time.process_time()
    assert len(parse(text).functions) > 100
    assert time.process_time() - begin < 20  # about 0.5 s alone
