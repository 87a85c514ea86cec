"""The tools' programs: verified, compiled, and their object files are what the sources give."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from egpu.bpf.program import AttachKind, AttachPoint, Level
from egpu.codegen import compile_probe
from egpu.errors import InputError
from egpu.tools import build
from egpu.tools.constants import constant, with_constants
from egpu.tools.kernellat.times import COPIES, MAX_KERNELS, MEETING, TIMES, Losses
from egpu.tools.registry import TOOLS, find_tool, load_object, new_tool
from egpu.verifier import verify


@pytest.mark.parametrize("entry", TOOLS, ids=lambda entry: entry.name)
def test_programs_are_accepted_and_run_once_a_warp_or_block(entry):
    loaded = load_object(entry)
    assert loaded.programs
    for program in loaded.programs:
        (point,) = program.attach
        assert point.level is Level.WARP or point == AttachPoint(AttachKind.ENTRY, "*", Level.BLOCK)
        code = compile_probe(verify(program), point=point)
        # They count lanes, so the mask must be that of the site, taken before one lane is chosen.
        assert code.text.count("activemask.b32") >= 1
        assert "popc" in code.text or point.level is Level.BLOCK
        assert "%egpu_site_mask" not in code.text


def test_kernelcount_adds_without_fences():
    for program in load_object(find_tool("kernelcount")).programs:
        text = compile_probe(verify(program), point=program.attach[0]).text
        assert "red.relaxed.gpu.global.add.u64" in text
        assert "fence" not in text
        assert "atom." not in text


@pytest.mark.parametrize(("name", "dtype"), [("times", TIMES), ("meetings", MEETING)])
def test_kernellats_values_are_the_structs_of_its_source(name, dtype):
    (program,) = load_object(find_tool("kernellat")).programs
    assert program.attach[0].kind is AttachKind.EXIT
    spec = next(spec for spec in program.maps if spec.name == name)
    assert spec.value_size == dtype.itemsize
    row = spec.btf.resolve(spec.value_type)
    assert {
        member.name: (member.offset // 8, spec.btf.size_of(member.type)) for member in row.members
    } == {field: (offset, each.itemsize) for field, (each, offset) in dtype.fields.items()}
    if name == "times":
        assert spec.max_entries == MAX_KERNELS * 2 * COPIES


def test_kernellats_losses_are_its_struct():
    spec = next(spec for spec in load_object(find_tool("kernellat")).maps if spec.name == "lost")
    row = spec.btf.resolve(spec.value_type)
    assert [member.name for member in row.members] == [each.name for each in fields(Losses)]


def test_constants_are_set_before_the_verifier_sees_them():
    loaded = load_object(find_tool("kernellat"))
    changed = with_constants(loaded, {"every": 64})
    (before,), (after,) = loaded.programs, changed.programs
    assert after.maps == changed.maps
    assert [constant(m, "every") for m in (*loaded.maps, *changed.maps) if m.read_only] == [1, 64]
    # Without launches there is less to do, and the verifier knows.
    assert verify(after).cost.instructions < verify(before).cost.instructions
    with pytest.raises(InputError, match="no constant never"):
        with_constants(loaded, {"never": 1})
    with pytest.raises(InputError, match="does not fit into 4 bytes"):
        with_constants(loaded, {"every": 1 << 32})


def test_every_tool_has_a_session_side():
    for entry in TOOLS:
        tool = new_tool(entry)
        assert callable(tool.collect)
        assert callable(tool.report)


@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="the ziglang package is not here; another clang emits other code",
)
def test_object_files_are_up_to_date():
    """Compared in the checkout: the package under test may be an installed one."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")}
    command = [sys.executable, "-m", "egpu.tools.build", "--check"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def test_object_files_name_no_folder_of_the_machine():
    for row in build.sources():
        assert str(build.ROOT).encode() not in row.object_file.read_bytes()
