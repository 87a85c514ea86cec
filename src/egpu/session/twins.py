"""Answers the agent's question: is there a twin for this kernel?"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from egpu.agent.twin import DeviceInfo, KernelSeen, Refused, Twin, Unmatched
from egpu.bpf.program import AttachKind
from egpu.codegen import DeviceCode, Launch, Together
from egpu.errors import EgpuError, InternalError, UnsupportedError
from egpu.image import Image, fitting_cubins
from egpu.image.ptx.syntax import Module
from egpu.maps.layout import ArenaLayout
from egpu.session.assemble import Assembler
from egpu.session.attached import Attachment, ProbeSet
from egpu.session.cache import BuiltTwin, Origin, TwinCache, Way, build_identity
from egpu.session.images import OpenedImages
from egpu.splice import (
    SPLICED_ARCHS,
    kernel_alone,
    splice_ptx,
    splice_sass,
    unknown_machine_code,
)


@dataclass(frozen=True, slots=True)
class TwinReport:
    """What became of one kernel that a link matched.

    ``reason`` is "" for a twin that was built; ``uncovered`` says what ends threads unprobed;
    ``build_ms`` is the time that it took in milliseconds, next to nothing if it was ``cached``;
    ``image_ms`` of it went into opening the image, 0 where an earlier kernel had it opened, and
    ``compile_ms`` into LLVM and ptxas, which most kernels share.
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
    """Builds twins; thread-safe.

    With ``machine_code`` probes go into the kernel's machine code where the device runs a cubin of
    a known arch, and into PTX where there is none, where they are inside the kernel, and where the
    machine code is refused or costs resident blocks; without it, into PTX only.
    Without an ``assembler`` (the simulated device) twins are PTX text.  Without a ``cache`` each is
    built anew in every session.
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
        self._cache = cache
        self._layout_of = layout_of
        self._allow_occupancy_loss = allow_occupancy_loss
        self._machine_code = machine_code
        self._lock = threading.Lock()
        self._opened = OpenedImages()
        if cache is not None:
            build_identity()  # looks at many files: now, and not while a launch waits
        self._last_layout: tuple[ArenaLayout | None, str] = None, ""
        self._ids: dict[str, int] = {}
        self._reports: dict[tuple[int, bool], TwinReport] = {}

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
        with self._lock:
            self._opened.forget(pid)

    def reports(self) -> tuple[TwinReport, ...]:
        """What became of every kernel that was matched, by kernel id."""
        with self._lock:
            return tuple(self._reports[key] for key in sorted(self._reports))

    @property
    def images_read(self) -> int:
        """How many images were read for it: none as long as no probe matches a kernel."""
        with self._lock:
            return self._opened.read

    def _spent(self) -> tuple[float, float]:
        """Seconds of opening images and of compiling until now."""
        assembling_s = self._assembler.spent_s if self._assembler else 0.0
        return self._opened.spent_s, self._probes.spent_s + assembling_s

    def _note(self, report: TwinReport) -> None:
        self._reports[report.kernel_id, report.captured] = report

    def _find_or_build(
        self, seen: KernelSeen, attachments: tuple[Attachment, ...]
    ) -> tuple[BuiltTwin, bool]:
        image = self._opened.image(seen)
        layout = self._layout_of(seen.device)
        launch = Launch.CAPTURED if seen.captured else Launch.DIRECT
        if self._cache is None or self._assembler is None or not self._assembler.stable:
            return self._build(image, seen, attachments, layout, launch), False
        key = TwinCache.key(
            image.digest,
            seen.kernel,
            str(seen.device.arch),
            launch.value,
            self._described(layout),
            self._assembler.description,
            self._way(image, seen, attachments).value,
            str(self._allow_occupancy_loss),
            *(self._probes.fingerprint(item) for item in attachments),
        )
        found = self._cache.load(key)
        if found is not None:
            return found, True
        built = self._build(image, seen, attachments, layout, launch)
        programs = tuple(item.program.program.name for item in attachments)
        self._cache.store(key, built, Origin(seen.kernel, programs, seen.device.arch))
        return built, False

    def _described(self, layout: ArenaLayout) -> str:
        """Everything in a layout; the same one is asked for with every kernel of a device."""
        if self._last_layout[0] is not layout:
            self._last_layout = layout, repr(layout)
        return self._last_layout[1]

    def _build(
        self,
        image: Image,
        seen: KernelSeen,
        attachments: tuple[Attachment, ...],
        layout: ArenaLayout,
        launch: Launch,
    ) -> BuiltTwin:
        def in_text() -> BuiltTwin:
            codes = [self._probes.compiled(item, launch) for item in attachments]
            try:
                module = self._opened.ptx(image, seen)
            except UnsupportedError as error:
                raise self._without_text(image, seen, attachments, error) from error
            return self._splice_text(module, seen, codes, layout)

        if self._way(image, seen, attachments) is Way.PTX:
            return in_text()
        try:
            codes = [self._probes.compiled(item, launch, _lanes(item)) for item in attachments]
            built, costs_blocks = self._splice_machine_code(image, seen, codes, layout)
            if costs_blocks and not self._allow_occupancy_loss:
                with contextlib.suppress(UnsupportedError):  # ptxas may hold PTX to fewer registers
                    return in_text()
            return built
        except UnsupportedError as refused:
            try:
                return in_text()
            except UnsupportedError:
                raise refused from None

    def _way(self, image: Image, seen: KernelSeen, attachments: tuple[Attachment, ...]) -> Way:
        """Machine code where the device runs a cubin whose encoding is known, and no probe is
        inside the kernel."""
        if not self._machine_code or self._assembler is None or _inside(attachments):
            return Way.PTX
        cubins = fitting_cubins(image, seen.device.arch)
        known = bool(cubins) and cubins[0].arch in SPLICED_ARCHS
        return Way.MACHINE_CODE if known else Way.PTX

    def _without_text(
        self,
        image: Image,
        seen: KernelSeen,
        attachments: tuple[Attachment, ...],
        error: UnsupportedError,
    ) -> UnsupportedError:
        """Why a kernel without PTX has no twin: ``error`` names what PTX there is; what stands in
        the way of machine code is said where that was asked for."""
        cubins = fitting_cubins(image, seen.device.arch)
        if self._assembler is None or not cubins or _inside(attachments):
            return error
        if cubins[0].arch not in SPLICED_ARCHS:
            return unknown_machine_code(cubins[0].arch)
        if not self._machine_code:
            return UnsupportedError(error.feature, needs=f"{error.needs}, or --machine-code")
        return error

    def _splice_text(
        self, module: Module, seen: KernelSeen, codes: list[DeviceCode], layout: ArenaLayout
    ) -> BuiltTwin:
        spliced = splice_ptx(module, seen.kernel, codes, layout)
        if self._assembler is None:
            code = spliced.text.encode("utf-8", "surrogateescape") + b"\0"
        else:
            code = self._assembler.assemble(
                spliced.text,
                spliced.target,
                seen.device.arch,
                original=lambda: kernel_alone(module, seen.kernel, layout),
                sites=spliced.entry_sites + spliced.exit_sites,
            )
        return BuiltTwin(
            image=code,
            hidden_offset=spliced.hidden_offset,
            parameters=spliced.parameters,
            globals=spliced.globals,
            globals_table=spliced.globals_table,
            patches=(),
            entry_sites=spliced.entry_sites,
            exit_sites=spliced.exit_sites,
            uncovered=spliced.uncovered,
        )

    def _splice_machine_code(
        self, image: Image, seen: KernelSeen, codes: list[DeviceCode], layout: ArenaLayout
    ) -> tuple[BuiltTwin, bool]:
        """The twin in which the kernel's own machine code stays as it is, and whether fewer of its
        blocks may be resident."""
        if self._assembler is None:
            raise InternalError("machine code without an assembler")
        contents = self._opened.machine_code(image, seen)
        spliced = splice_sass(contents, seen.kernel, codes, layout, self._assembler.machine_code)
        built = BuiltTwin(
            image=spliced.image,
            hidden_offset=spliced.hidden_offset,
            parameters=spliced.parameters,
            globals=tuple(patch.name for patch in spliced.globals),
            globals_table="",
            patches=tuple((patch.offset, patch.addend) for patch in spliced.globals),
            entry_sites=spliced.entry_sites,
            exit_sites=spliced.exit_sites,
            uncovered=spliced.uncovered,
            way=Way.MACHINE_CODE,
        )
        return built, spliced.costs_blocks


def _inside(attachments: tuple[Attachment, ...]) -> bool:
    """Whether a probe is inside the kernel, where only PTX is known."""
    return any(item.point.kind is AttachKind.INSTRUCTION for item in attachments)


def _lanes(attachment: Attachment) -> Together:
    """Lanes that leave work for themselves in machine code (``splice.sass_rules``: NO_MEETING)."""
    leaving = attachment.point.kind is AttachKind.EXIT
    return Together.ONE if leaving else Together.WARP
