"""The host arena: a memfd that the session, the agent and the device map.

It outlives a crash of either process: whoever still holds the descriptor reads the last records and
the last snapshot.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import platform
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from egpu.errors import AgentError, UnsupportedError
from egpu.maps.layout import (
    COMMAND_SIZE,
    HOST_CONTROL,
    HOST_MAGIC,
    LAYOUT_VERSION,
    RING_CONTROL,
    RING_ROOM,
    ArenaLayout,
    MapPlace,
    stamped_stride,
)

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_STABLE_WAIT_S = 2.0
_KEPT_BYTES = 1 << 16  # what is kept is copied by parts of this size, all zero or not
# x86-64 keeps loads in order and stores in order (Intel SDM vol. 3, 9.2.2), so a plain 8-byte
# access is an acquire or a release there.
_ORDERED = platform.machine() in ("x86_64", "AMD64")
_FENCE = threading.Lock()


def fence() -> None:
    """Order the memory accesses before against those after, on this thread.

    Python has no fence.  Where the machine needs one, releasing a lock and taking it again gives
    it: a store-release followed by a load-acquire is ordered (Arm ARM B2.3.7, RCsc).
    """
    if not _ORDERED:
        for _ in range(2):
            with _FENCE:
                pass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An image of the device arena.

    ``time_ns`` is CLOCK_MONOTONIC when it was taken, 0 before the first one (the arena's initial
    contents).  ``final``: the workload's last.  ``complete`` is False if the workload died while
    one was being copied: every 8-byte word is then from this snapshot or the one before.
    """

    data: bytes
    time_ns: int
    sequence: int
    final: bool
    complete: bool = True


@dataclass(frozen=True, slots=True)
class RingControl:
    """One SM slot's ring counters as a snapshot has them (layout.RING_CONTROL): ``head`` and
    ``tail`` in bytes, ``dropped`` and ``produced`` in records."""

    head: int
    tail: int
    dropped: int
    produced: int


def ring_controls(snapshot: Snapshot, place: MapPlace, sm_slots: int) -> tuple[RingControl, ...]:
    """The counters of a ring map's SM slots."""
    words = np.frombuffer(snapshot.data, "<u8")
    rows = []
    for slot in range(sm_slots):
        base = place.offset + slot * place.stride
        row = {name: int(words[(base + at) // 8]) for name, (at, _) in RING_CONTROL.items()}
        if place.ring_stamped:
            row["produced"] = taken_slots(row["head"])
            row["head"] = row["produced"] * stamped_stride(place.ring_stamped)
        rows.append(RingControl(**row))
    return tuple(rows)


def taken_slots(head: int) -> int:
    """How many stamped slots were taken, by their ring's ``head``: those asked for in vain are in
    it until somebody gives it room again (``egpu.maps.layout``)."""
    asked, room = head & ((1 << RING_ROOM) - 1), head >> RING_ROOM
    missing = (1 << 64 - RING_ROOM) - room if room >> 63 - RING_ROOM else 0
    return asked - missing


class HostArena:
    """The mapped memfd.  Use :meth:`create` (session) or :meth:`open` (a descriptor received).

    Context manager; owns its descriptor and mapping.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, size)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._words: NDArray[np.uint64] = np.frombuffer(self._map, "<u8")
        self._closed = False

    @classmethod
    def create(cls, layout: ArenaLayout, initial: Sequence[tuple[int, bytes]] = ()) -> Self:
        """A new arena for ``layout``.

        ``initial`` (``initial.initial_chunks``) fills the snapshot area, so that maps read as their
        initial contents until the first snapshot.  Raises UnsupportedError without memfd_create.
        """
        if not hasattr(os, "memfd_create"):
            raise UnsupportedError("shared map memory", needs="Linux with memfd_create")
        try:
            fd = os.memfd_create("egpu-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise UnsupportedError(
                f"shared map memory (memfd_create: {error.strerror})",
                needs="a kernel or sandbox that allows memfd_create",
            ) from error
        try:
            os.ftruncate(fd, layout.host_size)
            # Nobody can shrink it under a reader, which would turn a read into SIGBUS.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            arena = cls(fd, layout.host_size)
        except OSError as error:
            os.close(fd)
            raise UnsupportedError(
                f"{layout.host_size} bytes of shared map memory ({error.strerror})",
                needs="more memory or smaller ring buffers",
            ) from error
        for offset, data in initial:
            start = layout.snapshot + offset
            arena._bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)
        values = {
            "version": LAYOUT_VERSION,
            "sm_slots": layout.sm_slots,
            "size": layout.host_size,
            "snapshot": layout.snapshot,
            "snapshot_size": layout.device_size,
            "commands": layout.commands,
            "commands_size": COMMAND_SIZE,
            "magic": HOST_MAGIC,
        }
        for name, value in values.items():
            arena._put(name, value)
        return arena

    @classmethod
    def open(cls, fd: int) -> Self:
        """Map a descriptor made by :meth:`create`, which it takes over on success.

        Raises AgentError if it is not a host arena of this version.
        """
        size = os.fstat(fd).st_size
        if size < 4096:
            raise AgentError(f"the host arena has {size} bytes, less than its control page")
        arena = cls(fd, size)
        found = {name: arena.control(name) for name in ("magic", "version", "size")}
        wanted = {"magic": HOST_MAGIC, "version": LAYOUT_VERSION, "size": size}
        if found != wanted:
            arena._unmap()
            raise AgentError(f"not a host arena of layout version {LAYOUT_VERSION}: found {found}")
        return arena

    @property
    def fd(self) -> int:
        """The memfd, owned by the arena; -1 once it was given back."""
        return self._fd

    @property
    def size(self) -> int:
        """Bytes of the mapping."""
        return len(self._bytes)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The mapping; AgentError once it is closed."""
        self._require_open()
        return self._bytes

    @property
    def words(self) -> NDArray[np.uint64]:
        """The mapping as aligned little-endian u64s; each is read and written whole."""
        self._require_open()
        return self._words

    @property
    def final(self) -> bool:
        """Whether the workload made its last snapshot."""
        return self.control("final") != 0

    def control(self, name: str) -> int:
        """A field of the control page (layout.HOST_CONTROL)."""
        offset, size = HOST_CONTROL[name]
        word = int(self.words[offset // 8]) >> (8 * (offset % 8))
        return word & ((1 << (8 * size)) - 1)

    def snapshot(self) -> Snapshot:
        """The last complete snapshot; waits at most 2 s for one that is being copied."""
        start, size = self.control("snapshot"), self.control("snapshot_size")
        deadline = time.monotonic() + _STABLE_WAIT_S
        while True:
            before = self.control("sequence")
            fence()
            data = self._bytes[start : start + size].tobytes()
            time_ns, final = self.control("snapshot_time"), self.final
            fence()
            stable = before % 2 == 0 and before == self.control("sequence")
            if stable or time.monotonic() > deadline:
                return Snapshot(data, time_ns, before // 2, final, stable)
            time.sleep(0.0005)

    def keep(self) -> None:
        """Keep the contents and give the descriptors back: a session has few of them, and may see
        thousands of processes.  For an arena whose process is gone; ``fd`` is -1 afterwards.
        """
        if self._closed or self._fd < 0:
            return
        own = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        copied = np.frombuffer(own, np.uint8)
        for start in range(0, self.size, _KEPT_BYTES):  # pages that are never written cost nothing
            part = self._bytes[start : start + _KEPT_BYTES]
            if part.any():
                copied[start : start + _KEPT_BYTES] = part
            del part  # or it would hold the mapping
        before, fd = self._map, self._fd
        self._map, self._fd = own, -1
        self._bytes, self._words = copied, copied.view("<u8")
        with contextlib.suppress(BufferError):
            before.close()
        os.close(fd)

    def close(self) -> None:
        """Unmap and close the descriptor. May be called twice."""
        if not self._closed:
            self._unmap()
            if self._fd >= 0:
                os.close(self._fd)

    def _require_open(self) -> None:
        if self._closed:
            raise AgentError("map memory was released", hint="read maps before closing the session")

    def _unmap(self) -> None:
        self._closed = True
        empty = np.zeros(0, np.uint8)
        self._bytes, self._words = empty, empty.view("<u8")
        # A caller that kept a view of the mapping keeps the mapping; it goes with the last view.
        with contextlib.suppress(BufferError):
            self._map.close()

    def _put(self, name: str, value: int) -> None:
        offset, size = HOST_CONTROL[name]
        data = np.frombuffer(value.to_bytes(size, "little"), np.uint8)
        self._bytes[offset : offset + size] = data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
