"""Probes: what their text looks like, what is refused, that ptxas takes them."""

import re
from dataclasses import replace

import pytest
from codegen_programs import (
    ARCHES,
    ARRAY,
    COUNT,
    OUTPUT,
    PER_SM,
    RING,
    assemble_ptx,
    entry,
    executable,
    in_kernel,
    leave,
    needs_ptxas,
    probe,
    same_as_golden,
)

from egpu.bpf.block_exits import with_arrival
from egpu.bpf.context import FIELDS
from egpu.bpf.helpers import HELPERS
from egpu.bpf.own_maps import with_own_maps
from egpu.bpf.program import MEMORY_CAPTURE, AttachKind, AttachPoint, Level
from egpu.codegen import (
    Launch,
    Relocation,
    RelocKind,
    Target,
    compile_executor_ptx,
    compile_probe,
    run_host,
)
from egpu.codegen.calls import helper_bodies
from egpu.errors import InputError, UnsupportedError, VerifierError
from egpu.verifier import verify

ONE = replace(ARRAY, max_entries=1)  # what map_index_value reaches directly
OFFSETS = {row.name: row.offset for row in FIELDS}
RESERVE = """
lddw %r1, map_index 0
mov %r2, 20
mov %r3, 0
call 131
jeq %r0, 0, done
stdw [%r0], 7
stw [%r0+16], 9
mov %r1, %r0
mov %r2, 0
call {end}
done:
mov %r0, 0
exit
"""
LOCAL = """
stdw [%r10-8], 0
call 7
mov %r1, %r10
and %r0, 7
add %r1, %r0
stb [%r1-8], 1
ldxb %r0, [%r10-5]
exit
"""
UPDATE = """
stw [%r10-4], 1
stdw [%r10-24], 1
stw [%r10-16], 1
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
mov %r3, %r10
add %r3, -24
mov %r4, 0
call 2
exit
"""


def field_reads(names):
    """A program that adds up context fields and counts the sum."""
    text = "mov %r6, 0\n"
    for name in names:
        row = next(row for row in FIELDS if row.name == name)
        text += f"ldx{'dw' if row.size >= 8 else 'w'} %r7, [%r1+{row.offset}]\nadd %r6, %r7\n"
    return text + "lddw %r2, map_index_value 0\nlock add [%r2], %r6\nmov %r0, 0\nexit"


def code_of(text, *maps, point=None):
    at = point or entry()
    return compile_probe(probe(text, *maps, points=(at,)), point=at)


def lines_without_tag(code):
    return re.sub(rf"e{code.digest[:8]}", "e0", code.text)


@pytest.mark.parametrize(
    ("name", "text", "maps", "point"),
    [
        ("count_thread", COUNT, (PER_SM,), entry()),
        ("count_warp", COUNT, (PER_SM,), entry(Level.WARP)),
        ("count_block", COUNT, (PER_SM,), entry(Level.BLOCK)),
        ("return_only", "mov %r0, 0\nexit", (), entry()),
        ("parameters", field_reads(["parm1", "parm6", "launch_id"]), (ONE,), entry()),
        ("durations", field_reads(["start_time", "globaltimer"]), (ONE,), leave()),
    ],
)
def test_golden(name, text, maps, point):
    same_as_golden(f"probe_{name}", lines_without_tag(code_of(text, *maps, point=point)))


def test_counting_is_one_atomic_without_branches_or_stack():
    text = code_of(COUNT, PER_SM).text
    assert text.count("red.relaxed.gpu.global.add.u64") == 1
    assert "ld.relaxed.cta" not in text
    assert ".local" not in text
    assert "bar.warp.sync" not in text


def test_relocations_are_what_the_text_names():
    for text, maps in ((COUNT, (PER_SM,)), (OUTPUT.format(size=20), (RING,))):
        code = code_of(text, *maps)
        named = set(re.findall(r"__egpu_\w+", code.text))
        assert named == {relocation.symbol for relocation in code.relocations}
        for relocation in code.relocations:
            statement = rf"^mov\.b64 %\w+, {relocation.symbol};$"
            found = re.findall(statement, code.text, re.MULTILINE)
            assert len(found) == code.text.count(f"{relocation.symbol};")


def test_every_probe_of_a_captured_launch_asks_whether_it_is_on():
    for point in (entry(), entry(Level.WARP), entry(Level.BLOCK), leave(), leave(Level.WARP)):
        verified = probe("mov %r0, 0\nexit", points=(point,))
        captured = compile_probe(verified, point=point, launch=Launch.CAPTURED)
        assert Relocation(RelocKind.LAUNCH, 0) in captured.relocations
        assert "ld.relaxed.gpu.global.b32" in captured.text
        assert "+64];" in captured.text
        direct = compile_probe(verified, point=point)
        assert not direct.relocations
        assert "ld." not in direct.text
        assert direct.digest != captured.digest


def test_text_leaves_by_its_end_alone():
    branchy = "call 7\njgt %r0, 5, +2\nmov %r0, 1\nexit\ncall 8\nexit"
    code = code_of(branchy)
    assert not re.search(r"\b(ret|exit|trap|call)\b", code.text)
    assert ".param" not in code.text


def test_divergence_is_undone():
    helper = "call 7\nmov %r6, %r0\nlddw %r2, map_index_value 0\nmov %r1, 1\n"
    text = helper + "jgt %r6, 5, +1\nlock add [%r2], %r1\nmov %r0, 0\nexit"
    last = code_of(text, ONE).text.rstrip().splitlines()[-1]
    assert re.fullmatch(r"bar\.warp\.sync %\w+_g0;", last)


def test_digests_tell_probes_apart():
    codes = [
        code_of(COUNT, PER_SM),
        code_of(COUNT, PER_SM, point=entry(Level.WARP)),
        code_of(COUNT, PER_SM, point=leave()),
        code_of(COUNT.replace("add %r1, 3", "add %r1, 4"), PER_SM),
    ]
    assert len({code.digest for code in codes}) == len(codes)
    assert code_of(COUNT, PER_SM) == codes[0]
    names = [set(re.findall(r"%e\w+", code.text)) for code in codes]
    assert not names[0] & names[1]


def test_every_helper_with_a_body_has_one():
    assert {row.body for row in HELPERS.values() if row.body} == helper_bodies()


def test_a_variable_place_on_the_stack_needs_memory():
    code = code_of(LOCAL)
    assert re.search(
        r"^\.local \.align 8 \.b8 egpu_e[0-9a-f]+_local\[8\];$", code.text, re.MULTILINE
    )


CALLBACK = """
stdw [%r10-8], 0
call 511
mov %r1, %r0
lddw %r2, code body
mov %r3, %r10
add %r3, -8
mov %r4, 0
call 181
mov %r0, 0
exit
body:
ldxdw %r3, [%r2]
add %r3, %r1
stxdw [%r2], %r3
mov %r0, 0
exit
"""


def all_codes():
    yield code_of(LOCAL)
    fields = [row.name for row in FIELDS if row.name != "param" and not row.exit_only]
    at_exit = [row.name for row in FIELDS if row.exit_only]
    yield code_of(field_reads(fields), ONE)
    yield code_of(field_reads(at_exit), ONE, point=leave(Level.WARP))
    yield code_of(COUNT, PER_SM, point=entry(Level.BLOCK))
    yield code_of(OUTPUT.format(size=20), RING)
    yield code_of(RESERVE.format(end=132), RING)
    yield code_of(RESERVE.format(end=133), RING, point=leave())
    yield code_of(UPDATE, ARRAY)
    yield code_of(CALLBACK)
    for number in (5, 7, 8, 14, 502, 506, 509, 510, 511):
        yield code_of(f"call {number}\nmov %r0, 0\nexit")
    for number in (503, 504, 505, 508):
        pointers = "".join(f"mov %r{n}, %r10\nadd %r{n}, -{8 * n}\n" for n in (1, 2, 3))
        yield code_of(f"{pointers}call {number}\nldxdw %r0, [%r10-8]\nmov %r0, 0\nexit")
    yield code_of("lddw %r1, map_index 0\nmov %r2, 1\ncall 134\nexit", RING)
    for size in ("dw", "w", "h", "b"):
        load = f"lddw %r1, map_index_value 0\nldx{size} %r0, [%r1]\nst{size} [%r1], 1\nexit"
        yield code_of(load, ONE)


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_probes(arch, tmp_path):
    assemble_ptx(in_kernel(*all_codes()), tmp_path, arch)


@pytest.mark.parametrize("level", [Level.THREAD, Level.WARP])
def test_levels_at_exit(level):
    assert code_of("mov %r0, 0\nexit", point=leave(level)).level is level


def test_the_last_exit_of_a_block_is_found_by_one_lane_of_each_group():
    point = leave(Level.BLOCK)
    program = with_own_maps(probe("mov %r0, 0\nexit", points=(point,)).program)
    made = compile_probe(verify(with_arrival(program, 0)), point=point)
    assert made.level is Level.BLOCK
    lines = made.text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("activemask"))
    assert "%lanemask_lt" in lines[first + 1]
    # The lanes that are counted are those of whom one was chosen.
    assert sum("activemask" in line for line in lines) == 1
    mask = re.match(r"activemask\.b32 (%\S+);", lines[first])[1]
    counted = next(line.split()[-1] for line in lines if "popc.b32" in line)
    assert f"mov.u32 {counted[:-1]}, {mask};" in lines


def test_only_verified_programs():
    program = probe("mov %r0, 0\nexit").program
    for compiled in (
        lambda: compile_probe(program, point=entry()),
        lambda: compile_executor_ptx(program),
        lambda: run_host(program, bytearray()),
    ):
        with pytest.raises(TypeError, match="VerifiedProgram"):
            compiled()


def test_executor_programs_are_not_attached():
    with pytest.raises(InputError, match="cannot be attached"):
        compile_probe(executable("mov %r0, 0\nexit"), point=entry())


def test_where_a_program_does_not_belong():
    with pytest.raises(InputError, match="none of its attach points"):
        compile_probe(probe("mov %r0, 0\nexit"), point=leave())
    with pytest.raises(InputError, match="no attach point"):
        compile_probe(probe("mov %r0, 0\nexit", points=()), point=entry())
    with pytest.raises(UnsupportedError, match="target host"):
        compile_probe(probe("mov %r0, 0\nexit"), point=entry(), target=Target.HOST)
    point = AttachPoint(AttachKind.LAUNCH, "*")
    with pytest.raises(UnsupportedError, match="launch probes"):
        code_of("mov %r0, 0\nexit", point=point)


def test_executor_has_no_maps():
    text = "lddw %r1, map_index_value 0\nldxdw %r0, [%r1]\nexit"
    with pytest.raises(UnsupportedError, match="__egpu_launch_0"):
        compile_executor_ptx(executable(text, ONE))


def test_memory_capture_reads_the_text_of_its_instruction():
    point = AttachPoint(AttachKind.INSTRUCTION, "*", detail=MEMORY_CAPTURE)
    text = "ldxdw %r0, [%r1+8]\nldxb %r2, [%r1+511]\nadd %r0, %r2\nexit"
    made = compile_probe(probe(text, points=(point,)), point=point)
    lines = {each.index for each in made.relocations if each.kind is RelocKind.LINE}
    assert lines <= {8, 504}
    assert made.detail == MEMORY_CAPTURE
    with pytest.raises(VerifierError, match="no context field holds 4 bytes at offset 512"):
        probe("ldxw %r0, [%r1+512]\nexit", points=(point,))
