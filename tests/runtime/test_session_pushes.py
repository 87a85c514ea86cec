"""Queues, stacks and Bloom filters that the session pushes to while a workload uses them."""

import errno
import json
import os
from collections import Counter

import pytest
from test_host_maps import running
from test_runtime_cli import ROOT, pytestmark
from test_runtime_cli import egpu as command

import egpu
from egpu.errors import InputError, MapError
from egpu.maps import UpdateFlag

__all__ = ["pytestmark"]

PROGRAM = ROOT / "tests" / "gpu" / "probes" / "pushed.bpf.o"
ROOM, SMALL = 5000, 300  # of the queue and of the stack
FAR = 1 << 40  # numbers that no thread has


def pair(number):
    return number, 3 * number


def refused(function, *arguments):
    with pytest.raises(MapError) as info:
        function(*arguments)
    return info.value.errno


def drained(view):
    """Everything that can be popped, until ENOENT."""
    found = []
    with pytest.raises(MapError) as info:
        found.extend(iter(view.pop, None))
    assert info.value.errno == errno.ENOENT
    return found


def check_order_and_errors(maps):
    """With empty maps, whether or not there is memory yet."""
    queue, stack = maps["waiting"], maps["latest"]
    assert refused(queue.pop) == refused(queue.peek) == errno.ENOENT
    assert queue.push_batch(map(pair, range(40))) == 40
    queue.push({"number": 40, "thrice": 120})
    assert stack.push_batch(map(pair, range(7))) == 7
    assert (queue.peek(), stack.peek(), len(queue), len(stack)) == (pair(0), pair(6), 41, 7)
    assert list(stack) == [pair(number) for number in reversed(range(7))]
    assert [queue.pop() for _ in range(3)] == [pair(0), pair(1), pair(2)]
    assert [stack.pop() for _ in range(2)] == [pair(6), pair(5)]
    assert drained(queue) == [pair(number) for number in range(3, 41)]
    assert drained(stack) == [pair(number) for number in reversed(range(5))]
    assert stack.push_batch(map(pair, range(SMALL))) == SMALL
    assert refused(stack.push, pair(SMALL)) == errno.E2BIG
    assert refused(stack.push, pair(SMALL), UpdateFlag.NOEXIST) == errno.EINVAL
    assert refused(stack.push, pair(SMALL), 8) == errno.EINVAL
    stack.push(pair(SMALL), UpdateFlag.EXIST)  # the oldest goes
    assert drained(stack) == [pair(number) for number in reversed(range(1, SMALL + 1))]
    seen = maps["seen"]
    assert refused(seen.pop) == errno.EOPNOTSUPP
    assert refused(seen.push, 1, UpdateFlag.EXIST) == errno.EINVAL
    with pytest.raises(InputError):
        queue.push(7)
    with pytest.raises(InputError):
        seen.push(-1)


def test_order_flags_and_error_numbers(tmp_path):
    with running(tmp_path, PROGRAM) as (session, stepper):
        check_order_and_errors(session.maps)
        stepper.do("first 1 2")
        drained(session.maps["waiting"])
        drained(session.maps["latest"])
        check_order_and_errors(session.maps)
        session.maps["waiting"].push(pair(5))
        queue = session.maps["waiting"]
        queue.freeze()
        assert queue.frozen
        assert refused(queue.push, pair(1)) == refused(queue.pop) == errno.EPERM
        assert refused(queue.freeze) == errno.EPERM
        assert queue.peek() == pair(5)
        stepper.end(session)
        assert refused(session.maps["latest"].push, pair(1)) == errno.ESTALE


def test_host_and_programs_on_one_queue(tmp_path):
    """What either side pushed is popped once by one of them or left: none lost or twice."""
    with running(tmp_path, PROGRAM) as (session, stepper):
        maps = session.maps
        ours = [pair(FAR + number) for number in range(30)]
        maps["waiting"].push_batch(ours[:20])
        maps["seen"].push_batch([FAR, FAR + 1])
        assert FAR in maps["seen"]
        stepper.do("first 3 33")
        maps["seen"].push(FAR + 2)
        maps["waiting"].push_batch(ours[20:])
        taken = drained(maps["waiting"])
        assert taken[-10:] == ours[20:]
        # 99 threads pushed their numbers; of the even ones (17, 16 and 17 of a block) each popped
        # one, the oldest, so that ours from before went first.
        assert len(taken) == 20 + 99 - 50 + 10
        assert not set(ours[:20]) & set(taken)
        assert max(Counter(taken).values()) == 1
        assert maps["results"][3] == 50  # popped
        assert maps["results"][5] == 0  # torn
        assert all(FAR + number in maps["seen"] for number in range(3))
        assert all(number in maps["seen"] for number in range(99))
        assert FAR + 3 not in maps["seen"]
        stepper.do("start first 5 32 4")
        got = []
        for number in range(20):
            maps["waiting"].push(pair(2 * FAR + number))
            got.append(maps["waiting"].pop())
        stepper.do("wait")
        session.snapshot()
        left, results = list(maps["waiting"]), maps["results"]
        assert results[2] == 0  # refused
        assert results[1] == results[0] == 99 + 640
        assert len(left) == 20 + 10 - len(taken) + results[1] - results[3] + 20 - len(got)
        assert all(thrice == 3 * number for number, thrice in got + left)
        assert results[5] == 0
        stepper.end(session)


def test_contexts(tmp_path):
    """Values pushed before are in each context's queue, later ones in those that there are."""
    with running(tmp_path, PROGRAM) as (session, stepper):
        maps = session.maps
        maps["latest"].push(pair(FAR))
        maps["seen"].push(FAR)
        stepper.do("second 1 1")
        maps["seen"].push(FAR + 1)
        maps["waiting"].push(pair(9))
        stepper.do("new")
        stepper.do("second 1 1")
        assert [FAR + number in view for view in maps["seen"].copies() for number in (0, 1)] == (
            [True] * 4
        )
        first, second = maps["waiting"].copies()
        assert (list(first), list(second)) == ([pair(9)], [])
        assert [list(view) for view in maps["latest"].copies()] == [[pair(FAR)]] * 2
        with pytest.raises(InputError, match="exists 2 times"):
            maps["waiting"].pop()
        second.push(pair(4))
        assert second.pop() == pair(4)
        assert first.pop() == pair(9)
        maps["waiting"].push(pair(7))
        assert [view.pop() for view in maps["waiting"].copies()] == [pair(7)] * 2
        stepper.end(session)


def test_an_object_before_and_after_its_run(tmp_path):
    obj = egpu.Object(str(PROGRAM))
    obj.maps["waiting"].push_batch([pair(1), pair(2), pair(3)])
    assert obj.maps["waiting"].pop() == pair(1)
    obj.maps["seen"].push(FAR)
    assert FAR in obj.maps["seen"]
    assert FAR + 1 not in obj.maps["seen"]
    with running(tmp_path, obj) as (session, stepper):
        assert list(obj.maps["waiting"]) == [pair(2), pair(3)]
        stepper.do("first 1 1")  # pushes number 0, pops 2
        session.snapshot()
        assert list(obj.maps["waiting"]) == [pair(3), pair(0)]
        assert FAR in obj.maps["seen"]
        assert obj.maps["waiting"].pop() == pair(3)
        stepper.end(session)
    assert list(obj.maps["waiting"]) == [pair(2), pair(3)]


def test_another_process(tmp_path, monkeypatch):
    monkeypatch.setenv("EGPU_RUNTIME_DIR", str(tmp_path / "runtime"))
    folder = tmp_path / "scene"
    folder.mkdir()

    def said(*arguments, code=0):
        done = command("map", *arguments)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        return done.stdout if code == 0 else done.stderr

    def check(pid, maps):
        queue, stack, seen = (f"{pid}:{name}" for name in ("waiting", "latest", "seen"))
        said("push", queue, "[1, 3]")
        said("push", queue, '{"number": 2, "thrice": 6}')
        assert said("peek", queue) == said("pop", queue) != ""
        assert json.loads(said("pop", queue, "--json"))["value"] == {"number": 2, "thrice": 6}
        assert "it is empty" in said("pop", queue, code=1)
        opened = egpu.open_map(stack)
        assert opened.push_batch(map(pair, range(SMALL))) == SMALL
        assert "it is full" in said("push", stack, "[9, 27]", code=1)
        said("push", stack, "[9, 27]", "--exist")
        assert (opened.peek(), opened[1], len(opened)) == (pair(9), pair(SMALL - 1), SMALL)
        assert len(said("dump", stack).splitlines()) == SMALL
        assert [opened.pop() for _ in range(2)] == [pair(9), pair(SMALL - 1)]
        said("push", seen, "77")
        assert said("peek", seen, "77") == "True\n"
        assert 78 not in egpu.open_map(seen)
        assert 77 in maps["seen"]
        assert said("dump", seen).startswith("0.0% of its bits are set")
        assert "see get" in said("peek", f"{pid}:results", code=2)
        assert "has keys" in said("push", f"{pid}:results", "1", code=1)
        assert "nothing is popped" in said("pop", seen, code=1)

    with running(folder, PROGRAM) as (session, stepper):
        before = egpu.open_map(f"{os.getpid()}:waiting")
        before.push(pair(8))
        assert (dict(before), before.pop()) == ({0: pair(8)}, pair(8))
        stepper.do("second 1 1")
        drained(session.maps["waiting"])
        drained(session.maps["latest"])
        check(os.getpid(), session.maps)
        said("freeze", f"{os.getpid()}:waiting")
        assert "frozen" in said("push", f"{os.getpid()}:waiting", "[1, 3]", code=1)
