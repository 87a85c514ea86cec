"""Images: what a program gives the driver (PTX text, a cubin or a fatbin), opened."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

Buffer: TypeAlias = bytes | memoryview  # of which nobody changes a byte while it is looked at


class Source(Protocol):
    """Bytes of an image, of which only those are read that somebody asks for."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


class ImageKind(enum.Enum):
    """What the bytes are."""

    PTX = "ptx"
    CUBIN = "cubin"
    FATBIN = "fatbin"


class MemberKind(enum.Enum):
    """What a member of an image holds."""

    PTX = "ptx"
    CUBIN = "cubin"


class Member(NamedTuple):
    """One PTX text or cubin of an image.

    ``arch`` 90 for sm_90 or compute_90; ``suffix`` "a", "f" or "".  ``data`` as stored (compressed
    if ``compression`` is not "none"), none of a member that was left out; ``egpu.image.unpack``
    gives the bytes.  ``size`` is the unpacked size in bytes, 0 if the image does not say.
    """

    kind: MemberKind
    arch: int
    suffix: str
    compression: str  # "none", "zstd", "lz4"
    data: bytes
    size: int
    offset: int  # of the payload in the image


@dataclass(frozen=True, slots=True)
class Image:
    """An opened image.  ``digest`` is the SHA-256 of its bytes, or of what one device can use of
    them (``open_for``)."""

    kind: ImageKind
    members: tuple[Member, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A kernel of a member, for listings. ``registers`` and ``shared`` are 0 when unknown (PTX)."""

    name: str
    parameters: tuple[tuple[int, int], ...]  # (offset, size) of each
    registers: int = 0
    shared: int = 0
    has_ptx: bool = False
