"""Pins of queues, stacks and Bloom filters: while the session runs, and after it."""

import errno
import json
from dataclasses import replace

import pytest
from test_host_maps import running
from test_runtime_cli import egpu as command
from test_runtime_cli import pytestmark
from test_session_pushes import FAR, PROGRAM, SMALL, drained, pair, refused

import egpu
from egpu.errors import InputError
from egpu.maps import UpdateFlag
from egpu.session import list_maps

__all__ = ["pytestmark"]

PINS = {"waiting": "queue", "latest": "stack", "seen": "filter"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EGPU_RUNTIME_DIR", str(tmp_path / "runtime"))


def said(*arguments, code=0):
    done = command("map", *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    return done.stdout if code == 0 else done.stderr


def scene(tmp_path, name):
    place = tmp_path / name
    place.mkdir()
    return place


def pushed_by_name():
    """The object with its pushed maps pinned by name."""
    obj = egpu.Object(PROGRAM).bound()
    maps = tuple(replace(spec, pin_by_name=spec.name in PINS) for spec in obj.maps)
    return egpu.Object(replace(obj, maps=maps))


def test_what_is_saved_is_read_pushed_to_and_popped(tmp_path):
    with running(scene(tmp_path, "one"), PROGRAM, pins=PINS) as (session, stepper):
        said("push", "queue", "[5, 15]")
        said("push", "filter", str(FAR))
        stepper.do("first 1 3")  # pushes 0, 1 and 2; 0 and 2 pop one each
        assert said("peek", "queue") == said("get", "queue", "0")
        session.maps["latest"].push_batch([pair(FAR), pair(FAR + 1)])
        session.snapshot()
        queued, stacked = list(session.maps["waiting"]), list(session.maps["latest"])
        stepper.end(session)
    assert {(row.reference, row.state, row.type) for row in list_maps()} == {
        ("queue", "saved", "QUEUE"),
        ("stack", "saved", "STACK"),
        ("filter", "saved", "BLOOM_FILTER"),
    }
    queue, stack, seen = (egpu.open_map(name) for name in ("queue", "stack", "filter"))
    assert (len(queued), len(stacked)) == (2, 3)
    assert list(queue.values()) == queued
    assert list(stack.values()) == stacked
    assert queue.contents().complete
    assert stacked[:2] == [pair(FAR + 1), pair(FAR)]
    assert [value in seen for value in (FAR, 0, 1, 2, FAR + 1)] == [True] * 4 + [False]
    queue.push(pair(7))
    stack.push(pair(8))
    seen.push(FAR + 1)
    assert FAR + 1 in egpu.open_map("filter")
    assert drained(queue) == [*queued, pair(7)]
    assert drained(stack) == [pair(8), *stacked]
    assert refused(queue.pop) == refused(queue.peek) == errno.ENOENT
    assert stack.push_batch(map(pair, range(SMALL))) == SMALL
    assert refused(stack.push, pair(SMALL)) == errno.E2BIG
    assert refused(stack.push, pair(SMALL), UpdateFlag.NOEXIST) == errno.EINVAL
    stack.push(pair(SMALL), UpdateFlag.EXIST)  # the oldest goes
    assert list(stack.values()) == [pair(number) for number in reversed(range(1, SMALL + 1))]
    assert refused(seen.pop) == errno.EOPNOTSUPP
    assert refused(seen.push, 1, UpdateFlag.EXIST) == errno.EINVAL
    said("freeze", "stack")
    assert refused(stack.push, pair(1)) == refused(stack.pop) == errno.EPERM
    assert stack.peek() == pair(SMALL)
    assert "has no keys" in said("set", "queue", "1", "[1, 3]", code=1)
    assert "has no keys" in said("delete", "queue", "1", code=1)


def test_a_later_session_goes_on_with_them(tmp_path):
    """Pinned by name: each session's queue begins as the last one left it."""
    with running(scene(tmp_path, "one"), pushed_by_name()) as (session, stepper):
        session.maps["waiting"].push_batch([pair(FAR), pair(FAR + 1), pair(FAR + 2)])
        session.maps["latest"].push_batch([pair(FAR), pair(FAR + 1)])
        session.maps["seen"].push(FAR)
        stepper.do("first 1 1")  # pushes 0 to both; pops the oldest, and 0 from the stack
        stepper.end(session)
    egpu.open_map("latest").push(pair(FAR + 9))
    with running(scene(tmp_path, "two"), pushed_by_name()) as (session, stepper):
        maps = session.maps
        assert list(maps["waiting"]) == [pair(FAR + 1), pair(FAR + 2), pair(0)]
        assert list(maps["latest"]) == [pair(FAR + 9), pair(FAR + 1), pair(FAR)]
        assert FAR in maps["seen"]
        stepper.do("first 1 1")
        session.snapshot()
        assert list(maps["waiting"]) == [pair(FAR + 2), pair(0), pair(0)]
        assert list(maps["latest"]) == [pair(FAR + 9), pair(FAR + 1), pair(FAR)]
        assert (FAR in maps["seen"], 0 in maps["seen"], FAR + 5 in maps["seen"]) == (
            True,
            True,
            False,
        )
        stepper.end(session)


def test_what_an_object_brings_is_pushed_to_what_is_pinned(tmp_path):
    for number in range(2):
        obj = pushed_by_name()
        obj.maps["waiting"].push(pair(number))
        obj.maps["latest"].push_batch(map(pair, range(200)))
        obj.maps["seen"].push(FAR + number)
        if number:
            with pytest.raises(InputError, match="latest: what is pinned leaves no room"):
                running(scene(tmp_path, "refused"), obj).__enter__()
            drained(egpu.open_map("latest"))
        with running(scene(tmp_path, str(number)), obj) as (session, stepper):
            assert list(session.maps["waiting"]) == [pair(each) for each in range(number + 1)]
            assert len(session.maps["latest"]) == 200
            found = [FAR + each in session.maps["seen"] for each in range(3)]
            assert found == [True, number == 1, False]
            stepper.end(session)


def test_dumps(tmp_path):
    with running(scene(tmp_path, "one"), PROGRAM, pins=PINS) as (session, stepper):
        session.maps["latest"].push_batch([pair(1), pair(2)])
        session.maps["seen"].push_batch(range(FAR, FAR + 20_000))
        live = [said("dump", name) for name in ("queue", "stack", "filter")]
        stepper.end(session)
    saved = [said("dump", name) for name in ("queue", "stack", "filter")]
    assert saved == live
    assert saved[:2] == ["", "0: number=2 thrice=6\n1: number=1 thrice=3\n"]
    assert "of its bits are set" in saved[2]
    document = json.loads(said("dump", "filter", "--json"))
    assert 0 < document["fill"] <= 3 * 20_000 / 2**22
    assert said("peek", "filter", str(FAR)) == "True\n"


def test_two_contexts(tmp_path):
    with running(scene(tmp_path, "one"), PROGRAM, pins=PINS) as (session, stepper):
        session.maps["latest"].push(pair(FAR))
        stepper.do("second 1 1")
        stepper.do("new")
        stepper.do("second 1 1")
        session.maps["seen"].copies()[1].push(FAR + 1)
        stepper.end(session)
    stack, seen = egpu.open_map("stack"), egpu.open_map("filter")
    assert [list(copy.values()) for copy in stack.copies()] == [[pair(FAR)]] * 2
    assert (FAR + 1 in seen, FAR + 2 in seen) == (True, False)
    with pytest.raises(InputError, match="exists 2 times"):
        stack.pop()
    stack.push(pair(4))
    assert [list(copy.values()) for copy in stack.copies()] == [[pair(4), pair(FAR)]] * 2


def test_damaged_files_are_refused(tmp_path):
    with running(scene(tmp_path, "one"), PROGRAM, pins=PINS) as (session, stepper):
        session.maps["waiting"].push(pair(1))
        stepper.end(session)
    for name in ("queue", "filter"):
        path = tmp_path / "runtime" / "pins" / name
        path.write_bytes(path.read_bytes()[:-1])
        assert "is no map of egpu" in said("dump", name, code=1)
