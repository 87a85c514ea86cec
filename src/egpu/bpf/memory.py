"""The interpreter's memory: regions with 64-bit addresses that mean nothing outside it.

Every region has 4 GiB of address space to itself, so that no arithmetic with a 32-bit constant
leads from one region into another, and every access is checked against its region's bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from egpu.errors import DeviceFault

_WINDOW = 32  # address bits of one region
_FIRST = 0x10000  # the first region's number: addresses start at 2^48
_BASE = 0x1000_0000  # a region's first byte inside its window, so that negative offsets stay in it


@dataclass(slots=True, eq=False)
class Region:
    """Bytes that programs may reach; ``data`` is shared with whoever made the region.

    ``kind`` says what it is ("stack", "memory", "map value", "record", "ctx", "map", "code").
    """

    kind: str
    base: int
    data: memoryview
    writable: bool
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


class AddressSpace:
    """All regions of one run."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        self._next = _FIRST

    def add(
        self, kind: str, data: bytearray | memoryview, *, writable: bool = True, name: str = ""
    ) -> Region:
        """A new region over ``data``; its addresses were never used before in this space."""
        region = Region(kind, (self._next << _WINDOW) + _BASE, memoryview(data), writable, name)
        self._regions[self._next] = region
        self._next += 1
        return region

    def remove(self, region: Region) -> None:
        """End ``region``: any later access to it is a fault."""
        del self._regions[region.base >> _WINDOW]

    def locate(self, address: int) -> tuple[Region, int] | None:
        """The region in whose window ``address`` is, and the byte offset from its start."""
        region = self._regions.get(address >> _WINDOW)
        return None if region is None else (region, address - region.base)

    def view(self, address: int, size: int, *, write: bool = False) -> memoryview:
        """The ``size`` bytes at ``address``. Raises DeviceFault if any is out of reach."""
        access = f"{'store' if write else 'load'} of {size} bytes"
        place = self.locate(address)
        if place is None:
            raise DeviceFault(f"{access} at 0x{address:x}, where there is no memory")
        region, offset = place
        if offset < 0 or offset + size > len(region.data):
            raise DeviceFault(
                f"{access} at offset {offset} of {region}, which has {len(region.data)} bytes"
            )
        if write and not region.writable:
            raise DeviceFault(f"{access} to {region}, which is read-only")
        return region.data[offset : offset + size]

    def load(self, address: int, size: int) -> int:
        """The unsigned little-endian value at ``address``. Raises DeviceFault."""
        return int.from_bytes(self.view(address, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        """Write the low ``size`` bytes of ``value``. Raises DeviceFault."""
        low = value & (1 << 8 * size) - 1
        self.view(address, size, write=True)[:] = low.to_bytes(size, "little")
