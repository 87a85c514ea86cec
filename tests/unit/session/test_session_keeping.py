"""Twins are kept behind the answers, all of them, and what cannot be kept is said."""

import threading

import pytest

from egpu.session.cache import BuiltTwin, Origin, TwinCache
from egpu.session.keeping import TwinKeeper

WAIT_S = 60


def twin(number):
    return BuiltTwin(bytes([number]) * 100, number, 3, (), "", (), 1, 2, ())


def kept(folder):
    return sorted(path.stem for path in folder.iterdir())


def test_what_is_stored_is_found_at_once_and_written_later(tmp_path):
    keeper = TwinKeeper(TwinCache(tmp_path))
    for number in range(3):
        keeper.store(f"{number}", twin(number), Origin())
    assert kept(tmp_path) == []
    assert [keeper.load(f"{number}") for number in range(4)] == [twin(0), twin(1), twin(2), None]
    keeper.settle()
    assert kept(tmp_path) == ["0", "1", "2"]
    assert [TwinCache(tmp_path).load(f"{number}") for number in range(3)] == [*map(twin, range(3))]


def test_settling_waits_for_what_another_thread_is_writing(tmp_path):
    begun, go = threading.Event(), threading.Event()

    class SlowCache(TwinCache):
        def store(self, *arguments):
            begun.set()
            assert go.wait(WAIT_S)
            super().store(*arguments)

    keeper = TwinKeeper(SlowCache(tmp_path))
    keeper.store("one", twin(1), Origin())
    threads = [threading.Thread(target=keeper.settle) for _ in range(2)]
    threads[0].start()
    assert begun.wait(WAIT_S)
    threads[1].start()
    keeper.store("two", twin(2), Origin())  # nobody who builds waits for it
    assert keeper.load("one") == twin(1)
    threads[1].join(0.1)
    assert threads[1].is_alive()
    go.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert kept(tmp_path) == ["one", "two"]


def test_a_disk_that_does_not_answer_holds_one_thread(tmp_path):
    begun, go = threading.Event(), threading.Event()

    class SlowCache(TwinCache):
        def store(self, *arguments):
            begun.set()
            assert go.wait(WAIT_S)
            super().store(*arguments)

    keeper = TwinKeeper(SlowCache(tmp_path))
    keeper.store("0", twin(0), Origin())
    writer = threading.Thread(target=keeper.write)
    writer.start()
    assert begun.wait(WAIT_S)
    for number in range(1, 4):
        keeper.store(f"{number}", twin(number), Origin())
        keeper.write()  # in this thread, which would wait for ever
    assert kept(tmp_path) == []
    go.set()
    writer.join(WAIT_S)
    assert not writer.is_alive()
    assert kept(tmp_path) == ["0", "1", "2", "3"]  # the thread that was writing has them all


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_what_cannot_be_kept_is_given_up_and_said(tmp_path, monkeypatch, error):
    def failing(*_):
        raise error

    cache = TwinCache(tmp_path)
    keeper = TwinKeeper(cache)
    monkeypatch.setattr("egpu.session.cache.os.replace", failing)
    keeper.store("one", twin(1), Origin())
    keeper.settle()
    assert cache.failure.startswith("twins are not cached")
    assert keeper.load("one") is None
    assert kept(tmp_path) == []
    monkeypatch.undo()
    keeper.store("two", twin(2), Origin())
    keeper.settle()
    assert kept(tmp_path) == ["two"]


def test_a_fault_of_ours_does_not_keep_others_back(tmp_path, monkeypatch):
    keeper = TwinKeeper(TwinCache(tmp_path))
    for number in range(2):
        keeper.store(f"{number}", twin(number), Origin())
    with monkeypatch.context() as patched:
        patched.setattr(BuiltTwin, "to_bytes", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            keeper.settle()
    keeper.settle()
    assert kept(tmp_path) == ["1"]
