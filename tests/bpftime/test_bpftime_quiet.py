"""When a loader is taken to have attached all that it wants."""

import os
import subprocess
import sys
import time

import pytest
from running import PATIENCE

from egpu.loader import quiet
from egpu.loader.quiet import Quiet, look


@pytest.fixture
def process(request):
    """A process that sleeps, or one that runs."""
    code = {"sleeps": "input()", "runs": "print()\nwhile True: pass"}[request.param]
    command = [sys.executable, "-uc", f"print()\n{code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdout.readline()
        yield started.pid
        started.kill()


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("process", ["sleeps", "runs"], indirect=True)
def test_one_that_sleeps_or_runs_is_quiet_in_time(process):
    began, times = time.monotonic(), Quiet()
    until(lambda: times.seconds([process]) > 0.3)
    assert time.monotonic() - began > 0.3
    times.reset()
    assert times.seconds([process]) < 0.3


@pytest.mark.parametrize("process", ["sleeps"], indirect=True)
def test_what_a_process_that_sleeps_looks_like(process):
    until(lambda: not look(process)[0])
    assert not look(process)[0]


@pytest.mark.parametrize("process", ["runs"], indirect=True)
def test_what_a_process_that_runs_looks_like(process):
    runnable, ran = look(process)
    assert runnable
    until(lambda: look(process)[1] > ran + 10)


def test_one_that_is_kept_from_running_is_not(monkeypatch):
    seen = {1: (True, 50), 2: (False, 7)}
    monkeypatch.setattr(quiet, "look", seen.__getitem__)
    times = Quiet()
    times.seconds([1, 2])  # how long they had run before is learnt
    times.reset()
    for _ in range(50):
        time.sleep(0.002)
        assert times.seconds([1, 2]) == 0
    seen[1] = (True, 50 + os.sysconf("SC_CLK_TCK"))
    time.sleep(0.002)
    assert 0.002 <= times.seconds([1, 2]) <= 0.05  # it ran, all the time that has passed
    seen[1] = (False, 50)
    before = times.seconds([1, 2])
    time.sleep(0.002)
    assert before + 0.002 <= times.seconds([1, 2]) <= before + 0.05


def test_a_process_that_has_ended_asks_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert look(process.pid) == (False, 0)
