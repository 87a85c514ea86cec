"""The simulated device as a process: serves the stand-in drivers of several workloads.

Each client has a machine and a thread of its own; a client that sends nonsense or dies loses only
its own connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from egpu.errors import AgentError, InputError, InternalError, UnsupportedError
from egpu.sim.client import Client, Refusal
from egpu.sim.folder import private_folder
from egpu.sim.wire import receive, reply

SOCKET_VARIABLE = "EGPU_SIM_SOCKET"
SM_COUNT = 4
UNKNOWN_ERROR = 999
_READY = b"ready\n"
_STAYING = b"staying\n"  # said when the parent has gone and clients have not
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_RETIRE_POLL_SECONDS = 0.1
_ACCEPT_PAUSE_SECONDS = 0.01  # out of descriptors: do not spin


def driver_directory() -> Path:
    """The directory of the stand-in ``libcuda.so.1``, for a workload's LD_LIBRARY_PATH.

    UnsupportedError if it was not built.
    """
    directory = Path(__file__).resolve().parent.parent / "_native" / "sim"
    if (directory / "libcuda.so.1").is_file():
        return directory
    raise UnsupportedError(
        f"the simulated device: {directory / 'libcuda.so.1'} is missing",
        needs="the native part: pip install . (or cmake -S native -B build && cmake --build build, "
        "then cmake --install build --prefix src)",
    )


class Server:
    """Listens at ``path``; ``serve`` runs until ``stop`` is called from another thread or a signal
    handler.  InputError if the socket cannot be made."""

    def __init__(self, path: Path, sm_count: int = SM_COUNT) -> None:
        self.sm_count = sm_count
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(str(path))
        except OSError as error:
            self._socket.close()
            raise InputError(f"no socket at {path}: {error.strerror or error}") from error
        os.chmod(path, 0o600)
        self._socket.listen(64)
        self._path = path
        self._stopping = False
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    def serve(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed by stop(), or no descriptor is left for one more client
                time.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve_client, args=(connection,), daemon=True).start()

    def stop(self) -> None:
        self._stopping = True
        # shutdown wakes the accept; close alone would leave it waiting
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def connected(self) -> bool:
        """Whether a client is there now, even one whose kernel never ends, or at the door."""
        door = select.poll()
        door.register(self._socket, select.POLLIN)
        if door.poll(0):
            return True
        poller, count = select.poll(), 0
        with self._lock:  # a connection is closed after it has left the set
            for connection in self._connections:
                poller.register(connection, select.POLLRDHUP)
                count += 1
            return len(poller.poll(0)) < count

    def retire(self) -> None:
        """Stop as soon as no client is connected."""
        while self.connected():
            time.sleep(_RETIRE_POLL_SECONDS)
        self.stop()

    def _serve_client(self, connection: socket.socket) -> None:
        try:
            _serve(connection, self.sm_count)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()


def _serve(connection: socket.socket, sm_count: int) -> None:
    client = Client(sm_count)
    try:
        while (request := receive(connection)) is not None:
            try:
                payload = client.handle(request)
            except Refusal as refusal:
                reply(connection, request.kind, refusal.status, refusal.message.encode())
                continue
            reply(connection, request.kind, 0, payload)
    except (AgentError, OSError) as error:
        print(f"egpu-sim: connection closed: {error}", file=sys.stderr, flush=True)
    except Exception as error:  # one client's surprise must not end the others
        report = InternalError(f"{type(error).__name__}: {error}")
        print(f"egpu-sim: connection closed: {report}", file=sys.stderr, flush=True)
        if os.environ.get("EGPU_DEBUG") == "1":
            raise


class SimulatedDevice:
    """A server in a child process, for the time of a ``with`` block and, like a real device, for as
    long after it as a client is connected.

    ``environment()`` gives what makes a workload use it.  UnsupportedError if the stand-in
    driver was not built, AgentError if the server does not start.
    """

    def __init__(self, sm_count: int = SM_COUNT) -> None:
        self.sm_count = sm_count
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket_path(self) -> Path:
        """Of the running server; InternalError outside of the ``with`` block."""
        if self._directory is None:
            raise InternalError("the simulated device is used outside of its with block")
        return self._directory / "sim.sock"

    @property
    def pid(self) -> int:
        """Of the running server; InternalError outside of the ``with`` block."""
        if self._process is None:
            raise InternalError("the simulated device is used outside of its with block")
        return self._process.pid

    def environment(self) -> dict[str, str]:
        """EGPU_SIM_SOCKET, and LD_LIBRARY_PATH with the stand-in driver before its old value."""
        paths = [str(driver_directory())]
        if os.environ.get("LD_LIBRARY_PATH"):
            paths.append(os.environ["LD_LIBRARY_PATH"])
        return {
            SOCKET_VARIABLE: str(self.socket_path),
            "LD_LIBRARY_PATH": ":".join(paths),
        }

    def __enter__(self) -> SimulatedDevice:
        driver_directory()
        self._directory = private_folder("egpu-sim-")
        try:
            self._start()
        except BaseException:
            self._clean()
            raise
        return self

    def _start(self) -> None:
        package_root = str(Path(__file__).resolve().parents[2])
        python_path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "egpu.sim", "--socket", str(self.socket_path)]
        command += ["--sms", str(self.sm_count), "--stop-with-parent"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": python_path},
            start_new_session=True,  # Control-C is for the workload: its device stays
        )
        if _line_of(self._process, _START_SECONDS) != _READY:
            status = self._process.wait()
            raise AgentError(
                f"the simulated device's server ended with {status} before it was ready"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clean()

    def _clean(self) -> None:
        process, self._process = self._process, None
        directory, self._directory = self._directory, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            line = _line_of(process, _STOP_SECONDS)
            process.stdout.close()
            if line == _STAYING:
                # It ends after its last client and removes the directory; somebody must reap it.
                threading.Thread(target=process.wait, daemon=True).start()
                return
            process.wait()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _line_of(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """The next line on its standard output; a process that says nothing for so long is killed."""
    assert process.stdout is not None
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()


def serve_until_signal(path: Path, sm_count: int, *, stop_with_parent: bool) -> None:
    """Serve in this process until SIGTERM or SIGINT.

    ``stop_with_parent``: or until standard input has ended and the last client is gone; then the
    directory of ``path``, which the parent made for it, is removed.
    """
    server = Server(path, sm_count)

    def stop(*_: object) -> None:
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if stop_with_parent:  # the parent's death closes the pipe, whatever killed it

        def watch() -> None:
            while os.read(0, 4096):
                pass
            if server.connected():
                _tell(_STAYING)
            server.retire()

        threading.Thread(target=watch, daemon=True).start()
    _tell(_READY)
    server.serve()
    if stop_with_parent:
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def _tell(line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent has gone
        os.write(1, line)
