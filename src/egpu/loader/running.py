"""A loader program and a workload side by side (``egpu run --loader``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from egpu import session
from egpu.bpf.program import Object
from egpu.errors import AgentError, InputError
from egpu.loader.directly import Shape, carried, carrier
from egpu.loader.maps import LoaderMap
from egpu.loader.server import LoaderServer
from egpu.session import Options, Session
from egpu.session.slots import thread_slots
from egpu.sim import private_folder

LIBRARY_NAME = "libegpu_loader.so"
SOCKET_VARIABLE = "EGPU_LOADER_SOCKET"
_ATTACH_S = 60.0  # for a loader to attach something
_LOOK_S = 0.01
_INTERRUPTED_S = 5.0  # for a loader to end once it was asked to


def loader_library() -> Path:
    """The library that goes into loaders; AgentError if it is not built."""
    path = Path(__file__).resolve().parents[1] / "_native" / LIBRARY_NAME
    if not path.is_file():
        raise AgentError(f"{path} is missing", hint="make native")
    return path


class Loader:
    """A loader program that was started, and what it asks.  Made by :func:`start_loader`."""

    def __init__(self, argv: Sequence[str], server: LoaderServer) -> None:
        environment = dict(os.environ)
        before = environment.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = (
            f"{loader_library()}:{before}" if before else str(loader_library())
        )
        environment[SOCKET_VARIABLE] = str(server.socket_path)
        self.server = server
        self._name = argv[0]
        try:
            self._process = subprocess.Popen(list(argv), env=environment)
        except OSError as error:
            raise InputError(f"cannot start it: {error.strerror}", where=argv[0]) from error

    def running(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait_attached(self) -> None:
        """Until it has attached its programs; InputError if it ends before, or takes a minute."""
        deadline = time.monotonic() + _ATTACH_S
        while not self.server.ready:
            if not self.running():
                status = self._process.returncode
                if self.server.ready:
                    return
                gone = self.server.attached
                usual = "its links ended with it" if gone else "it attached no program to a kernel"
                why = self.server.problems[-1:] or [usual]
                raise InputError(f"the loader ended with {status}: {why[0]}", where=self._name)
            if time.monotonic() > deadline:
                raise InputError(
                    f"the loader attached nothing within {_ATTACH_S:.0f} s", where=self._name
                )
            time.sleep(_LOOK_S)

    def end(self, patience_s: float) -> int | None:
        """Give it ``patience_s`` to show its last numbers, then ask it to end as Control-C does.

        So is every process that it started and that asks, as a script's is.  Its exit status,
        negative for a signal; None if one had to be killed.
        """
        if self._over(patience_s):
            return self._process.returncode
        for number in (signal.SIGINT, signal.SIGTERM):
            self._signal(number)
            if self._over(_INTERRUPTED_S):
                return self._process.returncode
        self._signal(signal.SIGKILL)
        self._process.wait()
        return None

    def _over(self, patience_s: float) -> bool:
        """Whether it ends in time, and all of its processes that ask."""
        deadline = time.monotonic() + patience_s
        while self.running() or self.server.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def _signal(self, number: signal.Signals) -> None:
        for process in self.server.processes() - {self._process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        self._process.send_signal(number)


@contextmanager
def start_loader(argv: Sequence[str], options: Options) -> Iterator[Loader]:
    """Start ``argv`` (a program that uses libbpf) with its bpf(2) calls answered here.

    InputError if it cannot be started.
    """
    folder = private_folder("egpu-loader-")
    try:
        with LoaderServer(folder, thread_slots(options.thread_slots)) as server:
            loader = Loader(argv, server)
            try:
                yield loader
            finally:
                loader.end(0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_attached(loader: Loader, argv: Sequence[str], options: Options) -> Session:
    """Wait until ``loader`` has attached its programs, then start the workload ``argv`` under them.

    Raises as :func:`egpu.session.run`, and InputError if the loader attaches nothing.
    """
    loader.wait_attached()
    return _started(loader, argv, options, *loader.server.collected())


def run_directly(loader: Loader, name: str, shape: Shape, options: Options) -> Session:
    """The same for its program ``name``, run as a kernel of its own."""
    loader.wait_attached()
    return _started(loader, carrier(shape), options, *loader.server.collected(name, carried()))


def _started(
    loader: Loader,
    argv: Sequence[str],
    options: Options,
    made: Object,
    maps: tuple[LoaderMap, ...],
) -> Session:
    # A loader may delete whenever it likes.
    options = replace(options, map_deletions=True)
    handled = session.Object(made)
    for each in maps:
        if each.staged:
            each.fill(handled.maps[each.spec.name])
    running = session.run(argv, programs=handled, options=options)
    loader.server.bind(running, maps)
    return running
