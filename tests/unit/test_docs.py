"""The documents say what is so: their programs are accepted, their links and names exist."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from egpu.bpf.object import read_object
from egpu.cli.app import COMMANDS
from egpu.verifier import verify

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
C_BLOCK = re.compile(r"^```c\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")
COMMAND = re.compile(r"\begpu ([a-z][a-z-]+)\b")
BLOCKS = [(page.name, block) for page in PAGES for block in C_BLOCK.findall(page.read_text())]


def test_there_is_a_program_in_the_readme_and_the_guide():
    assert {"README.md", "guide.md"} <= {name for name, _ in BLOCKS}


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no compiler from C to BPF")
@pytest.mark.parametrize(("page", "source"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_programs_compile_and_are_accepted(page, source, tmp_path):
    (tmp_path / "probe.bpf.c").write_text(source)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"]
    command += ["-mcpu=v3", "-O2", "-g", "-I", str(ROOT / "bpf" / "include")]
    command += ["-c", "probe.bpf.c", "-o", "probe.bpf.o"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    programs = read_object((tmp_path / "probe.bpf.o").read_bytes(), page).programs
    assert programs
    for program in programs:
        verify(program)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_commands_exist():
    """In code, `egpu WORD` names a command."""
    code = re.compile(r"^```\n(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
    named = {
        (page.name, word)
        for page in PAGES
        for blocks in code.findall(page.read_text())
        for block in blocks
        for line in block.splitlines()
        if line.startswith("egpu ") and not line.startswith("egpu on ")  # a report's last line
        for word in COMMAND.findall(line)[:1]
    }
    assert {word for _, word in named} >= {"run", "doctor", "verify", "inspect", "tools"}
    assert {(page, word) for page, word in named if word not in COMMANDS} == set()


def test_environment_variables_are_documented():
    text = "".join(path.read_text() for path in (ROOT / "src" / "egpu").rglob("*.py"))
    read = set(re.findall(r'environ(?:\.get\(|\[)"(EGPU_[A-Z_]+)"', text))
    guide = (ROOT / "docs" / "guide.md").read_text()
    documented = set(re.findall(r"^\| `(EGPU_[A-Z_]+)", guide, re.MULTILINE))
    assert read == documented
