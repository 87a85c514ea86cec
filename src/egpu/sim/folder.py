"""Private folders for sockets."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# sun_path of sockaddr_un has 108 bytes, the last of them a NUL (unix(7)); the folder's and the
# socket's own names take at most so many of them.
_ROOM = 107 - 40


def private_folder(prefix: str) -> Path:
    """A new folder of mode 0700 whose sockets have names that are short enough.

    It lies in the temporary directory; if that has a long name, where the system has a short one.
    OSError if none can be made.
    """
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) <= _ROOM:
        return Path(tempfile.mkdtemp(prefix=prefix))
    places = [os.environ.get("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp"]
    for place in places:
        if place and len(os.fsencode(place)) <= _ROOM and os.access(place, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    return Path(tempfile.mkdtemp(prefix=prefix))
