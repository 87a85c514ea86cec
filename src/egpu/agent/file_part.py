"""Bytes of a file that a message names, of which only those are read that somebody asks for."""

from __future__ import annotations

import os

from egpu.errors import AgentError

_BLOCK = 4096  # bytes


class FilePart:
    """``size`` bytes of a file from ``offset`` on, by slices.

    The file is open as long as this is there, so that all slices are of one file.  AgentError when
    the bytes are not there, at once or when they are read.
    """

    def __init__(self, path: str, offset: int, size: int) -> None:
        self._path, self._offset, self._size = path, offset, size
        self._file = -1
        self._at, self._block = 0, b""  # what was read last, for small pieces
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            length = os.fstat(self._file).st_size
        except OSError as error:
            raise self._unreadable(error) from error
        except ValueError as error:  # a NUL in it
            raise AgentError(f"no path of an image: {path!r}") from error
        if length < offset + size:
            raise AgentError(f"{path} is shorter than the agent says")

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        begin, end, _ = part.indices(self._size)
        size = max(end - begin, 0)
        if size > _BLOCK:
            return self._read(begin, size)
        if not self._at <= begin <= end <= self._at + len(self._block):
            self._at = begin
            self._block = self._read(begin, min(_BLOCK, self._size - begin))
        return self._block[begin - self._at : begin - self._at + size]

    def _read(self, begin: int, size: int) -> bytes:
        try:
            return read_all(self._file, self._offset + begin, size, self._path)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> AgentError:
        return AgentError(f"cannot read the image in {self._path}: {error.strerror}")


def read_all(file: int, offset: int, size: int, what: str) -> bytes:
    """That many bytes of an open file; AgentError when it ends before."""
    parts = []
    while size:
        part = os.pread(file, min(size, 1 << 30), offset)
        if not part:
            raise AgentError(f"{what} ended while it was read")
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
