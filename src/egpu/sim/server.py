"""The simulated device as a process: serves the stand-in drivers of several workloads.

Each client has a machine and a thread of its own; a client that sends nonsense or dies loses only
its own connection.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from egpu.errors import AgentError, InputError, InternalError, UnsupportedError
from egpu.sim.client import Client, Refusal
from egpu.sim.wire import receive, reply

SOCKET_VARIABLE = "EGPU_SIM_SOCKET"
SM_COUNT = 4
UNKNOWN_ERROR = 999
_READY = b"ready\n"
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0


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

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed by stop()
                return
            threading.Thread(
                target=_serve_client, args=(connection, self.sm_count), daemon=True
            ).start()

    def stop(self) -> None:
        # shutdown wakes the accept; close alone would leave it waiting
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._path.unlink(missing_ok=True)


def _serve_client(connection: socket.socket, sm_count: int) -> None:
    client = Client(sm_count)
    with connection:
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
            raise


class SimulatedDevice:
    """A server in a child process, for the time of a ``with`` block.

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
        self._directory = Path(tempfile.mkdtemp(prefix="egpu-sim-"))  # mode 0700
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
        )
        assert self._process.stdout is not None
        timer = threading.Timer(_START_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if line != _READY:
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
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def serve_until_signal(path: Path, sm_count: int, *, stop_with_parent: bool) -> None:
    """Serve in this process until SIGTERM or SIGINT, or until standard input ends when asked."""
    server = Server(path, sm_count)

    def stop(*_: object) -> None:
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if stop_with_parent:  # the parent's death closes the pipe, whatever killed it

        def watch() -> None:
            while os.read(0, 4096):
                pass
            server.stop()

        threading.Thread(target=watch, daemon=True).start()
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    server.serve()
