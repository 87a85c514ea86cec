"""What --explain and --verbose add to a report."""

from egpu.export.text import render_text
from egpu.report import Paragraph, Report, Weight
from egpu.session import Explanation, Way
from egpu.tools.explain import with_explanations, with_full_names

BARE = Report(
    "mine/1", (Paragraph("above"), Paragraph("its own cost", Weight.COST)), {"kernels": []}
)


def row(kernel, way=Way.NONE, why_not=(), **fields):
    return Explanation(kernel, way, 9, 8, tuple(why_not), **fields)


def test_each_kernel_has_a_line_before_the_cost():
    found = with_explanations(
        BARE,
        [
            row("_Z6matmulILi16EEvPKf", Way.PTX, registers_before=18, registers_after=32,
                blocks_before=8, blocks_after=6, local_after=16, entry_sites=1, exit_sites=2,
                build_ms=2.25),
            row("spinning", Way.MACHINE_CODE, ["twin has fewer resident blocks"], cached=True),
            row("other", why_not=["no link asks for it"]),
        ],
    )  # fmt: skip
    lines = render_text(found).splitlines()
    assert all(len(line) <= 80 for line in lines)
    matmul = next(line for line in lines if line.startswith("matmul<16>"))
    assert " ".join(matmul.split()) == "matmul<16> PTX 1+2 18 -> 32 8 -> 6 0 -> 16 2.2 ms"
    assert "cached" in next(line for line in lines if line.startswith("spinning"))
    assert "Not probed: spinning: twin has fewer resident blocks" in lines
    assert lines[-1] == "its own cost"
    assert [each["way"] for each in found.data["explain"]] == ["PTX", "SASS", "no"]
    assert found.data["explain"][0]["name"] == "matmul<16>(float const*)"


def test_many_kernels_are_cut_in_the_text_only():
    rows = [row(f"k{number}", why_not=["no PTX in it"]) for number in range(100)]
    found = with_explanations(BARE, rows)
    text = " ".join(render_text(found).split())
    assert "and 40 more; --json has them" in text
    assert "k5 and 54 more: no PTX in it" in text
    assert len(found.data["explain"]) == 100


def test_names_in_full_are_those_that_were_shortened():
    kernels = [
        {"name": "a(int)", "short_name": "a"},
        {"name": "b", "short_name": "b"},
        {"name": "ns::c<1>(int)", "short_name": "ns::c<1>"},
    ]
    report = Report("mine/1", BARE.parts, {"kernels": kernels})
    text = render_text(with_full_names(report))
    assert "a is a(int)" in text
    assert "ns::c<1> is ns::c<1>(int)" in text
    assert "b is" not in text
    assert text.rstrip().endswith("its own cost")
    assert with_full_names(BARE) is BARE
