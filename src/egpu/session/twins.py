"""Answers the agent's question: is there a twin for this kernel?"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from egpu.agent.twin import DeviceInfo, KernelSeen, Refused, Twin, Unmatched
from egpu.errors import EgpuError
from egpu.image import choose_ptx, open_image, ptx_text
from egpu.image.ptx import parse
from egpu.image.ptx.syntax import Module
from egpu.maps.layout import ArenaLayout
from egpu.session.assemble import Assembler
from egpu.session.attached import ProbeSet
from egpu.splice import InstrumentedImage, splice_ptx

_PARSED_LIMIT = 16  # modules kept: a fatbin's kernels are resolved one after the other


@dataclass(frozen=True, slots=True)
class TwinReport:
    """What became of one kernel that a link matched.

    ``reason`` is "" for a twin that was built; ``uncovered`` says what ends threads unprobed;
    ``build_ms`` is the time of parse, compile, splice and assembly in milliseconds.
    """

    kernel_id: int
    kernel: str
    reason: str
    entry_sites: int = 0
    exit_sites: int = 0
    uncovered: tuple[str, ...] = ()
    build_ms: float = 0.0


class TwinBuilder:
    """Builds twins; thread-safe.

    ``hand_over_text`` (simulated device, or no assembler) gives the agent PTX instead of a cubin.
    """

    def __init__(
        self,
        probes: ProbeSet,
        assembler: Assembler | None,
        layout_of: Callable[[DeviceInfo], ArenaLayout],
        *,
        allow_occupancy_loss: bool,
    ) -> None:
        self._probes = probes
        self._assembler = assembler
        self._layout_of = layout_of
        self._allow_occupancy_loss = allow_occupancy_loss
        self._lock = threading.Lock()
        self._parsed: OrderedDict[tuple[str, int, str], Module] = OrderedDict()
        self._ids: dict[str, int] = {}
        self._reports: dict[int, TwinReport] = {}

    def resolve(self, seen: KernelSeen) -> Twin | Refused | Unmatched:
        """The twin of the kernel that was seen, or why there is none. Never raises EgpuError."""
        attachments = self._probes.matching(seen.kernel)
        if not attachments:
            return Unmatched()
        with self._lock:  # llvmlite and the caches are not thread-safe; twins are built once
            kernel_id = self._ids.setdefault(seen.kernel, len(self._ids))
            started = time.perf_counter()
            try:
                spliced, twin = self._build(seen, kernel_id)
            except EgpuError as error:
                reason = str(error)
                self._reports[kernel_id] = TwinReport(kernel_id, seen.kernel, reason)
                return Refused(reason)
            self._reports[kernel_id] = TwinReport(
                kernel_id,
                seen.kernel,
                "",
                spliced.entry_sites,
                spliced.exit_sites,
                spliced.uncovered,
                (time.perf_counter() - started) * 1e3,
            )
            return twin

    def reports(self) -> tuple[TwinReport, ...]:
        """What became of every kernel that was matched, by kernel id."""
        with self._lock:
            return tuple(self._reports[key] for key in sorted(self._reports))

    def _build(self, seen: KernelSeen, kernel_id: int) -> tuple[InstrumentedImage, Twin]:
        module = self._module(seen)
        codes = [self._probes.compiled(item) for item in self._probes.matching(seen.kernel)]
        layout = self._layout_of(seen.device)
        spliced = splice_ptx(module, seen.kernel, codes, layout)
        if self._assembler is None:
            image = spliced.text.encode() + b"\0"
        else:
            image = self._assembler.assemble(spliced.text, spliced.target, seen.device.arch)
        twin = Twin(
            image=image,
            hidden_offset=spliced.hidden_offset,
            parameters=spliced.parameters,
            globals=spliced.globals,
            globals_table=spliced.globals_table,
            kernel_id=kernel_id,
            allow_occupancy_loss=self._allow_occupancy_loss,
        )
        return spliced, twin

    def _module(self, seen: KernelSeen) -> Module:
        image = open_image(seen.image())
        member = choose_ptx(image, seen.device.arch, kernel=seen.kernel)
        key = (image.digest, member.offset, member.suffix)
        module = self._parsed.get(key)
        if module is None:
            module = parse(ptx_text(member))
            self._parsed[key] = module
            if len(self._parsed) > _PARSED_LIMIT:
                self._parsed.popitem(last=False)
        return module
