"""egpu inspect --why: whether the kernels of an image can be probed, tried for real."""

import json
from pathlib import Path

import pytest

from egpu.cli import main
from egpu.cli.why import _reasons
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.cache import Way
from egpu.session.trial import Trial

IMAGES = Path(__file__).parents[1] / "images"
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas on this machine")
TEXTURE = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry fine() { ret; }
.visible .entry traps() { trap; }
.visible .entry _Z6refuseILi3EEvPf(.param .u64 p)
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [p];
  call (%r1), outside, (%rd1);
  ret;
}
.extern .func (.param .b32 r) outside (.param .b64 p);
"""


def rows(capsys, path, *arguments):
    assert main(["inspect", str(path), "--json", *map(str, arguments)]) == 0
    document = json.loads(capsys.readouterr().out)
    return [row for member in document["members"] for row in member["kernels"]]


@needs_ptxas
@pytest.mark.parametrize("name", ["sm_80.cubin", "sm_90.cubin", "abi7_sm_90.cubin"])
def test_machine_code(capsys, name):
    found = rows(capsys, IMAGES / name, "--why")
    assert len(found) == 2
    for row in found:
        assert (row["why"]["way"], row["why"]["reason"]) == ("SASS", "")
        assert row["why"]["registers_before"] == row["registers"] > 0
        assert row["why"]["registers_after"] >= row["registers"]
        assert row["why"]["entry_sites"] == 1
        assert row["why"]["exit_sites"] >= 1


@needs_ptxas
def test_an_architecture_that_is_not_understood_says_so(capsys):
    for row in rows(capsys, IMAGES / "sm_120.cubin", "--why", "kernellat"):
        assert row["why"]["way"] == "no"
        assert "sm_120, which describes its code twice (.nv.capmerc)" in row["why"]["reason"]


LETTERS = """
.version 7.5
.target sm_75
.address_size 64
.visible .entry a() { ret; }
.visible .entry c() { ret; }
.visible .entry d() { ret; }
.visible .entry another() { ret; }
"""


def cubin(tmp_path, arch):
    path = tmp_path / f"sm_{arch}.cubin"
    path.write_bytes(Assembler(find_ptxas()).machine_code(LETTERS, f"sm_{arch}"))
    return path


@needs_ptxas
@pytest.mark.parametrize(
    ("arch", "said"),
    [(75, "sm_75; needs"), (100, "sm_100, which describes its code twice (.nv.capmerc); needs")],
)
def test_the_reason_is_the_machine_code_and_not_an_option_that_is_on(capsys, tmp_path, arch, said):
    found = rows(capsys, cubin(tmp_path, arch), "--why")
    assert len(found) == 4
    for row in found:
        expected = f"not supported: machine code for {said} PTX, or sm_80, sm_86, sm_89 or sm_90"
        assert row["why"]["reason"] == expected


def trial(kernel, reason):
    return Trial(kernel, Way.NONE, f"not supported: {reason}")


def test_names_of_kernels_are_replaced_where_they_stand_as_names():
    """Kernels may have names of one letter, or a word's."""
    trials = [trial(name, f"{name}, whose code has a decoder of sm_{name}.c") for name in "cd"]
    trials.append(trial("a", "an exit probe in a, with a call of a"))
    trials.append(trial("_Z1fv", "an exit probe in _Z1fv, which has no EXIT"))
    trials.append(trial("_Z1gv", "an exit probe in _Z1gv, which has no EXIT"))
    said = [part.text for part in _reasons(trials, ["c", "d", "a", "f", "g"])]
    assert said == [
        "Not: c: not supported: c, whose code has a decoder of sm_c.c",
        "Not: d: not supported: d, whose code has a decoder of sm_d.c",
        "Not: a: not supported: an exit probe in a, with a call of a",
        "Not: f, g: not supported: an exit probe in this kernel, which has no EXIT",
    ]
    alike = [trial(name, f"{name}, whose code is described twice") for name in "cd"]
    (paragraph,) = _reasons(alike, ["c", "d"])
    assert paragraph.text == "Not: c, d: not supported: this kernel, whose code is described twice"


@needs_ptxas
def test_the_text_that_a_cubin_keeps_is_shown(capsys):
    assert main(["inspect", str(IMAGES / "lineinfo_sm_90a.cubin"), "--json"]) == 0
    (member,) = json.loads(capsys.readouterr().out)["members"]
    assert member["kept_ptx"] is True
    assert all(row["exit_sites"] >= 1 for row in member["kernels"])
    assert main(["inspect", str(IMAGES / "sm_90.cubin"), "--json"]) == 0
    (member,) = json.loads(capsys.readouterr().out)["members"]
    assert member["kept_ptx"] is False
    assert all(row["exit_sites"] is None for row in member["kernels"])


def write(tmp_path, text):
    path = tmp_path / "k.ptx"
    path.write_text(text)
    return path


def test_ptx_that_is_refused_says_why(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("EGPU_PTXAS", "none")
    found = {row["name"]: row["why"] for row in rows(capsys, write(tmp_path, TEXTURE), "--why")}
    assert found["fine"]["way"] == "PTX"
    assert (found["fine"]["entry_sites"], found["fine"]["exit_sites"]) == (1, 1)
    assert found["traps"]["uncovered"]
    assert found["_Z6refuseILi3EEvPf"]["way"] == "no"
    assert "outside" in found["_Z6refuseILi3EEvPf"]["reason"]


def test_the_text(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("EGPU_PTXAS", "none")
    assert main(["inspect", str(write(tmp_path, TEXTURE)), "--why"]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "! Not: refuse<3>: " in text
    assert "traps: threads that end by trap" in text


def test_without_ptxas_machine_code_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("EGPU_PTXAS", "none")
    for row in rows(capsys, IMAGES / "sm_90.cubin", "--why"):
        assert "ptxas" in row["why"]["reason"]


def test_kernels_narrows(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("EGPU_PTXAS", "none")
    found = rows(capsys, write(tmp_path, TEXTURE), "--why", "--kernels", "f*")
    assert [row["why"]["reason"] for row in found] == [
        "", "no program asks for it", "no program asks for it"]  # fmt: skip


def test_names_are_shortened_unless_verbose(capsys, tmp_path):
    path = write(tmp_path, TEXTURE)
    assert main(["inspect", str(path)]) == 0
    assert "refuse<3>(" not in capsys.readouterr().out
    assert main(["inspect", str(path), "-v"]) == 0
    assert "refuse<3>(float*)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--why", "no_such_tool"], 2), (["--kernels", "x"], 2), (["--why", str(IMAGES)], 1)],
)
def test_wrong_usage(capsys, arguments, code):
    assert main(["inspect", str(IMAGES / "sm_90.cubin"), *arguments]) == code
    assert capsys.readouterr().out == ""
