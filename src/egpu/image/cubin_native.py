"""The C that takes single kernels out of cubins (``native/image``), called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import threading

import numpy as np

from egpu.errors import EgpuError, InputError, InternalError
from egpu.image.cubin import Cubin
from egpu.image.cubin_facts import CUBIN_FIELDS, SECTION_FIELDS, Answer
from egpu.image.native import LIBRARY_NAME, image_library

_ROOM = 1 << 18  # bytes for a kernel's cubin, kept from one to the next; most have a tenth of it
_local = threading.local()
_KINDS = {"uint64_t": ctypes.c_uint64, "uint32_t": ctypes.c_uint32}


class _Cubin(ctypes.Structure):
    """``struct egpu_cubin``."""

    _fields_ = tuple(
        (name, _KINDS.get(kind.strip(), ctypes.c_void_p)) for kind, name, _ in CUBIN_FIELDS
    )


@functools.cache
def _library() -> ctypes.PyDLL:
    library = image_library()
    cubin, number = ctypes.POINTER(_Cubin), ctypes.POINTER(ctypes.c_uint64)
    library.egpu_cubin_read.argtypes = (cubin, number)
    library.egpu_cubin_alone.argtypes = (
        cubin,
        ctypes.c_uint32,
        ctypes.c_void_p,
        ctypes.c_uint64,
        number,
    )
    return library


class NativeCubin:
    """A cubin that kernels are taken out of.

    InputError when something that all its kernels need is malformed, UnsupportedError without the
    library.
    """

    def __init__(self, cubin: Cubin, sections: int) -> None:
        self._cubin = cubin
        self._library = _library()
        self._bytes = np.frombuffer(cubin.data, np.uint8)  # keeps them there
        self._sections = ctypes.create_string_buffer(sections * len(SECTION_FIELDS) * 4)
        self._about = _Cubin(
            data=self._bytes.ctypes.data,
            size=len(self._bytes),
            sections=ctypes.addressof(self._sections),
            room=sections,
        )
        number = ctypes.c_uint64()
        answer = self._library.egpu_cubin_read(self._about, number)
        self._whole = answer == Answer.WHOLE
        if answer not in (Answer.DONE, Answer.WHOLE):
            raise self._error(Answer(answer), number.value)

    def alone(self, kernel: int) -> bytes | None:
        """The cubin with the kernel of symbol ``kernel``, None where only the whole one is certain
        to work; InputError for what is malformed."""
        if self._whole:
            return None
        room = getattr(_local, "room", None)
        if room is None:
            room = _local.room = ctypes.create_string_buffer(_ROOM)
        number = ctypes.c_uint64()
        answer = self._library.egpu_cubin_alone(self._about, kernel, room, len(room), number)
        if answer == Answer.ROOM:
            room = ctypes.create_string_buffer(number.value)
            answer = self._library.egpu_cubin_alone(self._about, kernel, room, len(room), number)
        if answer == Answer.WHOLE:
            return None
        if answer != Answer.DONE:
            raise self._error(Answer(answer), number.value)
        return ctypes.string_at(room, number.value)

    def _error(self, answer: Answer, number: int) -> EgpuError:
        match answer:
            case Answer.RELOCATION:
                text = f"a relocation by symbol {number}"
            case Answer.NO_RELOCATIONS:
                text = f"{self._cubin.sections[number].name} is no relocation section"
            case Answer.NO_SYMBOL:
                text = f"something refers to symbol {number}, which is not there"
            case Answer.NO_SECTION:
                text = f"something is about section {number}, which is not there"
            case Answer.BEHIND_ATTRIBUTES:
                text = f"{number} bytes behind the last attribute"
            case Answer.ATTRIBUTE_CUT_OFF:
                text = f"attribute {number >> 8:#x} of form {number & 0xFF} is cut off"
            case _:
                return InternalError(f"{LIBRARY_NAME} answers {answer.name} for an opened cubin")
        return InputError(text, where="cubin")
