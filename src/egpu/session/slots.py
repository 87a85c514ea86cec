"""For how many threads of a launch per-thread maps have values."""

from __future__ import annotations

import os
import re

from egpu.bpf.maptypes import THREAD_SLOTS
from egpu.errors import InputError

_NUMBER = re.compile("[0-9]{1,18}")
_THREAD_COUNT = "BPFTIME_MAP_GPU_THREAD_COUNT"


def thread_slots(given: int | None) -> int:
    """``given``, else the number in bpftime's variable, else its default; InputError if that is
    no number of threads."""
    if given is not None:
        if given < 1:
            raise InputError(f"{given} is no number of threads", where="thread_slots")
        return given
    text = os.environ.get(_THREAD_COUNT)
    if text is None:
        return THREAD_SLOTS
    if not _NUMBER.fullmatch(text) or not int(text):
        raise InputError(f"{text!r:.40} is no number of threads", where=_THREAD_COUNT)
    return int(text)
