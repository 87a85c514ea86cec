"""What eBPF is: instructions, objects, types, section names, and a reference interpreter.

Tables: ``isa`` (instructions), ``helpers``, ``maptypes``, ``context``.  ``header`` generates what
authors of probes include and is run as a module, so it is not imported here.
"""

from egpu.bpf.asm import assemble, disassemble, format_insn
from egpu.bpf.btf import Btf
from egpu.bpf.conformance import Case, read_case
from egpu.bpf.demangle import demangle
from egpu.bpf.insn import decode, encode, program_from_code
from egpu.bpf.interp import run
from egpu.bpf.interp_state import MapState, Place
from egpu.bpf.maptypes import MapType
from egpu.bpf.object import read_object
from egpu.bpf.program import (
    AttachKind,
    AttachPoint,
    Function,
    Insn,
    Level,
    MapSpec,
    Object,
    Program,
    SourceLine,
)
from egpu.bpf.sections import matches, parse_section

__all__ = [
    "AttachKind",
    "AttachPoint",
    "Btf",
    "Case",
    "Function",
    "Insn",
    "Level",
    "MapSpec",
    "MapState",
    "MapType",
    "Object",
    "Place",
    "Program",
    "SourceLine",
    "assemble",
    "decode",
    "demangle",
    "disassemble",
    "encode",
    "format_insn",
    "matches",
    "parse_section",
    "program_from_code",
    "read_case",
    "read_object",
    "run",
]
