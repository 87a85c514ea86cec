"""Opening images, choosing the PTX that fits a device, listing kernels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from egpu.errors import InputError, UnsupportedError
from egpu.image.cubin import (
    ELF_MAGIC,
    HEADER_SIZE,
    elf_length,
    elf_tables_end,
    list_cubin_kernels,
    open_cubin,
    ptx_sections,
    recovered_ptx,
)
from egpu.image.fatbin import (
    FATBIN_MAGIC,
    HEADER,
    WRAPPER_MAGIC,
    fatbin_length,
    read_fatbins,
    unpack,
)
from egpu.image.model import Image, ImageKind, KernelInfo, Member, MemberKind, Source
from egpu.image.ptx import parse

LENGTH_LIMIT = 1 << 32  # bytes of an image; no header that claims more is believed
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_HEADER = re.compile(rb"\s*\.version\s+[0-9.]+\s+\.target\s+(?:sm|compute)_([0-9]{1,4})([af]?)")
_HEADER_SPACE = 1 << 16  # bytes in which a PTX header must begin; compilers put a few lines first
_SUFFIX_RANK = {"": 0, "f": 1, "a": 2}
_PTX_CHUNK = 4096


def open_image(data: bytes) -> Image:
    """What ``data`` is and what it holds; InputError when it is no image or a malformed one.

    PTX may end with a NUL, as the driver takes it; what follows the NUL is not part of it.
    """
    digest = hashlib.sha256(data).hexdigest()
    magic = int.from_bytes(data[:4], "little")
    if magic in (FATBIN_MAGIC, WRAPPER_MAGIC):
        return Image(ImageKind.FATBIN, read_fatbins(data), digest)
    if data[:4] == ELF_MAGIC[:4]:
        cubin = open_cubin(data)
        member = Member(MemberKind.CUBIN, cubin.arch, cubin.suffix, "none", data, len(data), 0)
        return Image(ImageKind.CUBIN, (member,), digest)
    return Image(ImageKind.PTX, (_ptx_member(data.partition(b"\0")[0], 0),), digest)


def open_for(source: Source, arch: int) -> Image:
    """What a device of ``arch`` (90) can use of an image: other members of a fatbin are named, and
    not read.  ``digest`` is of these members alone: what they decide is the same in every image.

    InputError as from ``open_image``.
    """
    if int.from_bytes(source[:4], "little") not in (FATBIN_MAGIC, WRAPPER_MAGIC):
        return open_image(source[: len(source)])
    members = read_fatbins(source, lambda member: _is_for(member, arch))
    digest = hashlib.sha256(f"members for {arch}".encode())
    for each in members:
        if _is_for(each, arch):
            head = (each.kind.value, each.arch, each.suffix, each.compression, each.size)
            digest.update(f"\n{head} {len(each.data)}\n".encode())
            digest.update(each.data)
    return Image(ImageKind.FATBIN, members, digest.hexdigest())


def _is_for(member: Member, arch: int) -> bool:
    """Whether a device can use a member, or the text that a cubin of it keeps."""
    if member.kind is MemberKind.CUBIN:
        return member.arch // 10 == arch // 10 and member.arch <= arch
    return _runs_on(member, arch, "a")


def _ptx_member(text: bytes, offset: int) -> Member:
    header = _ptx_header(text)
    if header is None:
        raise InputError("neither a fatbin, a cubin nor PTX text", where="image")
    return Member(
        MemberKind.PTX, int(header[1]), header[2].decode(), "none", text, len(text), offset
    )


def _ptx_header(text: bytes) -> re.Match[bytes] | None:
    return _HEADER.match(_COMMENT.sub(b" ", text[:_HEADER_SPACE]))


def image_length(read: Callable[[int, int], bytes]) -> int:
    """How many bytes the image at a pointer has: the rule that the agent follows too.

    ``read(offset, size)`` gives bytes from the pointer on (fewer where memory ends).  A fatbin says
    it in its header; an ELF file ends where its header tables, segments and sections end; PTX ends
    with a NUL, which is counted.  InputError when no end can be found.
    """
    head = read(0, HEADER_SIZE)
    if int.from_bytes(head[:4], "little") == FATBIN_MAGIC:
        length = fatbin_length(head[: HEADER.size])
    elif head[:4] == ELF_MAGIC[:4]:
        tables = elf_tables_end(head)
        length = elf_length(read(0, tables)) if tables <= LENGTH_LIMIT else tables
    else:
        return _text_length(read)
    if length > LENGTH_LIMIT:
        raise InputError(f"its header claims {length} bytes", where="image")
    return length


def _text_length(read: Callable[[int, int], bytes]) -> int:
    at = 0
    while at < LENGTH_LIMIT:
        chunk = read(at, _PTX_CHUNK)
        end = chunk.find(b"\0")
        if end >= 0:
            return at + end + 1
        if len(chunk) < _PTX_CHUNK:
            break
        at += len(chunk)
    raise InputError("PTX text without a NUL at its end", where="image")


def ptx_text(member: Member) -> str:
    """The text of a PTX member, without its closing NUL.

    Bytes that are not UTF-8 (paths in comments) come back unchanged when it is encoded with
    ``surrogateescape``.
    """
    return unpack(member).partition(b"\0")[0].decode("utf-8", "surrogateescape")


def choose_ptx(image: Image, arch: int, suffix: str = "a", *, kernel: str = "") -> Member:
    """The best PTX of an image for a device of ``arch`` (90 for compute capability 9.0).

    The highest one that the device can run: plain PTX of any lower or equal arch, "f" PTX of the
    same major number, "a" PTX of exactly this arch.  ``suffix`` says which of them the caller can
    use: "a" all, "f" no "a" ones, "" only plain ones.  With ``kernel``, members without that entry
    are passed over.  The text that ptxas keeps in a cubin compiled with line information counts as
    PTX where the image has none for so high an arch: it is what the driver's choice was made from.
    UnsupportedError, which lists the members, when there is none.
    """
    texts = [each for each in image.members if each.kind is MemberKind.PTX]
    best = max((each.arch for each in texts if _runs_on(each, arch, suffix)), default=0)
    texts += _recovered(image, above=best, arch=arch)
    fitting = [each for each in texts if _runs_on(each, arch, suffix)]
    if kernel and len(fitting) > 1:
        entry = re.compile(rb"\.entry\s+" + re.escape(kernel.encode()) + rb"(?![\w$])")
        fitting = [each for each in fitting if entry.search(unpack(each))] or fitting
    if fitting:
        return max(fitting, key=lambda each: (each.arch, _SUFFIX_RANK[each.suffix]))
    listed = ", ".join(_named(each) for each in image.members) or "nothing"
    if texts:
        raise UnsupportedError(
            f"PTX splicing for sm_{arch}: the image holds {listed}", needs="PTX for this device"
        )
    raise UnsupportedError(
        f"PTX splicing of an image with only machine code (it holds {listed})",
        needs="PTX in the image (-gencode arch=...,code=compute_...)",
    )


def fitting_cubins(image: Image, arch: int) -> list[Member]:
    """Cubins that a device of ``arch`` can run, the one that it prefers first.

    A cubin runs on devices of its major number and an equal or later minor one ("a" and "f" ones as
    PTX does).
    """
    fitting = [
        each
        for each in image.members
        if each.kind is MemberKind.CUBIN and _is_for(each, arch) and _runs_on(each, arch, "a")
    ]
    return sorted(fitting, key=lambda each: (-each.arch, -_SUFFIX_RANK[each.suffix]))


def choose_cubin(image: Image, arch: int, kernel: str) -> Member:
    """The machine code that a device of ``arch`` runs for ``kernel``.

    UnsupportedError, which lists the members, when no cubin for the device has the kernel.
    """
    for member in fitting_cubins(image, arch):
        if any(info.name == kernel for info in list_kernels(member)):
            return member
    raise no_cubin(image, arch, kernel)


def no_cubin(image: Image, arch: int, kernel: str) -> UnsupportedError:
    """What is said when an image has no machine code for a device with ``kernel``."""
    listed = ", ".join(_named(each) for each in image.members) or "nothing"
    return UnsupportedError(
        f"splicing {kernel} (the image holds {listed})",
        needs=f"PTX or machine code for sm_{arch} that has this kernel",
    )


def has_ptx(image: Image) -> bool:
    """Whether a member is PTX (text that a cubin keeps for debuggers does not count)."""
    return any(each.kind is MemberKind.PTX for each in image.members)


def _runs_on(member: Member, arch: int, suffix: str) -> bool:
    if _SUFFIX_RANK[member.suffix] > _SUFFIX_RANK[suffix]:
        return False
    if member.suffix == "a":
        return member.arch == arch
    if member.suffix == "f":
        return member.arch // 10 == arch // 10 and member.arch <= arch
    return member.arch <= arch


def _recovered(image: Image, *, above: int, arch: int) -> list[Member]:
    """PTX texts inside the cubins for more than arch ``above`` that this device can run."""
    found: list[Member] = []
    for member in image.members:
        if member.kind is MemberKind.CUBIN and _is_for(member, arch) and member.arch > above:
            found += kept_ptx(member)
    return found


def kept_ptx(member: Member) -> tuple[Member, ...]:
    """The PTX texts that ptxas kept in a cubin for debuggers: in ``.nv_debug_ptx_txt``, when it
    was asked for line information (``-lineinfo``, ``-g``) or the PTX has any, as Triton's does.

    Lines end with NUL there; comments, ``.file`` and ``.loc`` are blank.  A text that does not
    begin as PTX does is passed over.  InputError for a malformed cubin.
    """
    if member.kind is not MemberKind.CUBIN:
        return ()
    cubin = open_cubin(unpack(member))
    texts = ((section, recovered_ptx(cubin, section)) for section in ptx_sections(cubin))
    return tuple(
        _ptx_member(text, member.offset + section.offset)
        for section, text in texts
        if _ptx_header(text)
    )


def _named(member: Member) -> str:
    prefix = "PTX compute" if member.kind is MemberKind.PTX else "cubin sm"
    return f"{prefix}_{member.arch}{member.suffix}"


def list_kernels(member: Member) -> tuple[KernelInfo, ...]:
    """The kernels that a member defines; InputError when it is malformed."""
    if member.kind is MemberKind.CUBIN:
        return list_cubin_kernels(open_cubin(unpack(member)))
    return tuple(
        KernelInfo(
            name=function.name,
            parameters=tuple((each.offset, each.size) for each in function.parameters),
            has_ptx=True,
        )
        for function in parse(ptx_text(member)).functions
        if function.is_entry and function.body is not None
    )
