"""The library in C that a launch's twin is made with (``native/image``), called through ctypes."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from egpu.errors import UnsupportedError
from egpu.image.cubin_facts import facts_number

LIBRARY_NAME = "libegpu_image.so"


@functools.cache
def image_library() -> ctypes.PyDLL:
    """The library; UnsupportedError, which says how to build it, without one that belongs to this
    egpu.

    A PyDLL keeps the interpreter's lock: to get it back may take longer than the work.
    """
    path = Path(__file__).resolve().parents[1] / "_native" / LIBRARY_NAME
    again = "egpu installed again, or in a source tree: make native"
    if not path.is_file():
        raise UnsupportedError(f"machine code without {path}", needs=again)
    try:
        library = ctypes.PyDLL(str(path))
        facts = ctypes.c_uint32.in_dll(library, "egpu_facts").value
    except (OSError, ValueError) as error:  # of another machine, or none of ours
        raise UnsupportedError(f"machine code with {path} ({error})", needs=again) from error
    if facts != facts_number():
        raise UnsupportedError(f"machine code with {path}, which is of another egpu", needs=again)
    return library
