"""Answers the agent's question: is there a twin for this kernel?"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from egpu.agent.twin import DeviceInfo, ImageSeen, KernelSeen, Refused, Twin, Unmatched
from egpu.codegen import DeviceCode, Launch
from egpu.errors import EgpuError
from egpu.maps.layout import ArenaLayout
from egpu.session.assemble import Assembler
from egpu.session.attached import Attachment, ProbeSet
from egpu.session.cache import BuiltTwin, Origin, TwinCache, Way, build_identity
from egpu.session.images import OpenedImages
from egpu.session.keeping import TwinKeeper
from egpu.session.splicing import Splicer


@dataclass(frozen=True, slots=True)
class TwinReport:
    """What became of one kernel that a link matched.

    ``reason`` is "" for a twin that was built; ``uncovered`` says what ends threads unprobed;
    ``build_ms`` is the time that it took in milliseconds, next to nothing if it was ``cached``;
    ``image_ms`` of it went into opening the image or waiting for that, 0 where it had been opened
    before, and ``compile_ms`` into LLVM and ptxas, which most kernels share.
    ``captured``: the twin for launches that are recorded into graphs.
    """

    kernel_id: int
    kernel: str
    captured: bool
    reason: str
    entry_sites: int = 0
    exit_sites: int = 0
    uncovered: tuple[str, ...] = ()
    build_ms: float = 0.0
    cached: bool = False
    way: Way = Way.NONE
    image_ms: float = 0.0
    compile_ms: float = 0.0


class TwinBuilder:
    """Builds twins, as ``Splicer`` with the same options, or finds them; thread-safe.

    Without a ``cache`` each is built anew in every session.
    """

    def __init__(
        self,
        probes: ProbeSet,
        assembler: Assembler | None,
        cache: TwinCache | None,
        layout_of: Callable[[DeviceInfo], ArenaLayout],
        *,
        allow_occupancy_loss: bool,
        machine_code: bool = False,
    ) -> None:
        self._probes = probes
        self._assembler = assembler
        self._cache = None if cache is None else TwinKeeper(cache)
        self._layout_of = layout_of
        self._allow_occupancy_loss = allow_occupancy_loss
        self._lock = threading.Lock()
        self._opened = OpenedImages()
        self._splicer = Splicer(
            probes,
            assembler,
            self._opened,
            allow_occupancy_loss=allow_occupancy_loss,
            machine_code=machine_code,
        )
        if cache is not None:
            build_identity()  # looks at many files: now, and not while a launch waits
        self._layouts: dict[DeviceInfo, tuple[ArenaLayout, str]] = {}
        self._ids: dict[str, int] = {}
        self._reports: dict[tuple[int, bool], TwinReport] = {}
        self._rehearsed: set[tuple[int, int]] = set()  # arch and number of SMs
        # Whether the next twin will have to be built, as far as can be told.
        self._builds = cache is None or cache.is_empty()

    def prepare(self) -> None:
        """Compile the programs as most kernels get them, and name what twins are kept by, while a
        process only begins to use the device: no launch waits then for LLVM.  Ends when a kernel is
        asked for.

        What cannot be compiled is said of the kernels that should get it.
        """
        for item in self._probes.attachments:
            with self._lock, contextlib.suppress(EgpuError):
                if self._reports:
                    return
                if self._probes.is_enabled(item.program):
                    self._splicer.compiled(item, Launch.DIRECT)
                    self._probes.fingerprint(item)

    def rehearse(self, device: DeviceInfo) -> None:
        """The same, and where probes can go into the machine code of such a device, assemble them
        and splice them once, for nobody.  No kernel waits for that but one that would have to do
        the same.
        """
        self.prepare()
        kind = device.arch, device.sm_count
        with self._lock:
            if self._reports or kind in self._rehearsed or not self._probes.likely():
                return
            self._rehearsed.add(kind)
        with contextlib.suppress(EgpuError):
            if (splice := self._splicer.rehearsal(device.arch)) is not None:
                for attachments in self._probes.likely():
                    self._rehearse(splice, attachments, device)

    def _rehearse(
        self,
        splice: Callable[[list[DeviceCode], ArenaLayout], None],
        attachments: tuple[Attachment, ...],
        device: DeviceInfo,
    ) -> None:
        with contextlib.suppress(EgpuError):
            with self._lock:
                if self._reports:
                    return
                codes = [self._splicer.compiled(item, Launch.DIRECT) for item in attachments]
                layout, _ = self._layout(device)
            splice(codes, layout)

    def abandon(self) -> None:
        """End what is done for no kernel: the session ends."""
        if self._assembler is not None:
            self._assembler.abandon()

    def wants_images(self) -> bool:
        """Whether images are worth opening before a kernel of them is asked for: every kernel gets
        a probe."""
        return bool(self._probes.everywhere())

    def open_ahead(self, seen: ImageSeen) -> None:
        """Open an image whose kernels will be asked for, and take it apart if twins are built of
        them, while the driver loads it; several threads may, and no question waits for another's
        image."""
        attachments, arch = self._probes.everywhere(), seen.device.arch
        if attachments:
            self._opened.open_ahead(
                seen,
                lambda image: (
                    self._builds and self._splicer.way(image, arch, attachments) is Way.MACHINE_CODE
                ),
            )

    def let_go(self, pid: int, connection: int, module: int) -> None:
        """An image was not loaded, or is unloaded."""
        self._opened.let_go(lambda *key: key == (pid, connection, module))

    def resolve(self, seen: KernelSeen) -> Twin | Refused | Unmatched:
        """The twin of the kernel that was seen, or why there is none. Never raises EgpuError."""
        attachments = self._probes.matching(seen.kernel)
        if not attachments:
            return Unmatched()
        with self._lock:  # llvmlite and the caches are not thread-safe; twins are built once
            kernel_id = self._ids.setdefault(seen.kernel, len(self._ids))
            started, opening_s, compiling_s = time.perf_counter(), *self._spent()
            try:
                built, cached = self._find_or_build(seen, attachments)
            except EgpuError as error:
                self._note(TwinReport(kernel_id, seen.kernel, seen.captured, str(error)))
                return Refused(str(error))
            opened_s, compiled_s = self._spent()
            self._builds = not cached
            self._note(
                TwinReport(
                    kernel_id,
                    seen.kernel,
                    seen.captured,
                    "",
                    entry_sites=built.entry_sites,
                    exit_sites=built.exit_sites,
                    uncovered=built.uncovered,
                    build_ms=(time.perf_counter() - started) * 1e3,
                    image_ms=(opened_s - opening_s) * 1e3,
                    compile_ms=(compiled_s - compiling_s) * 1e3,
                    cached=cached,
                    way=built.way,
                )
            )
        return Twin(
            image=built.image,
            hidden_offset=built.hidden_offset,
            parameters=built.parameters,
            globals=built.globals,
            globals_table=built.globals_table,
            patches=built.patches,
            kernel_id=kernel_id,
            allow_occupancy_loss=self._allow_occupancy_loss,
        )

    def kernel_name(self, kernel_id: int) -> str:
        """The kernel that a launch block calls so; a number if there is none."""
        with self._lock:
            names = [name for name, number in self._ids.items() if number == kernel_id]
        return names[0] if names else f"kernel {kernel_id}"

    def forget(self, pid: int) -> None:
        """A process has ended."""
        self._opened.forget(pid)

    def write(self) -> None:
        """Write twins that are to be kept and are not yet on disk, unless another thread does so
        already; no launch need wait for it."""
        if self._cache is not None:
            self._cache.write()

    def settle(self) -> None:
        """Every twin that is to be kept is on disk then, or cannot be."""
        if self._cache is not None:
            self._cache.settle()

    def reports(self) -> tuple[TwinReport, ...]:
        """What became of every kernel that was matched, by kernel id."""
        with self._lock:
            return tuple(self._reports[key] for key in sorted(self._reports))

    @property
    def images_read(self) -> int:
        """How many images were read for it, or ahead of it: none as long as no probe matches a
        kernel."""
        return self._opened.read

    def _spent(self) -> tuple[float, float]:
        """Seconds of opening images and of compiling until now."""
        assembling_s = self._assembler.spent_s if self._assembler else 0.0
        compiling_s = self._probes.spent_s + assembling_s + self._splicer.waited_s
        return self._opened.spent_s, compiling_s

    def _note(self, report: TwinReport) -> None:
        self._reports[report.kernel_id, report.captured] = report

    def _find_or_build(
        self, seen: KernelSeen, attachments: tuple[Attachment, ...]
    ) -> tuple[BuiltTwin, bool]:
        image = self._opened.image(seen)
        layout, described = self._layout(seen.device)
        launch = Launch.CAPTURED if seen.captured else Launch.DIRECT
        if self._cache is None or self._assembler is None or not self._assembler.stable:
            return self._splicer.build(image, seen, attachments, layout, launch), False
        key = TwinCache.key(
            image.digest,
            seen.kernel,
            str(seen.device.arch),
            launch.value,
            described,
            self._assembler.description,
            self._splicer.way(image, seen.device.arch, attachments).value,
            str(self._allow_occupancy_loss),
            *(self._probes.fingerprint(item) for item in attachments),
        )
        found = self._cache.load(key)
        if found is not None:
            return found, True
        built = self._splicer.build(image, seen, attachments, layout, launch)
        programs = tuple(item.program.program.name for item in attachments)
        self._cache.store(key, built, Origin(seen.kernel, programs, seen.device.arch))
        return built, False

    def _layout(self, device: DeviceInfo) -> tuple[ArenaLayout, str]:
        """The layout on a device, and all that is in it: asked for with every kernel."""
        found = self._layouts.get(device)
        if found is None:
            layout = self._layout_of(device)
            found = self._layouts[device] = layout, repr(layout)
        return found
