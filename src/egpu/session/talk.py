"""What processes say to each other about maps: one request and one answer over a Unix socket.

A message is its size in 8 bytes, the size of a JSON head in 4, the head, and bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from egpu.agent.channel import peer
from egpu.errors import AgentError, EgpuError, InputError, InternalError, MapError

_SIZES = struct.Struct("<QI")
MESSAGE_LIMIT = 1 << 32
TIMEOUT_S = 30.0
_REQUEST_LIMIT = 64 << 20

Answer = tuple[Mapping[str, Any], bytes]


def send(connection: socket.socket, head: Mapping[str, Any], data: bytes = b"") -> None:
    """Send a message; OSError if the other end is gone."""
    text = json.dumps(head).encode()
    connection.sendall(_SIZES.pack(4 + len(text) + len(data), len(text)) + text + data)


def receive(connection: socket.socket, limit: int = MESSAGE_LIMIT) -> tuple[dict[str, Any], bytes]:
    """The next message; AgentError if it makes no sense or does not come."""
    try:
        size, head = _SIZES.unpack(_exactly(connection, _SIZES.size))
        if not 4 + head <= size <= limit:
            raise AgentError("a message of an impossible size")
        body = _exactly(connection, size - 4)
        found = json.loads(body[:head])
    except (OSError, RecursionError, ValueError) as error:
        raise AgentError(f"no answer that makes sense: {error}") from error
    if not isinstance(found, dict):
        raise AgentError("a message that is no JSON object")
    return found, body[head:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise AgentError("the other end is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def connect(path: Path) -> socket.socket:
    """A connection to a session of this user; AgentError if nobody is there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(str(path))
    except (OSError, ValueError) as error:  # ValueError: no path at all, in a damaged pin
        connection.close()
        raise AgentError(f"nobody answers at {path}: {_reason(error)}") from error
    if not is_ours(connection):
        connection.close()
        raise AgentError(f"{path} belongs to another user")
    return connection


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def is_ours(connection: socket.socket) -> bool:
    """Whether the other end is of this user, or of root."""
    return peer(connection)[1] in (os.geteuid(), 0)


def ask(path: Path, head: Mapping[str, Any], data: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """One request and its answer; AgentError if nobody is there."""
    with connect(path) as connection:
        try:
            send(connection, head, data)
        except OSError as error:
            raise AgentError(f"nobody answers at {path}: {_reason(error)}") from error
        return receive(connection)


class Listener:
    """Answers requests at a socket of its own until it is closed, several at a time.

    ``answer`` gets a request and the process that asks; an EgpuError that it raises is told to the
    other end.  Raises InputError if there is no place for the socket.
    """

    def __init__(self, path: Path, answer: Callable[[dict[str, Any], int], Answer]) -> None:
        self.path = path
        self._act = answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            path.unlink(missing_ok=True)
            self._socket.bind(str(path))
            self._socket.listen(16)
        except OSError as error:
            self._socket.close()
            raise InputError(
                f"no socket can be made ({error.strerror or error})", where=str(path)
            ) from error
        self._thread = threading.Thread(target=self._serve, name="egpu-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        # shutdown wakes the accept; close alone would leave it waiting
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(TIMEOUT_S)
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(TIMEOUT_S)
            if not is_ours(connection):
                return
            try:
                request, _ = receive(connection, _REQUEST_LIMIT)
                head, data = self._act(request, peer(connection)[0])
            except EgpuError as error:
                head, data = {"error": _told(error)}, b""
            except Exception as error:  # a bug of ours: the other end is told, the session goes on
                head, data = {"error": _told(InternalError(repr(error)))}, b""
            send(connection, head, data)


def _told(error: EgpuError) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": type(error).__name__, "message": error.message}
    told["hint"] = error.hint
    if isinstance(error, MapError):
        told["errno"] = error.errno
    return told


def received(told: Mapping[str, Any]) -> EgpuError:
    """The error that an answer tells of."""
    message, hint = str(told.get("message")), str(told.get("hint", ""))
    if "errno" in told:
        return MapError(message, errno=int(told["errno"]), hint=hint)
    if told.get("kind") == "InputError":
        return InputError(message, hint=hint)
    return AgentError(message, hint=hint)


def remove_stale(folder: Path) -> None:
    """Sockets of processes that were killed: a name begins with its process's number."""
    for path in folder.iterdir():
        pid = path.name.partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                path.unlink()
