"""What one thread makes another one waits for."""

import threading
from functools import partial

import pytest

from egpu.session.shelf import Shelf

PATIENCE = 100


class Making:
    """A thread that makes something as long as it is held up."""

    def __init__(self, shelf, key, result):
        self.begun, self.go = threading.Event(), threading.Event()
        self.result, self.failure = result, None

        def work():
            try:
                shelf.get(key, self.make)
            except OSError as error:
                self.failure = error

        self.thread = threading.Thread(target=work)
        self.thread.start()
        assert self.begun.wait(PATIENCE)

    def make(self):
        self.begun.set()
        assert self.go.wait(PATIENCE)
        if self.result is None:
            raise OSError("gone")
        return self.result

    def finish(self):
        self.go.set()
        self.thread.join(PATIENCE)


def waiting(shelf, key, make):
    """A thread that asks, and what it got."""
    got = []
    thread = threading.Thread(target=lambda: got.append(shelf.get(key, make)))
    thread.start()
    return thread, got


def never():
    raise AssertionError("it is made twice")


def test_what_is_being_made_is_waited_for():
    shelf = Shelf(4)
    making = Making(shelf, "a", "made")
    thread, got = waiting(shelf, "a", never)
    assert shelf.get("b", lambda: "other") == "other"  # nobody waits for what it does not need
    assert shelf.ready("a") is None
    thread.join(0.05)
    assert (thread.is_alive(), got) == (True, [])
    making.finish()
    thread.join(PATIENCE)
    assert (got, shelf.ready("a")) == (["made"], "made")


def test_who_waited_for_what_failed_tries_it():
    shelf = Shelf(4)
    making = Making(shelf, "a", None)
    thread, got = waiting(shelf, "a", lambda: "made after all")
    making.finish()
    thread.join(PATIENCE)
    assert isinstance(making.failure, OSError)
    assert got == ["made after all"]
    with pytest.raises(AssertionError):
        shelf.get("b", never)
    assert shelf.get("b", lambda: "again") == "again"


def test_many_threads_make_each_thing_once():
    shelf, made, lock = Shelf(100), [], threading.Lock()

    def make(key):
        with lock:
            made.append(key)
        return key

    def ask(first):
        for step in range(50):
            key = (first + step) % 50
            assert shelf.get(key, partial(make, key)) == key

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(made) == list(range(50))
