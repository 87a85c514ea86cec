"""What the server keeps for one client process, and what each request does to it."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from egpu.errors import AgentError, InputError, UnsupportedError
from egpu.image import choose_ptx, open_image, unpack
from egpu.image.ptx import parse
from egpu.image.ptx.syntax import Function, Module
from egpu.sim.declared import block_limits, declared_sizes, kernel_names
from egpu.sim.faults import SimulatedFault
from egpu.sim.machine import Machine
from egpu.sim.memory import DeviceMemory, FileMapping
from egpu.sim.variables import initialise, variables_of
from egpu.sim.wire import Request, WireKind

ARCH = 90
# CUresult of what can go wrong
INVALID_VALUE = 1
INVALID_IMAGE = 200
NO_BINARY = 209
INVALID_PTX = 218
NOT_SUPPORTED = 801

Handler: TypeAlias = Callable[["Client", bytes, int], bytes]


class Refusal(Exception):
    """A request fails with a CUresult and one line for the client's stderr."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A client's module; ``names`` are its kernels in the order that the client was told."""

    module: Module
    names: tuple[str, ...]


class Client:
    """One process: its memory, modules and machine.  ``handle`` answers a request."""

    def __init__(self, sm_count: int) -> None:
        self.memory = DeviceMemory()
        self.machine = Machine(self.memory, sm_count)
        self.modules: dict[int, LoadedModule] = {}
        self.numbers = itertools.count(1)
        self.heap: FileMapping | None = None
        self.heap_base = 0
        self.sm_count = sm_count

    def handle(self, request: Request) -> bytes:
        """The reply's payload; Refusal with what the client gets instead.

        The request's descriptor is closed here.
        """
        try:
            return HANDLERS[request.kind](self, request.payload, request.fd)
        except struct.error as error:
            raise AgentError(f"request {request.kind.name} is malformed: {error}") from error
        except SimulatedFault as fault:
            raise Refusal(fault.kind.value, str(fault)) from fault
        except UnsupportedError as error:
            raise Refusal(NOT_SUPPORTED, str(error)) from error
        except InputError as error:
            raise Refusal(INVALID_VALUE, str(error)) from error
        finally:
            if request.fd >= 0:
                os.close(request.fd)

    def _hello(self, payload: bytes, fd: int) -> bytes:
        base, size, _pid = struct.unpack("<3Q", payload)
        if fd < 0 or self.heap is not None:
            raise AgentError("a client's first request brings its heap, once")
        self.heap, self.heap_base = FileMapping(fd, size), base
        return struct.pack("<I", self.sm_count)

    def _add_range(self, payload: bytes, fd: int) -> bytes:
        base, size = struct.unpack("<2Q", payload)
        start = base - self.heap_base
        padded = -(-size // 8) * 8
        if self.heap is None or start < 0 or start % 8 or start + padded > self.heap.data.size:
            raise InputError(f"{size} bytes at {base:#x} are not in the heap")
        self.memory.add(base, self.heap.data[start : start + padded], size)
        return b""

    def _add_host(self, payload: bytes, fd: int) -> bytes:
        base, size, offset = struct.unpack("<3Q", payload)
        if fd < 0:
            raise AgentError("host memory comes with its file descriptor")
        self.memory.add(base, FileMapping(fd, size, offset).data, size)
        return b""

    def _remove_range(self, payload: bytes, fd: int) -> bytes:
        self.memory.remove(struct.unpack("<2Q", payload)[0])
        return b""

    def _load(self, payload: bytes, fd: int) -> bytes:
        module = parse_image(payload)
        names = kernel_names(module)
        number = next(self.numbers)
        self.modules[number] = LoadedModule(module, names)
        variables = variables_of(module)
        words = struct.pack(
            "<4I", number, len(names), len(variables), module.version[0] * 10 + module.version[1]
        )
        parts = [words, *(_describe(module, module.entry(name)) for name in names)]
        for variable in variables:
            name = variable.name.encode()
            parts.append(struct.pack("<QII", variable.size, 0, len(name)) + name)
        return b"".join(parts)

    def _bind(self, payload: bytes, fd: int) -> bytes:
        number, *addresses = struct.unpack(f"<{len(payload) // 8}Q", payload)
        module = self._module(number).module
        variables = variables_of(module)
        if len(addresses) != len(variables):
            raise AgentError(f"{len(addresses)} addresses for {len(variables)} variables")
        places = {v.name: address for v, address in zip(variables, addresses, strict=True)}
        initialise(module, self.memory, places)
        self.machine.bind(module, places)
        return b""

    def _unload(self, payload: bytes, fd: int) -> bytes:
        (number,) = struct.unpack("<Q", payload)
        self.machine.forget(self._module(number).module)
        del self.modules[number]
        return b""

    def _launch(self, payload: bytes, fd: int) -> bytes:
        head = struct.unpack_from("<11I", payload)
        loaded = self._module(head[0])
        if head[1] >= len(loaded.names) or len(payload) != 44 + head[10]:
            raise AgentError("a launch that does not fit its module")
        report = self.machine.launch(
            loaded.module,
            loaded.names[head[1]],
            (head[2], head[3], head[4]),
            (head[5], head[6], head[7]),
            payload[44:],
            dynamic_shared=head[8],
            together=bool(head[9]),
        )
        return report.printed.encode()

    def _module(self, number: int) -> LoadedModule:
        loaded = self.modules.get(number)
        if loaded is None:
            raise AgentError(f"module {number} is not loaded")
        return loaded


HANDLERS: dict[WireKind, Handler] = {
    WireKind.HELLO: Client._hello,
    WireKind.ADD_RANGE: Client._add_range,
    WireKind.REMOVE_RANGE: Client._remove_range,
    WireKind.ADD_HOST: Client._add_host,
    WireKind.LOAD: Client._load,
    WireKind.BIND: Client._bind,
    WireKind.UNLOAD: Client._unload,
    WireKind.LAUNCH: Client._launch,
}


def parse_image(data: bytes) -> Module:
    """The PTX of an image, parsed.

    Refusal with the driver's error: an image without PTX, PTX that is none.
    """
    try:
        image = open_image(data)
    except InputError as error:
        raise Refusal(INVALID_IMAGE, str(error)) from error
    try:
        text = unpack(choose_ptx(image, ARCH, "a"))
    except (InputError, UnsupportedError) as error:
        raise Refusal(NO_BINARY, str(error)) from error
    try:
        return parse(text.rstrip(b"\0").decode())
    except (InputError, UnicodeDecodeError) as error:
        raise Refusal(INVALID_PTX, str(error)) from error


def _describe(module: Module, function: Function) -> bytes:
    """A kernel for the client (native/sim/module.c)."""
    shared, local = declared_sizes(module, function)
    most, _ = block_limits(function)
    size = max((p.offset + p.size for p in function.parameters), default=0)
    name = function.name.encode()
    places = b"".join(struct.pack("<2I", p.offset, p.size) for p in function.parameters)
    head = struct.pack("<6I", shared, most, local, size, len(function.parameters), len(name))
    return head + places + name
