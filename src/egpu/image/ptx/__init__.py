"""PTX: parsed losslessly into a tree over its own text."""

from egpu.image.ptx.parser import parse

__all__ = ["parse"]
