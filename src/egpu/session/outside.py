"""A session's maps for the user's other processes: there, or why not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from egpu.errors import InputError
from egpu.session.service import MapService

if TYPE_CHECKING:
    from egpu.session.session import Session


class Outside:
    """The way of other processes to the maps of one session.  It runs without one where there is
    no place for a socket, unless a map is to be pinned."""

    def __init__(self) -> None:
        self._service: MapService | None = None
        self._why_not = "the session has not started"

    @property
    def service(self) -> MapService:
        """Who answers them; InputError with the reason if nobody does."""
        if self._service is None:
            raise InputError(self._why_not)
        return self._service

    def open(self, session: Session, pins: Iterable[tuple[str, str]]) -> None:
        """Other processes see the maps from now on, those of ``pins`` (map, name) by name."""
        wanted = list(pins)
        try:
            self._service = MapService(session)
        except InputError as error:
            self._why_not = str(error)
            if wanted:
                raise
        for map_name, name in wanted:
            self.service.pin(map_name, name)

    def started(self) -> None:
        """The workload runs: what pinned maps hold is kept from now on."""
        if self._service is not None:
            self._service.started()

    def withdraw(self) -> None:
        """Nobody is answered any more; no workload has started, and pins are as they were."""
        if self._service is not None:
            self._service.withdraw()

    def close(self) -> None:
        """Nobody is answered any more; pins are given what their maps hold."""
        if self._service is not None:
            self._service.close()
