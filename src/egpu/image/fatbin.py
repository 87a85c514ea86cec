"""Fat binaries: the container that nvcc puts PTX and cubins in.

NVIDIA does not document the format; the tables hold what nvcc 11 to 13 were seen to write.  All
numbers are little-endian.  Every field is checked against the bytes at hand before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import lz4.block
import zstandard

from egpu.errors import InputError
from egpu.image.model import Buffer, Member, MemberKind, Source

# fmt: off
WRAPPER_MAGIC = 0x466243B1  # the 24-byte record that points at a fatbin (.nvFatBinSegment)
WRAPPER_SIZE  = 24
FATBIN_MAGIC  = 0xBA55ED50
HEADER        = struct.Struct("<IHHQ")  # magic, version, header size, payload size
ENTRY_MINIMUM = 64                      # entry headers: 64 (cubin), 80 (PTX), 112 (sm_100 cubin)
ENTRY = (  # fields of an entry header, each with its format and what is behind it
    ("kind",            "H2x"),
    ("header_size",     "I"),
    ("payload_size",    "Q"),    # padded to 8
    ("compressed_size", "I8x"),  # 0: stored plain
    ("arch",            "I8x"),  # 90 for sm_90 and compute_90
    ("flags",           "Q8x"),
    ("size",            "Q"),    # unpacked, 0 when stored plain
)
KINDS = {1: MemberKind.PTX, 2: MemberKind.CUBIN}  # others (NVVM IR, LTO) are not for loading
FLAG_LZ4             = 0x2000
FLAG_ZSTD            = 0x8000
FLAG_ARCH_SPECIFIC   = 0x100000  # the "a" of sm_90a
FLAG_FAMILY_SPECIFIC = 0x200000  # the "f" of sm_100f
# fmt: on

UNPACKED_LIMIT = 1 << 30  # bytes; the largest known member (cuDNN) is below a tenth of it
_LZ4_EXPANSION = 255  # most bytes that one byte of an LZ4 block can give
_CHUNK = 1 << 20
_ENTRY = struct.Struct("<" + "".join(form for _, form in ENTRY))


class _Entry(NamedTuple):
    """The fields of ``ENTRY``."""

    kind: int
    header_size: int
    payload_size: int
    compressed_size: int
    arch: int
    flags: int
    size: int


def read_fatbins(
    data: Source, wanted: Callable[[Member], bool] = lambda member: True
) -> tuple[Member, ...]:
    """The members of the fatbins that follow each other in ``data``, wrappers and padding skipped.

    Those that are not ``wanted`` have no data.  InputError when a header points outside ``data``.
    """
    members: list[Member] = []
    at = 0
    while at < len(data):
        head = data[at : at + HEADER.size]
        if int.from_bytes(head[:4], "little") == WRAPPER_MAGIC:
            at += WRAPPER_SIZE
        elif members_end := _fatbin_end(data, at, head):
            members.extend(_entries(data, at, members_end, wanted))
            at = members_end
        elif not any(head[:8]):
            at += 8  # padding
        else:
            raise _malformed(at, "neither a fatbin header nor padding")
    return tuple(members)


def fatbin_length(head: bytes) -> int:
    """Bytes of the fatbin that begins with ``head`` (16 bytes or more); InputError if none does."""
    if len(head) < HEADER.size:
        raise _malformed(0, "the header is cut off")
    magic, _version, header_size, payload = HEADER.unpack_from(head)
    if magic != FATBIN_MAGIC:
        raise _malformed(0, f"magic {magic:#x} instead of {FATBIN_MAGIC:#x}")
    if header_size < HEADER.size:
        raise _malformed(0, f"a header of {header_size} bytes")
    return int(header_size + payload)


def _fatbin_end(data: Source, at: int, head: bytes) -> int:
    """End of the fatbin at ``at``, 0 when none begins there."""
    if int.from_bytes(head[:4], "little") != FATBIN_MAGIC:
        return 0
    end = at + fatbin_length(head)
    if end > len(data):
        raise _malformed(at, f"it ends at byte {end} of {len(data)}")
    return end


def _entries(data: Source, begin: int, end: int, wanted: Callable[[Member], bool]) -> list[Member]:
    members: list[Member] = []
    at = begin + int(HEADER.unpack(data[begin : begin + HEADER.size])[2])
    while end - at >= ENTRY_MINIMUM:
        head = data[at : at + ENTRY_MINIMUM]
        entry = _Entry(*_ENTRY.unpack(head))
        header_size, payload_size = entry.header_size, entry.payload_size
        if header_size < ENTRY_MINIMUM or at + header_size + payload_size > end:
            raise _malformed(at, f"an entry of {header_size} + {payload_size} bytes does not fit")
        if entry.kind in KINDS:
            payload = at + header_size
            stored = _stored(payload, entry)
            member = _member(payload, entry)
            if wanted(member):
                member = member._replace(data=data[payload : payload + stored])
            members.append(member)
        at += header_size + payload_size
    if any(data[at:end]):
        raise _malformed(at, "bytes left after the last entry")
    return members


def _stored(payload: int, entry: _Entry) -> int:
    """How many bytes are stored of a member."""
    if entry.compressed_size > entry.payload_size:
        raise _malformed(
            payload, f"{entry.compressed_size} compressed bytes in {entry.payload_size}"
        )
    return entry.compressed_size or entry.payload_size


def _member(payload: int, entry: _Entry) -> Member:
    """What is known of a member of which nothing was read."""
    flags, compression = entry.flags, "none"
    if entry.compressed_size:
        match flags & (FLAG_LZ4 | FLAG_ZSTD):
            case 0x2000:
                compression = "lz4"
            case 0x8000:
                compression = "zstd"
            case _:
                raise _malformed(payload, f"unknown compression (flags {flags:#x})")
    suffix = "a" if flags & FLAG_ARCH_SPECIFIC else "f" if flags & FLAG_FAMILY_SPECIFIC else ""
    return Member(
        kind=KINDS[entry.kind],
        arch=entry.arch,
        suffix=suffix,
        compression=compression,
        data=b"",
        size=entry.size if compression != "none" else entry.payload_size,
        offset=payload,
    )


def unpack(member: Member) -> bytes:
    """The bytes of a member, decompressed.

    Never gives (or allocates) more than the member declares; InputError when its data do not give
    exactly that.
    """
    return bytes(_unpacked(member, _unzstd))


def unpack_into(member: Member, room: Callable[[int], memoryview]) -> Buffer:
    """The same in what ``room`` gives for so many bytes, if the member is compressed so that it can
    be told before how many it takes; else in bytes of its own."""
    return _unpacked(member, partial(_unzstd_into, room))


def _unpacked(member: Member, unzstd: Callable[[Member], Buffer]) -> Buffer:
    where = f"fatbin member at byte {member.offset}"
    if member.compression == "none":
        if len(member.data) != member.size:
            raise InputError("it was not read", where=where)
        return member.data
    if member.size > UNPACKED_LIMIT:
        raise InputError(f"declares {member.size} bytes, over {UNPACKED_LIMIT}", where=where)
    try:
        plain = _unlz4(member) if member.compression == "lz4" else unzstd(member)
    except (zstandard.ZstdError, lz4.block.LZ4BlockError) as error:
        raise InputError(f"damaged {member.compression} data ({error})", where=where) from error
    if len(plain) != member.size:
        raise InputError(
            f"{member.compression} data do not unpack to the declared {member.size} bytes",
            where=where,
        )
    return plain


def _unlz4(member: Member) -> bytes:
    if member.size > _LZ4_EXPANSION * len(member.data):
        return b""  # cannot be: not worth the allocation
    return bytes(lz4.block.decompress(member.data, uncompressed_size=member.size))


def _unzstd_into(room: Callable[[int], memoryview], member: Member) -> Buffer:
    if not _says_its_size(member):
        return _unzstd(member)
    place = room(member.size)
    opened = zstandard.ZstdDecompressor().stream_reader(member.data, read_across_frames=True)
    with opened as reader:
        filled = reader.readinto(place) == member.size and not reader.read(1)
    return place if filled else b""


def _says_its_size(member: Member) -> bool:
    """Whether what is allocated is what was declared twice."""
    return bool(zstandard.get_frame_parameters(member.data).content_size == member.size)


def _unzstd(member: Member) -> bytes:
    if _says_its_size(member):  # what does not fit is refused
        return zstandard.ZstdDecompressor().decompress(member.data, allow_extra_data=False)
    chunks: list[bytes] = []
    room = member.size + 1  # one more byte than declared shows that there are too many
    with zstandard.ZstdDecompressor().stream_reader(member.data) as reader:
        while room and (chunk := reader.read(min(room, _CHUNK))):
            chunks.append(chunk)
            room -= len(chunk)
    return b"".join(chunks)


def _malformed(at: int, message: str) -> InputError:
    return InputError(message, where=f"fatbin, byte {at}")
