"""Symbols of a probe become loads and numbers of one kernel and one layout."""

import pytest
from splice_probes import LAYOUT, code, value

from egpu.codegen.device_code import Relocation, RelocKind
from egpu.errors import InputError, InternalError, UnsupportedError
from egpu.image.ptx import parse
from egpu.image.ptx.syntax import Parameter
from egpu.splice import splice_ptx
from egpu.splice.ptx_relocate import split_bytes

HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"
PARAMETERS = (
    ".param .u32 a, .param .u64 b, .param .u8 c, .param .align 2 .b8 d[6], "
    ".param .align 16 .b8 e[20]"
)


def spliced(probe, parameters=PARAMETERS, body="ret;"):
    module = parse(f"{HEAD}.entry k({parameters}) {{ {body} }}")
    text = splice_ptx(module, "k", (probe,), LAYOUT).text
    return text[text.index(".reg .b64 %a, %v;") : text.index(" st.global.b64 [%a]")].split(
        "[__egpu_launch+0]; "
    )[1]


@pytest.mark.parametrize(
    ("kind", "index", "becomes"),
    [
        (RelocKind.MAP, 1, "mov.b64 %v, 24576;"),
        (RelocKind.MAP_STRIDE, 0, "mov.b64 %v, 128;"),
        (RelocKind.RING_DATA, 1, "mov.b64 %v, 65536;"),
        (RelocKind.RING_SIZE, 1, "mov.b64 %v, 16384;"),
        (RelocKind.RING_SLOTS, 1, "mov.b64 %v, 512;"),
        (RelocKind.SM_SLOTS, 0, "mov.b64 %v, 132;"),
        (RelocKind.PARAM_SIZE, 0, "mov.b64 %v, 52;"),
        (RelocKind.PARAMETER, 0, "ld.param.u32 %v, [a+0];"),
        (RelocKind.PARAMETER, 1, "ld.param.u64 %v, [b+0];"),
        (RelocKind.PARAMETER, 2, "ld.param.u8 %v, [c+0];"),
        (RelocKind.PARAMETER, 4, "ld.param.u64 %v, [e+0];"),
        (RelocKind.LAUNCH, 16, "ld.param.u64 %v, [__egpu_launch+16];"),
        (RelocKind.LAUNCH, 28, "ld.param.u32 %v, [__egpu_launch+28];"),
        (RelocKind.PARAM_BYTES, 8, "ld.param.u64 %v, [b+0];"),
        (RelocKind.PARAM_BYTES, 400, "mov.b64 %v, 0;"),
        (RelocKind.PARAM_BYTES, 48, "ld.param.u32 %v, [e+16];"),
    ],
)
def test_one_load_or_number(kind, index, becomes):
    assert spliced(value(kind, index)) == becomes


def test_a_structure_is_loaded_as_its_alignment_allows():
    assert spliced(value(RelocKind.PARAMETER, 3)) == (
        "{ .reg .b64 __egpu_word; ld.param.u16 %v, [d+0]; "
        "ld.param.u16 __egpu_word, [d+2]; shl.b64 __egpu_word, __egpu_word, 16; "
        "or.b64 %v, %v, __egpu_word; "
        "ld.param.u16 __egpu_word, [d+4]; shl.b64 __egpu_word, __egpu_word, 32; "
        "or.b64 %v, %v, __egpu_word; }"
    )


def test_bytes_over_a_gap():
    assert spliced(value(RelocKind.PARAM_BYTES, 0)) == "ld.param.u32 %v, [a+0];"
    assert spliced(value(RelocKind.PARAM_BYTES, 4)) == (
        "ld.param.u32 %v, [b+0]; shl.b64 %v, %v, 32;"
    )


@pytest.mark.parametrize("begin", range(60))
@pytest.mark.parametrize("size", [1, 4, 8])
def test_pieces_are_exactly_the_bytes_asked_for(begin, size):
    """Against a byte-by-byte model: each byte of the window that a parameter has, once."""
    parameters = parse(f"{HEAD}.entry k({PARAMETERS}) {{ ret; }}").entry("k").parameters
    owner = {
        parameter.offset + at: (parameter.name, at)
        for parameter in parameters
        for at in range(parameter.size)
    }
    aligns = {parameter.name: parameter.align for parameter in parameters}
    found = {}
    for piece in split_bytes(parameters, begin, size):
        assert piece.size in (1, 2, 4, 8)
        assert piece.offset % piece.size == 0
        assert piece.size <= aligns[piece.name]
        for at in range(piece.size):
            position = piece.shift // 8 + at
            assert position not in found
            found[position] = (piece.name, piece.offset + at)
    assert found == {at: owner[begin + at] for at in range(size) if begin + at in owner}


def test_pieces_of_an_odd_structure():
    pieces = list(split_bytes((Parameter("p", "b8", 7, 4, 0),), 0, 8))
    assert [(piece.offset, piece.size) for piece in pieces] == [(0, 4), (4, 2), (6, 1)]


def test_a_parameter_past_the_list_names_the_number_there_are():
    with pytest.raises(InputError, match=r"probe probe: reads parameter 6, but kernel k has 5"):
        spliced(value(RelocKind.PARAMETER, 5))


@pytest.mark.parametrize("body", [".reg .b32 a; ret;", "{ .reg .pred a; ret; }", "bra a; a: ret;"])
def test_a_parameter_name_that_means_something_else_inside_is_refused(body):
    with pytest.raises(UnsupportedError, match="declares its parameter a again"):
        spliced(value(RelocKind.PARAMETER, 0), body=body)


def test_ranges_hide_parameters_too():
    with pytest.raises(UnsupportedError, match="declares its parameter p3 again"):
        spliced(value(RelocKind.PARAMETER, 0), ".param .u32 p3", ".reg .b32 p<9>; ret;")
    with pytest.raises(UnsupportedError, match="register's name"):
        spliced(value(RelocKind.PARAMETER, 0), ".param .u32 %p3")


@pytest.mark.parametrize(
    "text",
    [
        "add.s64 %v, %v, __egpu_launch_0;",
        "mov.b64 %v, __egpu_launch_0+8;",
        "@%p1 mov.b64 %v, __egpu_launch_0;",
        "mov.b32 %v, __egpu_launch_0;",
    ],
)
def test_a_loaded_symbol_stands_only_in_a_move(text):
    with pytest.raises(InternalError, match="outside mov"):
        spliced(code(text, Relocation(RelocKind.LAUNCH, 0)))
