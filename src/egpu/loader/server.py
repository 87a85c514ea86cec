"""The session's end of a loader program: answers its bpf(2) calls."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from egpu.agent.channel import peer
from egpu.bpf.program import AttachPoint, Object
from egpu.errors import AgentError, EgpuError, UnsupportedError
from egpu.loader import protocol as wire
from egpu.loader.linux import LinuxSide
from egpu.loader.maps import LoaderMap
from egpu.loader.places import launch_point
from egpu.loader.programs import (
    PROG_TYPE_KPROBE,
    LoadedProgram,
    collect,
    directly,
    load_program,
    new_map,
    place_of,
)
from egpu.loader.protocol import Op, Request
from egpu.loader.quiet import Quiet
from egpu.loader.sharing import check_gpu, check_linux
from egpu.session import Session

SOCKET_NAME = "loader.sock"
_CODE_AT = wire.NAME_SIZE + wire.LICENSE_SIZE
_FRESH_S = 0.02  # a loader that reads map after map sees one snapshot
_QUIET_S = 0.3  # after its last link, a loader that asks nothing has attached all it wants
_READING = frozenset({Op.LOOKUP, Op.NEXT_KEY, Op.RECORDS})


class LoaderServer:
    """Listens at ``directory``/loader.sock.  Close it, or use ``with``.

    ``threads`` are the slots of per-thread maps.  ``problems`` are sentences about what a loader
    asked for and did not get.
    """

    def __init__(self, directory: Path, threads: int) -> None:
        self.socket_path = directory / SOCKET_NAME
        self.problems: list[str] = []
        self._threads = threads
        self._lock = threading.RLock()
        self._maps: dict[int, LoaderMap] = {}
        self._programs: dict[int, LoadedProgram] = {}
        self._links: dict[int, LoadedProgram] = {}
        self._next = 1
        self._linked = False
        self._quiet = Quiet()  # since the last thing it did to attach
        self._read = False
        self._session: Session | None = None
        self._snapshot_at = 0.0
        self._linux = LinuxSide()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.bind(str(self.socket_path))
        self._socket.listen(8)
        self._processes: Counter[int] = Counter()  # of connections, by pid
        threading.Thread(target=self._accept, daemon=True).start()

    def processes(self) -> frozenset[int]:
        """The processes that ask now: the loader, or others that it has started."""
        return frozenset(+self._processes)

    @property
    def attached(self) -> bool:
        """Whether the loader has attached anything."""
        return self._linked

    @property
    def ready(self) -> bool:
        """Whether the loader has attached what it wants: it reads maps, or is quiet."""
        with self._lock:
            if not self._linked:
                return False
            return self._read or self._quiet.seconds(self.processes()) > _QUIET_S

    def collected(
        self, only: str = "", point: AttachPoint | None = None
    ) -> tuple[Object, tuple[LoaderMap, ...]]:
        """What is attached, with the maps in their order; InputError if nothing is.

        With ``point``: the program ``only`` instead, attached there.
        """
        with self._lock:
            specs = {number: each.known for number, each in self._maps.items()}
            programs = list(self._programs.values())
            if point is not None:
                programs = [directly(programs, only, point)]
            made, numbers = collect(programs, specs)
            check_gpu(programs, {n: each for n, each in specs.items() if self._maps[n].linux})
            return made, tuple(self._maps[number] for number in numbers)

    def bind(self, session: Session, maps: tuple[LoaderMap, ...]) -> None:
        """From now on ``maps`` are those of ``session``, which has them in this order."""
        with self._lock:
            self._session = session
            for each, name in zip(maps, session.maps, strict=True):
                each.shown = partial(session.maps.__getitem__, name)
                each.forget()

    def finish(self) -> None:
        """The workload has ended: give the loader what is still there."""
        with self._lock:
            self._snapshot_at = 0.0
            for each in self._maps.values():
                each.forget()
                each.finish()

    def close(self) -> None:
        """Stop answering.  May be called twice."""
        self._socket.close()
        self._linux.close()
        self.socket_path.unlink(missing_ok=True)

    def __enter__(self) -> LoaderServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            process, _ = peer(connection)
            self._processes[process] += 1
            try:
                while (head := _exactly(connection, wire.REQUEST_SIZE)) is not None:
                    request = wire.decode_request(head)
                    payload = _exactly(connection, request.size) if request.size else b""
                    if payload is None:
                        return
                    connection.sendall(self._answer(request, payload))
            except (AgentError, OSError, struct.error) as error:
                self.problems.append(f"the connection to the loader was closed: {error}")
            finally:
                self._processes[process] -= 1

    def _answer(self, request: Request, payload: bytes) -> bytes:
        with self._lock:
            try:
                value, answer = _HANDLERS[request.op](self, request, payload)
            except OSError as error:
                text = (error.strerror or str(error)).encode()
                # Only what explains something travels: libbpf tries many things that may fail.
                return wire.encode_reply(request.op, error=error.errno or errno.EIO, payload=text)
            except UnsupportedError as error:
                return self._refused(request, errno.EOPNOTSUPP, error)
            except EgpuError as error:
                return self._refused(request, errno.EACCES, error)
            return wire.encode_reply(request.op, value=value, payload=answer)

    def _refused(self, request: Request, number: int, error: EgpuError) -> bytes:
        self.problems.append(str(error))
        text = f"{error}\n" if request.op is Op.PROG_LOAD else str(error)  # a log has lines
        return wire.encode_reply(request.op, error=number, payload=text.encode())

    # What a request asks; each gives the value and the bytes of the reply.

    def _hello(self, _request: Request, _payload: bytes) -> tuple[int, bytes]:
        return 0, b""

    def _map_create(self, _request: Request, payload: bytes) -> tuple[int, bytes]:
        row = wire.layout(wire.MAP)
        fields = row.unpack_from(payload)[:5]
        name = payload[row.size :].rstrip(b"\0").decode("utf-8", "replace")
        number = self._number()
        if any(each.spec.name == name for each in self._maps.values()):
            name = f"{name}.{number}"  # the session tells its maps apart by their names
        made = LoaderMap(number, new_map(number, fields, name), self._threads)
        self._maps[number] = made
        return number, made.user_size.to_bytes(8, "little")

    def _prog_load(self, request: Request, payload: bytes) -> tuple[int, bytes]:
        if request.a != PROG_TYPE_KPROBE:
            return 0, b""  # how libbpf finds out what a kernel can do; nothing attaches it
        name, license = (
            part.rstrip(b"\0").decode("utf-8", "replace")
            for part in (payload[: wire.NAME_SIZE], payload[wire.NAME_SIZE : _CODE_AT])
        )
        specs = {number: each.known for number, each in self._maps.items()}
        number = self._number()
        self._programs[number] = load_program(name, license, payload[_CODE_AT:], specs)
        return number, b""

    def _link(self, request: Request, payload: bytes) -> tuple[int, bytes]:
        program = self._programs.get(request.object)
        place = payload.decode("utf-8", "surrogateescape")
        if program is None:
            raise UnsupportedError(
                f"a program of this type at {place}", needs="a kprobe/ or kretprobe/ section"
            )
        point = launch_point(place, leaving=bool(request.a)) if request.b else None
        if request.b and point is None:
            return self._link_to_linux(program, place, leaving=bool(request.a)), b""
        if program.refused:
            raise UnsupportedError(f"program {program.name} at {place}: {program.refused}")
        points = (point,) if point else place_of(program, place, leaving=bool(request.a))
        if self._session is None:
            program.points = (*program.points, *points)
        elif program.name in self._session.links and set(points) <= set(program.points):
            self._session.links[program.name].attach()  # it was there before
        else:
            raise OSError(errno.EBUSY, "programs are attached before the workload starts")
        number = self._number()
        self._links[number] = program
        self._heard_link()
        return number, b""

    def _link_to_linux(self, program: LoadedProgram, place: str, *, leaving: bool) -> int:
        """A uprobe elsewhere than at launches: Linux runs it, on copies of maps that it only adds
        to."""
        maps = {number: self._maps[number].spec for number in program.numbers}
        check_linux(program, place, tuple(maps.values()))
        self._linux.attach(program.code, maps, place, leaving=leaving, license=program.license)
        for number in program.numbers:
            self._maps[number].linux = self._linux.arrays[number]
        number = self._number()
        self._heard_link()
        return number

    def _heard_link(self) -> None:
        self._linked = True
        self._quiet.reset()

    def _unlink(self, request: Request, _payload: bytes) -> tuple[int, bytes]:
        program = self._links.pop(request.object, None)
        if program is None or program in self._links.values():
            return 0, b""
        if self._session is None:
            program.points = ()
        elif program.name in self._session.links:
            self._session.links[program.name].detach()
        return 0, b""

    def _lookup(self, request: Request, payload: bytes) -> tuple[int, bytes]:
        found = self._map(request)
        self._refresh()
        return 0, found.lookup(payload)

    def _next_key(self, request: Request, payload: bytes) -> tuple[int, bytes]:
        found = self._map(request)
        self._refresh()
        return 0, found.next_key(payload)

    def _records(self, request: Request, _payload: bytes) -> tuple[int, bytes]:
        return 0, self._map(request).records(request.a)

    def _update(self, request: Request, payload: bytes) -> tuple[int, bytes]:
        found = self._map(request)
        size = found.spec.key_size
        found.update(payload[:size], payload[size:], request.a)
        return 0, b""

    def _delete(self, request: Request, payload: bytes) -> tuple[int, bytes]:
        self._map(request).delete(payload)
        return 0, b""

    def _take(self, request: Request, payload: bytes) -> tuple[int, bytes]:
        found = self._map(request)
        self._refresh()
        return 0, found.take(payload)

    def _freeze(self, request: Request, _payload: bytes) -> tuple[int, bytes]:
        self._map(request).freeze()
        return 0, b""

    def _map(self, request: Request) -> LoaderMap:
        found = self._maps.get(request.object)
        if found is None:
            raise OSError(errno.EBADF, "no such map")
        self._read = self._read or (self._linked and request.op in _READING)
        return found

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._session is not None and now - self._snapshot_at > _FRESH_S:
            self._session.snapshot()
            for each in self._maps.values():
                each.forget()
            self._snapshot_at = time.monotonic()

    def _number(self) -> int:
        number = self._next
        self._next += 1
        return number


_Handler = Callable[[LoaderServer, Request, bytes], tuple[int, bytes]]
_HANDLERS: dict[Op, _Handler] = {
    Op.HELLO: LoaderServer._hello,
    Op.MAP_CREATE: LoaderServer._map_create,
    Op.PROG_LOAD: LoaderServer._prog_load,
    Op.LINK: LoaderServer._link,
    Op.UNLINK: LoaderServer._unlink,
    Op.LOOKUP: LoaderServer._lookup,
    Op.UPDATE: LoaderServer._update,
    Op.DELETE: LoaderServer._delete,
    Op.NEXT_KEY: LoaderServer._next_key,
    Op.TAKE: LoaderServer._take,
    Op.FREEZE: LoaderServer._freeze,
    Op.RECORDS: LoaderServer._records,
}


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    """``size`` bytes, None at the end of the stream."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
