"""Packets with descriptors over one SEQPACKET socket, and memory files."""

from __future__ import annotations

import array
import contextlib
import os
import resource
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpu.agent.protocol import FILES_LIMIT, PACKET_LIMIT
from egpu.errors import AgentError
from egpu.maps.layout import READER_STRIDE, RING_CONTROL, RING_CONTROL_SIZE
from egpu.maps.ring_table import RingTable

_INT = array.array("i").itemsize
_REASON_LIMIT = 1024  # bytes of a reason on the wire


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and its descriptors, which are now the caller's; empty bytes at the end.

    BlockingIOError when there is none; AgentError, with the descriptors closed, if it was cut."""
    space = socket.CMSG_SPACE(FILES_LIMIT * _INT)
    data, ancillary, flags, _ = connection.recvmsg(PACKET_LIMIT, space, socket.MSG_CMSG_CLOEXEC)
    files: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % _INT])
            files += numbers
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(files)
        raise AgentError("a packet was cut: too large or with too many descriptors")
    return data, files


def send(connection: socket.socket, data: bytes, files: Sequence[int] = ()) -> None:
    """Sends one packet; descriptors stay the caller's.  OSError if the peer is gone or full."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    connection.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the peer, as the system tells it."""
    size = struct.calcsize("3i")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


def reason(text: str) -> bytes:
    """Why not, as messages carry it: one line, cut where it is long."""
    line = " ".join(text.split())
    return line.encode("utf-8", "surrogateescape")[:_REASON_LIMIT]


def close_all(files: Sequence[int]) -> None:
    """Closes descriptors."""
    for file in files:
        os.close(file)


def memory_file(name: str, size: int) -> int:
    """A memfd of ``size`` zero bytes, all of them there: writing to it can not fail later.

    AgentError if there is no memory for it."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit not in (resource.RLIM_INFINITY,) and limit < size:
        raise AgentError(f"{name}: {size} bytes exceed the file size limit of {limit}")
    file = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        os.close(file)
        raise AgentError(f"{name}: no memory for {size} bytes: {error.strerror}") from error
    return file


@contextlib.contextmanager
def file_of(name: str, data: bytes) -> Iterator[int]:
    """A memfd that holds ``data``, closed at the end; AgentError without memory."""
    file = memory_file(name, max(len(data), 1))
    try:
        at = 0
        while at < len(data):
            at += os.pwrite(file, data[at:], at)
        yield file
    finally:
        os.close(file)


def init_image(chunks: Sequence[tuple[int, bytes]]) -> bytes:
    """Initial map contents as the agent reads them: rows of INIT_CHUNK, bytes padded to 8."""
    parts = []
    for offset, data in chunks:
        parts += [struct.pack("<QQ", offset, len(data)), data, bytes(-len(data) % 8)]
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class WriteRow:
    """Bytes for the device arena: ``rows`` parts of the same size, the first at ``offset`` and each
    ``stride`` bytes after the one before."""

    offset: int
    data: bytes
    rows: int = 1
    stride: int = 0


def write_row(row: WriteRow) -> bytes:
    """A row as the agent reads it from the command area: ``protocol.WRITE``, bytes padded to 8."""
    head = struct.pack("<4Q", row.offset, len(row.data) // row.rows, row.stride, row.rows)
    return head + row.data + bytes(-len(row.data) % 8)


def patch_rows(patches: Sequence[tuple[int, int]]) -> bytes:
    """Places of a twin's image as the agent reads them: rows of ``protocol.PATCH``."""
    return b"".join(
        struct.pack("<QQ", offset, addend & 0xFFFFFFFFFFFFFFFF) for offset, addend in patches
    )


def ring_rows(rings: Sequence[RingTable]) -> bytes:
    """The ring table as the agent reads it: rows of ``protocol.RING``."""
    tail = RING_CONTROL["tail"][0]
    return b"".join(
        struct.pack(
            "<12Q",
            r.readers,
            READER_STRIDE,
            r.control + tail,
            RING_CONTROL_SIZE,
            r.slots,
            r.ring_size,
            r.host_data,
            r.device_data,
            r.host_flags,
            r.device_flags,
            r.host_controls,
            r.stamped,
        )
        for r in rings
    )


def listen(directory: Path, path: Path) -> socket.socket:
    """A listening socket at ``path`` that only this user can reach; AgentError if there is none."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise AgentError(f"{directory} belongs to another user")
    if stat.S_IMODE(status.st_mode) != 0o700:
        directory.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AgentError(f"cannot listen at {path}: {error}") from error
    return listener
