"""egpu run with a session in place of the real one: exit codes, records, reports, interruption."""

import errno
import io
import itertools
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from egpu import session
from egpu.bpf.btf import Btf, BtfKind, BtfMember, BtfType
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.cli import live, main, map_report, run
from egpu.cli.object_run import ObjectOutput
from egpu.export.text import render_text
from egpu.maps import HostArena, MapCopy, MapView, RingReader, plan
from egpu.report import Report
from egpu.session.prints import Prints
from egpu.tools import registry
from egpu.tools.constants import constant
from egpu.version import VERSION

KERNELCOUNT = Path(registry.__file__).parent / "kernelcount" / "kernelcount.bpf.o"
BTF = Btf(
    (
        BtfType(0, BtfKind.VOID),
        BtfType(1, BtfKind.INT, "u64", 8),
        BtfType(2, BtfKind.STRUCT, "event", 8, members=(BtfMember("when", 1, 0),)),
        BtfType(3, BtfKind.FLOAT, "double", 8),
        BtfType(4, BtfKind.INT, "char", 1),
        BtfType(5, BtfKind.ARRAY, "", type=4, count=8),
        BtfType(6, BtfKind.STRUCT, "said", 8, members=(BtfMember("text", 5, 0),)),
    ),
    b"\0",
)
SPECS = {
    "events": MapSpec("events", MapType.RINGBUF, 0, 0, 4096, btf=BTF, value_type=2),
    "sums": MapSpec("sums", MapType.PERCPU_ARRAY, 4, 8, 100, btf=BTF, value_type=1),
    "floats": MapSpec("floats", MapType.PERCPU_ARRAY, 4, 8, 2, btf=BTF, value_type=3),
    "texts": MapSpec("texts", MapType.ARRAY, 4, 8, 4, btf=BTF, value_type=6),
    "bytes": MapSpec("bytes", MapType.ARRAY, 4, 8, 4),
}


class FakeSession:
    """A workload that runs for a number of looks, then ends with ``status``."""

    simulated = True
    devices = (SimpleNamespace(name="fake"),)
    notes = ()
    prints = Prints(None, {}, str, limit=0)
    clocks = ()

    def __init__(self, status=0, looks=2):
        self.status, self.looks = status, looks
        self.layout = plan(list(SPECS.values()), 2)
        self.host = HostArena.create(self.layout)
        self.arena = SimpleNamespace(layout=self.layout, host=self.host)
        places = dict(zip(SPECS, self.layout.places, strict=True))
        reader = RingReader(self.host, self.layout, places["events"], SPECS["events"])
        totals = SimpleNamespace(received=2, discarded=0, dropped=1, holes=0)
        ring = SimpleNamespace(
            readers=lambda: ((self.arena, reader),), totals=lambda: totals, __iter__=None
        )
        self.maps = {"events": _Ring(ring, reader)}
        for name in ("sums", "floats", "texts", "bytes"):
            copy = MapCopy(places[name], 2, self.host.snapshot)
            self.maps[name] = MapView(SPECS[name], [copy])
        self.places = places

    def put(self, name, slot, key, value):
        place = self.places[name]
        at = self.layout.snapshot + place.offset + slot * place.stride + 8 * key
        self.host.words[at // 8] = value

    def send(self, position, value):
        at = (self.places["events"].ring_data + position) // 8
        self.host.words[at : at + 3] = [8 | 1 << 32, position + 1, value]

    def running(self):
        self.looks -= 1
        return self.looks >= 0

    def wait(self):
        return self.status

    def kernels(self):
        return ()

    def ring_loads(self):
        return ()

    def twins(self):
        return ()

    def stale(self):
        return ""

    def cost(self):
        return session.SessionCost(
            images=0,
            twins=0,
            cached=0,
            build_ms=0.0,
            instructions=9,
            records_dropped=1,
            records_missing=0,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.host.close()


class _Ring:
    def __init__(self, fake, reader):
        self.readers, self.totals, self._reader = fake.readers, fake.totals, reader

    def __iter__(self):
        return iter(self._reader)


@pytest.fixture
def started(monkeypatch):
    """Put a fake session in place; gives what ``session.run`` was called with."""
    calls = []

    def start(fake):
        def run(argv, *, programs, options):
            calls.append((tuple(argv), programs.name, options))
            return fake

        monkeypatch.setattr(session, "run", run)
        return calls

    return start


class FakeTool:
    def collect(self, _):
        pass

    def report(self, _):
        return Report("fake/1", (), {"x": 1})


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7, 7), (-9, 137), (-11, 139)])
def test_the_exit_code_is_the_workloads(started, monkeypatch, capsys, status, code):
    calls = started(FakeSession(status))
    monkeypatch.setattr(registry, "new_tool", lambda _: FakeTool())
    arguments = (
        "run kernelcount --sim --json --kernels g* --twin-wait 3 --no-follow -- app -v --json"
    )
    assert main(arguments.split()) == code
    ((argv, name, options),) = calls
    assert argv == ("app", "-v", "--json")
    assert name == "kernelcount"
    assert (options.simulated, options.kernels, options.twin_wait_s) == (True, "g*", 3.0)
    assert (options.follow, options.allow_occupancy_loss) == (False, False)
    assert json.loads(capsys.readouterr().out)["x"] == 1


@pytest.mark.parametrize(
    ("given", "on"), [("", True), ("--machine-code ", True), ("--no-machine-code ", False)]
)
def test_machine_code_is_on_unless_switched_off(started, monkeypatch, given, on):
    calls = started(FakeSession())
    monkeypatch.setattr(registry, "new_tool", lambda _: FakeTool())
    assert main(f"run kernelcount --sim {given}-- app".split()) == 0
    assert calls[0][2].machine_code is on


def test_the_report_goes_to_a_file(started, monkeypatch, capsys, tmp_path):
    started(FakeSession())
    monkeypatch.setattr(registry, "new_tool", lambda _: FakeTool())
    path = tmp_path / "out.json"
    assert main(["run", "kernellat", "--json", "-o", str(path), "true"]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(path.read_text())["schema"] == "egpu.fake/1"


def output_of(fake):
    stream = io.StringIO()
    output = ObjectOutput(fake, stream, as_json=False)
    fake.send(0, 11)
    output.collect()
    first = stream.getvalue()
    fake.send(32, 22)
    fake.put("sums", 0, 3, 5)
    fake.put("sums", 1, 3, 6)
    fake.put("floats", 1, 0, 0x3FF8000000000000)
    return first, stream, output.report()


def test_an_objects_records_are_written_as_they_come_and_its_maps_at_the_end():
    with FakeSession() as fake:
        first, stream, report = output_of(fake)
    assert first == "events: when=11\n"
    assert stream.getvalue() == "events: when=11\nevents: when=22\n"
    text = render_text(report)
    assert "sums (1 entry that is not zero)" in text
    assert "3  11\n" in text
    assert "[0.0, 1.5]" in text  # cannot be summed: shown by SM
    assert (
        "! events: 2 records received, 0 discarded by the program, 1 dropped, 0 missing"
        in " ".join(text.split())
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [(".rodata", True), (".rodata.cst16", False), (".rodata.str1.1", False), (".rodata.own", True)],
)
def test_what_compilers_put_aside_is_not_shown(name, shown):
    """Constants of their own are in the JSON only."""
    with FakeSession() as fake:
        fake.maps[name] = fake.maps.pop("sums")
        fake.put("sums", 0, 3, 5)
        fake.put("sums", 1, 2, 7)
        report = ObjectOutput(fake, io.StringIO(), as_json=False).report()
        assert (f"{name} (2 entries that are not zero)" in render_text(report)) is shown
        assert [row["key"] for row in report.data["maps"][name]] == [2, 3]


def test_an_object_as_json_lines(started, monkeypatch, capsys):
    fake = FakeSession()
    started(fake)
    monkeypatch.setattr(run, "choose", lambda *_: (None, SimpleNamespace(name="mine")))
    fake.send(0, 11)
    fake.send(32, 22)
    fake.put("sums", 0, 3, 5)
    fake.put("sums", 1, 3, 6)
    fake.put("floats", 1, 0, 0x3FF8000000000000)
    assert main(["run", "mine.bpf.o", "--json", "true"]) == 0
    *records, document = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["value"]["when"] for record in records] == [11, 22]
    assert records[0] == {"schema": "egpu.record/1", "map": "events", "value": {"when": 11}}
    assert (document["schema"], document["egpu"]) == ("egpu.object/1", VERSION)
    assert document["maps"]["sums"] == [{"key": 3, "value": 11}]
    assert document["maps"]["floats"] == [{"key": 0, "per_sm": [0.0, 1.5]}]
    assert document["maps"]["events"]["dropped"] == 1


@pytest.mark.parametrize("arguments", [["kernelcount", "--every", "2"], ["mine.o", "--every", "1"]])
def test_every_is_for_tools_that_measure_blocks(monkeypatch, capsys, arguments):
    if arguments[0] != "kernelcount":
        monkeypatch.setattr(run, "choose", lambda *_: (None, SimpleNamespace(name="mine")))
    assert main(["run", *arguments, "true"]) == 2
    assert "kernellat" in capsys.readouterr().err


def test_every_sets_the_tools_constant(monkeypatch):
    calls = []
    monkeypatch.setattr(registry, "new_tool", lambda _: FakeTool())
    monkeypatch.setattr(
        session, "run", lambda _, *, programs, options: calls.append(programs) or FakeSession()
    )
    assert main(["run", "kernellat", "--every", "50", "true"]) == 0
    (spec,) = [spec for spec in calls[0].maps if spec.name == ".rodata"]
    assert constant(spec, "every") == 50
    assert main(["run", "kernellat", "--every", "0", "true"]) == 2


def test_characters_are_shown_as_text_and_other_bytes_are_not():
    """By their types: an array without one may hold numbers that look like text."""
    word = int.from_bytes(b"a %d\n\0\0\0", "little")
    with FakeSession() as fake:
        fake.put("texts", 0, 1, word)
        fake.put("bytes", 0, 2, word)
        report = ObjectOutput(fake, io.StringIO(), as_json=False).report()
    text = render_text(report)
    assert '1  text="a %d\\n"\n' in text
    assert "2  612025640a000000\n" in text
    assert report.data["maps"]["texts"] == [{"key": 1, "value": {"text": "612025640a000000"}}]
    assert report.data["maps"]["bytes"] == [{"key": 2, "value": "612025640a000000"}]


def test_long_maps_are_cut_in_text_only(monkeypatch):
    monkeypatch.setattr(map_report, "ROWS", 2)
    with FakeSession() as fake:
        for key in range(5):
            fake.put("sums", 0, key, key + 1)
        report = ObjectOutput(fake, io.StringIO(), as_json=False).report()
    assert "... and 3 more" in render_text(report)
    assert len(report.data["maps"]["sums"]) == 5


def test_control_c_waits_for_the_workload_and_twice_gives_up(capsys):
    fake = FakeSession(status=-2, looks=3)
    presses = itertools.count()

    def press(times):
        def collect():
            if next(presses) < times:
                raise KeyboardInterrupt

        return collect

    assert live.follow(fake, press(1), interval_s=0) == 130
    assert "waiting for the workload" in capsys.readouterr().err
    presses = itertools.count()
    with pytest.raises(KeyboardInterrupt):
        live.follow(FakeSession(looks=5), press(2), interval_s=0)


def test_a_collector_that_fails_takes_the_probes_out_and_the_workload_runs_on(capsys):
    fake = FakeSession(status=3, looks=4)
    detached = []
    fake.detach = lambda: detached.append(fake.looks)
    calls = []

    def collect():
        calls.append(fake.looks)
        raise ValueError("torn record")

    assert live.follow(fake, collect, interval_s=0) == 3
    assert detached == calls == [3]
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "torn record" in error
    assert "runs on, unprobed" in error


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
        (ValueError("odd"), "internal error: ValueError: odd"),
        (MemoryError(), "there is not enough memory for this"),
    ],
)
def test_a_report_that_cannot_be_written_leaves_the_exit_code(failure, said, capsys, tmp_path):
    def write():
        raise failure

    with (tmp_path / "report").open("w") as stream:
        assert live.finish(5, write, stream) == 5
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == bool(said)


def test_the_end_is_noticed_however_rarely_records_are_collected():
    started = time.monotonic()
    assert live.follow(FakeSession(looks=2), lambda: None, interval_s=1000) == 0
    assert time.monotonic() - started < 100


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_asks_egpu_to_end_asks_the_workload(number, request):
    # Under nohup the tests ignore SIGHUP, and so would what they start.
    before = signal.signal(number, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(number, before))
    ready = ["env", f"--default-signal={signal.Signals(number).name}", "sleep", "60"]
    with subprocess.Popen(ready) as process:

        class Workload(FakeSession):
            pid = process.pid

            def running(self):
                return process.poll() is None

            def wait(self):
                return process.wait()

        sent = []

        def collect():
            if not sent:
                sent.append(os.kill(os.getpid(), number))

        assert live.follow(Workload(), collect, interval_s=0.01) == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e300", "x"])
@pytest.mark.parametrize("option", ["--twin-wait", "--interval"])
def test_seconds_that_are_none(option, seconds, capsys):
    assert main(["run", option, seconds, "kernelcount", "--", "app"]) == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["verify"], ["run", "--sim"], ["gen"], ["exec", "--program", "count_entry"]]
)
def test_a_file_of_kernel_types_that_is_not_there(command, tmp_path, capsys):
    """It is said although the object has no relocation that needs it."""
    path = tmp_path / "missing.btf"
    behind = ["--", "true"] if command[0] == "run" else []
    assert main([*command, "--btf", str(path), str(KERNELCOUNT), *behind]) == 1
    said = capsys.readouterr().err
    assert f"{path}: cannot be read" in said
    assert said.count("\n") == 1
    path.write_bytes(b"no types")
    assert main([*command, "--btf", str(path), str(KERNELCOUNT), *behind]) == 1
    assert str(path) in capsys.readouterr().err


def test_tools_need_no_kernel_types(capsys):
    assert main(["run", "--btf", "x", "kernelcount", "--", "true"]) == 2
    assert "kernelcount is a tool" in capsys.readouterr().err


def test_bytes_of_a_ring_are_no_text():
    stream = io.StringIO()
    with FakeSession() as fake:
        output = ObjectOutput(fake, stream, as_json=False)
        output._write("events", b"A\0\0\0")
        output._write("events", bytes(4))
    assert stream.getvalue() == "events: 41000000\nevents: 00000000\n"
