"""What GPUs load: fatbins, cubins and PTX, opened and listed."""

from egpu.image.cubin import open_cubin
from egpu.image.cubin_contents import Contents, contents_of
from egpu.image.fatbin import unpack, unpack_into
from egpu.image.model import Image, ImageKind, KernelInfo, Member, MemberKind, Source
from egpu.image.open import (
    choose_cubin,
    choose_ptx,
    fitting_cubins,
    has_ptx,
    image_length,
    kept_ptx,
    list_kernels,
    no_cubin,
    open_for,
    open_image,
    ptx_text,
)

__all__ = [
    "Contents",
    "Image",
    "ImageKind",
    "KernelInfo",
    "Member",
    "MemberKind",
    "Source",
    "choose_cubin",
    "choose_ptx",
    "contents_of",
    "fitting_cubins",
    "has_ptx",
    "image_length",
    "kept_ptx",
    "list_kernels",
    "no_cubin",
    "open_cubin",
    "open_for",
    "open_image",
    "ptx_text",
    "unpack",
    "unpack_into",
]
