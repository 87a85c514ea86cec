"""Modules that ``egpu gen`` writes: text, types, and what they do."""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Protocol

import pytest
from click.testing import CliRunner

import egpu as api
from egpu.bpf.btf import Btf, BtfKind, BtfMember, BtfType
from egpu.bpf.maptypes import MapType
from egpu.bpf.object import read_object
from egpu.bpf.program import MapSpec, Object, Program
from egpu.cli.app import app
from egpu.errors import InputError
from egpu.maps import BloomView, HashView, MapView, OuterView, QueueView, typed
from egpu.session.stacks import StackFrame, StackView
from egpu.session.stub import module_text

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "gen"
OBJECTS = {
    **{
        name: ROOT / "tests" / "gpu" / "probes" / f"{name}.bpf.o"
        for name in ("inner", "pushed", "stacks")
    },
    "host_maps": ROOT / "tests" / "gpu" / "probes" / "host_maps.bpf.o",
    "records": ROOT / "tests" / "unit" / "objects" / "records.bpf.o",
}
RIGHT = """
import egpu
from host_maps_types import HostMaps, Record, Setting

def use(obj: HostMaps) -> int:
    obj.rodata.keys = 3
    obj.data.marks = (1, 2)
    obj.maps["settings"][0] = Setting(factor=2, bias=-1)
    setting: Setting = obj.maps["settings"][0]
    obj.maps["blocks"].update(1, 2, egpu.UpdateFlag.NOEXIST)
    obj.progs.on_first.detach()
    parts: tuple[int, ...] = obj.maps["totals"].per_sm(0)
    names = [record.text.decode() for record in obj.maps["records"]]
    total: int = obj.bss.steps + setting.factor + sum(parts) + len(names)
    return total + sum(obj.maps["blocks"].to_dict().values())
"""
PUSHED = """
import egpu
from inner_types import Inner
from pushed_types import Pair, Pushed
from stacks_types import Stacks

def use(obj: Pushed, outer: Inner, launched: Stacks) -> int:
    obj.maps["waiting"].push(Pair(number=1, thrice=3))
    obj.maps["latest"].push_batch([Pair(1, 3), Pair(2, 6)], egpu.UpdateFlag.EXIST)
    first: Pair = obj.maps["waiting"].pop()
    second: Pair = obj.maps["latest"].peek()
    seen: bool = 7 in obj.maps["seen"]
    obj.maps["seen"].push(7)
    obj.maps["waiting"].freeze()
    names = [frame.function for frame in launched.maps["stacks"][5]]
    many = {number: len(frames) for number, frames in launched.maps["stacks"].items()}
    outer.maps["arrays"][0][3] = 5
    inner: tuple[int, ...] = outer.maps["per_sms"][1].per_sm(0)
    called: dict[int, str] = outer.maps["tables"].names()
    total = first.number + second.thrice + sum(pair.number for pair in obj.maps["waiting"])
    return total + int(seen) + len(names) + len(many) + sum(inner) + len(called)
"""
WRONG_PUSHED = {
    'obj.maps["waiting"].push(3)': 'Argument 1 to "push"',
    'obj.maps["seen"].push("text")': 'Argument 1 to "push"',
    'obj.maps["seen"].pop()': 'has no attribute "pop"',
    'outer.maps["arrays"][0][3] = "text"': "Incompatible types in assignment",
    'outer.maps["arrays"]["a"]': "Invalid index type",
    'launched.maps["stacks"][5][0].line': 'has no attribute "line"',
}
WRONG = {
    'obj.rodata.keys = "three"': "Incompatible types in assignment",
    'obj.maps["settings"][0] = (1.5, "x")': "Incompatible types in assignment",
    'obj.maps["nothing"]': 'TypedDict "Maps" has no key "nothing"',
    'obj.maps["blocks"].update("a", 1)': 'Argument 1 to "update"',
    "obj.progs.on_third": 'has no attribute "on_third"',
    'obj.maps["settings"][0].nothing': 'has no attribute "nothing"',
}


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def without_digest(text):
    """Objects are rebuilt, with other line numbers in their debug information."""
    return re.sub(r'SHA256 = "[0-9a-f]{64}"', 'SHA256 = ""', text)


@pytest.mark.parametrize("name", OBJECTS)
def test_text(name):
    """Anew: egpu gen OBJECT -o tests/golden/gen/NAME_types.txt"""
    done = CliRunner().invoke(app, ["gen", str(OBJECTS[name])], standalone_mode=False)
    assert done.exception is None
    assert without_digest(done.output) == without_digest((GOLDEN / f"{name}_types.txt").read_text())
    assert f'    SHA256 = "{digest_of(OBJECTS[name])}"\n' in done.output
    compile(done.output, name, "exec")


def checked(folder, text):
    (folder / "use.py").write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "use.py"]
        + [f"{name}_types.py" for name in OBJECTS],
        cwd=folder,
        env={"PATH": "", "MYPYPATH": str(ROOT / "src"), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="no mypy")
def test_types_are_what_mypy_sees(tmp_path):
    for name in OBJECTS:
        shutil.copy(GOLDEN / f"{name}_types.txt", tmp_path / f"{name}_types.py")
    assert checked(tmp_path, RIGHT)[0] == 0, checked(tmp_path, RIGHT)[1]
    code, output = checked(
        tmp_path,
        RIGHT + "def wrong(obj: HostMaps) -> None:\n" + "".join(f"    {line}\n" for line in WRONG),
    )
    assert code == 1, output
    for message in WRONG.values():
        assert message in output
    assert output.count("error:") == len(WRONG)


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="no mypy")
def test_types_of_maps_without_plain_keys(tmp_path):
    for name in OBJECTS:
        shutil.copy(GOLDEN / f"{name}_types.txt", tmp_path / f"{name}_types.py")
    assert checked(tmp_path, PUSHED)[0] == 0, checked(tmp_path, PUSHED)[1]
    wrong = "def wrong(obj: Pushed, outer: Inner, launched: Stacks) -> None:\n"
    lines = "".join(f"    {line}\n" for line in WRONG_PUSHED)
    code, output = checked(tmp_path, PUSHED + wrong + lines)
    assert code == 1, output
    for message in WRONG_PUSHED.values():
        assert message in output
    assert output.count("error:") == len(WRONG_PUSHED)


@pytest.mark.parametrize(
    ("protocol", "view"),
    [
        (typed.TypedQueue, QueueView),
        (typed.TypedBloom, BloomView),
        (typed.TypedOuter, OuterView),
        (typed.TypedStacks, StackView),
        (typed.TypedFrame, StackFrame),
        (typed.TypedMap, HashView),
        (typed.TypedPerSmHash, HashView),
        (typed.TypedPerSmArray, MapView),
    ],
)
def test_views_have_what_their_types_say(protocol, view):
    wanted = {
        name
        for each in protocol.__mro__
        if each.__module__ == typed.__name__
        for name, member in vars(each).items()
        if isinstance(member, (FunctionType, property)) and not hasattr(Protocol, name)
    }
    assert {"__getitem__", "push", "path"} & wanted
    assert {name for name in wanted if not hasattr(view, name)} == {"__init__"} & wanted


def opened(folder, name="host_maps"):
    shutil.copy(OBJECTS[name], folder)
    path = OBJECTS[name]
    text = module_text(read_object(path.read_bytes(), path.name), digest_of(path))
    (folder / f"{name}_types.py").write_text(text)
    spec = importlib.util.spec_from_file_location(f"{name}_types", folder / f"{name}_types.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_module_opens_its_object(tmp_path):
    module = opened(tmp_path)
    obj = module.HostMaps()
    obj.maps["settings"][1] = module.Setting(4, -4)
    found = obj.maps["settings"][1]
    assert type(found) is module.Setting
    assert found == (4, -4)
    assert obj.progs.on_first.section == "kprobe/first"
    assert (obj.rodata.keys, obj.data.marks) == (10, (-1, 7))


def test_another_object_is_refused(tmp_path):
    module = opened(tmp_path)
    file = tmp_path / "host_maps.bpf.o"
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(InputError, match="run `egpu gen` again"):
        module.HostMaps()
    file.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        module.HostMaps()


def test_names_that_python_has_for_itself():
    """Fields that hide types or methods, anonymous structs, names that are the same."""
    kinds, pair = BtfKind, (BtfMember("int", 2, 0), BtfMember("b", 1, 32))
    btf = Btf(
        (
            BtfType(0, kinds.VOID),
            BtfType(1, kinds.INT, "int", 4, encoding=1),
            BtfType(2, kinds.STRUCT, "", 4, members=(BtfMember("count", 1, 0),)),
            BtfType(3, kinds.STRUCT, "maps", 8, members=pair),
            BtfType(4, kinds.TYPEDEF, "counter_t", type=2),
        ),
        b"\0",
    )
    maps = (
        MapSpec("one", MapType.ARRAY, 4, 8, 1, btf=btf, value_type=3),
        MapSpec("two", MapType.PERCPU_HASH, 4, 4, 1, btf=btf, key_type=1, value_type=4),
        MapSpec("raw", MapType.LRU_HASH, 3, 5, 1),
    )
    text = module_text(Object("a b.bpf.o", (), maps), hashlib.sha256(b"").hexdigest())
    for line in (
        "class Maps2Int(NamedTuple):",
        "    count: int  # type: ignore[assignment]",
        "class Maps2(NamedTuple):",
        "    int: Maps2Int",
        "    b: builtins.int",
        '        "one": "TypedMap[int, Maps2]",',
        '        "two": "TypedPerSmHash[int, Maps2Int]",',
        '        "raw": "TypedMap[bytes, bytes]",',
        "class AB(egpu.Object):",
    ):
        assert f"{line}\n" in text
    scope = {}
    exec(compile(text, "stub", "exec"), scope)
    assert scope["Maps2"]._fields == ("int", "b")


HOSTILE = 'x"]\n"""\nraise SystemExit\n\\'


def test_names_from_the_file_are_never_code():
    """Names of ELF and BTF may be any text: they stay inside their string literals."""
    btf = Btf(
        (
            BtfType(0, BtfKind.VOID),
            BtfType(1, BtfKind.INT, "int", 4, encoding=1),
            BtfType(2, BtfKind.STRUCT, HOSTILE, 4, members=(BtfMember(HOSTILE, 1, 0),)),
            BtfType(3, BtfKind.DATASEC, ".data", 4, members=(BtfMember("", 4, 0, size=4),)),
            BtfType(4, BtfKind.VAR, HOSTILE, type=1, encoding=1),
        ),
        b"\0",
    )
    maps = (
        MapSpec(HOSTILE, MapType.ARRAY, 4, 4, 1, btf=btf, value_type=2),
        MapSpec(".data", MapType.ARRAY, 4, 4, 1, btf=btf, value_type=3),
    )
    program = Program(HOSTILE, "kprobe/*", (), (), maps)
    text = module_text(Object(HOSTILE, (program,), maps), "")
    scope = {}
    exec(compile(text, "stub", "exec"), scope)
    (opened_by,) = [each for each in scope.values() if getattr(each, "FILE", "") == HOSTILE]
    assert issubclass(opened_by, api.Object)
    assert list(scope["Maps"].__annotations__) == [HOSTILE, ".data"]
    ((name, _),) = opened_by.RECORDS
    assert name == HOSTILE


@pytest.mark.parametrize(
    ("file", "title"),
    [
        ("data.bpf.o", "Data2"),
        ("maps.bpf.o", "Maps2"),
        ("programs.o", "Programs2"),
        ("None.o", "None2"),
        ("named_tuple.o", "NamedTuple2"),
        ("7-seven.o", "N7Seven"),
        ("\u00fc.o", "Loaded"),
    ],
)
def test_a_file_called_like_a_class_of_the_module(file, title):
    btf = Btf(
        (
            BtfType(0, BtfKind.VOID),
            BtfType(1, BtfKind.INT, "int", 4, encoding=1),
            BtfType(2, BtfKind.STRUCT, "None", 4, members=(BtfMember("a", 1, 0),)),
            BtfType(3, BtfKind.STRUCT, "TypedMap", 4, members=(BtfMember("a", 1, 0),)),
            BtfType(4, BtfKind.STRUCT, "TypedDict", 4, members=(BtfMember("a", 1, 0),)),
        ),
        b"\0",
    )
    maps = tuple(
        MapSpec(f"m{kind}", MapType.ARRAY, 4, 4, 1, btf=btf, value_type=kind) for kind in (2, 3, 4)
    )
    text = module_text(Object(file, (), maps), "")
    scope = {}
    exec(compile(text, "stub", "exec"), scope)
    assert file == scope[title].FILE
    names = {scope["None2" if title != "None2" else "None3"].__name__, title}
    assert names < scope.keys()
    assert {"TypedMap2", "TypedDict2"} < scope.keys()


def test_types_that_would_be_endless_are_not_written_out():
    rows = [BtfType(0, BtfKind.VOID), BtfType(1, BtfKind.INT, "int", 4)]
    rows += [BtfType(n, BtfKind.ARRAY, type=n - 1, count=8) for n in range(2, 11)]
    spec = MapSpec("m", MapType.ARRAY, 4, 4 * 8**9, 1, btf=Btf(tuple(rows), b"\0"), value_type=10)
    text = module_text(Object("a.o", (), (spec,)), "")
    assert len(text) < 3000
    assert "tuple[tuple[int, int, int, int, int, int, int, int], " in text
