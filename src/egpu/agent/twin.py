"""Values that pass between the session and the agent's server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from egpu.agent.protocol import LaunchCall, Reason
from egpu.image import Source
from egpu.maps import RingTable

if TYPE_CHECKING:
    from egpu.agent.commands import ArenaLink


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as the workload's driver describes it; ``arch`` 90 for compute capability 9.0."""

    ordinal: int
    major: int
    minor: int
    sm_count: int
    name: str

    @property
    def arch(self) -> int:
        return self.major * 10 + self.minor


@dataclass(frozen=True, slots=True)
class KernelSeen:
    """First launch of a kernel in one context of a process.

    ``image()`` opens the bytes of the image that holds it; AgentError when the agent could not see
    it being loaded, or the bytes are no longer there.  ``module`` is a number of the image within
    the process, ``source`` the file it lies in or ""; ``slot`` is the kernel's place in the
    process's stats.  ``captured``: the twin is for launches recorded into graphs.  ``connection``
    tells programs apart that have one pid after the other (exec).  ``changed``: the file is not,
    or no longer, the one that was loaded.
    """

    pid: int
    device: DeviceInfo
    kernel: str
    module: int
    slot: int
    source: str = ""
    captured: bool = False
    connection: int = 0
    changed: bool = False
    image: Callable[[], Source] = field(compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class ImageSeen:
    """An image that a process is about to load from a file, or has loaded from its memory; fields
    as in ``KernelSeen``.  ``there()``: it is not known to be unloaded, or never loaded, and the
    process is there."""

    pid: int
    device: DeviceInfo
    module: int
    source: str
    connection: int
    image: Callable[[], Source] = field(compare=False, kw_only=True)
    there: Callable[[], bool] = field(default=lambda: True, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """No link asks for this kernel; the agent asks again when the epoch changes."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A link asks for it, but there is no twin; ``reason`` is one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Twin:
    """An instrumented image (cubin or PTX text, the NUL may be left out) for one kernel.

    ``hidden_offset``: byte offset of the launch block in the parameter block; ``parameters``:
    number of the kernel's own parameters.  The agent writes the addresses that ``globals`` have in
    the ORIGINAL module as u64s into the twin's variable ``globals_table``, or, with one of
    ``patches`` (offset, addend) for each name, into the image before it is loaded.  With
    ``allow_occupancy_loss`` a twin with fewer resident blocks is used too, but never for
    cooperative launches.
    """

    image: bytes
    hidden_offset: int
    parameters: int
    kernel_id: int
    globals: tuple[str, ...] = ()
    globals_table: str = ""
    patches: tuple[tuple[int, int], ...] = ()
    allow_occupancy_loss: bool = False


@dataclass(frozen=True, slots=True)
class ArenaSetup:
    """Map memory for one context of a process.

    ``host_fd``: a memfd of ``host_size`` bytes with its control page filled in; the server sends a
    duplicate, the broker keeps its own.  ``chunks``: initial contents of the device arena as
    (offset, bytes); everything else is zero and the header is the agent's.
    ``allocations``: offset of the table of allocations (egpu.bpf.own_maps) in the device arena, 0
    for none.  ``device_rings``: bytes of rings in device memory behind ``device_size``.
    """

    device_size: int
    host_fd: int
    host_size: int
    sm_slots: int
    chunks: Sequence[tuple[int, bytes]] = ()
    rings: Sequence[RingTable] = ()
    allocations: int = 0
    device_rings: int = 0


@dataclass(frozen=True, slots=True)
class TwinState:
    """What became of a twin in the workload; ``reason`` is "" when it is in use."""

    pid: int
    slot: int
    kernel_id: int
    reason: str
    registers: int
    twin_registers: int
    shared: int
    twin_shared: int
    local: int
    twin_local: int


@dataclass(frozen=True, slots=True)
class Resident:
    """What the driver said of one shape of launch: ``before`` and ``after`` blocks of ``threads``
    threads with ``shared`` bytes of dynamic shared memory fit on an SM, of the kernel and of its
    twin."""

    threads: int
    shared: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class SlotStats:
    """Launches of one kernel handle in one process.

    ``launches`` were accepted by the driver and run at once; ``captured`` were recorded into a
    graph (added nodes included, and each time one is set to this kernel) and run when that does.
    ``not_probed`` counts both kinds by reason; for kernels that no link asks for, captured launches
    count as launches.  ``kernel`` is "" for slot 0, which collects what has no slot of its own.
    ``resident`` is of the last shape of launch for which the twin was considered.
    """

    slot: int
    kernel: str
    launches: int
    threads: int
    blocks: int
    probed: int
    probed_threads: int
    probed_blocks: int
    captured: int
    captured_probed: int
    failed: int
    not_probed: dict[Reason, int]
    refusals: tuple[str, ...] = ()
    twin: TwinState | None = None
    resident: Resident | None = None

    @property
    def asked_for(self) -> bool:
        """Whether a link ever asked for this kernel."""
        return self.twin is not None or any(r is not Reason.UNMATCHED for r in self.not_probed)


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """What launches cost in one process or several; times in nanoseconds.

    ``waits`` launches waited ``wait_ns`` in all for a twin, ``asks`` others waited ``ask_ns`` for
    the answer that nothing asks for their kernel.  Of the other probed launches one in 64 is timed:
    ``timed_ns`` is the agent's own part of ``timed`` launches.
    """

    waits: int = 0
    wait_ns: int = 0
    timed: int = 0
    timed_ns: int = 0
    asks: int = 0
    ask_ns: int = 0

    def __add__(self, other: LaunchCost) -> LaunchCost:
        return LaunchCost(
            self.waits + other.waits,
            self.wait_ns + other.wait_ns,
            self.timed + other.timed,
            self.timed_ns + other.timed_ns,
            self.asks + other.asks,
            self.ask_ns + other.ask_ns,
        )


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """All that the agent of one process counted.  ``ended``: the process is gone."""

    pid: int
    cmdline: tuple[str, ...]
    ended: bool
    graph_launches: int
    graph_nodes: int
    images: int
    twins: int
    kernels: tuple[SlotStats, ...]
    cost: LaunchCost = field(default_factory=LaunchCost)


@dataclass(frozen=True, slots=True)
class KernelStats:
    """Launches of one kernel (by name) over all processes, contexts and handles.

    ``seen`` were run at once, ``probed`` of them as twins; ``captured`` were recorded into graphs
    instead.  ``not_probed``: launches by reason, captured ones included.  ``kernel_id`` is -1 and
    registers are 0 when there never was a twin.
    """

    name: str
    kernel_id: int
    seen: int
    probed: int
    not_probed: dict[str, int]
    threads: int
    blocks: int
    threads_probed: int
    blocks_probed: int
    captured: int
    captured_probed: int
    failed: int
    registers_before: int
    registers_after: int
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostCall:
    """A thread of ``pid`` is about to launch a kernel by ``call``, or has (``leaving``).

    ``time``: CLOCK_MONOTONIC when it came there, ns.  ``stack``: the number of the stack from
    which it launches, ``callers`` the addresses to which that returns, innermost first; None and
    () where nothing asks for them (Feature.STACKS).
    """

    pid: int
    thread: int
    call: LaunchCall
    leaving: bool
    time: int
    stack: int | None = None
    callers: tuple[int, ...] = ()


class Broker(Protocol):
    """What a session answers.  Called on worker threads, several at a time; an EgpuError from
    ``resolve`` or ``open_device`` is sent to the workload as the reason."""

    def wants_images(self) -> bool:
        """Whether ``image_loading`` is to be called: asked when a process comes, and when links
        have changed."""

    def process_started(self, pid: int, command: str) -> None:
        """A process called cuInit and was accepted; ``command`` as a shell would take it."""

    def device_named(self, device: DeviceInfo) -> None:
        """A process sees such a device; nobody waits."""

    def image_loading(self, seen: ImageSeen) -> None:
        """A process is about to load an image, or has, some of whose kernels may be asked for;
        nobody waits."""

    def image_gone(self, pid: int, connection: int, module: int) -> None:
        """What ``image_loading`` told of was not loaded, or is unloaded; on the server's thread."""

    def process_ended(self, pid: int) -> None:
        """Its connection closed: it ended, or replaced itself by exec."""

    def open_device(self, pid: int, device: DeviceInfo, link: ArenaLink) -> ArenaSetup:
        """Map memory for one more context of ``pid`` on ``device``; ``link`` reaches it later."""

    def resolve(self, seen: KernelSeen) -> Twin | Refused | Unmatched:
        """Is there a twin of this kernel?"""

    def answered(self) -> None:
        """What ``resolve`` gave was sent: there is time for what no launch waits for."""

    def host_call(self, call: HostCall) -> None:
        """Run what is attached there; the thread waits.  Only with Feature.HOST_ENTRY or _EXIT."""
