"""The same IR on this machine: an x86-64 JIT, as a device of one SM, one warp and one lane."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Self

from egpu.codegen.arena import LAUNCH_BLOCK, ArenaLayout, initial_chunks, plan
from egpu.codegen.device_code import Relocation, RelocKind
from egpu.codegen.lower import lower
from egpu.codegen.targets import HostCode, Machine
from egpu.errors import InputError, UnsupportedError
from egpu.verifier.verified import VerifiedProgram

_START = "egpu_run"


class HostArenas:
    """Map memory of a host device: both arenas, for programs with the same maps.

    ``device`` and ``host`` are the bytes, laid out as ``layout`` says; they live as long as this.
    """

    def __init__(self, vp: VerifiedProgram, layout: ArenaLayout | None = None) -> None:
        """``layout`` is that of a device whose memory this stands in for; None: of this one."""
        self.layout: ArenaLayout = plan(vp.program.maps, 1) if layout is None else layout
        self._device, self.device = _aligned(self.layout.device_bytes)
        self._host, self.host = _aligned(self.layout.host_size)
        for offset, data in initial_chunks(self.layout, vp.program.maps, os.getpid()):
            self.device[offset : offset + len(data)] = data

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of the device arena and the host arena."""
        return _address(self._device), _address(self._host)


_ALIGNMENT = 4096


def _aligned(size: int) -> tuple[ctypes.Array[ctypes.c_char], memoryview]:
    """Zeroed memory and a view of its first page-aligned ``size`` bytes."""
    memory = (ctypes.c_char * (size + _ALIGNMENT))()
    start = _address(memory) - ctypes.addressof(memory)
    return memory, memoryview(memory).cast("B")[start : start + size]


def _address(memory: ctypes.Array[ctypes.c_char]) -> int:
    return -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT


class HostProgram:
    """``vp`` compiled for this machine, to be run many times.  Context manager.

    Maps live in ``arenas``, or in new ones without it.  Raises TypeError for anything that the
    verifier did not make, UnsupportedError for what exists in a kernel only.
    """

    def __init__(self, vp: VerifiedProgram, *, arenas: HostArenas | None = None) -> None:
        lowered = lower(vp, Machine.X86_64)
        self._vp = vp
        self.arenas = HostArenas(vp) if arenas is None and lowered.symbols else arenas
        values = {} if self.arenas is None else _values(vp, lowered.symbols, self.arenas)
        start = lowered.start("%memory", str(vp.memory_size))
        text = (
            f"define i64 @{_START}(i64 %memory) #0 {{\n{start}\n"
            "  ret i64 %result\n}\nattributes #0 = { nounwind }\n"
        )
        self._code = HostCode(lowered.module(text, values))

    def run(self, memory: bytearray) -> int:
        """Run with r1 = ``memory`` (changed in place), r2 = its size; r0 as an unsigned number.

        Raises InputError for memory of another size than the program was verified for.
        """
        if len(memory) != self._vp.memory_size:
            raise InputError(
                f"verified for {self._vp.memory_size} bytes of memory, {len(memory)} were given",
                where=f"program {self._vp.program.name}",
            )
        entry = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(self._code.address(_START))
        block = (ctypes.c_char * max(1, len(memory))).from_buffer(memory or bytearray(1))
        result: int = entry(ctypes.addressof(block))
        del block
        return result

    def close(self) -> None:
        """Free the code."""
        self._code.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def run_host(vp: VerifiedProgram, memory: bytearray, *, arenas: HostArenas | None = None) -> int:
    """Run ``vp`` once: what ``HostProgram(vp, arenas=arenas).run(memory)`` gives."""
    with HostProgram(vp, arenas=arenas) as program:
        return program.run(memory)


def _values(
    vp: VerifiedProgram, symbols: tuple[Relocation, ...], arenas: HostArenas
) -> Mapping[Relocation, int]:
    return {symbol: _value(vp, symbol, arenas) for symbol in symbols}


def _value(vp: VerifiedProgram, symbol: Relocation, arenas: HostArenas) -> int:
    device, host = arenas.addresses
    launch = {LAUNCH_BLOCK["device_arena"][0]: device, LAUNCH_BLOCK["host_arena"][0]: host}
    places, index = arenas.layout.places, symbol.index
    match symbol.kind:
        case RelocKind.LAUNCH:
            return launch.get(index, 0)
        case RelocKind.MAP:
            return places[index].offset
        case RelocKind.MAP_STRIDE:
            return places[index].stride
        case RelocKind.MAP_SPREAD:
            return places[index].spread
        case RelocKind.RING_DATA:
            return places[index].ring_device or places[index].ring_data
        case RelocKind.RING_FLAGS:
            return arenas.layout.flags_base
        case RelocKind.RING_SIZE:
            return places[index].ring_size
        case RelocKind.RING_SLOTS:
            return places[index].ring_slots
        case RelocKind.SM_SLOTS:
            return arenas.layout.sm_slots
        case _:
            raise UnsupportedError(
                f"program {vp.program.name} on the host: it reads {symbol.symbol}",
                needs="a kernel launch",
            )
