"""Maps under names that other processes find: while the session runs, and after it."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec

import pytest
from test_host_maps import FACTORS, FIRST, PRESENT, PROGRAM, SECOND, running
from test_runtime_cli import NATIVE, PATIENCE, ROOT, egpu, pytestmark, workload

import egpu as api
from egpu.errors import AgentError, InputError, MapError
from egpu.session import list_maps, pins
from egpu.session.service import MapService
from egpu.tools.build import compiler

__all__ = ["pytestmark"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    place = tmp_path / "runtime"
    monkeypatch.setenv("EGPU_RUNTIME_DIR", str(place))
    return place


@pytest.fixture
def scene(tmp_path):
    return tmp_path / "scene"


def start(scene, **options):
    scene.mkdir()
    return running(scene, **options)


def said(*arguments, code=0):
    done = egpu("map", *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    return done.stdout if code == 0 else done.stderr


def dumped(name):
    document = json.loads(said("dump", name, "--json"))
    return document, [
        {row["key"]: row.get("value", row.get("parts")) for row in context}
        for context in document["contexts"]
    ]


def test_another_process_reads_and_changes_a_running_session(scene, folder):
    pins = {"settings": "factors", "blocks": "blocks", "totals": "totals"}
    with start(scene, pins=pins, map_deletions=True) as (session, stepper):
        said("set", "factors", "0", '{"factor": 7, "bias": -2}')
        assert said("get", "factors", "0") == "factor=7 bias=-2\n"
        stepper.do("first 4 10")
        assert said("get", "totals", str(FACTORS)) == "280\n"
        assert json.loads(said("get", "totals", "0", "--parts", "--json"))["value"] == [10] * 4
        said("set", "blocks", "0x64", "1")
        assert "the key is there already" in said("set", "blocks", "100", "2", "--noexist", code=1)
        said("delete", "blocks", "3")
        assert "is not there" in said("delete", "blocks", "3", code=1)
        _, (blocks,) = dumped("blocks")
        assert blocks == {0: 1, 1: 1, 2: 1, 100: 1}
        assert session.maps["blocks"].to_dict() == blocks
        said("freeze", "blocks")
        assert "frozen" in said("set", "blocks", "5", "5", code=1)
        assert "its keys are integers" in said("get", "factors", "first", code=2)
        assert session.maps["blocks"].frozen
        stepper.do("second 5 10")
        stepper.end(session)
        lines = said("dump", "totals", "--per-sm").splitlines()
        assert lines[0] == "0: [10, 10, 10, 10] by SM"
        (per_sm,) = json.loads(said("dump", "totals", "--per-sm", "--json"))["contexts"]
        assert sum(per_sm[SECOND]["parts"]) == 50
        assert "no copy per SM" in said("dump", "blocks", "--per-sm", code=2)
        document, (totals,) = dumped("totals")
        assert document["complete"]
        assert totals == {0: 40, 1: 50, 2: 280, 3: 9, 4: 0, 5: 0}
        assert "ended" in said("set", "factors", "0", "[1, 1]", code=1)
    assert sorted(path.name for path in (folder / "pins").iterdir()) == [
        ".lock",
        *sorted(pins.values()),
    ]
    assert oct((folder / "pins").stat().st_mode)[-3:] == "700"
    assert list((folder / "sessions").iterdir()) == []


def test_what_is_saved_can_be_read_and_changed(scene):
    with start(scene, pins={"blocks": "b", "totals": "t", "settings": "s"}) as (_, stepper):
        stepper.do("first 25 3")
    totals = api.open_map("t")
    assert (totals[FIRST], totals[PRESENT], totals.contents().complete) == (75, 25, True)
    assert sum(totals.parts(FIRST)) == 75
    totals[FIRST] = 5
    assert (totals[FIRST], totals.parts(FIRST)) == (5, (5, 0, 0, 0))
    blocks = api.open_map("b")
    assert dict(blocks) == {key: 3 if key < 5 else 2 for key in range(10)}
    blocks[77] = 1
    del blocks[0]
    with pytest.raises(MapError) as info:
        blocks.update(77, 2, api.UpdateFlag.NOEXIST)
    assert info.value.errno == errno.EEXIST
    assert said("get", "b", "77") == "1\n"
    said("set", "s", "1", "[3, 4]")
    assert said("get", "s", "1") == "factor=3 bias=4\n"
    assert "it has 4 elements" in said("set", "s", "4", "[3, 4]", code=1)
    assert blocks.lookup_batch([77, 1, 500]) == {77: 1, 1: 3}
    assert totals.lookup_batch([FIRST, PRESENT]) == {FIRST: 5, PRESENT: 25}
    assert totals.per_sm(FIRST) == (5, 0, 0, 0)
    with pytest.raises(KeyError):
        totals.lookup_batch([FIRST, 1000])
    with pytest.raises(InputError, match="no copy per SM"):
        blocks.per_sm(77)
    said("freeze", "b")
    assert "frozen" in said("freeze", "b", code=1)
    assert "frozen" in said("delete", "b", "1", code=1)
    said("unpin", "b")
    assert "no map is pinned as b" in said("dump", "b", code=1)


def test_global_variables(scene):
    with start(scene, pins={".data": "data", ".bss": "zero"}) as (_, stepper):
        said("set", "data", "step", "0x10")
        said("set", "data", "marks", "[-4, 4]")
        assert said("get", "data", "marks") == "[-4, 4]\n"
        stepper.do("first 2 5")
        assert said("get", "zero", "steps") == "160\n"
        assert "it has step, marks" in said("get", "data", "nothing", code=2)
        assert "is not an integer" in said("set", "data", "step", "many", code=1)
    data = api.open_map("data")
    assert (data["step"], data["marks"], data[0]) == (16, (-4, 4), (16, (-4, 4)))
    data["step"] = 3
    assert said("get", "data", "step") == "3\n"
    with pytest.raises(KeyError, match="no variable"):
        data["nothing"] = 3


def test_arguments_that_make_no_sense(scene):
    """One line each, whether the session runs or has ended; what is said of a map stays true."""
    pins = {".data": "data", "blocks": "blocks", "settings": "settings"}

    def refused(code, words, *arguments):
        text = said(*arguments, code=code)
        assert words in text
        assert "internal error" not in text

    def check():
        refused(2, "5,000 digits", "get", "data", "9" * 5000)
        refused(2, "5,000 digits", "set", "blocks", "0", "9" * 5000)
        refused(2, "nests too deep", "get", "blocks", "[" * 100_000)
        refused(2, "nests too deep", "set", "settings", "0", "[" * 100_000)
        refused(1, "is not there", "get", "blocks", "[1]")
        refused(1, "is not there", "get", "blocks", '{"a": 1}')
        refused(1, "is not there", "get", "blocks", "-1")
        refused(1, "is not from 0", "set", "blocks", "0", "-1")
        refused(2, "No such option", "set", "blocks", "0", "--nothing")
        refused(1, "no deletion", "delete", "data", "step")
        refused(1, "is there already", "set", "data", "step", "1", "--noexist")
        said("set", "data", "step", "6", "--exist")
        assert said("get", "data", "step", "--parts") == "[6]\n"
        said("set", "data", "marks", "[-4, 4]")
        assert said("get", "data", "marks", "--parts") == "[[-4, 4]]\n"

    with start(scene, pins=pins) as (_, stepper):
        stepper.do("first 2 5")
        check()
    check()


def test_two_contexts(scene):
    with start(scene, pins={"blocks": "b", "totals": "t"}) as (_, stepper):
        stepper.do("first 2 1")
        stepper.do("new")
        stepper.do("first 3 1")
    assert api.open_map("t")[FIRST] == 5
    with pytest.raises(InputError, match="exists 2 times"):
        dict(api.open_map("b"))
    assert api.open_map("b").copies() == ({0: 1, 1: 1}, {0: 1, 1: 1, 2: 1})
    assert "context 1:" in said("dump", "b")


def test_listing(scene):
    assert said("list") == "no session of yours runs, and no map is pinned\n"
    with start(scene, pins={"blocks": "b"}) as (_, stepper):
        stepper.do("first 2 1")
        rows = json.loads(said("list", "--json"))["maps"]
        own = {row["reference"]: row for row in rows}
        assert own["b"]["state"] == "live"
        pid = os.getpid()
        assert {f"{pid}:totals", f"{pid}:records", f"{pid}:.bss"} < set(own)
        assert f"{pid}:blocks" not in own
        assert said("get", f"{pid}:totals", "0") == "2\n"
        said("pin", f"{pid}:totals", "later")
        assert "has a map 'nothing'" in said("get", f"{pid}:nothing", "0", code=1)
        assert "a RINGBUF is for its session" in said("dump", f"{pid}:records", code=1)
        assert "b " in said("list")
    assert [(row.reference, row.state) for row in list_maps()] == [
        ("b", "saved"),
        ("later", "saved"),
    ]
    assert api.open_map("later")[FIRST] == 2


KILLED = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_host_maps import running
with running(Path({scene!r}), pins={{"blocks": "b"}}) as (session, stepper):
    stepper.do("first 2 1")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_session_that_was_killed(scene):
    scene.mkdir()
    imported = NATIVE.parents[1]  # from the tree or installed
    paths = [str(ROOT / "tests" / "runtime"), str(imported)]
    script = KILLED.format(paths=paths, scene=str(scene))
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", script], text=True, **streams)
    try:
        assert process.stdout.readline() == "ready\n"
        assert api.open_map("b").to_dict() == {0: 1, 1: 1}
        second = scene.with_name("second")
        with pytest.raises(InputError, match=f"pinned by the session of process {process.pid}"):
            start(second, pins={"totals": "b"}).__enter__()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
    assert [(row.reference, row.state) for row in list_maps()] == [("b", "stale")]
    with pytest.raises(AgentError, match="is gone and has not saved it; `egpu map unpin b`"):
        api.open_map("b")
    third = scene.with_name("third")
    with start(third, pins={"totals": "b"}) as (_, stepper):  # takes the name over
        stepper.do("first 1 1")
    assert api.open_map("b")[FIRST] == 1
    said("unpin", "b")


def test_readers_and_writers_at_once(scene):
    """Every read is of one moment: the host's keys all have the value of one update."""
    with start(scene, pins={"blocks": "b"}) as (session, stepper):
        stepper.do("first 1 1")
        session.maps["blocks"].update_batch(dict.fromkeys(range(100, 160), 0))
        wrong, seen, stop = [], set(), threading.Event()

        def read():
            pinned = api.open_map("b")
            while not stop.is_set():
                found = pinned.to_dict()
                values = {found[key] for key in range(100, 160)}
                seen.update(values)
                if len(values) != 1:
                    wrong.append(values)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        writer = api.open_map("b")
        for value in range(1, 20):
            writer.update_batch(dict.fromkeys(range(100, 160), value))
            stepper.do("second 1 1")
        end = time.monotonic() + PATIENCE
        while 19 not in seen and time.monotonic() < end:
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join()
        assert (wrong, 19 in seen) == ([], True)
    assert api.open_map("b")[0] == 20


def compiled(folder, text):
    (folder / "pinned.bpf.c").write_text(text)
    options = ["-mcpu=v3", "-O2", "-g", "-c", "-I", str(ROOT / "bpf" / "include")]
    target = folder / "pinned.bpf.o"
    subprocess.run([*compiler(), *options, "-o", target, folder / "pinned.bpf.c"], check=True)
    return target


@pytest.mark.skipif(find_spec("ziglang") is None, reason="no compiler from C to BPF")
def test_pinned_by_name_goes_on_where_it_was(scene, tmp_path):
    text = PROGRAM.with_suffix("").with_suffix(".bpf.c").read_text()
    for size in ("TOTALS", "ROOM"):
        line = f"__uint(max_entries, {size});"
        text = text.replace(line, f"{line} __uint(pinning, LIBBPF_PIN_BY_NAME);")
    target = compiled(tmp_path, text)
    for number in range(3):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        with running(folder, target) as (session, stepper):
            stepper.do("first 12 5")
            stepper.end(session)
            assert session.maps["totals"][FIRST] == 60 * (number + 1)
            assert sum(session.maps["blocks"].values()) == 12 * (number + 1)
    target = compiled(tmp_path, text.replace("ROOM = 4096", "ROOM = 4095"))
    with pytest.raises(InputError, match="max_entries is 4095, that of the map pinned as blocks"):
        api.run(["true"], programs=target, options=api.Options(simulated=True))


def test_one_pin_is_of_one_map(scene):
    with start(scene, pins={"blocks": "b"}) as (session, stepper):
        session.pin("blocks", "b")  # again
        with pytest.raises(InputError, match="b is the pin of map blocks already"):
            session.pin("totals", "b")
        assert "is the pin of map blocks already" in said(
            "pin", f"{os.getpid()}:totals", "b", code=1
        )
        stepper.do("first 2 1")
    assert api.open_map("b").spec.name == "blocks"
    with pytest.raises(InputError, match="its session is closed"):
        session.pin("totals", "t")
    assert [row.reference for row in list_maps()] == ["b"]
    command = ("run", PROGRAM, "--sim", "--pin", "totals=t", "--pin", "blocks=t", "--", "true")
    done = egpu(*command)
    assert (done.returncode, "t is the pin of map totals already" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "more"), [(["/no/such/program"], {}), ([sys.executable], {"nothing": "more"})]
)
def test_a_workload_that_does_not_start_leaves_pins_as_they_were(scene, words, more):
    with start(scene, pins={"totals": "kept"}) as (session, stepper):
        stepper.do("first 4 10")
        stepper.end(session)
    before = dumped("kept")
    assert before[1][0][FIRST] == 40
    pins = {"totals": "kept", "blocks": "new", **more}
    with pytest.raises(InputError):
        api.run(words, programs=PROGRAM, options=api.Options(simulated=True, pins=pins))
    assert dumped("kept") == before
    assert [row.reference for row in list_maps()] == ["kept"]


def test_pins_of_a_workload_that_is_interrupted_at_its_start_are_kept(monkeypatch):
    def interrupted(service):
        started(service)
        raise KeyboardInterrupt

    started = MapService.started
    monkeypatch.setattr(MapService, "started", interrupted)
    options = api.Options(simulated=True, pins={"totals": "kept"})
    with pytest.raises(KeyboardInterrupt) as caught:
        api.run([sys.executable, "-c", ""], programs=PROGRAM, options=options)
    (session,) = [each.frame.f_locals["self"] for each in caught.traceback if each.name == "_start"]
    assert session.wait(PATIENCE) == 0
    assert [row.reference for row in list_maps()] == ["kept"]
    assert dumped("kept")


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (["blocks="], "'blocks=' is not MAP or MAP=NAME"),
        (["=x"], "'=x' is not MAP or MAP=NAME"),
        (["blocks", "blocks=z"], "names the map 'blocks' twice"),
    ],
)
def test_pins_that_say_nothing_are_refused(pins, words):
    given = [word for pin in pins for word in ("--pin", pin)]
    done = egpu("run", PROGRAM, "--sim", *given, "--", "true")
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_the_command_line_pins(folder):
    command = ("run", PROGRAM, "--sim", "--pin", "totals=t", "--pin", "blocks", "--", *workload())
    done = egpu(*command)
    assert done.returncode == 0, done.stderr
    _, (totals,) = dumped("t")
    _, (blocks,) = dumped("blocks")
    assert sum(blocks.values()) == totals[PRESENT] > 0
    assert (
        "has no map 'nothing'"
        in egpu("run", PROGRAM, "--sim", "--pin", "nothing", "--", "true").stderr
    )
    wrong = egpu("run", PROGRAM, "--sim", "--pin", "totals=a/b", "--", "true")
    assert (wrong.returncode, "is no name of a pin" in wrong.stderr) == (2, True)


def test_a_folder_that_others_can_reach_is_refused(folder, scene):
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    assert "can be reached by other users" in said("list", code=1)
    with start(scene) as (session, stepper):  # the workload first: it runs all the same
        stepper.do("second 1 1")
        with pytest.raises(InputError, match="can be reached by other users"):
            session.pin("blocks", "b")
    assert session.maps["totals"].spec.name == "totals"
    assert SECOND == 1


LIVE = b"egpu live pin 1\n"


def test_a_full_disk_costs_the_map_that_finds_no_room_only(scene, folder, monkeypatch):
    """A limit on the size of files stands in for it."""
    packed = pins.pack
    padding = {"blocks": bytes(1 << 20)}
    monkeypatch.setattr(pins, "pack", lambda what: packed(what) + padding.get(what.spec.name, b""))
    with start(scene, pins={"blocks": "large", "totals": "small"}) as (session, stepper):
        stepper.do("first 4 10")
        stepper.end(session)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limits[1]))
        try:
            with pytest.raises(InputError, match=r"pins/large: cannot be written \(File too large"):
                session.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {row.reference: row.state for row in list_maps()} == {"large": "stale", "small": "saved"}
    assert dumped("small")[1][0][FIRST] == 40
    assert [path.name for path in (folder / "pins").glob(".new-*")] == []


def test_damaged_pins(folder):
    assert list_maps() == []
    damaged = {
        "a": b"",
        "b": b"\xff" * 100,
        "c": LIVE + b"{}",
        "d": LIVE + b"[" * 100_000,
        "e": LIVE + b'{"socket": "x", "map": "m", "pid": Infinity}',
        "f": (100_000).to_bytes(4, "little") + b"[" * 100_000,
    }
    for name, data in damaged.items():
        (folder / "pins" / name).write_bytes(data)
        text = said("dump", name, code=1)
        assert "internal error" not in text
        assert text.count("\n") == 1
    assert [row.state for row in list_maps()] == ["damaged"] * len(damaged)
    (folder / "pins" / "g").write_bytes(LIVE + b'{"socket": "a\\u0000b", "map": "m", "pid": 1}')
    assert "is gone and has not saved it" in said("dump", "g", code=1)
    for name in (*damaged, "g"):
        said("unpin", name)
    assert list_maps() == []
