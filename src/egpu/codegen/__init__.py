"""Floor 3: a verified program becomes code. eBPF to LLVM IR to PTX or x86-64."""

from egpu.codegen.device_code import DeviceCode, Launch, Relocation, RelocKind, Target
from egpu.codegen.executor import OPERATE_KERNEL, compile_executor_ptx, compile_operate_ptx
from egpu.codegen.host import HostArenas, HostProgram, run_host
from egpu.codegen.primitives import Together
from egpu.codegen.probe import compile_probe

__all__ = [
    "OPERATE_KERNEL",
    "DeviceCode",
    "HostArenas",
    "HostProgram",
    "Launch",
    "RelocKind",
    "Relocation",
    "Target",
    "Together",
    "compile_executor_ptx",
    "compile_operate_ptx",
    "compile_probe",
    "run_host",
]
