"""What a session has an agent do to the maps of one context: writes and operations by a kernel.

The data lies in the host arena's command area; these are the messages about it.  One command is
under way at a time, which the caller sees to.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime

from egpu.agent import channel
from egpu.agent.peer import Peer
from egpu.agent.protocol import CommandError, Kind, encode
from egpu.errors import AgentError, InternalError

OPERATE_KERNEL = "egpu_operate"
_REASONS = {
    CommandError.GONE: "its context is gone",
    CommandError.MALFORMED: "the agent refuses it as malformed",
    CommandError.BUSY: "the command before it is not done yet",
}


class ArenaLink:
    """The way to one context's arenas.

    Every method waits until the device has done it, at most ``timeout`` seconds; AgentError if it
    was not done (``gone`` is then True if it never will be) or not in time.  Call ``settle`` before
    anything is put into the command area.
    """

    def __init__(self, peer: Peer, number: int, next_request: Callable[[], int]) -> None:
        self._peer = peer
        self._number = number
        self._next_request = next_request
        self._late: Future[tuple[int, int]] | None = None

    @property
    def gone(self) -> bool:
        """Whether the process has ended or closed its connection."""
        return self._peer.ended

    def settle(self, timeout: float) -> None:
        """Wait for a command that was not done in time: until then the command area is its own.

        AgentError if it still is not done."""
        if self._late is None:
            return
        try:
            self._late.result(timeout)
        except NotInTime:
            raise AgentError(
                f"process {self._peer.pid} still has an earlier change of its maps to make",
                hint="a kernel that fills the GPU is perhaps in the way",
            ) from None
        self._late = None

    def write(self, size: int, timeout: float) -> None:
        """Copy the ``size`` bytes of rows in the command area (``channel.write_rows``)."""
        self._command(
            timeout,
            lambda request: encode(Kind.WRITE, request=request, arena=self._number, size=size),
        )

    def load(self, number: int, image: bytes, timeout: float) -> None:
        """Load the kernel OPERATE_KERNEL of ``image`` as operator ``number``."""
        whole = image if image.endswith(b"\0") else image + b"\0"
        with channel.file_of("egpu-operator", whole) as file:
            self._command(
                timeout,
                lambda request: encode(
                    Kind.OPERATOR,
                    request=request,
                    size=len(whole),
                    arena=self._number,
                    number=number,
                ),
                (file,),
            )

    def operate(
        self, number: int, timeout: float, *, count: int, stride: int, results: int
    ) -> None:
        """Run operator ``number`` over ``count`` operations of ``stride`` bytes in the command
        area; their results are then u64s at byte ``results`` of it."""
        self._command(
            timeout,
            lambda request: encode(
                Kind.OPERATE,
                request=request,
                arena=self._number,
                number=number,
                count=count,
                stride=stride,
                results=results,
            ),
        )

    def _command(
        self, timeout: float, message: Callable[[int], bytes], files: tuple[int, ...] = ()
    ) -> None:
        if self._late is not None:
            raise InternalError("a command was sent before the one before it was settled")
        request = self._next_request()
        answer: Future[tuple[int, int]] = Future()
        self._peer.expect(request, answer)
        self._peer.send(message(request), files)
        try:
            error, detail = answer.result(timeout)
        except NotInTime:
            self._late = answer
            raise AgentError(
                f"process {self._peer.pid} has not written to its maps in {timeout:g} s",
                hint="a kernel that fills the GPU is perhaps in the way; it is done later",
            ) from None
        if error == CommandError.NONE:
            return
        reason = (
            f"the driver refuses it (error {detail})"
            if error == CommandError.DRIVER
            else _REASONS.get(CommandError(error), "for no known reason")
        )
        raise AgentError(f"process {self._peer.pid}: its maps were not written: {reason}")
