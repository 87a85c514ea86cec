"""Every rule, regression class and title of the SIMT suite has its tests: titles.txt names them."""

import ast
import functools
from typing import NamedTuple

import pytest
from test_verifier_simt import COLLECTIVE
from verifier_programs import END, ENTRY, LOOKUP, MAPS, ROOT, VALUE, read_pairs

from egpu.bpf.asm import assemble
from egpu.bpf.helpers import HELPERS
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType, traits
from egpu.bpf.object import read_object
from egpu.bpf.program import MapSpec
from egpu.errors import VerifierError
from egpu.verifier import verify

TITLES = ROOT / "tests" / "verifier" / "titles.txt"
DOCS = (ROOT / "docs" / "verifier.md").read_text()
RULES = [f"P{number}" for number in range(1, 16)]
CLASSES = [str(number) for number in range(1, 15)]
# How many titles each part has to have at least.
PARTS = {"Rules": 15, "Regression classes": 25, "SIMT suite": 23, "Cases worth porting": 31}


class Row(NamedTuple):
    """A title of a part, and the tests of its accepted and its refused form ("-": no such form)."""

    part: str
    title: str
    accepted: str
    refused: str


def rows():
    part = ""
    for line in TITLES.read_text().splitlines():
        if line.startswith("## "):
            part = line[3:]
        elif line and not line.startswith("#"):
            yield Row(part, *(field.strip() for field in line.split("|")))


@functools.cache
def module(name):
    """The syntax tree of a test module."""
    (path,) = (ROOT / "tests").rglob(f"{name}.py")
    return ast.parse(path.read_text())


def exists(test):
    """Whether there is such a test."""
    if "/" in test:
        file, pair = test.split("/")
        return pair in read_pairs(file)
    name, item = test.split(":", 1)
    table, _, key = item.removesuffix("]").partition("[")
    for node in module(name).body:
        if isinstance(node, ast.FunctionDef) and node.name == item:
            return True
        if isinstance(node, ast.Assign) and key and getattr(node.targets[0], "id", "") == table:
            return key in [each.value for each in node.value.keys if isinstance(each, ast.Constant)]
    return False


ROWS = list(rows())


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.part}, {row.title}" for row in ROWS])
def test_title_has_its_tests(row):
    tests = [test for test in (row.accepted, row.refused) if test != "-"]
    assert tests
    assert [test for test in tests if not exists(test)] == []


def test_nothing_is_missing():
    found = {part: [row.title for row in ROWS if row.part == part] for part in PARTS}
    assert {part: len(titles) >= PARTS[part] for part, titles in found.items()} == dict.fromkeys(
        PARTS, True
    )
    assert [title.split()[0] for title in found["Rules"]] == RULES
    numbers = [title.split()[0] for title in found["Regression classes"]]
    assert [n for n in dict.fromkeys(numbers) if n.isdigit()] == CLASSES
    for part, titles in found.items():
        assert len(set(titles)) == len(titles), part
    for row in ROWS:
        if row.part == "Rules":
            assert "-" not in (row.accepted, row.refused), row


def test_a_wrong_name_is_noticed():
    assert not exists("rules.txt/no-such-pair")
    assert not exists("test_verifier_rules:test_nothing")
    assert not exists("test_verifier_regressions:REFUSED[nothing]")
    assert exists("test_verifier_regressions:REFUSED[null check in 32 bits]")


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_documented_with_their_severity(rule):
    assert f"\n### {rule} " in DOCS
    (line,) = (line for line in DOCS.splitlines() if line.startswith(f"| {rule} |"))
    severity = line.split("|")[2].strip()
    assert severity in ("refused", "warned", "refused or warned", "a table")
    pairs = [p for name in ("rules", "threads", "simt") for p in read_pairs(f"{name}.txt").values()]
    kinds = {"warned" if pair.warned else "refused" for pair in pairs if pair.rule == rule}
    for kind in kinds:
        assert kind in severity, f"{rule} is {kind} by a pair"


# Titles whose programs need more than a pair can say


EXAMPLES = ["cudagraph", "gpu_shared_map", "host_maps", "kernel_trace", "threadscheduling"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_published_examples_are_accepted(name):
    """Five that the published SIMT verifier takes of its own examples, in their shapes."""
    path = ROOT / "tests" / "bpftime" / "programs" / f"{name}.bpf.o"
    loaded = read_object(path.read_bytes(), path.name)
    without = {spec.type for spec in loaded.maps if traits(spec.type).storage is None}
    if without:
        pytest.skip(f"maps of {', '.join(sorted(kind.name for kind in without))} are not there yet")
    for program in loaded.programs:
        verify(program)


def judged(text, *maps):
    return verify(program_from_code(assemble(text), "p", maps=maps or MAPS, attach=ENTRY))


def test_values_of_each_thread_are_varying(monkeypatch):
    monkeypatch.setitem(HELPERS, COLLECTIVE.id, COLLECTIVE)
    text = (
        LOOKUP.format(0) + "mov %r1, 0\njeq %r0, 0, out\nldxdw %r1, [%r0]\nout:\n{}call 699" + END
    )
    own = MapSpec("own", MapType.GPU_PER_THREAD_ARRAY, 4, 16, 1)
    assert judged(text.format("mov %r1, 1\n"), own)
    with pytest.raises(VerifierError, match="may differ between the lanes") as error:
        judged(text.format(""), own)
    assert error.value.rule == "P7"


PRINT = """
mov %r9, %r1
stdw [%r10-8], 0x000a6425
mov %r1, %r10
add %r1, -8
mov %r2, 4
{}
call 6
"""


def test_any_value_may_be_printed():
    """A probe prints for its thread: values that lanes do not share are as good as others."""
    assert judged(PRINT.format("ldxw %r3, [%r9+232]") + END)


def test_pointers_are_not_printed():
    for pointer in ("%r10", "%r9"):
        with pytest.raises(VerifierError) as error:
            judged(PRINT.format(f"mov %r3, {pointer}") + END)
        assert error.value.rule == "P9"


def test_helper_output_into_a_shared_map():
    """What a helper gives each thread differently, stored plainly to one place: a warning."""
    text = VALUE.format(1) + "call 5\nstxdw [%r6], %r0" + END
    assert [w.rule for w in judged(text).warnings] == ["P8"]
    assert judged(text.replace("call 5", "call 14")).warnings == ()
