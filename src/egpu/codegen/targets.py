"""Code-generation targets: triple, CPU, data layout, and LLVM's way from IR text to code.

LLVM is loaded on first use, so that importing egpu loads no native library.  LLVM aborts the whole
process on combinations that it cannot lower, so what reaches it is fixed here: one CPU a target,
and its data layout at the head of every module.
"""

from __future__ import annotations

import enum
import functools
import threading
from dataclasses import dataclass
from typing import Any

from egpu.errors import InternalError

# One LLVM context serves the process and is not safe for threads.
LLVM_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Row:
    triple: str
    cpu: str
    features: str


class Machine(enum.Enum):
    """Machines that LLVM generates code for."""

    NVPTX = "nvptx"
    X86_64 = "x86-64"


# The lowest target egpu supports, and the lowest ISA with activemask (PTX ISA 6.2, section 9.7.14).
_ROWS: dict[Machine, _Row] = {
    Machine.NVPTX: _Row("nvptx64-nvidia-cuda", "sm_70", "+ptx62"),
    Machine.X86_64: _Row("x86_64-unknown-linux-gnu", "x86-64-v2", ""),
}
PTX_ISA = (6, 2)
PTX_TARGET = "sm_70"
_OPTIMISATION = 3


@functools.cache
def _llvm() -> Any:
    from llvmlite import binding  # noqa: PLC0415 - loads LLVM

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


@functools.cache
def _target_machine(machine: Machine) -> Any:
    row = _ROWS[machine]
    target = _llvm().Target.from_triple(row.triple)
    return target.create_target_machine(
        cpu=row.cpu, features=row.features, opt=_OPTIMISATION, jit=machine is Machine.X86_64
    )


def header(machine: Machine) -> str:
    """The first lines of a module for ``machine``: without the data layout LLVM assumes 4-byte
    alignment of 64-bit values and splits every access."""
    with LLVM_LOCK:
        layout = _target_machine(machine).target_data
    return f'target datalayout = "{layout}"\ntarget triple = "{_ROWS[machine].triple}"\n'


def _optimised(text: str, machine: Machine) -> Any:
    llvm = _llvm()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM refuses the generated IR: {error}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION)
    # Vector forms gain nothing for one lane of a GPU and cost registers.
    options.loop_vectorization = False
    options.slp_vectorization = False
    passes = llvm.create_pass_builder(_target_machine(machine), options)
    passes.getModulePassManager().run(module, passes)
    return module


def emit_ptx(text: str) -> str:
    """PTX of an IR module whose header is that of ``Machine.NVPTX``."""
    with LLVM_LOCK:
        module = _optimised(text, Machine.NVPTX)
        assembly: str = _target_machine(Machine.NVPTX).emit_assembly(module)
    wanted = f".version {PTX_ISA[0]}.{PTX_ISA[1]}\n.target {PTX_TARGET}\n"
    if wanted not in assembly:
        raise InternalError(f"LLVM did not keep to PTX {PTX_ISA[0]}.{PTX_ISA[1]} for {PTX_TARGET}")
    return assembly


class HostCode:
    """An IR module compiled for this process. ``close`` frees its code."""

    def __init__(self, text: str) -> None:
        with LLVM_LOCK:
            llvm = _llvm()
            module = _optimised(text, Machine.X86_64)
            self._engine = llvm.create_mcjit_compiler(module, self._fresh_machine(llvm))
            self._engine.finalize_object()

    @staticmethod
    def _fresh_machine(llvm: Any) -> Any:
        # An engine owns its target machine, so the shared one cannot be lent to it.
        row = _ROWS[Machine.X86_64]
        target = llvm.Target.from_triple(row.triple)
        return target.create_target_machine(cpu=row.cpu, features=row.features, opt=2, jit=True)

    def address(self, function: str) -> int:
        """Where ``function`` lies in this process."""
        found: int = self._engine.get_function_address(function)
        if not found:
            raise InternalError(f"the JIT has no function {function}")
        return found

    def close(self) -> None:
        """Free the code; addresses become invalid."""
        with LLVM_LOCK:
            self._engine.close()
