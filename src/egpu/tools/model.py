"""What every tool's report needs to know of a run, as plain values.

Tools build their reports from these and from what they read in maps, so a report can be tested
without a workload.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from egpu.tools.names import display_names


@dataclass(frozen=True, slots=True)
class KernelLaunches:
    """What the host side saw of one kernel.

    ``name`` is readable (demangled), ``short`` what tables show (see ``names``).
    ``not_probed`` counts launches by reason.  Threads and blocks are the host's arithmetic over the
    launches that were probed, so a tool's own count must equal them.  ``captured``: launches
    recorded into a graph, whose replays the host does not see
    one by one, so the threads of such a kernel have no expected number.
    """

    kernel_id: int
    name: str
    seen: int
    probed: int
    not_probed: tuple[tuple[str, int], ...] = ()
    threads_probed: int = 0
    blocks_probed: int = 0
    registers_before: int = 0
    registers_after: int = 0
    captured: int = 0
    short: str = ""

    @property
    def label(self) -> str:
        """The name as tables show it."""
        return self.short or display_names((self.name,))[0]

    @property
    def partial(self) -> bool:
        """Whether some launches are not in what was counted."""
        return self.probed != self.seen


@dataclass(frozen=True, slots=True)
class RunCost:
    """What egpu itself cost this run.

    ``twin_ms``: building twins, in milliseconds, over ``twins``; ``cached`` of them came from the
    cache, and ``images`` of the workload's were read for all of them. ``waits`` launches waited
    ``wait_ms`` in all for a twin, ``asks`` others ``ask_ms`` for the answer that nothing asks for
    their kernel. ``launch_ns``: the agent's own time per probed launch in nanoseconds, the mean of
    one launch in 64 (``timed`` in all), None if none was timed. ``instructions``: most BPF
    instructions that all probes together add to one thread, ``site_instructions``: at one site.
    ``run_ms``: how long the workload ran. ``runs_cut_short``: runs of programs that used up the
    turns that their loops may take.
    """

    twins: int = 0
    images: int = 0
    cached: int = 0
    twin_ms: float = 0.0
    waits: int = 0
    wait_ms: float = 0.0
    asks: int = 0
    ask_ms: float = 0.0
    launch_ns: float | None = None
    timed: int = 0
    instructions: int = 0
    site_instructions: int = 0
    run_ms: float = 0.0
    records_dropped: int = 0
    records_missing: int = 0
    runs_cut_short: int = 0

    def host_share(self, probed: int) -> float | None:
        """The share of the run that launches waited and the agent took for ``probed`` launches, as
        if they came one after the other; None if that was not measured."""
        if not self.run_ms or (self.launch_ns is None and probed > self.waits):
            return None
        waited = self.wait_ms + self.ask_ms
        return (waited + (self.launch_ns or 0.0) * probed / 1e6) / self.run_ms


@dataclass(frozen=True, slots=True)
class Run:
    """A finished (or interrupted) run of a workload under a tool.

    ``snapshot``: "" when the final map contents were read, else why the last snapshot is older (a
    killed workload).  ``warnings`` are said in the report as they are.
    """

    device: str
    simulated: bool
    kernels: tuple[KernelLaunches, ...]
    cost: RunCost = field(default_factory=RunCost)
    snapshot: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether any number of the report may be lower than what happened."""
        return bool(self.snapshot) or any(kernel.partial for kernel in self.kernels)

    def name(self, kernel_id: int) -> str:
        """The readable name of a kernel; "kernel 7" if the host did not name it."""
        found = self._kernel(kernel_id)
        return found.name if found is not None else f"kernel {kernel_id}"

    def label(self, kernel_id: int) -> str:
        """The same, as tables show it."""
        found = self._kernel(kernel_id)
        return found.label if found is not None else f"kernel {kernel_id}"

    def _kernel(self, kernel_id: int) -> KernelLaunches | None:
        return next((each for each in self.kernels if each.kernel_id == kernel_id), None)
