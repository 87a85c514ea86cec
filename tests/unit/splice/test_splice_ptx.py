"""What a twin is: sites, launch block, what it takes along, what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from splice_probes import COUNT, COUNT_RELOCATIONS, ENTRY, EXIT, LAYOUT, code, count, value

from egpu.bpf.program import AttachKind
from egpu.codegen.device_code import RelocKind, Target
from egpu.errors import InputError, InternalError, UnsupportedError
from egpu.image.ptx import parse
from egpu.splice import splice_ptx

KERNELS = Path(__file__).parent / "kernels"
HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"
MARK = code("MARK;")  # a probe whose text is easy to find
MARK_EXIT = code("MARK;", kind=EXIT)


def twin(text, *probes, kernel="k", head=HEAD):
    return splice_ptx(parse(head + text), kernel, probes or (count(ENTRY), count(EXIT)), LAYOUT)


def corpus(name, kernel, *probes):
    return splice_ptx(parse((KERNELS / f"{name}.ptx").read_text()), kernel, probes, LAYOUT)


def squeeze(text):
    return " ".join(text.split())


# Sites


def test_several_probes_stand_in_order_each_in_its_scope():
    image = twin(".entry k() { .reg .b32 %r<2>; L: bra L; }", code("FIRST;"), code("SECOND;"))
    assert ".reg .b32 %r<2>; { FIRST; } { SECOND; } L: bra L;" in squeeze(image.text)
    assert (image.entry_sites, image.exit_sites) == (1, 0)


@pytest.mark.parametrize(
    "first", ["ret;", "L: ret;", "{ ret; }", '.pragma "nounroll"; L: ret;', "@%p1 ret; ret;"]
)
def test_entry_is_before_the_first_statement_with_code(first):
    image = twin(f".entry k() {{ .reg .pred %p<2>; {first} }}", MARK)
    assert f".reg .pred %p<2>; {{ MARK; }} {first}" in squeeze(image.text)


def test_every_exit_has_the_probe_in_its_place():
    image = twin(
        ".entry k() { .reg .pred %p<3>; @%p1 ret; @!%p2 exit; "
        "{ .reg .pred q; @q exit; } ret.uni; }",
        MARK_EXIT,
    )
    assert squeeze(image.text).endswith(
        ".entry k( .param .align 8 .b8 __egpu_launch[32] ) { .reg .pred %p<3>; "
        "@!%p1 bra __egpu_stay_0; { MARK; } ret; __egpu_stay_0: "
        "@%p2 bra __egpu_stay_1; { MARK; } exit; __egpu_stay_1: "
        "{ .reg .pred q; @!q bra __egpu_stay_2; { MARK; } exit; __egpu_stay_2: } "
        "{ MARK; } ret.uni; }"
    )
    assert (image.entry_sites, image.exit_sites, image.uncovered) == (0, 4, ())


def test_a_label_before_an_exit_stays_before_the_probe():
    image = twin(".entry k() { .reg .pred p; @p bra DONE; DONE: ret; }", MARK_EXIT)
    assert "DONE: { MARK; } ret;" in squeeze(image.text)


@pytest.mark.parametrize(
    ("body", "sites"),
    [
        ("mov.u32 %r1, 1;", 1),
        ("", 1),
        ("@p ret;", 2),
        ("bra L; L:", 1),
        ("{ mov.u32 %r1, 1; }", 1),
        ("ret; L:", 1),  # a debugger's label: nothing jumps there
        ("L: bra L;", 0),
        ("{ ret; }", 1),
        ("trap;", 0),
    ],
)
def test_falling_off_the_end_is_an_exit(body, sites):
    image = twin(f".entry k() {{ .reg .pred p; .reg .b32 %r<2>; {body} }}", MARK_EXIT)
    assert image.exit_sites == sites
    assert image.text.count("MARK;") == sites


def test_what_ends_a_thread_unprobed_is_listed():
    image = twin(
        ".func f() .noreturn { trap; }\n.func g() { brkpt; ret; }\n"
        ".entry k() { .reg .pred p;\n@p trap;\n call g;\n call f;\n}",
        MARK_EXIT,
    )
    assert image.uncovered == (
        "trap at line 4 in f",
        "brkpt at line 5 in g",
        "trap at line 7",
        "call of f, which does not return, at line 9",
    )
    assert image.exit_sites == 0
    assert twin(".entry k() { trap; }", MARK).uncovered == ()  # asked for entries only


def test_exit_in_a_function_is_refused_for_exit_probes_only():
    text = ".func f() { .reg .pred p;\n@p exit; ret; }\n.entry k() { call f; ret; }"
    with pytest.raises(UnsupportedError, match="f ends the thread at line 5"):
        twin(text, MARK_EXIT)
    assert "@p exit;" in twin(text, MARK).text
    unreached = ".func f() { exit; }\n.entry k() { ret; }"
    assert twin(unreached, MARK_EXIT).exit_sites == 1


def test_start_values_are_saved_after_the_entry_probes():
    image = twin(".entry k() { ret; }", MARK, value(RelocKind.START_TIME, at=EXIT))
    text = squeeze(image.text)
    assert "{ MARK; } .reg .b64 __egpu_start_time; mov.u64 __egpu_start_time, %globaltimer;" in text
    assert "mov.b64 %v, __egpu_start_time;" in text
    assert "clock64" not in text
    assert "clock64" in twin(".entry k() { ret; }", value(RelocKind.START_CLOCK, at=EXIT)).text
    assert "start" not in twin(".entry k() { ret; }", count(EXIT)).text


def test_the_start_is_unknown_at_the_entry():
    with pytest.raises(InputError, match="only exit probes"):
        twin(".entry k() { ret; }", value(RelocKind.START_TIME))


# The launch block


@pytest.mark.parametrize(
    ("written", "becomes", "offset", "parameters"),
    [
        ("k", "k(H) {", 0, 0),
        ("k()", "k( H ) {", 0, 0),
        ("k(.param .u32 a)", "k(.param .u32 a, H ) {", 8, 1),
        (
            "k(.param .u64 a, .param .u8 b // c\n)",
            "k(.param .u64 a, .param .u8 b // c , H ) {",
            16,
            2,
        ),
        ("k(.param .align 64 .b8 a[65])", "k(.param .align 64 .b8 a[65], H ) {", 72, 1),
    ],
)
def test_it_is_the_last_parameter(written, becomes, offset, parameters):
    image = twin(f".entry {written} {{ ret; }}", MARK)
    hidden = ".param .align 8 .b8 __egpu_launch[32]"
    assert becomes.replace("H", hidden) in squeeze(image.text).replace(" ,", ",").replace(
        "c,", "c ,"
    )
    assert (image.hidden_offset, image.parameters) == (offset, parameters)
    last = parse(image.text).entry("k").parameters[-1]
    assert (last.name, last.offset, last.size) == ("__egpu_launch", offset, 32)


def test_a_declaration_of_the_kernel_gets_it_too():
    image = twin(".entry k(.param .u32 a);\n.entry k(.param .u32 a) { ret; }", MARK)
    assert image.text.count("__egpu_launch[32]") == 2


def test_kernel_directives_stay():
    image = corpus("cluster", "pairs", count(ENTRY))
    for directive in (".maxntid 128", ".explicitcluster", ".reqnctapercluster 2, 1, 1"):
        assert directive in image.text
    assert ".minnctapersm 2" in corpus("plain", "switch_table", count(ENTRY)).text


def test_version_is_raised_only_when_needed_and_target_never():
    text = ".entry k() { ret; }"
    assert twin(text, code("A;", isa=(6, 3))).text.startswith(".version 7.0\n.target sm_80\n")
    assert twin(text, code("A;", isa=(7, 8))).text.startswith(".version 7.8\n.target sm_80\n")
    head = ".version 8.0\n.target sm_90a, texmode_unified, debug\n.address_size 64\n"
    image = twin(text, MARK, head=head)
    assert "\n.target sm_90a, texmode_unified\n" in image.text
    assert image.target == "sm_90a"


def test_names_do_not_clash_with_those_of_the_module():
    image = twin(".global .u32 __egpu_launch; .entry k() { st.global.u32 [__egpu_launch], 1; }")
    assert image.globals == ("__egpu_launch",)
    assert image.globals_table == "__egpu2_globals"
    assert ".param .align 8 .b8 __egpu2_launch[32]" in image.text


# What the twin takes along


def test_only_what_the_kernel_reaches_is_in_the_twin():
    image = twin(
        ".shared .b32 used; .shared .b32 unused; .extern .shared .b8 dynamic[];\n"
        ".extern .func vprintf (.param .b64 a);\n.func deep() { st.shared.b32 [used], 1; ret; }\n"
        ".func f() { call deep; call vprintf, (p); ret; }\n.func g() { ret; }\n"
        ".entry other() { ret; }\n.entry k() { mov.u64 %rd1, dynamic; call f; ret; }",
        MARK,
    )
    module = parse(image.text)
    assert [each.name for each in module.functions] == ["vprintf", "deep", "f", "k"]
    assert [each.name for each in module.variables] == ["used", "dynamic"]


def test_functions_reached_by_address_and_alias():
    image = twin(
        ".func real() { ret; }\n.func other();\n.alias other, real;\n.func h() { ret; }\n"
        ".entry k() { .reg .b64 a, b; mov.u64 a, h; mov.b64 b, a;"
        "P: .callprototype ()_ (); call b, P; call other; ret; }",
        MARK,
    )
    assert [each.name for each in parse(image.text).functions] == ["real", "other", "h", "k"]
    assert ".alias other, real;" in image.text


def test_the_rest_of_the_kernel_is_unchanged():
    original = (KERNELS / "plain.ptx").read_text()
    function = parse(original).entry("matmul")
    body = original[function.body.span.start : function.body.span.end]
    image = corpus("plain", "matmul", MARK)
    assert body == image.text[image.text.index("\n{\n", image.text.index("matmul(")) + 1 :].replace(
        "{\nMARK;\n}\n", ""
    ).rstrip("\n")


@pytest.mark.parametrize("name", ["module", "debug", "triton"])
def test_line_information_is_dropped_whole(name):
    kernel = {"module": "globals", "debug": "debugged", "triton": "add_kernel"}[name]
    image = corpus(name, kernel, MARK)
    names = [each.name for each in parse(image.text).directives]
    assert ".loc\t" not in image.text
    assert names == []


def test_bytes_that_are_not_text_do_not_reach_the_twin():
    image = twin(".entry k() { // \udcff\udcfe\nret; }", MARK)
    assert "// ??" in image.text
    image.text.encode()


# Refusals


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (".entry o() { ret; } .entry k() { mov.u64 %rd1, o; ret; }", "refers to kernel o"),
        (".extern .func f(); .entry k() { call f; ret; }", "calls f, which its image"),
        (".global .texref t; .entry k() { tex.1d.v4.f32.s32 {%f1}, [t, {%r1}]; }", "reference t"),
        (".global .surfref s; .entry k() { suq.width.b32 %r1, [s]; }", "texture reference s"),
        (
            ".func f() { ret; } .global .u64 v[1] = {f}; .entry k() { ld.global.u64 %rd1, [v]; }",
            "address of function f from the variable v",
        ),
        (
            ".entry k(.param .u64 p) { ld.param.u64 %rd1, [p]; P: .callprototype ()_ ();\n"  # noqa: ISC004
            "call %rd1, P; ret; }",
            "pointer from memory at line 5",
        ),
        (
            ".func f() { ret; } .entry k() { mov.u64 %rd1, f; mov.u64 %rd2, %rd1;"  # noqa: ISC004
            "ld.global.v2.u64 {%rd1, %rd3}, [%rd4]; P: .callprototype ()_ (); call %rd2, P; ret; }",
            "pointer from memory at line 4",
        ),
        (".entry k() { .global .u32 x; st.global.u32 [x], 1; ret; }", ".global variable x inside"),
    ],
)
def test_what_ties_a_kernel_to_its_module_is_refused(text, says):
    with pytest.raises(UnsupportedError, match=says):
        twin(text)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (".version 7.0\n.target sm_61\n.address_size 64\n", "PTX for sm_61"),
        (".version 7.0\n.target sm_80\n.address_size 32\n", "32-bit"),
        (".version 7.0\n.target sm_80\n", "32-bit"),
    ],
)
def test_targets_that_probes_cannot_run_on_are_refused(head, says):
    with pytest.raises(UnsupportedError, match=says):
        twin(".entry k() { ret; }", head=head)


def test_a_missing_kernel_is_named_with_those_there_are():
    with pytest.raises(InputError, match=r"no kernel q; it has k, l"):
        twin(".entry k() { ret; } .entry l() { ret; }", kernel="q")


@pytest.mark.parametrize(
    ("probe", "error", "says"),
    [
        (code("A;", kind=AttachKind.LAUNCH), UnsupportedError, "launch probes"),
        (replace(MARK, target=Target.HOST), InternalError, "compiled for host"),
        (code(COUNT, COUNT_RELOCATIONS[0]), InternalError, "undeclared symbol __egpu_map_0"),
        (value(RelocKind.MAP, 9), InternalError, "map 9 of 2"),
    ],
)
def test_probes_that_cannot_be_spliced_are_refused(probe, error, says):
    with pytest.raises(error, match=says):
        twin(".entry k() { ret; }", probe)


def test_a_twin_needs_a_probe():
    with pytest.raises(InternalError, match="without a probe"):
        splice_ptx(parse(HEAD + ".entry k() { ret; }"), "k", (), LAYOUT)
