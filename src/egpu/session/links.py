"""Links: which programs of a session launches run now."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from egpu.bpf.program import Program
from egpu.verifier import VerifiedProgram

if TYPE_CHECKING:
    from egpu.agent import Server
    from egpu.session.attached import ProbeSet


class Link:
    """One program of a session, attached or not."""

    def __init__(self, links: Links, name: str, verified: VerifiedProgram) -> None:
        self._links = links
        self.verified = verified
        self.name = name

    @property
    def program(self) -> Program:
        """The program."""
        return self.verified.program

    @property
    def attached(self) -> bool:
        """Whether launches that begin now run it."""
        return self._links.probes.is_enabled(self.verified)

    def attach(self) -> None:
        """Have launches run it; done when it returns.

        The next launch of each kernel waits for its new twin as the first one did
        (``Options.twin_wait_s``).  Graphs that were captured before stay as they were.
        """
        self._links.change([self.verified], attached=True)

    def detach(self) -> None:
        """Have launches run without it, as ``attach`` does the opposite.

        A captured graph goes on running it until no program of the session is attached.
        """
        self._links.change([self.verified], attached=False)

    def __repr__(self) -> str:
        return f"<Link {self.name} {'attached' if self.attached else 'detached'}>"


class Links:
    """All links of a session; thread-safe."""

    def __init__(
        self,
        probes: ProbeSet,
        names: Sequence[str],
        verified: Sequence[VerifiedProgram],
        wait_s: float,
    ) -> None:
        self.probes = probes
        self.server: Server | None = None
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._verified = tuple(verified)
        self._links = {
            name: Link(self, name, item) for name, item in zip(names, verified, strict=True)
        }

    def by_name(self) -> Mapping[str, Link]:
        """The links; a program whose name several objects have is called "object.program"."""
        return dict(self._links)

    def serve(self, server: Server) -> None:
        """Changes are told to the agents of ``server`` from now on."""
        self.server = server
        if not any(self.probes.is_enabled(item) for item in self._verified):
            server.detach()

    def all(self, *, attached: bool) -> None:
        """Attach or detach every program."""
        self.change(self._verified, attached=attached)

    def named(self, names: Sequence[str], *, attached: bool) -> None:
        """Attach or detach the programs with these links, as one change."""
        self.change([self._links[name].verified for name in names], attached=attached)

    def change(self, verified: Sequence[VerifiedProgram], *, attached: bool) -> None:
        """Attach or detach some, and tell the workload."""
        with self._lock:
            changed = [item for item in verified if self.probes.is_enabled(item) != attached]
            for item in changed:
                if attached:
                    self.probes.enable(item)
                else:
                    self.probes.disable(item)
            if self.server is None or not changed:
                return
            if any(self.probes.is_enabled(item) for item in self._verified):
                self.server.set_epoch(twin_wait_s=self._wait_s)
            else:
                self.server.detach()
            self.server.snapshot()  # answered in order: every agent has taken the change in
