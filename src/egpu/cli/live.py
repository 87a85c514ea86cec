"""Following a workload to its end, for ``run`` and ``demo``: whatever fails here, it runs on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

import click

from egpu.cli import failure

if TYPE_CHECKING:
    from types import FrameType

SIGNAL_BASE = 128  # a shell's exit code for a process that a signal ended
_LOOK_S = 0.05  # how soon the end of the workload is noticed, however rarely records are collected
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)  # they reach egpu alone; a terminal's SIGINT does not


class Followed(Protocol):
    """A workload: a ``session.Session`` or one that is idle."""

    @property
    def pid(self) -> int: ...
    def running(self) -> bool: ...
    def wait(self) -> int: ...
    def detach(self) -> None: ...


def follow(session: Followed, collect: Callable[[], None], *, interval_s: float) -> int:
    """Call ``collect`` every ``interval_s`` seconds until the workload has ended; its exit code.

    Control-C reaches the workload by itself (it is in the terminal's foreground group); egpu goes
    on until the workload has ended, and gives up at the second one.  SIGTERM and SIGHUP are passed
    on.  If ``collect`` fails, one line says so, the probes are taken out and the workload runs on.
    """
    interrupted = failed = False
    with _passing_on(session):
        while True:
            try:
                while session.running():
                    if not failed:
                        failed = not _collected(session, collect)
                    _pause(session, interval_s)
                status = session.wait()
                break
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                click.echo("egpu: waiting for the workload to end; once more gives up", err=True)
    if not failed:
        _collected(session, collect)
    return status if status >= 0 else SIGNAL_BASE - status


def finish(status: int, write: Callable[[], None], stream: TextIO) -> int:
    """Write the report to ``stream``; the workload's ``status``, whatever becomes of the report."""
    try:
        write()
        stream.flush()
    except Exception as error:  # the workload has done its work: its exit code stands
        failure.say(error, "the report is incomplete")
        if isinstance(error, OSError):
            failure.discard(stream)
    return status


def _collected(session: Followed, collect: Callable[[], None]) -> bool:
    try:
        collect()
    except Exception as error:  # no failure of ours may end the workload
        failure.say(error, "the workload runs on, unprobed")
        session.detach()
        return False
    return True


def _pause(session: Followed, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_S))
        if left > _LOOK_S and not session.running():
            return


@contextmanager
def _passing_on(session: Followed) -> Iterator[None]:
    """Signals that ask egpu to end ask the workload instead; ignored ones stay ignored."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if session.running():
            os.kill(session.pid, number)

    before = []
    if threading.current_thread() is threading.main_thread():
        for number in _PASSED_ON:
            if signal.getsignal(number) == signal.SIG_DFL:
                before.append((number, signal.signal(number, pass_on)))
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
