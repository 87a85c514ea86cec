"""For how many threads of a launch per-thread maps have values."""

from __future__ import annotations

import os

from egpu.bpf.maptypes import THREAD_SLOTS
from egpu.errors import InputError

_THREAD_COUNT = "BPFTIME_MAP_GPU_THREAD_COUNT"


def thread_slots(given: int | None) -> int:
    """``given``, else the number in bpftime's variable, else its default; InputError if the
    variable is no number."""
    if given is not None:
        return given
    text = os.environ.get(_THREAD_COUNT)
    if text is None:
        return THREAD_SLOTS
    if not text.isascii() or not text.isdigit() or not int(text):
        raise InputError(f"{text!r} is no number of threads", where=_THREAD_COUNT)
    return int(text)
