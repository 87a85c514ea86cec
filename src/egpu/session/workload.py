"""Processes under the agent: started for one session, or idle until one is attached."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from egpu.agent import (
    ArenaLink,
    ArenaSetup,
    Broker,
    DeviceInfo,
    HostCall,
    ImageSeen,
    KernelSeen,
    Refused,
    Server,
    Twin,
    Unmatched,
    launch,
)
from egpu.agent.protocol import Feature
from egpu.errors import InputError, InternalError, UnsupportedError
from egpu.sim import SimulatedDevice, private_folder

_LATE = Feature.CLOCK | Feature.ALLOCATIONS | Feature.STACKS
IDLE_WAIT_S = 1.0  # what a kernel's first launch waits to hear that nothing is attached
_HOLD_S = 1.0  # what one waits for a session that is attaching


class Settings(Protocol):
    """What of a session's options is about its processes (``session.Options``)."""

    @property
    def simulated(self) -> bool: ...
    @property
    def twin_wait_s(self) -> float: ...
    @property
    def snapshot_period_s(self) -> float: ...
    @property
    def sample(self) -> int: ...
    @property
    def follow(self) -> bool: ...
    @property
    def environment(self) -> Mapping[str, str]: ...


class Workload(Protocol):
    """Where a session's processes come from."""

    def open(self, broker: Broker, features: Feature, cleanup: contextlib.ExitStack) -> Server:
        """What their agents speak to; ``cleanup`` ends it."""

    def start(self) -> subprocess.Popen[bytes]:
        """Have them ask ``broker`` from now on."""


class NewWorkload:
    """A command that is started."""

    def __init__(self, argv: Sequence[str], settings: Settings) -> None:
        self._argv = argv
        self._settings = settings
        self._environment = dict(settings.environment)
        self._server: Server | None = None

    def open(self, broker: Broker, features: Feature, cleanup: contextlib.ExitStack) -> Server:
        """A server of its own."""
        settings = self._settings
        folder = private_folder("egpu-")
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        if settings.simulated:
            device = cleanup.enter_context(SimulatedDevice())
            self._environment.update(device.environment())
        self._server = Server(
            folder,
            broker,
            twin_wait_s=settings.twin_wait_s,
            snapshot_period_s=settings.snapshot_period_s,
            sample=settings.sample,
            features=features,
        )
        cleanup.callback(self._server.close)
        return self._server

    def start(self) -> subprocess.Popen[bytes]:
        """InputError if it cannot be started."""
        if self._server is None:
            raise InternalError("a workload was started before it was opened")
        return launch(
            self._argv,
            self._server.socket_path,
            environment=self._environment,
            follow=self._settings.follow,
        )


class IdleWorkload:
    """A command that runs under the agent with nothing attached, until a session attaches to it.

    Its kernels are known from the start, so that they can be probed at any moment; until then each
    kernel costs one question at its first launch.  Context manager; leaving it ends the probes, not
    the workload.  Made by :func:`egpu.session.start_idle`.
    """

    def __init__(self, argv: Sequence[str], settings: Settings) -> None:
        """InputError if the command cannot be started."""
        self.simulated = settings.simulated
        self.forwarding = _Forwarding()
        self._cleanup = contextlib.ExitStack()
        new = NewWorkload(argv, settings)
        try:
            # What a later program may need must be followed from the beginning.
            self.server = new.open(self.forwarding, _LATE, self._cleanup)
            self.process = new.start()
        except BaseException:
            self._cleanup.close()
            raise

    @property
    def pid(self) -> int:
        """The started process."""
        return self.process.pid

    def pids(self) -> tuple[int, ...]:
        """The started process and every one that uses CUDA now."""
        return tuple(dict.fromkeys((self.pid, *self.server.live())))

    @property
    def attached(self) -> bool:
        """Whether a session is attached now."""
        return self.forwarding.target is not None

    def running(self) -> bool:
        """Whether the started process still runs."""
        return self.process.poll() is None

    def wait(self) -> int:
        """Wait for the started process; its exit status, negative for a signal."""
        status = self.process.wait()
        self.server.drain()
        return status

    def detach(self) -> None:
        """Take out what is attached."""
        self.server.detach()

    def close(self) -> None:
        """Stop serving; the workload runs on unprobed."""
        self._cleanup.close()

    def __enter__(self) -> IdleWorkload:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Attachment:
    """A session's place at an idle workload."""

    def __init__(self, idle: IdleWorkload, twin_wait_s: float) -> None:
        """``twin_wait_s``: what launches wait for a twin, as in ``session.Options``."""
        self._idle = idle
        self._wait_s = twin_wait_s
        self._broker: Broker | None = None

    def open(self, broker: Broker, features: Feature, cleanup: contextlib.ExitStack) -> Server:
        """The server there is; InputError if a session is attached, or one was and has left memory
        behind that only its own programs know."""
        idle = self._idle
        if idle.attached:
            raise InputError(f"process {idle.pid} has a session attached already")
        if features & ~_LATE:
            raise UnsupportedError(
                f"programs at launch calls of process {idle.pid}, which was started without",
                needs="`egpu run OBJECT -- COMMAND`",
            )
        if idle.forwarding.opened:
            raise InputError(
                f"process {idle.pid} was attached to before: its map memory is laid out for "
                "the programs of then",
                hint="start it anew to attach others",
            )
        self._broker = broker
        # Each kernel is asked for anew and gets its answer when programs are there, so that no
        # launch slips through between ``mark`` and then, as one that was seen and not probed.
        cleanup.callback(self._release)
        idle.forwarding.expect()
        idle.server.set_epoch(twin_wait_s=self._wait_s)
        return idle.server

    def start(self) -> subprocess.Popen[bytes]:
        """Launches that begin from now on ask the session's programs."""
        idle = self._idle
        idle.server.mark()
        idle.forwarding.attach(self._broker)
        if not idle.server.detached:
            idle.server.set_epoch(twin_wait_s=self._wait_s)
        idle.server.snapshot()  # answered in order: every agent has taken the change in
        return idle.process

    def _release(self) -> None:
        self._idle.server.detach()
        self._idle.server.snapshot()
        self._idle.forwarding.leave()


class _Forwarding:
    """Answers that nothing is attached, or hands questions to the session that is.

    That may leave at any moment, so each question looks at ``target`` once.
    """

    def __init__(self) -> None:
        self.target: Broker | None = None
        self.opened: set[int] = set()  # processes that have map memory
        self._settled = threading.Event()  # cleared while a session attaches
        self._settled.set()

    def expect(self) -> None:
        """A session is about to attach: questions for kernels wait for it, but not for long."""
        self._settled.clear()

    def attach(self, target: Broker | None) -> None:
        """It is there, and answers from now on."""
        self.target = target
        self._settled.set()

    def leave(self) -> None:
        """It has gone, or did not come."""
        self.attach(None)

    def open_device(self, pid: int, device: DeviceInfo, link: ArenaLink) -> ArenaSetup:
        target = self.target
        if target is None:
            raise InputError("no session is attached")
        self.opened.add(pid)
        return target.open_device(pid, device, link)

    def resolve(self, seen: KernelSeen) -> Twin | Refused | Unmatched:
        self._settled.wait(_HOLD_S)
        target = self.target
        return Unmatched() if target is None else target.resolve(seen)

    def answered(self) -> None:
        if (target := self.target) is not None:
            target.answered()

    def host_call(self, call: HostCall) -> None:
        if (target := self.target) is not None:
            target.host_call(call)

    def wants_images(self) -> bool:
        target = self.target
        return target is not None and target.wants_images()

    def device_named(self, device: DeviceInfo) -> None:
        if (target := self.target) is not None:
            target.device_named(device)

    def image_loading(self, seen: ImageSeen) -> None:
        if (target := self.target) is not None:
            target.image_loading(seen)

    def image_gone(self, pid: int, connection: int, module: int) -> None:
        if (target := self.target) is not None:
            target.image_gone(pid, connection, module)

    def process_started(self, pid: int, command: str) -> None:
        if (target := self.target) is not None:
            target.process_started(pid, command)

    def process_ended(self, pid: int) -> None:
        self.opened.discard(pid)
        if (target := self.target) is not None:
            target.process_ended(pid)
