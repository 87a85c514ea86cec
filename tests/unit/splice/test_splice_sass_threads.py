"""One lane that adds what all lanes of a program of threads add."""

from pathlib import Path

from sass_corpus import assemble, cubin, disassembled, needs_tools

from egpu.bpf.object import read_object
from egpu.codegen import compile_probe
from egpu.maps import plan
from egpu.session.additive import additive_maps
from egpu.splice.sass import splice_sass
from egpu.splice.sass_lane import added_by_one, same_in_all
from egpu.verifier import verify

pytestmark = needs_tools

THREADS = Path(__file__).resolve().parents[3] / "bench" / "probes" / "threads.bpf.o"


def test_one_lane_adds_for_all_that_add_the_same():
    read = read_object(THREADS.read_bytes(), THREADS.name)
    verified = [verify(program) for program in read.programs]
    codes = tuple(compile_probe(each, point=each.program.attach[0]) for each in verified)
    layout = plan(read.maps, 132, additive=additive_maps(verified, read.maps))
    for code in codes:
        assert same_in_all(code, code.text.replace("__egpu", "_egpu"))
        for more in (
            "mov.u32 %r1, %tid.x;",
            "mov.u32 %r1, %laneid;",
            "mov.u64 %rd1, %clock64;",
            "mov.u64 %rd1, %globaltimer;",
            "ld.global.u32 %r1, [%rd1];",
            "@%p bra $there;",
            "red.relaxed.gpu.global.or.b64 [%rd1], %rd2;",
            "atom.relaxed.gpu.global.add.u64 %rd3, [%rd1], %rd2;",
        ):
            assert not same_in_all(code, f"{more}\n{code.text}"), more
    entry = codes[0]
    text = added_by_one(entry.kind, entry.text)
    assert "%warpid" not in text
    assert text.count("elect.sync") == 1
    original = cubin("plain", "90")
    made = splice_sass(original, "vector_add", codes, layout, assemble)
    lines = disassembled(made.image)["vector_add"]
    added = [line.name for line in lines[len(disassembled(original)["vector_add"]) :]]
    assert added.count("ELECT") == 2
    assert not {"UFLO.U32", "BSSY", "SGXT.U32"} & {*added}
    one = "mov.b64 %v, 1;\nred.relaxed.gpu.global.add.u64 [%a], %v;"
    assert "cvt.u64.u32 %egpu_sum, %egpu_many;\n@%egpu_one red" in added_by_one(entry.kind, one)
    three = added_by_one(entry.kind, one.replace(", 1;", ", 3;"))
    assert "mul.wide.u32 %egpu_sum, %egpu_many, 3;\n@%egpu_one red" in three
    any_value = added_by_one(entry.kind, one.replace("mov.b64 %v, 1;", "cvt.u64.u32 %v, %r;"))
    assert "mul.lo.u64 %egpu_sum, %egpu_sum, %v;\n@%egpu_one red" in any_value
