"""Pinned maps: names under which other processes of the user find maps.

A pin is a file in a private directory.  While its session runs it names the session's socket; when
the session closes it takes the map's contents, so they can be read and changed afterwards.  Files
are replaced as a whole, so a reader never sees half of one; who changes one holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from egpu.errors import InputError
from egpu.maps import Contents, pack, unpack

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LIVE = b"egpu live pin 1\n"
_LOCK = ".lock"
_NEW = ".new-"


def runtime_directory() -> Path:
    """Where sockets and pins are: ``$EGPU_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/egpu``, else a
    folder of the user's in the system's temporary folder.  Made with mode 0700.

    InputError if it cannot be made, is somebody else's, or others can reach into it.
    """
    explicit = os.environ.get("EGPU_RUNTIME_DIR")
    user = os.environ.get("XDG_RUNTIME_DIR")
    if explicit:
        path = Path(explicit)
    elif user and Path(user).is_dir():
        path = Path(user) / "egpu"
    else:
        path = Path(tempfile.gettempdir()) / f"egpu-{os.geteuid()}"
    for folder in (path, path / "pins", path / "sessions", path / "idle"):
        try:
            folder.mkdir(mode=0o700, parents=folder == path, exist_ok=True)
            status = folder.lstat()
        except OSError as error:
            raise InputError(
                f"cannot be made ({error.strerror})",
                where=str(folder),
                hint="set EGPU_RUNTIME_DIR to a folder of your own",
            ) from error
        _check(folder, status)
    return path


def _check(folder: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise InputError("is not a folder of this user", where=str(folder))
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise InputError(
            "can be reached by other users", where=str(folder), hint="chmod 700 makes it private"
        )


@dataclass(frozen=True, slots=True)
class LivePin:
    """A pin of a session that runs, or of one that was killed: its socket, its map, its process."""

    socket: Path
    map: str
    pid: int


def check_name(name: str) -> str:
    """``name`` if a pin can be called so; InputError (usage) if not."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r:.60} is no name of a pin",
            hint="letters, digits, '_', '-' and '.', at most 128, the first no '.' or '-'",
            usage=True,
        )
    return name


class Pins:
    """The pins of this user."""

    def __init__(self) -> None:
        """Raises as ``runtime_directory``."""
        self._folder = runtime_directory() / "pins"

    def names(self) -> list[str]:
        """Every pin there is."""
        return sorted(path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name))

    def read(self, name: str) -> LivePin | Contents:
        """What a pin is; InputError if there is none of that name, or it is damaged."""
        path = self._folder / check_name(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise InputError(
                f"no map is pinned as {name}", hint="`egpu map list` shows what there is"
            ) from None
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from error
        if not data.startswith(_LIVE):
            return unpack(data, str(path))
        try:
            row = json.loads(data[len(_LIVE) :])
            return LivePin(Path(row["socket"]), str(row["map"]), int(row["pid"]))
        except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise InputError(f"is damaged: {error!r}", where=str(path)) from error

    def find(self, name: str) -> LivePin | Contents | None:
        """The same, None if there is none."""
        return self.read(name) if (self._folder / check_name(name)).exists() else None

    def put(self, name: str, what: LivePin | Contents) -> None:
        """Make or replace a pin; hold the lock."""
        if isinstance(what, LivePin):
            row = {"socket": str(what.socket), "map": what.map, "pid": what.pid}
            data = _LIVE + json.dumps(row).encode()
        else:
            data = pack(what)
        path = self._folder / check_name(name)
        try:
            number, temporary = tempfile.mkstemp(prefix=_NEW, dir=self._folder)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror})", where=str(path)) from error

    def remove(self, name: str) -> None:
        """Take a pin away; InputError if there is none."""
        try:
            (self._folder / check_name(name)).unlink()
        except FileNotFoundError:
            raise InputError(f"no map is pinned as {name}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes pins meanwhile."""
        number = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)
