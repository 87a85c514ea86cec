"""What bpf_printk sends from a device: one record for each line.

A record does not carry its format: the verifier knows it, and the record names it by a number that
follows from it (``PrintCall.site``)::

    0   u64 site
    8   u64 time       %globaltimer
    16  u64 launch id
    24  u32 kernel id
    28  u32 SM
    32  u32 x 3 block
    44  u32 x 3 thread
    56  the values in order: a number takes 8 bytes, a text its bytes rounded up to 8
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from egpu.bpf.print_format import parse_format

TEXT_LIMIT = 64  # bytes of one %s
VALUES_LIMIT = 12  # as Linux (MAX_BPRINTF_VARARGS)
HEADER = struct.Struct("<QQQII3I3I")
# Offsets of the header's fields, for code generation.
SITE, TIME, LAUNCH, KERNEL, SM, BLOCK, THREAD = 0, 8, 16, 24, 28, 32, 44


@dataclass(frozen=True, slots=True)
class PrintCall:
    """One call in a program: its format, and for each value 0 (a number) or bytes of text.

    ``others``: formats that it may have instead, with as many numbers: compilers make one call of
    two at the ends of branches.
    """

    format: str
    values: tuple[int, ...]
    others: tuple[str, ...] = ()

    def each(self) -> tuple[PrintCall, ...]:
        """A call for every format."""
        return tuple(PrintCall(text, self.values) for text in (self.format, *self.others))

    @property
    def size(self) -> int:
        """Bytes of a record."""
        return HEADER.size + sum(-(-size // 8) * 8 if size else 8 for size in self.values)

    @property
    def site(self) -> int:
        """The number by which records name this call; the same in every process and session."""
        text = f"{self.format}\0{self.values}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")

    def offsets(self) -> tuple[int, ...]:
        """Where each value lies in a record."""
        found, at = [], HEADER.size
        for size in self.values:
            found.append(at)
            at += -(-size // 8) * 8 if size else 8
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Printed:
    """One line, as it was sent: ``time`` in ns of the device's clock."""

    time: int
    launch_id: int
    kernel_id: int
    sm: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    text: str = field(default="")


def decode_record(record: bytes, calls: Mapping[int, PrintCall]) -> Printed | None:
    """The line of ``record``; None if it is of no call in ``calls`` (by site)."""
    if len(record) < HEADER.size:
        return None
    site, time, launch, kernel, sm, *place = HEADER.unpack_from(record)
    call = calls.get(site)
    if call is None or len(record) < call.size:
        return None
    values: list[int | bytes] = []
    for at, size in zip(call.offsets(), call.values, strict=True):
        part = record[at : at + (size or 8)]
        values.append(part if size else int.from_bytes(part, "little"))
    text = parse_format(call.format.encode() + b"\0").render(values)
    return Printed(time, launch, kernel, sm, (*place[:3],), (*place[3:],), text)
