"""Putting probes in: (image, kernel, device code) to an instrumented image."""

from egpu.splice.instrumented import InstrumentedImage
from egpu.splice.ptx import kernel_alone, splice_ptx
from egpu.splice.ptxas import assembler_arch, ptxas_arguments

__all__ = ["InstrumentedImage", "assembler_arch", "kernel_alone", "ptxas_arguments", "splice_ptx"]
