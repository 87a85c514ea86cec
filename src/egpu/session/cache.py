"""Built twins on disk.

A twin is address-free, so any process can use it.  The key is the SHA-256 of everything that
decides what is built: image, kernel, programs, arch, layout, assembler, and egpu's own code.  Files
are written under a temporary name and renamed, so concurrent sessions never see half a file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

from egpu.version import VERSION

CACHE_FORMAT = b"egpu twin 3\n"
_BUILDERS = ("bpf", "verifier", "codegen", "image", "splice", "maps")  # packages that decide
DEFAULT_LIMIT = 256 << 20  # bytes
_UNFINISHED = ".new-"
_UNFINISHED_S = 3600.0  # after which the session that was writing such a file must have been killed


def default_directory() -> Path:
    """``$EGPU_CACHE_DIR``, else the user's cache directory (XDG base directories)."""
    explicit = os.environ.get("EGPU_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "egpu" / "twins"


@dataclass(frozen=True, slots=True)
class BuiltTwin:
    """A twin as it is kept; fields as in ``egpu.agent.twin.Twin`` and ``InstrumentedImage``."""

    image: bytes
    hidden_offset: int
    parameters: int
    globals: tuple[str, ...]
    globals_table: str
    patches: tuple[tuple[int, int], ...]
    entry_sites: int
    exit_sites: int
    uncovered: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """Length of a JSON head in 4 bytes, the head, the image."""
        head = {field.name: getattr(self, field.name) for field in fields(self)}
        del head["image"]
        text = json.dumps(head).encode()
        return len(text).to_bytes(4, "little") + text + self.image

    @classmethod
    def from_bytes(cls, data: bytes) -> BuiltTwin:
        """The inverse of :meth:`to_bytes`, whose result a checksum has kept whole; ValueError if
        something else was written.
        """
        end = 4 + int.from_bytes(data[:4], "little")
        try:
            head = json.loads(data[4:end])
            for name in ("globals", "uncovered"):
                head[name] = tuple(head[name])
            head["patches"] = tuple((offset, addend) for offset, addend in head["patches"])
            return cls(image=data[end:], **head)
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a twin: {error}") from error


@functools.cache
def build_identity() -> str:
    """Changes with every module that takes part in building twins (sizes and times of files)."""
    root = Path(__file__).resolve().parents[1]
    rows = []
    for package in _BUILDERS:
        for path in sorted((root / package).rglob("*.py")):
            status = path.stat()
            rows.append(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join([VERSION, *rows]).encode()).hexdigest()


class TwinCache:
    """A bounded directory of twins; every failure of the disk means "not cached".

    ``limit`` is the total size in bytes above which the oldest files are removed.
    """

    def __init__(self, directory: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self.failure = ""

    @staticmethod
    def key(*parts: str) -> str:
        """The name under which what ``parts`` and egpu's own code decide is kept."""
        digest = hashlib.sha256()
        for part in (build_identity(), *parts):
            encoded = part.encode("utf-8", "surrogateescape")
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
        return digest.hexdigest()

    def load(self, key: str) -> BuiltTwin | None:
        """The twin kept under ``key``, None if there is none or it is damaged."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        head = len(CACHE_FORMAT)
        body = data[head + 32 :]
        if data[:head] != CACHE_FORMAT or hashlib.sha256(body).digest() != data[head : head + 32]:
            return None
        try:
            return BuiltTwin.from_bytes(body)
        except ValueError:
            return None

    def store(self, key: str, twin: BuiltTwin) -> None:
        """Keep ``twin``. A full or read-only disk is remembered in ``failure`` and is no error."""
        code = twin.to_bytes()
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self._directory, prefix=_UNFINISHED)
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
        return self._directory / f"{key}.twin"

    def _evict(self) -> None:
        files = []
        for path in (*self._directory.glob("*.twin"), *self._directory.glob(f"{_UNFINISHED}*")):
            with contextlib.suppress(OSError):  # another session may have removed it
                status = path.stat()
                if path.suffix == ".twin":
                    files.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < time.time() - _UNFINISHED_S:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._limit:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
