"""What processes say to each other about maps: one request and one answer over a Unix socket.

A message is its size in 8 bytes, the size of a JSON head in 4, the head, and bytes.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from egpu.agent.channel import peer
from egpu.errors import AgentError

_SIZES = struct.Struct("<QI")
MESSAGE_LIMIT = 1 << 32
TIMEOUT_S = 30.0


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
