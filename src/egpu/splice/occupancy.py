"""What registers cost in resident blocks (CUDA C++ Programming Guide, technical specifications of
compute capability 7.0 and later)."""

from __future__ import annotations

FREE_REGISTERS = 32  # a thread: that many let an SM hold all the threads that it can
REGISTER_STEP = 8  # in which registers are given out


def free_registers(registers: int) -> int:
    """Up to how many registers a thread of a kernel with so many costs it no resident block."""
    return max(FREE_REGISTERS, -(-registers // REGISTER_STEP) * REGISTER_STEP)
