"""Runs the executor kernel of code generation on the simulated device (conformance)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from egpu.errors import InputError
from egpu.image.ptx import parse
from egpu.sim.machine import Machine
from egpu.sim.memory import DeviceMemory

KERNEL = "egpu_exec"
BLOCK = 32
_ALIGNMENT = 16  # of each thread's memory, as the suite's cases may read 8 bytes at offset 0


def run_executor(ptx_text: str, memories: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Run ``egpu_exec`` with one thread per memory; gives (r0, memory afterwards) of each.

    All memories must have one length, which may be 0.  Errors as of ``Machine.launch``.
    """
    if not memories:
        return []
    size = len(memories[0])
    if any(len(memory) != size for memory in memories):
        raise InputError("the memories of one run must have one length")
    module = parse(ptx_text)
    device = DeviceMemory()
    machine = Machine(device)
    stride = max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)
    count = len(memories)
    base = device.allocate(stride * count)
    results = device.allocate(8 * count)
    for i, memory in enumerate(memories):
        device.write(base + i * stride, memory)
    blocks = -(-count // BLOCK)
    params = struct.pack("<4Q", base, stride, results, count)
    machine.launch(module, KERNEL, (blocks, 1, 1), (BLOCK, 1, 1), params)
    values = np.frombuffer(device.read(results, 8 * count), np.uint64)
    return [(int(values[i]), device.read(base + i * stride, size)) for i in range(count)]
