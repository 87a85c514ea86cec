"""A session: a workload under the agent, its probes, its maps (design.md section 11)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from egpu.agent.protocol import Feature
from egpu.agent.twin import DeviceInfo, KernelStats
from egpu.session.additive import additive_maps
from egpu.session.arenas import Arenas
from egpu.session.arrivals import missed_blocks
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.broker import SessionBroker
from egpu.session.cache import TwinCache, cache_limit, default_directory
from egpu.session.cost import SessionCost, cost_of
from egpu.session.explain import Explanation, explain, without_resources
from egpu.session.features import Clock, clocks, features_of
from egpu.session.host_programs import HostPrograms
from egpu.session.launch_stacks import LaunchStack, LaunchStacks
from egpu.session.links import Link, Links
from egpu.session.objects import Collection
from egpu.session.options import Options
from egpu.session.outside import Outside
from egpu.session.prints import Prints, print_calls
from egpu.session.reuse import reuse_pinned
from egpu.session.ring_load import RingLoad, ring_loads
from egpu.session.seconds import check_seconds
from egpu.session.slots import thread_slots
from egpu.session.stacks import StackFrame
from egpu.session.twins import TwinBuilder, TwinReport
from egpu.session.views import Maps
from egpu.session.workload import Workload
from egpu.verifier import VerifiedProgram


class Session:
    """A running (or finished) workload.  Context manager; leaving it ends the workload's probes.

    Made by :func:`run`.
    """

    def __init__(
        self,
        workload: Workload,
        verified: Sequence[VerifiedProgram],
        collection: Collection,
        options: Options,
        prepare: Callable[[Session], None] = lambda session: None,
    ) -> None:
        """``prepare`` is called before programs are attached to ``workload``."""
        self._options = options
        self._verified = tuple(each for each in verified if not each.program.on_host)
        self._notes = _allowed(self._verified) if options.lost_updates else []
        self._cleanup = contextlib.ExitStack()
        self._started = self._ended = 0.0  # time.monotonic(); 0: not yet
        self._closed, self._owner = False, os.getpid()
        self._outside = Outside()
        self._cache = TwinCache(default_directory(), limit=cache_limit()) if options.cache else None
        maps = verified[0].program.maps
        assembler = self._make_assembler()
        self._arenas = Arenas(
            maps,
            collection.names,
            additive_maps(self._verified, maps),
            thread_slots(options.thread_slots),
            assembler=assembler,
        )
        probes = ProbeSet(self._verified, only=options.kernels)
        self._links = Links(probes, collection.links, verified, options.twin_wait_s)
        on_host = [each for each in verified if each.program.on_host]
        self._host = HostPrograms(on_host, self._verified, self._arenas, probes.is_enabled)
        builder = self._make_builder(probes, assembler)
        self._broker = SessionBroker(builder, self._arenas, self._host)
        self._cleanup.callback(builder.settle)
        try:
            reuse_pinned(self._arenas)
            prepare(self)
            self._start(workload)
        except BaseException:
            self._closed = True
            self._cleanup.callback(self._outside.withdraw)  # before all else
            self._cleanup.close()
            raise

    @property
    def maps(self) -> Maps:
        """The maps of every object, by name."""
        return self._maps

    @property
    def prints(self) -> Prints:
        """The lines that programs print with bpf_printk."""
        return self._prints

    @property
    def links(self) -> Mapping[str, Link]:
        """The programs of every object, by name: attached or not."""
        return self._links.by_name()

    @property
    def arenas(self) -> Arenas:
        """The memory of the maps; for egpu itself."""
        return self._arenas

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def pid(self) -> int:
        """The started process."""
        return self._process.pid

    @property
    def simulated(self) -> bool:
        """Whether the workload runs on the simulated device."""
        return self._options.simulated

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices on which probes ran so far."""
        return tuple(dict.fromkeys(arena.device for arena in self._arenas.all()))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a report must say (no assembler, cache not writable, stale snapshot)."""
        self._broker.builder.settle()
        notes = list(self._notes)
        if self._cache is not None and self._cache.failure:
            notes.append(self._cache.failure)
        if self._cache is not None and self._cache.damaged:
            notes.append(f"{self._cache.damaged} damaged files of the twin cache were built anew")
        if missed := missed_blocks(self._arenas):
            notes.append(missed)
        return (*notes, *self._host.problems, *self._server.problems)

    @property
    def clocks(self) -> tuple[Clock, ...]:
        """How well device clocks agree with the host's, if a program asks for the time."""
        used = Feature.CLOCK in features_of(self._verified)
        return clocks(self._arenas.all()) if used else ()

    def running(self) -> bool:
        """Whether the started process still runs."""
        return self._process.poll() is None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the started process; its exit status, negative for a signal.

        ``subprocess.TimeoutExpired`` after ``timeout`` seconds; InputError if that is no number.
        """
        if timeout is not None:  # one that has passed is a number
            check_seconds("timeout", 0.0 if timeout < 0 else timeout)
        status = self._process.wait(timeout)
        if not self._ended:
            self._ended = time.monotonic()
        self._server.drain()
        if self._server.live():  # processes that outlive it count as far as they are now
            self._server.snapshot()
        return status

    def kernels(self) -> tuple[KernelStats, ...]:
        """What the agents counted, by kernel."""
        return self._server.stats()

    def twins(self) -> tuple[TwinReport, ...]:
        """What became of every kernel that a probe matched."""
        return self._broker.builder.reports()

    def explain(self) -> tuple[Explanation, ...]:
        """What was done to each kernel that was launched, and what it changed."""
        rows = explain(self._server.processes(), self.twins(), self.devices)
        return without_resources(rows) if self.simulated else rows

    def ring_loads(self) -> tuple[RingLoad, ...]:
        """Kernels whose launches may write more to rings than these hold."""
        probes = ProbeSet(self._verified, only=self._options.kernels)
        layouts = [arena.layout for arena in self._arenas.all()]
        return ring_loads(self.kernels(), probes, layouts)

    def stack_of(self, launch_id: int, pid: int | None = None) -> tuple[StackFrame, ...] | None:
        """From where a probed launch came, innermost frame first; None if it is not kept: there is
        no such launch, or 65,536 later ones of its process.

        ``launch_id`` is what ``ctx->launch_id`` gives in kernels.  Raises InputError unless the
        session keeps stacks (``Options.stacks``, or a program that calls bpf_get_stackid or
        bpf_get_stack), or if several processes have such a launch and ``pid`` names none.
        """
        return self._stacks.of(launch_id, pid)

    def launch_stacks(self) -> tuple[LaunchStack, ...]:
        """Every stack from which launches that are kept came; none if stacks are not kept."""
        return self._stacks.all()

    def snapshot(self, timeout: float = 5.0) -> bool:
        """Have every agent copy its maps now; False if one did not answer in time."""
        return self._server.snapshot(timeout)

    def stale(self) -> str:
        """Why the maps are not complete (the workload did not end normally, or parts of it still
        run), "" if they are.
        """
        old = [arena for arena in self._arenas.all() if not arena.host.final]
        if not old or self.running():
            return ""
        live = {arena.pid for arena in old} & set(self._server.live())
        if live:
            return f"{len(live)} of the workload's processes still run; their maps are as of now"
        taken = min(arena.host.snapshot().time_ns for arena in old)
        if not taken:
            return "the workload ended before its maps were copied once"
        age = (time.monotonic_ns() - taken) / 1e9
        return f"the workload did not end normally; its maps are as they were {age:.1f} s ago"

    def cost(self) -> SessionCost:
        """What egpu itself did so far."""
        return cost_of(
            self.twins(),
            self._verified,
            [ring.totals() for ring in self._maps.rings()],
            self._server.processes(),
            images=self._broker.builder.images_read,
            cut_short=self._arenas.cut_short(),
            run_ms=((self._ended or time.monotonic()) - self._started) * 1e3,
        )

    def pin(self, map_name: str, name: str) -> None:
        """Let the user's other processes find a map as ``name``, until ``unpin``.

        Closing the session saves what it holds.  Raises InputError if there is no such map, or
        another running session has a pin of that name; a saved one is replaced.
        """
        self._outside.service.pin(map_name, name)

    def unpin(self, name: str) -> None:
        """Take a pin of this session away."""
        self._outside.service.unpin(name)

    def attach(self) -> None:
        """Attach every program; from the next launch on, as ``Link.attach``."""
        self._links.all(attached=True)

    def detach(self) -> None:
        """Take the probes out: from now on launches run the untouched kernels."""
        self._links.all(attached=False)

    def change_links(self, names: Sequence[str], *, attached: bool) -> None:
        """Attach or detach some programs as one change."""
        self._links.named(names, attached=attached)

    def close(self) -> None:
        """End the probes (not the workload), and release every map. May be called twice.

        In a process forked from the session's, the session goes on.
        """
        self._closed = True
        if os.getpid() == self._owner:
            self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _pins(self) -> list[tuple[str, str]]:
        """Map and pin name: as declared (``LIBBPF_PIN_BY_NAME``), and as the user chose."""
        named = [
            (name, spec.name)
            for name, spec in zip(self._maps, self._arenas.maps, strict=False)
            if spec.pin_by_name
        ]
        return [*named, *self._options.pins.items()]

    def _make_assembler(self) -> Assembler | None:
        if self._options.simulated:
            return None
        ptxas = find_ptxas()
        if ptxas is None:
            self._notes.append("no ptxas found: the driver's own compiler assembles the twins")
        return Assembler(ptxas)

    def _make_builder(self, probes: ProbeSet, assembler: Assembler | None) -> TwinBuilder:
        return TwinBuilder(
            probes,
            assembler,
            self._cache,
            self._arenas.layout,
            allow_occupancy_loss=self._options.allow_occupancy_loss,
            machine_code=self._options.machine_code,
        )

    def _start(self, workload: Workload) -> None:
        self._cleanup.callback(self._arenas.close)
        features = features_of(self._verified) | self._host.features
        if self._options.stacks:
            features |= Feature.STACKS
        self._server = workload.open(self._broker, features, self._cleanup)
        self._cleanup.callback(self._broker.builder.abandon)  # before the server is closed
        self._stacks = LaunchStacks(
            self._server.launch_stacks, self._server.stacks, asked=Feature.STACKS in features
        )
        self._links.serve(self._server)
        self._arenas.refresh = self._server.snapshot
        self._arenas.stacks = self._server.stacks
        self._arenas.ended = lambda: not self.running()
        self._maps = Maps(self._arenas)
        self._cleanup.callback(self._outside.close)
        self._outside.open(self, self._pins())
        self._prints = Prints(
            self._maps.print_ring(),
            print_calls(self._verified),
            self._broker.builder.kernel_name,
            limit=self._options.print_limit,
            host=self._host.taken_lines,
        )
        self._started = time.monotonic()
        self._process = workload.start()
        self._outside.started()


def _allowed(verified: Sequence[VerifiedProgram]) -> list[str]:
    """What a report must say of updates that may be lost."""
    return [
        f"updates may be lost, as was allowed: {warning}"
        for each in verified
        for warning in each.warnings
        if warning.rule == "P8"
    ]
