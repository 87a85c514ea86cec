"""The rules of the house that no linter knows (docs/architecture.md)."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "egpu"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "_native" not in path.parts)

MAX_LINES = 500
# Longer modules, each with its reason.  A row that is no longer needed fails.
LONG_MODULES = {}

EMPTY_NAMES = {"utils", "util", "common", "misc", "helpers_misc", "manager", "stuff"}

# What only a machine of ours would know.
MACHINE_PATH = re.compile(
    r"/(?:work|root|Users)/[a-z]|/home/(?!user/)[a-z]|/tmp/[A-Z]|/opt/(?:pypi|wheels)"
)
TEXT_SUFFIXES = {".py", ".c", ".h", ".cu", ".cpp", ".md", ".toml", ".txt", ".ptx", ".S", ".in", ""}


def tracked_files():
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def relative(path):
    return path.relative_to(ROOT).as_posix()


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_there_are_modules():
    assert len(MODULES) > 30


def test_modules_are_short():
    lengths = {relative(path): len(path.read_text().splitlines()) for path in MODULES}
    long = {name for name, lines in lengths.items() if lines > MAX_LINES}
    assert long - LONG_MODULES.keys() == set()
    assert LONG_MODULES.keys() - long == set(), "these rows are no longer needed"


def test_no_name_is_given_twice():
    """A second function of one name hides the first, and nobody calls that any more."""
    twice = []
    for path in tracked_files():
        if path.suffix != ".py":
            continue
        for scope in ast.walk(ast.parse(path.read_text())):
            if not isinstance(scope, (ast.Module, ast.ClassDef)):
                continue
            named = [
                each for each in scope.body if isinstance(each, (ast.FunctionDef, ast.ClassDef))
            ]
            plain = [each.name for each in named if not each.decorator_list]
            twice += [f"{relative(path)}: {name}" for name in {*plain} if plain.count(name) > 1]
    assert twice == []


def test_names_say_what_a_module_is_for():
    files = [*tracked_files(), *MODULES]
    named = {relative(path) for path in files if path.stem.lower() in EMPTY_NAMES}
    folders = {
        relative(path) for path in files if {p.lower() for p in path.parent.parts} & EMPTY_NAMES
    }
    assert named | folders == set()


def test_no_machine_paths():
    found = []
    for path in tracked_files():
        if path.suffix not in TEXT_SUFFIXES or not path.is_file() or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()}")
    assert found == []


def test_no_swallowed_exceptions():
    """`except …: pass` hides a failure; contextlib.suppress names what may be ignored."""
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                everything = node.type is None
                silent = all(isinstance(child, ast.Pass) for child in node.body)
                if everything or silent:
                    found.append(f"{relative(path)}:{node.lineno}")
    assert found == []


def test_public_functions_have_docstrings():
    """Exported from a package means public, and public means documented."""
    code = (
        "import importlib, inspect, pkgutil, egpu\n"
        "for info in pkgutil.iter_modules(egpu.__path__, 'egpu.'):\n"
        "    if info.ispkg:\n"
        "        module = importlib.import_module(info.name)\n"
        "        for name in getattr(module, '__all__', ()):\n"
        "            value = getattr(module, name)\n"
        "            if inspect.isroutine(value) or inspect.isclass(value):\n"
        "                if not (value.__doc__ or '').strip():\n"
        "                    print(f'{info.name}.{name}')\n"
    )
    assert run_python(code).split() == []


def test_importing_egpu_loads_no_native_library():
    """Importing starts nothing and maps no library of ours, LLVM or a driver (style rule 19)."""
    code = (
        "import sys, threading\n"
        "import egpu\n"
        "maps = open('/proc/self/maps').read()\n"
        "for word in ('_native', 'llvmlite', 'libcuda', 'libLLVM', 'numpy'):\n"
        "    if word in maps: print('mapped', word)\n"
        "for name in ('llvmlite', 'numpy', 'click', 'rich'):\n"
        "    if name in sys.modules: print('imported', name)\n"
        "if threading.active_count() != 1: print('threads')\n"
    )
    assert run_python(code) == ""


def test_public_names_are_documented():
    """Every name of egpu.__all__ stands in the guide's API section, and no other name does."""
    exported = set(run_python("import egpu\nfor n in egpu.__all__: print(n)").split())
    guide = (ROOT / "docs" / "guide.md").read_text()
    section = re.search(r"^## Python API\n(.*?)(?=^## )", guide, re.MULTILINE | re.DOTALL)
    assert section is not None
    documented = set(re.findall(r"^\| `egpu\.(\w+)", section[1], re.MULTILINE))
    assert documented == exported


def test_context_table_of_the_guide_is_complete():
    """docs/guide.md lists the context fields as egpu.bpf.context has them."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import tables  # noqa: PLC0415 - lies beside the documents
    finally:
        sys.path.pop(0)
    assert tables.stale() == []


def test_version_is_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (
        run_python("from egpu.version import VERSION; print(VERSION)").strip() == project["version"]
    )


def test_header_is_up_to_date():
    from egpu.bpf.header import header_text  # noqa: PLC0415

    assert (ROOT / "bpf" / "include" / "egpu.bpf.h").read_text() == header_text()


def test_only_the_verifier_issues_verified_programs():
    """verifier/verified.py: `_issue` is called by the verifier's last stage and nowhere else."""
    users = {
        relative(path)
        for path in MODULES
        if re.search(r"\b_issue\b", path.read_text()) and path.name != "verified.py"
    }
    assert all(name.startswith("src/egpu/verifier/") for name in users)
    assert len(users) == 1
