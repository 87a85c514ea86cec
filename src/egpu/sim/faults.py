"""How a simulated kernel dies."""

from __future__ import annotations

import enum

from egpu.errors import DeviceFault


class FaultKind(enum.Enum):
    """What went wrong; the value is the driver's error number."""

    ILLEGAL_ADDRESS = 700
    TIMEOUT = 702
    ASSERT = 710
    MISALIGNED_ADDRESS = 716
    LAUNCH_FAILED = 719


class LaneFault(Exception):
    """Inside the interpreter only: lane number ``lane`` of the running selection did ``message``.

    The executor knows kernel, thread and line and raises ``SimulatedFault`` instead.
    """

    def __init__(self, kind: FaultKind, message: str, lane: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.lane = lane


class SimulatedFault(DeviceFault):
    """A kernel faulted on the simulated device; ``kind`` is the driver's error."""

    def __init__(
        self,
        message: str,
        *,
        kind: FaultKind,
        kernel: str,
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__(message, kernel=kernel, block=block, thread=thread)
        self.kind = kind
