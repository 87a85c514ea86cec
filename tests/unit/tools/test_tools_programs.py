"""The tools' programs: verified, compiled, and their object files are what the sources give."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from egpu.bpf.program import AttachKind, Level
from egpu.codegen import compile_probe
from egpu.tools import build
from egpu.tools.kernellat.merge import RECORD
from egpu.tools.registry import TOOLS, find_tool, load_object, new_tool
from egpu.verifier import verify


@pytest.mark.parametrize("entry", TOOLS, ids=lambda entry: entry.name)
def test_programs_are_accepted_and_run_once_a_warp(entry):
    loaded = load_object(entry)
    assert loaded.programs
    for program in loaded.programs:
        (point,) = program.attach
        assert point.level is Level.WARP
        code = compile_probe(verify(program), point=point)
        # They count lanes, so the mask must be that of the site, taken before one lane is chosen.
        assert code.text.count("activemask.b32") >= 1
        assert "popc" in code.text
        assert "%egpu_site_mask" not in code.text


def test_kernelcount_adds_without_fences():
    for program in load_object(find_tool("kernelcount")).programs:
        text = compile_probe(verify(program), point=program.attach[0]).text
        assert "red.relaxed.gpu.global.add.u64" in text
        assert "fence" not in text
        assert "atom." not in text


def test_kernellat_record_is_the_struct_of_its_source():
    (program,) = load_object(find_tool("kernellat")).programs
    assert program.attach[0].kind is AttachKind.EXIT
    events = next(spec for spec in program.maps if spec.name == "events")
    assert events.value_size == RECORD.itemsize == 48
    row = events.btf.resolve(events.value_type)
    fields = {
        member.name: (member.offset // 8, events.btf.size_of(member.type)) for member in row.members
    }
    assert fields == {
        name: (offset, dtype.itemsize) for name, (dtype, offset) in RECORD.fields.items()
    }


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
