"""The processes that have connected to a server, for all of its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from egpu.agent.peer import Peer


class Roster:
    """Every peer in the order in which they came, ended ones included; each question is answered
    for one moment."""

    def __init__(self) -> None:
        self._peers: list[Peer] = []
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Peer]:
        with self._lock:
            return iter(tuple(self._peers))

    def add(self, peer: Peer) -> None:
        """Somebody connects."""
        with self._lock:
            self._peers.append(peer)

    def remove(self, peer: Peer) -> None:
        """Who never said who it is leaves nothing behind."""
        with self._lock:
            self._peers.remove(peer)

    def greeted(self) -> tuple[Peer, ...]:
        """Those that have said who they are, and so have counters."""
        return tuple(peer for peer in self if peer.greeted)

    def live(self) -> tuple[Peer, ...]:
        """Of these the connected ones."""
        return tuple(peer for peer in self if peer.greeted and not peer.ended)

    def compact(self) -> None:
        """Many short processes must not fill the memory with their stats."""
        for peer in self:
            if peer.ended and has_ended(peer.pid):
                peer.freeze()


def has_ended(pid: int) -> bool:
    """A process that has ended and was not yet waited for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[:1] == ["Z"]
