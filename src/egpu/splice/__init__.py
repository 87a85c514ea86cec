"""Putting probes in: (image, kernel, device code) to an instrumented image."""

from egpu.splice.instrumented import InstrumentedImage
from egpu.splice.occupancy import FREE_REGISTERS, free_registers
from egpu.splice.ptx import kernel_alone, splice_ptx
from egpu.splice.ptxas import assembler_arch, ptxas_arguments
from egpu.splice.sass import InstrumentedCubin, splice_sass, unknown_machine_code
from egpu.splice.sass_encoding import ARCHS as SPLICED_ARCHS
from egpu.splice.sass_globals import GlobalPatch
from egpu.splice.sass_probe import ASSEMBLER_OPTIONS

__all__ = [
    "ASSEMBLER_OPTIONS",
    "FREE_REGISTERS",
    "SPLICED_ARCHS",
    "GlobalPatch",
    "InstrumentedCubin",
    "InstrumentedImage",
    "assembler_arch",
    "free_registers",
    "kernel_alone",
    "ptxas_arguments",
    "splice_ptx",
    "splice_sass",
    "unknown_machine_code",
]
