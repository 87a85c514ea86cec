"""PTX: parsed losslessly into a tree over its own text."""

from egpu.image.ptx.parser import parse
from egpu.image.ptx.syntax import Module

__all__ = ["Module", "parse"]
