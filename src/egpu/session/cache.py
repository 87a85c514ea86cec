"""Assembled twins on disk.

A twin's text is address-free, so its machine code can be used by any process.  The key is the
SHA-256 of everything that decides the result: text, architecture, assembler and its version.  Files
are written under a temporary name and renamed, so concurrent sessions never see half a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

CACHE_FORMAT = b"egpu twin 1\n"
DEFAULT_LIMIT = 256 << 20  # bytes


def default_directory() -> Path:
    """``$EGPU_CACHE_DIR``, else the user's cache directory (XDG base directories)."""
    explicit = os.environ.get("EGPU_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "egpu" / "twins"


class TwinCache:
    """A bounded directory of machine code; every failure of the disk means "not cached".

    ``limit`` is the total size in bytes above which the oldest files are removed.
    """

    def __init__(self, directory: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self.failure = ""

    @staticmethod
    def key(text: str, architecture: str, assembler: str) -> str:
        """The name under which the machine code of ``text`` is kept."""
        digest = hashlib.sha256()
        for part in (text, architecture, assembler):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
        return digest.hexdigest()

    def load(self, key: str) -> bytes | None:
        """The machine code kept under ``key``, None if there is none or it is damaged."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        head = len(CACHE_FORMAT)
        body = data[head + 32 :]
        if data[:head] != CACHE_FORMAT or hashlib.sha256(body).digest() != data[head : head + 32]:
            return None
        return body

    def store(self, key: str, code: bytes) -> None:
        """Keep ``code``. A full or read-only disk is remembered in ``failure`` and is no error."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self._directory, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(CACHE_FORMAT + hashlib.sha256(code).digest() + code)
                os.replace(name, self._path(key))
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            self._evict()
        except OSError as error:
            self.failure = f"twins are not cached in {self._directory}: {error.strerror}"

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.cubin"

    def _evict(self) -> None:
        files = []
        for path in self._directory.glob("*.cubin"):
            with contextlib.suppress(OSError):  # another session may have removed it
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._limit:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
