"""Fat binaries: the container that nvcc puts PTX and cubins in.

NVIDIA does not document the format; the tables hold what nvcc 11 to 13 were seen to write.  All
numbers are little-endian.  Every field is checked against the bytes at hand before it is used.
"""

from __future__ import annotations

import struct

import lz4.block
import zstandard

from egpu.errors import InputError
from egpu.image.model import Member, MemberKind

# fmt: off
WRAPPER_MAGIC = 0x466243B1  # the 24-byte record that points at a fatbin (.nvFatBinSegment)
WRAPPER_SIZE  = 24
FATBIN_MAGIC  = 0xBA55ED50
HEADER        = struct.Struct("<IHHQ")  # magic, version, header size, payload size
ENTRY_MINIMUM = 64                      # entry headers: 64 (cubin), 80 (PTX), 112 (sm_100 cubin)
ENTRY = {  # field: (offset in the entry header, format)
    "kind":            (0,  "<H"),
    "header_size":     (4,  "<I"),
    "payload_size":    (8,  "<Q"),  # padded to 8
    "compressed_size": (16, "<I"),  # 0: stored plain
    "arch":            (28, "<I"),  # 90 for sm_90 and compute_90
    "flags":           (40, "<Q"),
    "size":            (56, "<Q"),  # unpacked, 0 when stored plain
}
KINDS = {1: MemberKind.PTX, 2: MemberKind.CUBIN}  # others (NVVM IR, LTO) are not for loading
FLAG_LZ4             = 0x2000
FLAG_ZSTD            = 0x8000
FLAG_ARCH_SPECIFIC   = 0x100000  # the "a" of sm_90a
FLAG_FAMILY_SPECIFIC = 0x200000  # the "f" of sm_100f
# fmt: on

UNPACKED_LIMIT = 1 << 30  # bytes; the largest known member (cuDNN) is below a tenth of it
_LZ4_EXPANSION = 255  # most bytes that one byte of an LZ4 block can give
_CHUNK = 1 << 20


def read_fatbins(data: bytes) -> tuple[Member, ...]:
    """The members of the fatbins that follow each other in ``data``, wrappers and padding skipped.

    InputError when a header points outside ``data``.
    """
    members: list[Member] = []
    at = 0
    while at < len(data):
        if int.from_bytes(data[at : at + 4], "little") == WRAPPER_MAGIC:
            at += WRAPPER_SIZE
        elif members_end := _fatbin_end(data, at):
            members.extend(_entries(data, at, members_end))
            at = members_end
        elif not any(data[at:]):
            break  # padding after the last one
        elif not any(data[at : at + 8]):
            at += 8
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


def _fatbin_end(data: bytes, at: int) -> int:
    """End of the fatbin at ``at``, 0 when none begins there."""
    if int.from_bytes(data[at : at + 4], "little") != FATBIN_MAGIC:
        return 0
    end = at + fatbin_length(data[at : at + HEADER.size])
    if end > len(data):
        raise _malformed(at, f"it ends at byte {end} of {len(data)}")
    return end


def _entries(data: bytes, begin: int, end: int) -> list[Member]:
    members: list[Member] = []
    at = begin + int(HEADER.unpack_from(data, begin)[2])
    while end - at >= ENTRY_MINIMUM:
        entry = {
            name: int(struct.unpack_from(form, data, at + offset)[0])
            for name, (offset, form) in ENTRY.items()
        }
        header_size, payload_size = entry["header_size"], entry["payload_size"]
        if header_size < ENTRY_MINIMUM or at + header_size + payload_size > end:
            raise _malformed(at, f"an entry of {header_size} + {payload_size} bytes does not fit")
        if entry["kind"] in KINDS:
            payload = at + header_size
            members.append(_member(data, payload, entry))
        at += header_size + payload_size
    if any(data[at:end]):
        raise _malformed(at, "bytes left after the last entry")
    return members


def _member(data: bytes, payload: int, entry: dict[str, int]) -> Member:
    flags, stored = entry["flags"], entry["payload_size"]
    compression = "none"
    if entry["compressed_size"]:
        if entry["compressed_size"] > stored:
            raise _malformed(payload, f"{entry['compressed_size']} compressed bytes in {stored}")
        stored = entry["compressed_size"]
        match flags & (FLAG_LZ4 | FLAG_ZSTD):
            case 0x2000:
                compression = "lz4"
            case 0x8000:
                compression = "zstd"
            case _:
                raise _malformed(payload, f"unknown compression (flags {flags:#x})")
    suffix = "a" if flags & FLAG_ARCH_SPECIFIC else "f" if flags & FLAG_FAMILY_SPECIFIC else ""
    return Member(
        kind=KINDS[entry["kind"]],
        arch=entry["arch"],
        suffix=suffix,
        compression=compression,
        data=data[payload : payload + stored],
        size=entry["size"] if compression != "none" else stored,
        offset=payload,
    )


def unpack(member: Member) -> bytes:
    """The bytes of a member, decompressed.

    Never gives (or allocates) more than the member declares; InputError when its data do not give
    exactly that.
    """
    if member.compression == "none":
        return member.data
    where = f"fatbin member at byte {member.offset}"
    if member.size > UNPACKED_LIMIT:
        raise InputError(f"declares {member.size} bytes, over {UNPACKED_LIMIT}", where=where)
    try:
        plain = _unlz4(member) if member.compression == "lz4" else _unzstd(member)
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


def _unzstd(member: Member) -> bytes:
    chunks: list[bytes] = []
    room = member.size + 1  # one more byte than declared shows that there are too many
    with zstandard.ZstdDecompressor().stream_reader(member.data) as reader:
        while room and (chunk := reader.read(min(room, _CHUNK))):
            chunks.append(chunk)
            room -= len(chunk)
    return b"".join(chunks)


def _malformed(at: int, message: str) -> InputError:
    return InputError(message, where=f"fatbin, byte {at}")
