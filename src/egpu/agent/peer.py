"""One connected workload process, as the server sees it."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from egpu.agent import channel
from egpu.agent import protocol as wire
from egpu.agent.file_part import FilePart, read_all
from egpu.agent.frames import CallFrame, CodePlaces
from egpu.agent.protocol import CommandError, ImageSource, LaunchCall, Packet
from egpu.agent.stats import SlotCounts, StatsMemory
from egpu.agent.twin import (
    DeviceInfo,
    HostCall,
    ImageSeen,
    KernelSeen,
    LaunchCost,
    ProcessStats,
    SlotStats,
    TwinState,
)
from egpu.errors import AgentError
from egpu.image import Source

IMAGE_LIMIT = 1 << 34  # bytes; the agent's own limit
DEVICES_LIMIT = 16  # likewise


def cmdline(pid: int) -> tuple[str, ...]:
    """Arguments of a process, () if it is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode("utf-8", "surrogateescape") for part in raw.split(b"\0")[:-1])


def device_of(packet: Packet) -> DeviceInfo:
    """The device fields of DEVICE, OPEN_ARENA, RESOLVE and LOADING."""
    f = packet.fields
    return DeviceInfo(f["ordinal"], f["major"], f["minor"], f["sm_count"], packet.text("name"))


_CONNECTIONS = itertools.count(1)


class Peer:
    """Connection, stats memory and images of one process.  Not for use outside the server."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self._owner = os.getpid()
        self.cmdline = cmdline(pid)
        self.greeted = False
        self.ended = False
        self.snapshots: dict[int, threading.Event] = {}
        self._commands: dict[int, Future[tuple[int, int]]] = {}
        self.names: dict[int, str] = {}
        self.refusals: dict[int, list[str]] = {}
        self.twins: dict[int, TwinState] = {}
        self.stacks: dict[int, tuple[CallFrame, ...]] = {}
        self._callers: dict[int, tuple[int, ...]] = {}
        self._code = CodePlaces(pid)
        self._images: dict[int, bytes] = {}
        self._told: set[int] = set()  # images that may be opened ahead
        self._devices: list[DeviceInfo] = []
        self.number = next(_CONNECTIONS)  # no other connection has it
        self._lock = threading.Lock()
        self._stats = StatsMemory()

    @property
    def stats_size(self) -> int:
        return self._stats.size

    def open_stats(self) -> int:
        """Makes the stats memory; gives a descriptor that the caller closes."""
        return self._stats.open()

    def send(self, data: bytes, files: tuple[int, ...] = ()) -> None:
        """Sends unless the process is gone; what is gone will be noticed by the receiver.

        AgentError in a process forked from the session's, which has not the threads that answers
        are for.
        """
        if os.getpid() != self._owner:
            raise AgentError(
                f"this process was forked from the session's, which is process {self._owner}",
                hint="pin the map and use egpu.open_map",
            )
        with self._lock:
            if self.ended:
                return
            try:
                channel.send(self.connection, data, files)
            except OSError:
                # Gone, or it has not read for long: the receiver sees the end and cleans up.
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

    def expect(self, request: int, answer: Future[tuple[int, int]]) -> None:
        """``answer`` is to get (error, detail) of COMMAND_DONE for ``request``."""
        with self._lock:
            if self.ended:
                answer.set_result((CommandError.GONE, 0))
            else:
                self._commands[request] = answer

    def command_done(self, packet: Packet) -> None:
        """A COMMAND_DONE message."""
        with self._lock:
            answer = self._commands.pop(packet.request, None)
        if answer is not None:
            answer.set_result((packet.fields["error"], packet.fields["detail"]))

    def keep_image(self, packet: Packet, files: list[int]) -> None:
        """Keeps what an IMAGE message brings: as bytes, which take the same memory as the memfd but
        no descriptor (the session's limit of those is the workload's too)."""
        size = packet.fields["size"]
        if len(files) != 1 or not 0 < size <= IMAGE_LIMIT:
            raise AgentError("IMAGE message without its file")
        data = _read(files[0], size, "the image that the workload sent")
        with self._lock:
            self._images[packet.fields["image"]] = data
            self._told.add(packet.fields["image"])

    def drop_image(self, number: int) -> None:
        with self._lock:
            self._images.pop(number, None)
            self._told.discard(number)

    def _has(self, number: int) -> bool:
        with self._lock:
            return number in self._told

    def image_reader(self, packet: Packet) -> Callable[[], Source]:
        """Opens, when it is called, the image that a RESOLVE names."""
        number, size = packet.fields["image"], packet.fields["size"]
        offset, path = packet.fields["offset"], packet.text("path")
        if packet.fields["source"] == ImageSource.FILE:
            return partial(_part, path, offset, size)
        if packet.fields["source"] == ImageSource.CHANGED:
            return partial(_changed, path)
        if packet.fields["source"] == ImageSource.NONE:
            return _never_seen
        with self._lock:
            data = self._images.get(number)  # kept by the reader, should the module be unloaded
        return (lambda: data) if data is not None else _never_seen

    def kernel_seen(self, packet: Packet) -> KernelSeen:
        """The RESOLVE as the broker sees it."""
        name, slot = packet.text("kernel"), packet.fields["slot"]
        if slot >= wire.STATS_SLOTS or not name:
            raise AgentError("RESOLVE without kernel name or slot")
        self.names[slot] = name
        return KernelSeen(
            pid=self.pid,
            device=device_of(packet),
            kernel=name,
            module=packet.fields["image"],
            slot=slot,
            source=packet.text("path"),
            captured=packet.fields["captured"] != 0,
            connection=self.number,
            changed=packet.fields["source"] == ImageSource.CHANGED,
            image=self.image_reader(packet),
        )

    def image_seen(self, packet: Packet) -> ImageSeen:
        """The LOADING as the broker sees it."""
        f, path = packet.fields, packet.text("path")
        with self._lock:
            self._told.add(f["image"])
        return ImageSeen(
            pid=self.pid,
            device=device_of(packet),
            module=f["image"],
            source=path,
            connection=self.number,
            image=partial(_part, path, f["offset"], f["size"]),
            there=partial(self._has, f["image"]),
        )

    def note_device(self, packet: Packet) -> DeviceInfo:
        """A DEVICE message."""
        if len(self._devices) == DEVICES_LIMIT:
            raise AgentError(f"more than {DEVICES_LIMIT} kinds of devices")
        device = device_of(packet)
        self._devices.append(device)
        return device

    def image_kept(self, number: int) -> ImageSeen | None:
        """An IMAGE as the broker sees it; None where it may be for devices of several kinds."""
        with self._lock:
            data = self._images[number]
        if len(self._devices) != 1:
            return None
        return ImageSeen(
            self.pid,
            self._devices[0],
            number,
            "",
            self.number,
            image=lambda: data,
            there=partial(self._has, number),
        )

    def note_refusal(self, slot: int, reason: str) -> None:
        if reason not in self.refusals.setdefault(slot, []):
            self.refusals[slot].append(reason)

    def note_stack(self, packet: Packet) -> None:
        """A STACK message: its frames as places in files, as long as the process is there."""
        data = packet.texts["frames"]
        if len(data) % 8 or not data:
            raise AgentError(f"a stack of {len(data)} bytes")
        addresses = struct.unpack(f"<{len(data) // 8}Q", data)
        frames = tuple(self._code.frame(address) for address in addresses)
        self._callers[packet.fields["stack"]] = addresses
        self.stacks[packet.fields["stack"]] = frames

    def host_call(self, packet: Packet) -> HostCall:
        """The HOST_CALL as the broker sees it; ValueError if there is no such call."""
        f = packet.fields
        stack = f["stack"] - 1 if f["stack"] else None
        return HostCall(
            self.pid,
            f["thread"],
            LaunchCall(f["call"]),
            bool(f["leaving"]),
            f["time"],
            stack,
            () if stack is None else self._callers.get(stack, ()),
        )

    def launches(self) -> dict[int, int]:
        """The number of the stack of each launch that is kept, by its id."""
        # Without stacks none were asked for, and the memory was never written.
        return self._stats.launches() if self.stacks else {}

    def note_twin(self, packet: Packet) -> TwinState:
        """A TWIN_STATE message."""
        f = dict(packet.fields)
        failed = f.pop("error")
        reason = packet.text("reason") if failed else ""
        state = TwinState(pid=self.pid, reason=reason or ("refused" if failed else ""), **f)
        if failed:
            self.note_refusal(state.slot, state.reason)
        else:
            self.twins[state.slot] = state
        return state

    def stats(self) -> ProcessStats:
        """What the process has counted so far."""
        header, slots = self._stats.counted()
        return ProcessStats(
            pid=self.pid,
            cmdline=self.cmdline,
            ended=self.ended,
            graph_launches=header["graph_launches"],
            graph_nodes=header["graph_nodes"],
            images=header["images"],
            twins=header["twins"],
            cost=LaunchCost(
                waits=header["waits"],
                wait_ns=header["wait_ns"],
                timed=header["timed"],
                timed_ns=header["timed_ns"],
                asks=header["asks"],
                ask_ns=header["ask_ns"],
            ),
            kernels=tuple(
                self._kernel(slot, counts)
                for slot, counts in enumerate(slots)
                if slot in self.names or counts.used
            ),
        )

    def _kernel(self, slot: int, counts: SlotCounts) -> SlotStats:
        return SlotStats(
            slot=slot,
            kernel=self.names.get(slot, ""),
            not_probed=counts.not_probed,
            refusals=tuple(self.refusals.get(slot, ())),
            twin=self.twins.get(slot),
            resident=counts.resident,
            **counts.fields,
        )

    def mark(self) -> None:
        """Counts from now on only."""
        self._stats.mark()

    def close(self) -> None:
        """Ends the connection; the stats stay readable."""
        with self._lock:
            self.ended = True
            self.connection.close()
            self._images, self._told = {}, set()
            commands, self._commands = self._commands, {}
        for answer in commands.values():
            answer.set_result((CommandError.GONE, 0))
        for event in list(self.snapshots.values()):
            event.set()

    def freeze(self) -> None:
        """Keeps only the used part of the stats; the process must be gone."""
        self._stats.freeze(launches=bool(self.stacks))


def _never_seen() -> bytes:
    raise AgentError("the agent did not see the kernel's image being loaded")


def _changed(path: str) -> bytes:
    raise AgentError(f"{path} has been changed or removed since the kernel was loaded from it")


def _part(path: str, offset: int, size: int) -> FilePart:
    if size > IMAGE_LIMIT:
        raise AgentError(f"an image of {size} bytes in {path}")
    return FilePart(path, offset, size)


def _read(file: int, size: int, what: str) -> bytes:
    if os.fstat(file).st_size < size:
        raise AgentError(f"{what} is shorter than the agent says")
    return read_all(file, 0, size, what)
