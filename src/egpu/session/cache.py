"""Built twins on disk.

A twin is address-free, so any process can use it.  The key is the SHA-256 of everything that
decides what is built: image, kernel, programs, arch, layout, assembler, LLVM, and egpu's own code.
Files are written under a temporary name and renamed, so concurrent sessions never see half a file.
A file's time is that of its last use: the least recently used go first.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import json
import os
import re
import secrets
import stat
import time
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

from egpu.errors import InputError
from egpu.version import VERSION

CACHE_FORMAT = b"egpu twin 5\n"
# Packages that decide what is built; session, too: what goes which way, and how ptxas is called.
_BUILDERS = ("bpf", "verifier", "codegen", "image", "splice", "maps", "session")
DEFAULT_LIMIT = 256 << 20  # bytes
SUFFIX = ".twin"
_SIZE = re.compile(r"([0-9]{1,12})([KMG]?)", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_SIGNED = len(CACHE_FORMAT) + 4  # bytes before those that the checksum between them is of
_HEAD_SPACE = 4096  # bytes in which what is known of a twin mostly lies
_UNFINISHED = ".new-"
_UNFINISHED_S = 3600.0  # after which the session that was writing such a file must have been killed


def default_directory() -> Path:
    """``$EGPU_CACHE_DIR``, else the user's cache directory (XDG base directories)."""
    explicit = os.environ.get("EGPU_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "egpu" / "twins"


def check_directory(folder: Path) -> None:
    """InputError when something else than a folder is there; one that is not made yet is fine."""
    for each in (folder, *folder.parents):
        if os.path.lexists(each) and not each.is_dir():
            raise InputError("is no folder", where=str(each), hint="EGPU_CACHE_DIR names another")


def cache_limit() -> int:
    """Bytes that the cache may take: ``$EGPU_CACHE_LIMIT`` (64M, 2G, bytes), else 256 MiB.

    InputError (usage) if the variable says something else.
    """
    text = os.environ.get("EGPU_CACHE_LIMIT")
    return DEFAULT_LIMIT if not text else byte_size(text, "EGPU_CACHE_LIMIT")


def byte_size(text: str, where: str) -> int:
    """Bytes from "64M" and the like (powers of 1,024); InputError (usage) that names ``where``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InputError(
            f"{text!r} is no size", where=where, hint="bytes, or with K, M or G behind", usage=True
        )
    return int(found[1]) << _UNITS[found[2].upper()]


class Way(enum.Enum):
    """How probes got into a kernel."""

    PTX = "PTX"  # its PTX was spliced and assembled
    MACHINE_CODE = "SASS"  # its own machine code was spliced
    NONE = "no"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a kept twin was made of, for listings; ``arch`` 90 for sm_90, ``version`` egpu's."""

    kernel: str = ""
    programs: tuple[str, ...] = ()
    arch: int = 0
    version: str = VERSION


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
    way: Way = Way.PTX

    def to_bytes(self, origin: Origin | None = None) -> bytes:
        """Length of a JSON head in 4 bytes, the head, the image."""
        head = {name: getattr(self, name) for name in _KEPT if name != "image"}
        head["way"] = self.way.value
        made = origin or Origin()
        head["origin"] = {name: getattr(made, name) for name in _ORIGIN}
        head["origin"]["build"] = build_identity()
        text = json.dumps(head).encode()
        return b"".join((len(text).to_bytes(4, "little"), text, self.image))

    @classmethod
    def of(cls, text: bytes, image: bytes) -> BuiltTwin:
        """What :meth:`to_bytes` gave as the head ``text`` and the image, which a checksum has kept
        whole; ValueError if something else was written.
        """
        try:
            head = json.loads(text)
            head.pop("origin", None)
            for name in ("globals", "uncovered"):
                head[name] = tuple(head[name])
            head["way"] = Way(head["way"])
            head["patches"] = tuple((offset, addend) for offset, addend in head["patches"])
            return cls(image=image, **head)
        except (AttributeError, RecursionError, TypeError, KeyError) as error:
            raise ValueError(f"not a twin: {error}") from error


_KEPT = tuple(field.name for field in fields(BuiltTwin))
_ORIGIN = tuple(field.name for field in fields(Origin))


@functools.cache
def build_identity() -> str:
    """Changes with every module that takes part in building twins, and with LLVM's compiler."""
    import llvmlite  # noqa: PLC0415 - its version alone: LLVM is not loaded

    return identity_of(Path(__file__).resolve().parents[1], VERSION, llvmlite.__version__)


def identity_of(package: Path, *versions: str) -> str:
    """The same of an egpu that lies in ``package`` (sizes and times of files)."""
    rows = []
    for name in _BUILDERS:
        for path in sorted((package / name).rglob("*.py")):
            status = path.stat()
            rows.append(f"{path.relative_to(package)} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join([*versions, *rows]).encode()).hexdigest()


class TwinCache:
    """A bounded directory of twins; every failure of the disk means "not cached".

    ``limit`` is the total size in bytes above which the least recently used files are removed.
    ``failure`` and ``damaged`` are for the report: why nothing could be kept, and how many entries
    were unusable (each is removed, and what it held is built again).
    """

    def __init__(self, directory: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self._room: int | None = None  # bytes that may be written before the folder is looked at
        self.failure = ""
        self.damaged = 0

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
        path = os.path.join(self._directory, key + SUFFIX)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may be a pipe
        except OSError:
            return None
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                return None
            twin = _read_twin(file, status.st_size)
            if twin is not None:
                with contextlib.suppress(OSError):
                    os.utime(file)
                return twin
        except OSError:
            return None
        finally:
            os.close(file)
        self.damaged += 1
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None

    def is_empty(self) -> bool:
        """Whether no twin at all is kept."""
        try:
            with os.scandir(self._directory) as files:
                return not any(each.name.endswith(SUFFIX) for each in files)
        except OSError:
            return True

    def store(self, key: str, twin: BuiltTwin, origin: Origin | None = None) -> None:
        """Keep ``twin``. A full or read-only disk is remembered in ``failure`` and is no error."""
        try:
            code = twin.to_bytes(origin)
            try:
                handle, name = self._unfinished()
            except FileNotFoundError:
                self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                handle, name = self._unfinished()
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(CACHE_FORMAT + zlib.crc32(code).to_bytes(4, "little"))
                    file.write(code)
                os.replace(name, os.path.join(self._directory, key + SUFFIX))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            self._keep_within_limit(_SIGNED + len(code))
        except (OSError, MemoryError) as error:
            why = error.strerror if isinstance(error, OSError) else "out of memory"
            self.failure = f"twins are not cached in {self._directory}: {why}"

    def _unfinished(self) -> tuple[int, str]:
        """A new file under a name that nobody else has."""
        name = os.path.join(self._directory, f"{_UNFINISHED}{os.getpid()}-{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(name, flags, 0o600), name

    def _keep_within_limit(self, written: int) -> None:
        """Looking at every file for each one that is written would take ever longer, so it is done
        at the first and whenever an eighth of the limit was written since."""
        if self._room is not None:
            self._room -= written
        if self._room is None or self._room < 0:
            left = remove_least_recent(self._directory, self._limit)
            self._room = min(self._limit - left, self._limit // 8)


def _read_twin(file: int, size: int) -> BuiltTwin | None:
    """What an open file of the cache holds, None if it is of another format or not as it was
    written."""
    begin = _SIGNED + 4  # of the head, whose length stands before it
    head = os.pread(file, _HEAD_SPACE, 0)
    end = begin + int.from_bytes(head[_SIGNED:begin], "little")
    if not head.startswith(CACHE_FORMAT) or end > size:
        return None
    if end > len(head):
        head = os.pread(file, end, 0)
    image = os.pread(file, size - end, end)  # by itself: nobody has to copy it
    # A disk may damage a file, and nobody else writes here: what finds that is enough, and a launch
    # waits for it.
    check = zlib.crc32(image, zlib.crc32(head[_SIGNED:end]))
    if check.to_bytes(4, "little") != head[len(CACHE_FORMAT) : _SIGNED]:
        return None
    try:
        return BuiltTwin.of(head[begin:end], image)
    except ValueError:
        return None


def read_origin(file: BinaryIO) -> tuple[Origin, str] | None:
    """(what it is made of, identity of the egpu that wrote it) from a file's head alone; None for
    a file of another format or a damaged head."""
    head = file.read(_SIGNED + 4)
    if not head.startswith(CACHE_FORMAT) or len(head) < _SIGNED + 4:
        return None
    try:
        row = json.loads(file.read(int.from_bytes(head[-4:], "little")))["origin"]
        programs = tuple(str(name) for name in row["programs"])
        origin = Origin(str(row["kernel"]), programs, int(row["arch"]), str(row["version"]))
        return origin, str(row["build"])
    except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError):
        return None


def remove_least_recent(directory: Path, limit: int) -> int:
    """Remove the least recently used twins above ``limit`` bytes, and what killed sessions left
    half-written; the bytes that stay.  Other processes may store, use and remove meanwhile."""
    files = []
    for path in (*directory.glob(f"*{SUFFIX}"), *directory.glob(f"{_UNFINISHED}*")):
        with contextlib.suppress(OSError):  # another session may have removed it
            status = path.stat()
            if path.suffix == SUFFIX:
                files.append((status.st_mtime_ns, status.st_size, path))
            elif status.st_mtime < time.time() - _UNFINISHED_S:
                path.unlink()
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
    return total
