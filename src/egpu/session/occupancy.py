"""How many blocks of a kernel fit on an SM.

CUDA C++ Programming Guide, tables "technical specifications per compute capability", and the
allocation rules of the occupancy calculator: registers are given to a warp in units of 256, an SM
is four parts with a quarter of registers and warps each, a block's shared memory is rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

_WARP = 32
_PARTS = 4  # of an SM, each with its own registers
_REGISTERS = 65_536
_REGISTER_UNIT = 256


@dataclass(frozen=True, slots=True)
class SmLimits:
    """What an SM holds at most.  ``shared`` bytes in all, of which CUDA takes ``reserved`` bytes
    for each block; both in units of ``shared_unit``."""

    threads: int
    blocks: int
    shared: int
    reserved: int
    shared_unit: int


# fmt: off
LIMITS: dict[int, SmLimits] = {  # by compute capability x 10
    #              threads  blocks  shared      reserved  unit
    70:  SmLimits(  2048,    32,     96 << 10,     0,     256),
    72:  SmLimits(  2048,    32,     96 << 10,     0,     256),
    75:  SmLimits(  1024,    16,     64 << 10,     0,     256),
    80:  SmLimits(  2048,    32,    164 << 10,  1024,     128),
    86:  SmLimits(  1536,    16,    100 << 10,  1024,     128),
    87:  SmLimits(  1536,    16,    164 << 10,  1024,     128),
    89:  SmLimits(  1536,    24,    100 << 10,  1024,     128),
    90:  SmLimits(  2048,    32,    228 << 10,  1024,     128),
    100: SmLimits(  2048,    32,    228 << 10,  1024,     128),
    103: SmLimits(  2048,    32,    228 << 10,  1024,     128),
    120: SmLimits(  1536,    24,    100 << 10,  1024,     128),
    121: SmLimits(  1536,    24,    100 << 10,  1024,     128),
}
# fmt: on


def blocks_per_sm(arch: int, *, threads: int, registers: int, shared: int) -> int | None:
    """Blocks of ``threads`` threads with ``registers`` each and ``shared`` bytes of shared memory
    that are resident on an SM of ``arch`` (90 for sm_90); None for one that is not known."""
    limits = LIMITS.get(arch)
    if limits is None or threads <= 0 or registers <= 0:
        return None
    warps = -(-threads // _WARP)
    of_warp = -(-registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = _REGISTERS // _PARTS // of_warp * _PARTS // warps
    by_warps = limits.threads // _WARP // warps
    whole = shared + limits.reserved
    of_block = -(-whole // limits.shared_unit) * limits.shared_unit
    by_shared = limits.shared // of_block if of_block else limits.blocks
    return min(limits.blocks, by_warps, by_registers, by_shared)
