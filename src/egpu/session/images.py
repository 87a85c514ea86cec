"""Images that kernels come from, opened once: a process asks for their kernels one after the other.

What a process has loaded stays what it was, so an image is read, and its digest taken, at the first
of its kernels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar

from egpu.agent.twin import KernelSeen
from egpu.image import (
    Contents,
    Image,
    Member,
    choose_ptx,
    contents_of,
    fitting_cubins,
    no_cubin,
    open_cubin,
    open_image,
    ptx_text,
    unpack,
)
from egpu.image.ptx import parse
from egpu.image.ptx.syntax import Module

_Key = TypeVar("_Key", bound=Hashable)
_Kept = TypeVar("_Kept")
# How many are kept; a process resolves most kernels of an image before those of the next.
_IMAGES, _MODULES, _CUBINS = 32, 16, 16


class OpenedImages:
    """Images of the workload's processes, with what was read out of them; not thread-safe.

    ``read``: how many images were read so far.
    """

    def __init__(self) -> None:
        self.read = 0
        self._images: OrderedDict[tuple[int, int, int, str], Image] = OrderedDict()
        self._modules: OrderedDict[tuple[str, int], Module] = OrderedDict()
        self._cubins: OrderedDict[tuple[str, int], Contents] = OrderedDict()

    def image(self, seen: KernelSeen) -> Image:
        """The image that holds a kernel; AgentError when it cannot be read any more, InputError
        when it is malformed."""
        key = (seen.pid, seen.connection, seen.module, seen.source)
        return _kept(self._images, key, _IMAGES, lambda: self._read(seen))

    def _read(self, seen: KernelSeen) -> Image:
        self.read += 1
        return open_image(seen.image())

    def forget(self, pid: int) -> None:
        """A process has ended: its numbers mean nothing any more."""
        for key in [key for key in self._images if key[0] == pid]:
            del self._images[key]

    def ptx(self, image: Image, seen: KernelSeen) -> Module:
        """The PTX for the device, parsed; UnsupportedError when there is none."""
        member = choose_ptx(image, seen.device.arch, kernel=seen.kernel)
        key = (image.digest, member.offset)
        return _kept(self._modules, key, _MODULES, lambda: parse(ptx_text(member)))

    def machine_code(self, image: Image, seen: KernelSeen) -> Contents:
        """The cubin that the device runs for the kernel; UnsupportedError when there is none."""
        for member in fitting_cubins(image, seen.device.arch):
            key = (image.digest, member.offset)
            contents = _kept(self._cubins, key, _CUBINS, partial(_contents, member))
            if seen.kernel in contents.kernels:
                return contents
        raise no_cubin(image, seen.device.arch, seen.kernel)


def _contents(member: Member) -> Contents:
    return contents_of(open_cubin(unpack(member)))


def _kept(
    shelf: OrderedDict[_Key, _Kept], key: _Key, limit: int, make: Callable[[], _Kept]
) -> _Kept:
    found = shelf.get(key)
    if found is None:
        found = shelf[key] = make()
        if len(shelf) > limit:
            shelf.popitem(last=False)
    else:
        shelf.move_to_end(key)
    return found
