"""How a kernel gets its probes: into its machine code, or into its PTX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from egpu.agent.twin import KernelSeen
from egpu.bpf.program import AttachKind
from egpu.codegen import DeviceCode, Launch, Together
from egpu.errors import InternalError, UnsupportedError
from egpu.image import Image, fitting_cubins
from egpu.image.ptx.syntax import Module
from egpu.maps.layout import ArenaLayout
from egpu.session.assemble import Assembler
from egpu.session.attached import Attachment, ProbeSet
from egpu.session.cache import BuiltTwin, Way
from egpu.session.images import OpenedImages
from egpu.session.rehearsal import Rehearsals
from egpu.splice import (
    SPLICED_ARCHS,
    kernel_alone,
    splice_ptx,
    splice_sass,
    unknown_machine_code,
)


class Splicer:
    """Splices probes into kernels; not thread-safe.

    With ``machine_code`` they go into the kernel's machine code where the device runs a cubin of a
    known arch, and into PTX where there is none, where they are inside the kernel, and where the
    machine code is refused or costs resident blocks; without it, into PTX only.
    Without an ``assembler`` (the simulated device) twins are PTX text.
    """

    def __init__(
        self,
        probes: ProbeSet,
        assembler: Assembler | None,
        opened: OpenedImages,
        *,
        allow_occupancy_loss: bool,
        machine_code: bool,
    ) -> None:
        self._probes = probes
        self._assembler = assembler
        self._opened = opened
        self._allow_occupancy_loss = allow_occupancy_loss
        self._machine_code = machine_code
        self._rehearsals = None if assembler is None else Rehearsals(assembler)

    @property
    def waited_s(self) -> float:
        """Seconds that kernels waited for rehearsals of their probes."""
        return self._rehearsals.waited_s if self._rehearsals else 0.0

    def build(
        self,
        image: Image,
        seen: KernelSeen,
        attachments: tuple[Attachment, ...],
        layout: ArenaLayout,
        launch: Launch,
    ) -> BuiltTwin:
        """The twin of the kernel that was seen; EgpuError, with the reason, if there is none."""

        def in_text() -> BuiltTwin:
            codes = [self._probes.compiled(item, launch) for item in attachments]
            try:
                module = self._opened.ptx(image, seen)
            except UnsupportedError as error:
                raise self._without_text(image, seen, attachments, error) from error
            return self._splice_text(module, seen, codes, layout)

        if self.way(image, seen.device.arch, attachments) is Way.PTX:
            return in_text()
        try:
            codes = [self.compiled(item, launch) for item in attachments]
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

    def compiled(self, attachment: Attachment, launch: Launch) -> DeviceCode:
        """Of a program, as it is tried first."""
        if not self._machine_code or self._assembler is None or _inside((attachment,)):
            return self._probes.compiled(attachment, launch)
        return self._probes.compiled(attachment, launch, _lanes(attachment))

    def rehearsal(self, arch: int) -> Callable[[list[DeviceCode], ArenaLayout], None] | None:
        """What splices probes as they are tried first, for nobody, without anything that another
        thread may not use meanwhile; None if there is no such way on a device of ``arch``.
        EgpuError, of both, where it cannot be done."""
        if not self._machine_code or self._rehearsals is None:
            return None
        cubin = self._rehearsals.kernel(arch)
        return None if cubin is None else partial(self._rehearsals.splice, arch, cubin)

    def way(self, image: Image, arch: int, attachments: tuple[Attachment, ...]) -> Way:
        """How it is tried first on a device of ``arch``: machine code where that runs a cubin whose
        encoding is known, and no probe is inside the kernel."""
        if not self._machine_code or self._assembler is None or _inside(attachments):
            return Way.PTX
        cubins = fitting_cubins(image, arch)
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
        if self._assembler is None or self._rehearsals is None:
            raise InternalError("machine code without an assembler")
        contents = self._opened.machine_code(image, seen)
        self._rehearsals.wait(contents.parts.cubin.arch, codes, layout)
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
