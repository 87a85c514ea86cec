"""Images that kernels come from, opened once: a process asks for their kernels one after the other.

What a process has loaded stays what it was, so what the device can use of an image is read, and its
digest taken, at the first of its kernels.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

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
    open_for,
    ptx_text,
    unpack_into,
)
from egpu.image.ptx import parse
from egpu.image.ptx.syntax import Module
from egpu.session.room import Room

_Key = TypeVar("_Key", bound=Hashable)
_Kept = TypeVar("_Kept")
_Place = tuple[str, tuple[int, ...], int]  # digest, offsets of what was read, a member's offset
# What is kept: PyTorch's first step takes kernels of forty images in turn.
_IMAGES, _MODULES, _CUBINS = 256, 16, 64
# Bytes of images, of cubins, and of the memory that most of these take in turn.
_STORED, _UNPACKED, _ROOM = 64 << 20, 256 << 20, 64 << 20


class OpenedImages:
    """Images of the workload's processes, with what was read out of them; not thread-safe.

    ``read``: how many images were read so far; ``spent_s``: seconds of opening them, unpacking
    their members and taking those apart.
    """

    def __init__(self) -> None:
        self.read = 0
        self.spent_s = 0.0
        self._images: _Shelf[tuple[int, int, int, str, int], Image] = _Shelf(
            _IMAGES, _STORED, lambda image: sum(len(each.data) for each in image.members)
        )
        self._modules: _Shelf[_Place, Module] = _Shelf(_MODULES)
        self._cubins: _Shelf[_Place, Contents] = _Shelf(
            _CUBINS, _UNPACKED, lambda contents: len(contents.parts.cubin.data)
        )
        self._room: Room[_Place] = Room(_ROOM, self._cubins.drop)

    def image(self, seen: KernelSeen) -> Image:
        """The image that holds a kernel; AgentError when it cannot be read any more, InputError
        when it is malformed."""
        key = (seen.pid, seen.connection, seen.module, seen.source, seen.device.arch)
        return self._images.get(key, self._timed(partial(self._read, seen)))

    def _read(self, seen: KernelSeen) -> Image:
        self.read += 1
        return open_for(seen.image(), seen.device.arch)

    def _timed(self, make: Callable[[], _Kept]) -> Callable[[], _Kept]:
        def timed() -> _Kept:
            begin = time.perf_counter()
            try:
                return make()
            finally:
                self.spent_s += time.perf_counter() - begin

        return timed

    def forget(self, pid: int) -> None:
        """A process has ended: its numbers mean nothing any more."""
        self._images.forget(lambda key: key[0] == pid)

    def ptx(self, image: Image, seen: KernelSeen) -> Module:
        """The PTX for the device, parsed; UnsupportedError when there is none."""
        member = choose_ptx(image, seen.device.arch, kernel=seen.kernel)
        key = _place(image, member)
        return self._modules.get(key, self._timed(lambda: parse(ptx_text(member))))

    def machine_code(self, image: Image, seen: KernelSeen) -> Contents:
        """The cubin that the device runs for the kernel; UnsupportedError when there is none."""
        for member in fitting_cubins(image, seen.device.arch):
            key = _place(image, member)
            contents = self._cubins.get(key, self._timed(partial(self._contents, key, member)))
            if seen.kernel in contents.kernels:
                return contents
        raise no_cubin(image, seen.device.arch, seen.kernel)

    def _contents(self, key: _Place, member: Member) -> Contents:
        return contents_of(open_cubin(unpack_into(member, partial(self._room.piece, key))))


def _place(image: Image, member: Member) -> _Place:
    """What no two different members have in common.  Images that differ in what the device cannot
    use have one digest, and other members at the same offset."""
    return image.digest, tuple(each.offset for each in image.members if each.data), member.offset


class _Shelf(Generic[_Key, _Kept]):
    """The most recently used of what was made, up to a number of them and of their bytes (the last
    one stays in any case)."""

    def __init__(
        self, most: int, most_bytes: int = 0, size: Callable[[_Kept], int] = lambda kept: 0
    ) -> None:
        self._most, self._most_bytes, self._size = most, most_bytes, size
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._bytes = 0

    def get(self, key: _Key, make: Callable[[], _Kept]) -> _Kept:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        found = self._kept[key] = make()
        self._bytes += self._size(found)
        while len(self._kept) > 1 and (
            len(self._kept) > self._most or self._bytes > self._most_bytes
        ):
            self._bytes -= self._size(self._kept.popitem(last=False)[1])
        return found

    def drop(self, key: _Key) -> None:
        """It is not kept any more, if it was."""
        if key in self._kept:
            self._bytes -= self._size(self._kept.pop(key))

    def forget(self, whether: Callable[[_Key], bool]) -> None:
        for key in [key for key in self._kept if whether(key)]:
            self.drop(key)
