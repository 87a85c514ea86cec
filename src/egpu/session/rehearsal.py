"""A splice that nobody asked for, before a launch waits for one.

The first kernel of a session would pay for assembling the probes, for what is found out about their
code, and for everything else that Python does once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from egpu.codegen import DeviceCode
from egpu.maps.layout import ArenaLayout
from egpu.session.assemble import Assembler
from egpu.splice import SPLICED_ARCHS, splice_sass

_KERNEL = """.version 7.8
.target sm_{arch}
.address_size 64
.visible .entry rehearsal(.param .u64 out, .param .u32 count)
{{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<4>;
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 ret;
  ld.param.u64 %rd1, [out];
  mul.wide.u32 %rd2, %r5, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r5;
  ret;
}}
"""


class Rehearsals:
    """Splices of a kernel that no process has; thread-safe.

    ``waited_s``: seconds that kernels waited for one of their own probes, whose code they need too.
    """

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self._under_way: dict[tuple[int, ...], threading.Event] = {}
        self.waited_s = 0.0

    def kernel(self, arch: int) -> bytes | None:
        """A cubin to rehearse with, None where machine code of ``arch`` is not known; EgpuError
        where it cannot be assembled."""
        if arch not in SPLICED_ARCHS or not self._assembler.stable:
            return None
        with self._assembler.ahead():
            return self._assembler.machine_code(_KERNEL.format(arch=arch), f"sm_{arch}")

    def splice(
        self, arch: int, cubin: bytes, codes: Sequence[DeviceCode], layout: ArenaLayout
    ) -> None:
        """Put probes into it, for nobody; EgpuError where that cannot be."""
        key = _key(arch, codes, layout)
        done = self._under_way[key] = threading.Event()
        try:
            with self._assembler.ahead():
                splice_sass(cubin, "rehearsal", codes, layout, self._assembler.machine_code)
        finally:
            done.set()
            self._under_way.pop(key, None)

    def wait(self, arch: int, codes: Sequence[DeviceCode], layout: ArenaLayout) -> None:
        """Until these probes are not being rehearsed: to do the same beside it helps nobody."""
        under_way = self._under_way.get(_key(arch, codes, layout))
        if under_way is not None:
            begin = time.perf_counter()
            under_way.wait()
            self.waited_s += time.perf_counter() - begin


def _key(arch: int, codes: Sequence[DeviceCode], layout: ArenaLayout) -> tuple[int, ...]:
    """Code is compiled once and kept: it is the same where it is the same object."""
    return arch, layout.sm_slots, *map(id, codes)
