"""Frames between the stand-in driver and the server (native/sim/wire.c is the other end).

A header of 24 bytes, then its payload::

    u32 magic  u16 version  u16 kind  i32 status  u32 reserved  u64 size

Requests have status 0.  A reply repeats the kind; ``status`` is a CUresult and, unless 0, the
payload one line of text.  A file descriptor may come with a header.
"""

from __future__ import annotations

import array
import enum
import os
import socket
import struct
from dataclasses import dataclass

from egpu.errors import AgentError

MAGIC = 0x4D495347
VERSION = 1
HEADER = struct.Struct("<IHHiIQ")
SIZE_LIMIT = 1 << 32  # of one payload, in bytes: an image is the largest
_PART = 1 << 20


class WireKind(enum.IntEnum):
    """Requests; payloads are little-endian words."""

    HELLO = 1  # u64 heap base, u64 heap size, u64 pid; heap descriptor -> u32 SM count
    ADD_RANGE = 2  # u64 base, u64 size
    REMOVE_RANGE = 3  # u64 base, u64 size
    ADD_HOST = 4  # u64 base, u64 size, u64 file offset; file descriptor
    LOAD = 5  # image -> module description (native/sim/module.c)
    BIND = 6  # u64 module, u64 address of each global
    UNLOAD = 7  # u64 module
    LAUNCH = 8  # 11 u32 (launch_words), parameter block -> printed text


@dataclass(frozen=True, slots=True)
class Request:
    """One request; ``fd`` belongs to the receiver, -1 if none came."""

    kind: WireKind
    payload: bytes
    fd: int


def receive(connection: socket.socket) -> Request | None:
    """The next request, None at the end of the stream; AgentError if it is malformed."""
    head, descriptors = _receive_header(connection)
    fd = descriptors[0] if descriptors else -1
    for extra in descriptors[1:]:
        os.close(extra)
    try:
        if not head:
            return None
        magic, version, kind, _, _, size = HEADER.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise AgentError(
                f"a client speaks another protocol (magic {magic:#x}, version {version})"
            )
        if size > SIZE_LIMIT or kind not in set(WireKind):
            raise AgentError(f"request {kind} of {size} bytes is not in the protocol")
        request = Request(WireKind(kind), _receive_exactly(connection, size), fd)
        fd = -1
        return request
    finally:
        if fd >= 0:
            os.close(fd)


def _receive_header(connection: socket.socket) -> tuple[bytes, list[int]]:
    descriptors: list[int] = []
    head = b""
    while len(head) < HEADER.size:
        room = socket.CMSG_SPACE(4 * 4)
        part, ancillary, _, _ = connection.recvmsg(HEADER.size - len(head), room)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                words = array.array("i")
                words.frombytes(data[: len(data) - len(data) % words.itemsize])
                descriptors.extend(words)
        if not part:
            if head:
                for fd in descriptors:
                    os.close(fd)
                raise AgentError("a client went away inside a header")
            break
        head += part
    return head, descriptors


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(_PART, size - len(parts)))
        if not part:
            raise AgentError("a client went away inside a request")
        parts += part
    return bytes(parts)


def reply(connection: socket.socket, kind: WireKind, status: int, payload: bytes = b"") -> None:
    """Send a reply; OSError when the client is gone."""
    connection.sendall(HEADER.pack(MAGIC, VERSION, kind, status, 0, len(payload)) + payload)
