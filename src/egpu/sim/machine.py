"""The simulated device: launches of parsed PTX on device memory.

Clocks are simulated: one nanosecond and one cycle for each instruction that a warp executes, so
diverged lanes cost what they cost on a device; at a barrier warps wait for the slowest.  All blocks
of a chunk start at once, the next chunk when they have ended, the next launch after that.  Runs are
repeatable, and times compare the work of warps but say nothing about a device.  Blocks go to SMs in
turn (%smid is the linear block index modulo ``sm_count``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from egpu.errors import InputError
from egpu.image.ptx.syntax import Module
from egpu.sim.compile import compile_kernel
from egpu.sim.execute import Chunk
from egpu.sim.faults import FaultKind, SimulatedFault
from egpu.sim.lanes import Dimensions, Lanes, Shape
from egpu.sim.memory import DeviceMemory
from egpu.sim.steps import Kernel
from egpu.sim.variables import place_variables

CHUNK_THREADS = 1 << 16
CHUNK_BYTES = 256 << 20  # of registers, local and shared memory of a chunk
STEP_LIMIT = 50_000_000
SHARED_LIMIT = 232_448


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """What a launch did.

    ``steps`` counts instructions of groups of threads, ``cycles`` simulated time; ``printed`` is
    what the kernel printed.
    """

    kernel: str
    blocks: int
    threads: int
    steps: int
    cycles: int
    printed: str = ""


class Machine:
    """Executes kernels; not safe for use by several threads at once.

    ``memory`` stays the caller's and may change between launches.  ``step_limit`` ends a launch
    that does not finish (SimulatedFault, FaultKind.TIMEOUT).
    """

    def __init__(
        self,
        memory: DeviceMemory,
        sm_count: int = 4,
        warp_size: int = 32,
        step_limit: int = STEP_LIMIT,
    ) -> None:
        if warp_size != 32 or sm_count < 1:
            raise InputError("the simulated device has warps of 32 lanes and at least one SM")
        self.memory = memory
        self.sm_count = sm_count
        self.step_limit = step_limit
        self.cycles = 0
        self.launches = 0
        self._kernels: dict[tuple[int, str], Kernel] = {}
        self._modules: dict[int, tuple[Module, Mapping[str, int]]] = {}

    def bind(self, module: Module, globals: Mapping[str, int]) -> None:
        """Use these addresses for the module's variables (a driver allocated them)."""
        self._modules[id(module)] = (module, dict(globals))
        self._kernels = {key: k for key, k in self._kernels.items() if key[0] != id(module)}

    def forget(self, module: Module) -> None:
        """Drop what is kept about the module."""
        self._modules.pop(id(module), None)
        self._kernels = {key: k for key, k in self._kernels.items() if key[0] != id(module)}

    def globals(self, module: Module) -> Mapping[str, int]:
        """Addresses of the module's variables; allocated and initialised at the first call."""
        known = self._modules.get(id(module))
        if known is None:
            known = (module, place_variables(module, self.memory))
            self._modules[id(module)] = known
        return known[1]

    def kernel(self, module: Module, name: str) -> Kernel:
        """The compiled kernel; errors as of ``compile_kernel``."""
        key = (id(module), name)
        if key not in self._kernels:
            self._kernels[key] = compile_kernel(module, name, self.globals(module))
        return self._kernels[key]

    def launch(
        self,
        module: Module,
        kernel: str,
        grid: Dimensions,
        block: Dimensions,
        params: bytes,
        *,
        dynamic_shared: int = 0,
        together: bool = False,
    ) -> LaunchReport:
        """Run ``kernel`` to its end; ``params`` is its parameter block.

        ``together`` runs all blocks at once (cooperative launches wait for each other).
        SimulatedFault when the kernel faults, UnsupportedError when it uses what is not simulated,
        InputError when the launch does not fit the kernel.
        """
        compiled = self.kernel(module, kernel)
        layout = compiled.layout
        shared = layout.dynamic + dynamic_shared if dynamic_shared else layout.shared
        self.launches += 1
        shape = Shape(
            grid, block, shared, layout.local, dynamic_shared, self.sm_count, self.launches
        )
        _check(compiled, shape, params)
        start, tick = self.cycles, _Ticker(kernel, self.step_limit)
        per_chunk = shape.blocks if together else _blocks_at_once(compiled, shape)
        printed: list[str] = []
        with np.errstate(all="ignore"):
            for first in range(0, shape.blocks, per_chunk):
                count = min(per_chunk, shape.blocks - first)
                lanes = Lanes(
                    shape, self.memory, first=first, blocks=count, params=params, start=self.cycles
                )
                Chunk(compiled, lanes, tick).run()
                self.cycles += int(lanes.age.max())
                printed += lanes.printed
        return LaunchReport(
            kernel,
            shape.blocks,
            shape.blocks * shape.threads,
            tick.steps,
            self.cycles - start,
            "".join(printed),
        )


class _Ticker:
    """Counts the steps of a launch and ends one that does not."""

    def __init__(self, kernel: str, limit: int) -> None:
        self.kernel = kernel
        self.limit = limit
        self.steps = 0

    def __call__(self) -> None:
        self.steps += 1
        if self.steps > self.limit:
            raise SimulatedFault(
                f"not finished after {self.limit} steps",
                kind=FaultKind.TIMEOUT,
                kernel=self.kernel,
            )


def _blocks_at_once(kernel: Kernel, shape: Shape) -> int:
    registers = sum(type.raw.itemsize for type in kernel.layout.registers)
    per_block = shape.threads * (registers + shape.local) + shape.shared
    by_size = CHUNK_BYTES // max(1, per_block)
    return max(1, min(CHUNK_THREADS // shape.threads, by_size))


def _check(kernel: Kernel, shape: Shape, params: bytes) -> None:
    if min(*shape.grid, *shape.block) < 1:
        raise InputError(
            f"{kernel.name}: grid {shape.grid} and block {shape.block} must be positive"
        )
    if shape.threads > kernel.max_threads:
        raise InputError(
            f"{kernel.name}: {shape.threads} threads in a block of {kernel.max_threads}"
        )
    if kernel.required_block not in (None, shape.block):
        raise InputError(
            f"{kernel.name}: block {shape.block}, but .reqntid {kernel.required_block}"
        )
    if len(params) < kernel.parameter_bytes:
        raise InputError(
            f"{kernel.name}: {len(params)} bytes of parameters, {kernel.parameter_bytes} needed"
        )
    if shape.shared > SHARED_LIMIT:
        raise InputError(f"{kernel.name}: {shape.shared} bytes of shared memory in {SHARED_LIMIT}")
