"""Questions of an idle workload for kernels while a session attaches."""

import threading

import pytest

from egpu.agent import Refused, Unmatched
from egpu.session import workload
from egpu.session.workload import _Forwarding

PATIENCE_S = 60


class Session:
    def resolve(self, seen):
        return Refused(f"{seen} has no twin")


@pytest.fixture
def asked(monkeypatch):
    """Ask for a kernel on a thread; gives what waits for the answer."""
    threads = []

    def ask(forwarding):
        answers, began = [], threading.Event()

        def run():
            began.set()
            answers.append(forwarding.resolve("k"))

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)
        assert began.wait(PATIENCE_S)

        def answer():
            thread.join(PATIENCE_S)
            (found,) = answers
            return found

        return answer

    yield ask
    for thread in threads:
        thread.join(PATIENCE_S)


def test_nothing_is_attached():
    forwarding = _Forwarding()
    assert forwarding.resolve("k") == Unmatched()


def test_a_session_that_is_attaching_answers(asked, monkeypatch):
    monkeypatch.setattr(workload, "_HOLD_S", PATIENCE_S)
    forwarding = _Forwarding()
    forwarding.expect()
    answer = asked(forwarding)
    forwarding.attach(Session())
    assert answer() == Refused("k has no twin")


def test_one_that_does_not_come(asked, monkeypatch):
    monkeypatch.setattr(workload, "_HOLD_S", PATIENCE_S)
    forwarding = _Forwarding()
    forwarding.expect()
    answer = asked(forwarding)
    forwarding.leave()
    assert answer() == Unmatched()


def test_one_that_takes_too_long(monkeypatch):
    """The workload goes on."""
    monkeypatch.setattr(workload, "_HOLD_S", 0.01)
    forwarding = _Forwarding()
    forwarding.expect()
    assert forwarding.resolve("k") == Unmatched()
    forwarding.attach(Session())
    assert forwarding.resolve("k") == Refused("k has no twin")


def test_images_are_told_to_a_session_that_wants_them():
    class Wanting(Session):
        def __init__(self):
            self.told = []

        def wants_images(self):
            return True

        def device_named(self, device):
            self.told.append(device)

        def image_loading(self, seen):
            self.told.append(seen)

        def image_gone(self, *which):
            self.told.append(which)

    forwarding, session = _Forwarding(), Wanting()

    def tell():
        forwarding.device_named("device")
        forwarding.image_loading("image")
        forwarding.image_gone(1, 2, 3)

    assert not forwarding.wants_images()
    tell()  # to nobody
    forwarding.attach(session)
    assert forwarding.wants_images()
    tell()
    assert session.told == ["device", "image", (1, 2, 3)]
    forwarding.leave()
    assert not forwarding.wants_images()


def test_a_session_that_leaves_while_something_is_told_to_it():
    """It was there when that was looked at: on the server's thread an error would end a process's
    connection."""

    class Leaving(_Forwarding):
        looks = 0

        @property
        def target(self):
            self.looks += 1
            return Anything() if self.looks == 1 else None

        @target.setter
        def target(self, value):
            pass

    class Anything:
        def __getattr__(self, name):
            return lambda *told: told

    calls = {
        "open_device": (1, 2, 3),
        "resolve": ("k",),
        "answered": (),
        "host_call": (1,),
        "wants_images": (),
        "device_named": (1,),
        "image_loading": (1,),
        "image_gone": (1, 2, 3),
        "process_started": (1, "x"),
        "process_ended": (1,),
    }
    for name, told in calls.items():
        forwarding = Leaving()
        getattr(forwarding, name)(*told)
        assert forwarding.looks == 1, name
