"""What GPUs load: fatbins, cubins and PTX, opened and listed."""

from egpu.image.fatbin import unpack
from egpu.image.model import Image, ImageKind, KernelInfo, Member, MemberKind
from egpu.image.open import (
    choose_cubin,
    choose_ptx,
    has_ptx,
    image_length,
    kept_ptx,
    list_kernels,
    open_image,
    ptx_text,
)

__all__ = [
    "Image",
    "ImageKind",
    "KernelInfo",
    "Member",
    "MemberKind",
    "choose_cubin",
    "choose_ptx",
    "has_ptx",
    "image_length",
    "kept_ptx",
    "list_kernels",
    "open_image",
    "ptx_text",
    "unpack",
]
