"""The session's end of the wire: accepts agents, answers them through a broker."""

from __future__ import annotations

import os
import selectors
import shlex
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from egpu.agent import channel
from egpu.agent import protocol as wire
from egpu.agent.answers import Answers
from egpu.agent.frames import CallFrame
from egpu.agent.peer import Peer
from egpu.agent.protocol import Kind, Packet, encode
from egpu.agent.roster import Roster, has_ended
from egpu.agent.totals import by_kernel
from egpu.agent.twin import Broker, ImageSeen, KernelStats, ProcessStats, TwinState
from egpu.agent.workers import Workers
from egpu.errors import AgentError, InternalError
from egpu.maps.layout import LAUNCH_STACK_MASK, LAYOUT_VERSION, STACKS_LIMIT

SOCKET_NAME = "agent.sock"
_SEND_SECONDS = 5.0
_AHEAD = 2  # threads for what no launch waits for: devices, and images
_STACK_BASES = LAUNCH_STACK_MASK // STACKS_LIMIT  # processes whose stacks have numbers of their own


def _milliseconds(seconds: float) -> int:
    """As the wire has them: in 32 bits, which is as good as for ever."""
    return round(min(seconds * 1000, 0xFFFFFFFF))


class Server:
    """Listens in ``directory`` (made private, 0700) and serves every agent that connects.

    A launch waits at most ``twin_wait_s`` for its twin; maps are copied to the host arenas every
    ``snapshot_period_s`` (0: only when asked); a process's end waits at most ``exit_wait_s`` for
    the device and the last copy.  One launch in ``sample`` of each kernel is probed, the first
    included; those recorded into graphs all are.  ``features`` are what programs use of the agents
    beyond maps.  ``problems`` collects what went wrong on the wire, one line each;
    ``on_twin`` is called on the server's thread with what became of each twin.  Close it (or use
    ``with``); closing leaves the workloads running unprobed.
    """

    def __init__(
        self,
        directory: Path,
        broker: Broker,
        *,
        twin_wait_s: float = 10.0,
        snapshot_period_s: float = 1.0,
        exit_wait_s: float = 10.0,
        sample: int = 1,
        features: wire.Feature | None = None,
        on_twin: Callable[[TwinState], None] | None = None,
    ) -> None:
        self.socket_path = directory / SOCKET_NAME
        self.problems: list[str] = []
        self._broker = broker
        self._twin_wait_ms = _milliseconds(twin_wait_s)
        self._snapshot_ms = _milliseconds(snapshot_period_s)
        self._exit_wait_ms = _milliseconds(exit_wait_s)
        self._features = int(features or 0)
        self._sample = sample
        self._on_twin = on_twin
        self._epoch = 1
        self._peers = Roster()
        self._answer = Answers(broker, self.problems, self._next_request)
        self._lock = threading.Lock()
        self._request = 0
        self._served = 0
        self._closing = False
        self._detached = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._listener = channel.listen(directory, self.socket_path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._workers = Workers(self.problems)
        self._ahead = Workers(self.problems, threads=_AHEAD)  # never in the way of an answer
        self._thread = threading.Thread(target=self._serve, name="egpu-server", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ for the session

    def stats(self) -> tuple[KernelStats, ...]:
        """What was counted so far, by kernel that a link asked for, over all processes."""
        return by_kernel(self.processes())

    def processes(self) -> tuple[ProcessStats, ...]:
        """Everything that was counted, by process that ever connected, ended ones included."""
        return tuple(peer.stats() for peer in self._peers.greeted())

    def mark(self) -> None:
        """Count from now on: what was counted so far is left out of ``stats`` and ``processes``."""
        for peer in self._peers.greeted():
            peer.mark()

    def snapshot(self, timeout: float = 5.0) -> bool:
        """Has every live process copy its arenas to the host arenas; True if all did in time."""
        waits = []
        for peer in self._peers.live():
            request = self._next_request()
            event = peer.snapshots.setdefault(request, threading.Event())
            peer.send(encode(Kind.SNAPSHOT, request=request))
            waits.append((peer, request, event))
        end = time.monotonic() + timeout
        done = [event.wait(max(0.0, end - time.monotonic())) for _, _, event in waits]
        for peer, request, _ in waits:
            peer.snapshots.pop(request, None)
        return all(done)

    def _next_request(self) -> int:
        with self._lock:
            self._request += 1
            return self._request

    def detach(self) -> None:
        """No twin is launched from now on, captured ones do nothing; ``set_epoch`` undoes it."""
        self._detached = True
        for peer in self._peers.live():
            peer.send(encode(Kind.DETACH))

    @property
    def detached(self) -> bool:
        """Whether no twin is launched."""
        return self._detached

    def set_epoch(self, *, twin_wait_s: float = 0.0) -> int:
        """Links have changed: each kernel is asked for again at its next launch. The new epoch."""
        with self._lock:
            self._epoch += 1
            epoch = self._epoch
        self._detached = False
        for peer in self._peers.live():
            peer.send(
                encode(
                    Kind.EPOCH,
                    epoch=epoch,
                    twin_wait_ms=_milliseconds(twin_wait_s),
                    ahead=self._wants_images(),
                )
            )
        return epoch

    def _wants_images(self) -> int:
        return int(not self._detached and self._broker.wants_images())

    def stacks(self) -> dict[int, tuple[CallFrame, ...]]:
        """Every stack from which a kernel was launched so far, by number."""
        return {
            number: frames for peer in self._peers for number, frames in list(peer.stacks.items())
        }

    def launch_stacks(self) -> tuple[tuple[int, dict[int, int]], ...]:
        """Of each process, with its pid, the number of the stack of each launch kept, by id."""
        return tuple((peer.pid, peer.launches()) for peer in self._peers.greeted())

    def live(self) -> tuple[int, ...]:
        """Pids of the processes that are connected now."""
        return tuple(peer.pid for peer in self._peers.live())

    def drain(self, timeout: float = 5.0) -> bool:
        """Waits until everything sent by processes that have ended was taken in; True if it was.

        Processes that still run are not waited for."""
        end = time.monotonic() + timeout
        while any(has_ended(pid) for pid in self.live()):
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        return self._workers.settle(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """Stops serving; the stats stay readable as they are now.  Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake_write.send(b"x")
        self._thread.join()
        self._workers.close()
        self._ahead.close()
        for peer in self._peers:
            peer.close()
            peer.freeze()
        self._selector.close()
        self._listener.close()
        self._wake_read.close()
        self._wake_write.close()
        self.socket_path.unlink(missing_ok=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ the server's thread

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_read:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            self.problems.append(f"cannot accept an agent: {error.strerror}")
            time.sleep(0.01)  # out of descriptors: do not spin
            return
        self._peers.compact()
        pid, uid = channel.peer(connection)
        if uid not in (os.geteuid(), 0):
            self.problems.append(f"refused a connection of user {uid}")
            connection.close()
            return
        connection.settimeout(_SEND_SECONDS)
        peer = Peer(connection, pid)
        self._peers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> None:
        files: list[int] = []
        try:
            data, files = channel.receive(peer.connection)
            if not data:
                self._end(peer)
                return
            self._dispatch(peer, wire.decode(data), files)
        except (AgentError, OSError) as error:
            self._refuse(peer, error)
        except Exception as error:  # of ours: the other processes must be served on
            self._refuse(peer, InternalError(repr(error)))
        finally:
            channel.close_all(files)

    def _refuse(self, peer: Peer, error: Exception) -> None:
        """A peer that speaks nonsense is told so and let go; its workload runs unprobed."""
        if not isinstance(error, ConnectionResetError):
            self.problems.append(f"process {peer.pid}: {error}")
            peer.send(encode(Kind.BYE, texts=(channel.reason(str(error)),)))
        self._end(peer)

    def _end(self, peer: Peer) -> None:
        self._selector.unregister(peer.connection)
        peer.close()
        if peer.greeted:
            self._workers.submit(self._broker.process_ended, peer.pid)
        else:
            self._peers.remove(peer)

    def _dispatch(self, peer: Peer, packet: Packet, files: list[int]) -> None:
        if not peer.greeted and packet.kind is not Kind.HELLO:
            raise AgentError(f"{packet.kind.name} message before HELLO")
        match packet.kind:
            case Kind.HELLO:
                self._hello(peer, packet)
            case Kind.IMAGE:
                peer.keep_image(packet, files)
                self._open_ahead(peer.image_kept(packet.fields["image"]))
            case Kind.IMAGE_GONE:
                peer.drop_image(packet.fields["image"])
                self._broker.image_gone(peer.pid, peer.number, packet.fields["image"])
            case Kind.DEVICE:
                self._ahead.submit(self._broker.device_named, peer.note_device(packet))
            case Kind.LOADING:
                self._ahead.submit(self._broker.image_loading, peer.image_seen(packet))
            case Kind.OPEN_ARENA:
                self._workers.submit(self._answer.open_arena, peer, packet)
            case Kind.RESOLVE:
                seen = peer.kernel_seen(packet)
                self._workers.submit(self._answer.resolve, peer, packet, seen)
            case Kind.TWIN_STATE:
                state = peer.note_twin(packet)
                if self._on_twin is not None:
                    self._on_twin(state)
            case Kind.COMMAND_DONE:
                peer.command_done(packet)
            case Kind.STACK:
                peer.note_stack(packet)
            case Kind.HOST_CALL:
                self._workers.submit(self._answer.host_call, peer, packet)
            case Kind.SNAPSHOT_DONE:
                event = peer.snapshots.get(packet.request)
                if event is not None:
                    event.set()
            case _:
                raise AgentError(f"{packet.kind.name} is not for an agent to send")

    def _open_ahead(self, seen: ImageSeen | None) -> None:
        """An image that was sent after it was loaded: its kernels may be asked for right away."""
        if seen is not None and self._wants_images():
            self._ahead.submit(self._broker.image_loading, seen)

    def _stack_base(self) -> int:
        """Where the next process's stacks begin to be numbered; reused after 510 processes."""
        self._served += 1
        return (self._served - 1) % _STACK_BASES * STACKS_LIMIT

    def _hello(self, peer: Peer, packet: Packet) -> None:
        if peer.greeted:
            raise AgentError("a second HELLO")
        if packet.fields["layout"] != LAYOUT_VERSION:
            raise AgentError(
                f"agent has arena layout {packet.fields['layout']}, the session {LAYOUT_VERSION}"
            )
        file = peer.open_stats()
        try:
            peer.greeted = True
            peer.send(
                encode(
                    Kind.WELCOME,
                    stats_size=peer.stats_size,
                    layout=LAYOUT_VERSION,
                    epoch=self._epoch,
                    twin_wait_ms=self._twin_wait_ms,
                    snapshot_ms=self._snapshot_ms,
                    exit_wait_ms=self._exit_wait_ms,
                    features=self._features,
                    stack_base=self._stack_base(),
                    sample=self._sample,
                    ahead=self._wants_images(),
                ),
                (file,),
            )
        finally:
            os.close(file)
        if self._detached:
            peer.send(encode(Kind.DETACH))
        self._workers.submit(self._broker.process_started, peer.pid, shlex.join(peer.cmdline))
