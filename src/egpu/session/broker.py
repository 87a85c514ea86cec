"""What the agents of one session ask, and who answers."""

from __future__ import annotations

from egpu.agent import ArenaLink
from egpu.agent.twin import (
    ArenaSetup,
    DeviceInfo,
    HostCall,
    ImageSeen,
    KernelSeen,
    Refused,
    Twin,
    Unmatched,
)
from egpu.session.arenas import Arenas
from egpu.session.host_programs import HostPrograms
from egpu.session.twins import TwinBuilder


class SessionBroker:
    """Answers the server's questions; called on its worker threads."""

    def __init__(self, builder: TwinBuilder, arenas: Arenas, host: HostPrograms) -> None:
        self.builder = builder
        self._arenas = arenas
        self._host = host

    def open_device(self, pid: int, device: DeviceInfo, link: ArenaLink) -> ArenaSetup:
        return self._arenas.open(pid, device, link)

    def resolve(self, seen: KernelSeen) -> Twin | Refused | Unmatched:
        return self.builder.resolve(seen)

    def answered(self) -> None:
        self.builder.write()

    def host_call(self, call: HostCall) -> None:
        self._host.run(call)

    def process_started(self, pid: int, command: str) -> None:
        """Arenas are made when a context appears; compiling takes as long as that."""
        self.builder.prepare()

    def wants_images(self) -> bool:
        return self.builder.wants_images()

    def device_named(self, device: DeviceInfo) -> None:
        self.builder.rehearse(device)

    def image_loading(self, seen: ImageSeen) -> None:
        self.builder.open_ahead(seen)

    def image_gone(self, pid: int, connection: int, module: int) -> None:
        self.builder.let_go(pid, connection, module)

    def process_ended(self, pid: int) -> None:
        """Its images are forgotten; its maps outlive it."""
        self.builder.forget(pid)
