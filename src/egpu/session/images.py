"""Images that kernels come from, opened once: a process asks for their kernels one after the other.

What a process has loaded stays what it was, so what the device can use of an image is read, and its
digest taken, at the first of its kernels, or before that while the driver loads it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from egpu.agent.twin import ImageSeen, KernelSeen
from egpu.errors import EgpuError
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
from egpu.image.cubin_alone import prepare
from egpu.image.ptx import parse
from egpu.image.ptx.syntax import Module
from egpu.session.room import Room
from egpu.session.shelf import Shelf

_Key = TypeVar("_Key", bound=Hashable)
_Kept = TypeVar("_Kept")
_Load: TypeAlias = tuple[int, int, int, str, int]  # pid, connection, image's number, file, arch
_Place: TypeAlias = tuple[str, tuple[int, ...], int]  # digest, offsets of what was read, a member's
# What is kept: PyTorch's first step takes kernels of forty images in turn.
_IMAGES, _MODULES, _CUBINS = 256, 16, 64
# Bytes of images, of cubins, and of the memory that most of these take in turn.
_STORED, _UNPACKED, _ROOM = 64 << 20, 256 << 20, 64 << 20
# Images that were opened ahead and not asked for: a process that loads more than it launches is not
# followed.  Several processes may have some at a time.
_EARLY = 16


@dataclass(slots=True)
class _Early:
    """An image that is opened, or was, before a kernel of it was asked for."""

    opened: bool = False
    gone: bool = False


class OpenedImages:
    """Images of the workload's processes, with what was read out of them.

    One thread asks; others may open images ahead meanwhile.  ``spent_s``: seconds that asking took
    for opening images, unpacking their members and taking those apart, or for waiting until
    another thread had done so.
    """

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._read = 0
        self._images: Shelf[_Load, Image] = Shelf(
            _IMAGES, _STORED, lambda image: sum(len(each.data) for each in image.members)
        )
        self._modules: Shelf[_Place, Module] = Shelf(_MODULES)
        self._cubins: Shelf[_Place, Contents] = Shelf(
            _CUBINS, _UNPACKED, lambda contents: len(contents.parts.cubin.data)
        )
        self._room: Room[_Place] = Room(_ROOM, self._cubins.drop)
        self._given: list[_Place] = []  # whose memory is held, for who has asked last
        self._early: dict[_Load, _Early] = {}
        self._lock = threading.Lock()

    @property
    def read(self) -> int:
        """How many images were read so far."""
        return self._read

    def image(self, seen: KernelSeen) -> Image:
        """The image that holds a kernel; AgentError when it cannot be read any more, InputError
        when it is malformed."""
        key = _load(seen)
        if self._unsure(key, seen):
            return self._open(seen)
        return self._asked(self._images, key, partial(self._open, seen))

    def _unsure(self, key: _Load, seen: KernelSeen) -> bool:
        """Whether what was opened ahead may not be what the process loaded: its file has changed,
        before that or after."""
        with self._lock:
            if key in self._early and seen.changed:
                return True
            if self._early.pop(key, None) is None and len(self._early) >= _EARLY:
                opened = (each for each, early in self._early.items() if early.opened)
                if (oldest := next(opened, None)) is not None:
                    del self._early[oldest]
                    self._images.drop(oldest)
            return False

    def open_ahead(self, seen: ImageSeen, unpacked: Callable[[Image], bool]) -> None:
        """Open an image before a kernel of it is asked for, and take the machine code of it apart
        that the device prefers if ``unpacked`` says so.  What goes wrong is said of its kernels.
        """
        key, early = _load(seen), _Early()
        with self._lock:
            if (
                not seen.there()  # or nobody would let it go: what says so has come
                or key in self._early
                or len(self._early) >= _EARLY
                or self._images.ready(key) is not None
            ):
                return
            self._early[key] = early
        image = None
        try:
            with contextlib.suppress(EgpuError):
                image = self._images.get(key, partial(self._open, seen))
                if unpacked(image):
                    self._unpack(image, seen.device.arch)
        finally:
            with self._lock:
                early.opened = True
                if image is None and self._early.get(key) is early:
                    del self._early[key]
                if early.gone:
                    self._images.drop(key)

    def _unpack(self, image: Image, arch: int) -> None:
        for member in fitting_cubins(image, arch)[:1]:
            place = _place(image, member)
            self._room.hold(place)
            try:
                self._cubins.get(place, partial(self._whole, place, member))
            finally:
                self._room.let_go(place)

    def let_go(self, whether: Callable[[int, int, int], bool]) -> None:
        """Images that are not there any more, by pid, connection and number: of what was opened
        ahead and never asked for nothing is kept."""
        with self._lock:
            for key in [key for key in self._early if whether(*key[:3])]:
                early = self._early.pop(key)
                early.gone = True
                if early.opened:
                    self._images.drop(key)

    def forget(self, pid: int) -> None:
        """A process has ended: its numbers mean nothing any more."""
        self.let_go(lambda other, *_: other == pid)
        self._images.forget(lambda key: key[0] == pid)

    def ptx(self, image: Image, seen: KernelSeen) -> Module:
        """The PTX for the device, parsed; UnsupportedError when there is none."""
        member = choose_ptx(image, seen.device.arch, kernel=seen.kernel)
        return self._asked(self._modules, _place(image, member), lambda: parse(ptx_text(member)))

    def machine_code(self, image: Image, seen: KernelSeen) -> Contents:
        """The cubin that the device runs for the kernel, which stays as it is until this is called
        again; UnsupportedError when there is none."""
        while self._given:
            self._room.let_go(self._given.pop())
        for member in fitting_cubins(image, seen.device.arch):
            place = _place(image, member)
            self._room.hold(place)
            self._given.append(place)
            contents = self._asked(self._cubins, place, partial(self._contents, place, member))
            if seen.kernel in contents.kernels:
                return contents
        raise no_cubin(image, seen.device.arch, seen.kernel)

    def _asked(self, shelf: Shelf[_Key, _Kept], key: _Key, make: Callable[[], _Kept]) -> _Kept:
        found = shelf.ready(key)
        if found is not None:
            return found
        begin = time.perf_counter()
        try:
            return shelf.get(key, make)
        finally:
            self.spent_s += time.perf_counter() - begin

    def _open(self, seen: KernelSeen | ImageSeen) -> Image:
        with self._lock:
            self._read += 1
        return open_for(seen.image(), seen.device.arch)

    def _whole(self, place: _Place, member: Member) -> Contents:
        contents = self._contents(place, member)
        prepare(contents)
        return contents

    def _contents(self, place: _Place, member: Member) -> Contents:
        return contents_of(open_cubin(unpack_into(member, partial(self._room.piece, place))))


def _load(seen: KernelSeen | ImageSeen) -> _Load:
    return seen.pid, seen.connection, seen.module, seen.source, seen.device.arch


def _place(image: Image, member: Member) -> _Place:
    """What no two different members have in common.  Images that differ in what the device cannot
    use have one digest, and other members at the same offset."""
    return image.digest, tuple(each.offset for each in image.members if each.data), member.offset
