"""``egpu run --idle`` and ``egpu attach`` as commands of their own."""

import dataclasses
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_host_maps import PROGRAM, Stepper
from test_runtime_cli import NATIVE, PATIENCE, ROOT, pytestmark
from test_runtime_cli import egpu as command

from egpu.cli.attach import _told, _why_not, options_of
from egpu.session import Options, RingMemory

__all__ = ["pytestmark"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EGPU_RUNTIME_DIR", str(tmp_path / "runtime"))


def started(*words):
    paths = [str(NATIVE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "egpu", *map(str, words)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line(stream, pattern):
    """What the next line of a process says."""
    text = stream.readline()
    found = re.search(pattern, text)
    assert found, text
    return found[1]


class Scene:
    """An idle workload that launches when it is told to."""

    def __init__(self, tmp_path):
        self.stepper = Stepper(tmp_path)
        self.launcher = started("run", "--idle", "--sim", "--", *self.stepper.argv)
        self.pid = line(self.launcher.stderr, r"^egpu: process (\d+) waits for")

    def attach(self, *words):
        process = started("attach", self.pid, *words)
        line(process.stderr, "^egpu: attached to process ([0-9]+)$")
        return process

    def end(self):
        self.stepper._to.close()
        out, err = self.launcher.communicate(timeout=PATIENCE)
        self.stepper._from.close()
        assert (self.launcher.returncode, out, err) == (0, "", "")


@pytest.fixture
def interruptible():
    """What is started can be interrupted, also where these tests run in the background of a shell,
    which has SIGINT ignored: a handler is not inherited, unlike that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def scene(tmp_path, interruptible):
    found = Scene(tmp_path)
    found.stepper.do("first 3 33")
    yield found
    if found.launcher.poll() is None:
        found.end()
    found.launcher.stdout.close()
    found.launcher.stderr.close()


def ended(process):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out


def test_a_tool_until_it_is_interrupted(scene):
    process = scene.attach("kernelcount", "--json")
    for _ in range(4):
        scene.stepper.do("first 5 40")
    scene.stepper.do("second 2 7")
    process.send_signal(signal.SIGINT)
    report = json.loads(ended(process))
    rows = {row["name"]: row for row in report["kernels"]}
    assert {name: row["threads"] for name, row in rows.items()} == {"first": 800, "second": 14}
    assert all(row["launches_seen"] == row["launches_probed"] for row in rows.values())
    assert report["partial"] is False
    scene.stepper.do("first 5 40")
    refused = command("attach", scene.pid, "kernelcount")
    assert refused.returncode == 1
    assert "was attached to before" in refused.stderr


def test_an_object_until_the_workload_ends(scene):
    process = scene.attach(PROGRAM)
    scene.stepper.do("first 4 10")
    scene.stepper.do("second 3 10")
    other = command("attach", scene.pid, PROGRAM)
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert "attached programs already" in other.stderr
    seen = command("map", "get", f"{scene.launcher.pid}:totals", "0")
    assert seen.stdout == "40\n"
    scene.end()
    out = ended(process)
    assert "2 of 2 launches probed" in out
    assert re.search(r"^ *0 +40$", out, re.MULTILINE), out
    assert re.search(r"^ *1 +30$", out, re.MULTILINE), out


def test_for_some_seconds(scene):
    began = time.monotonic()
    process = scene.attach("kernelcount", "--for", "0.5", "--rings", "device")
    out = ended(process)
    assert time.monotonic() - began >= 0.5
    assert "No launch of a kernel that the probes match was seen" in out


def test_who_attached_is_killed(scene):
    process = scene.attach(PROGRAM)
    scene.stepper.do("first 4 10")
    process.kill()
    process.communicate()
    deadline = time.monotonic() + PATIENCE
    while f"{scene.launcher.pid}:totals" in command("map", "list").stdout:
        assert time.monotonic() < deadline
    scene.stepper.do("first 4 10")


def test_what_cannot_be_attached_to(scene, tmp_path):
    def refused(words, *arguments, code=1):
        done = command("attach", *arguments)
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as waiting:
        refused("it has no agent inside", waiting.pid, "kernelcount")
        refused("egpu run --idle", waiting.pid, "kernelcount")
    refused("there is no such process", 2**22 - 1, "kernelcount")
    refused("neither a tool nor an object file", scene.pid, "no_such_tool")
    refused("add", scene.pid, ROOT / "tests" / "bpftime" / "programs" / "racy.bpf.o")
    process = scene.attach("kernelcount", "--for", "0")  # it is as idle as before
    ended(process)


def test_a_process_of_ones_own_that_cannot_be_looked_into_is_not_anothers(monkeypatch):
    """As one that is not dumpable; a superuser may look into those, so Linux is stood in for."""
    read = Path.read_text

    def closed(path, *how):
        if path.name == "maps":
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path, *how)

    monkeypatch.setattr(Path, "read_text", closed)
    assert "Linux does not let this user look into it" in _why_not(os.getpid())
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert _why_not(os.getpid()) == "it belongs to another user"


def test_options_of_idle():
    def refused(*words):
        done = command("run", "--idle", *words)
        assert done.returncode == 2
        return done.stderr

    assert "belong to `egpu attach`" in refused("--sample", "2", "--", "true")
    assert "no command to run" in refused()
    done = command("run", "--idle", "--sim", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7


def test_every_option_is_told():
    """Each value that is no default arrives as it was, as JSON has it on the way."""
    made = Options()
    others = {
        "cookies": {"count": 1},
        "environment": {"A": "b"},
        "pins": {"hits": "mine"},
        "kernels": "g*",
        "rings": RingMemory.DEVICE,
        "thread_slots": 7,
    }
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if field.name in others:
            other = others[field.name]
        else:
            other = not value if isinstance(value, bool) else value + 1
        changed = dataclasses.replace(made, **{field.name: other})
        assert changed != made, field.name
        told = json.loads(json.dumps(_told(changed)))
        assert list(told) == [field.name]
        assert options_of(told) == changed
