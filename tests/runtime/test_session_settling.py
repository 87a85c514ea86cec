"""What a session does behind its answers is done when it says what became of it, and at its end."""

import threading

from test_runtime_cli import ROOT, pytestmark, workload

from egpu.session import Options, run
from egpu.session.cache import TwinCache
from egpu.session.twins import TwinBuilder

__all__ = ["pytestmark"]
PROGRAM = ROOT / "src" / "egpu" / "tools" / "kernelcount" / "kernelcount.bpf.o"


def session():
    argv = [str(word) for word in workload(launches=1)]
    return run(argv, programs=PROGRAM, options=Options(simulated=True))


def test_a_report_knows_of_every_twin_that_could_not_be_kept(monkeypatch):
    """On the simulated device nothing is kept, so that it fails is put there."""

    def failing(builder):
        caches[0].failure = "twins are not cached: no room"

    caches, made = [], TwinCache.__init__

    def noted(cache, *arguments, **options):
        made(cache, *arguments, **options)
        caches.append(cache)

    monkeypatch.setattr(TwinCache, "__init__", noted)
    with session() as running:
        assert running.wait() == 0
        monkeypatch.setattr(TwinBuilder, "settle", failing)
        assert "twins are not cached: no room" in running.notes


def test_the_end_of_a_session_waits_until_twins_are_kept(monkeypatch):
    settled = []
    monkeypatch.setattr(TwinBuilder, "settle", lambda builder: settled.append(builder.reports()))
    with session() as running:
        assert running.wait() == 0
        assert settled == []
    assert len(settled) == 1
    assert len(settled[0]) == 5  # all kernels had been asked for by then


def test_the_end_of_a_session_ends_what_is_done_ahead(monkeypatch):
    """It would wait for it otherwise: for a ptxas that hangs, its two minutes."""
    begun, abandoned, ended = threading.Event(), threading.Event(), []

    def hanging(builder, device):
        begun.set()
        ended.append(abandoned.wait(10))

    monkeypatch.setattr(TwinBuilder, "rehearse", hanging)
    monkeypatch.setattr(TwinBuilder, "abandon", lambda builder: abandoned.set())
    with session() as running:
        assert running.wait() == 0
        assert begun.wait(100)
        assert ended == []
    assert ended == [True]
