"""Stacks of launches of a real workload on the simulated device, and what they cost."""

import json
import sys

import pytest
from test_runtime_cli import DEMO, ROOT, egpu, pytestmark, workload

from egpu import Object
from egpu.errors import InputError
from egpu.session import Options, run

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
from stack_totals import wrong_stacks

__all__ = ["pytestmark"]
PROGRAM = ROOT / "tests" / "gpu" / "probes" / "stacks.bpf.o"


def test_blocks_are_counted_by_the_launching_stack():
    done = egpu("run", PROGRAM, "--sim", "--json", "--", *workload(launches=3))
    assert done.returncode == 0, done.stderr
    totals, report = map(json.loads, done.stdout.strip().splitlines()[-2:])
    assert wrong_stacks(report["maps"], totals["kernels"]) == []


def test_frames_have_their_places():
    with run([str(DEMO / "demo")], programs=PROGRAM, options=Options(simulated=True)) as session:
        session.wait()
        view = session.maps["stacks"]
        assert len(view) == len(list(view)) == 5
        for number in view:
            frames = view[number]
            assert len(frames) <= view.spec.value_size // 8 == 127
            assert frames[0].path == str(DEMO / "demo")
            assert [frame.function for frame in frames].count("main") == 1
            assert all(frame.offset > 0 for frame in frames)
        with pytest.raises(KeyError):
            view[max(view) + 1]


def test_an_object_has_stacks_while_it_runs():
    obj = Object(PROGRAM)
    with pytest.raises(InputError, match="there are stacks while its object runs"):
        obj.maps["stacks"]
    with run([str(DEMO / "demo")], programs=obj, options=Options(simulated=True)) as session:
        session.wait()
        assert dict(obj.maps["stacks"]) == dict(session.maps["stacks"])
        assert len(obj.maps["stacks"]) == 5


def test_children_have_numbers_of_their_own():
    command = f"{DEMO / 'demo'} --launches 1; {DEMO / 'demo'} --launches 2"
    with run(["sh", "-c", command], programs=PROGRAM, options=Options(simulated=True)) as session:
        session.wait()
        assert len(session.maps["stacks"]) == 10


def test_only_programs_that_ask_have_stacks():
    program = ROOT / "tests" / "gpu" / "probes" / "prints.bpf.o"
    with run([str(DEMO / "demo")], programs=program, options=Options(simulated=True)) as session:
        session.wait()
        assert session._server.stacks() == {}
