"""The error types of egpu.

Each carries the data its caller needs.  A message names the thing, the place and the next step.

EgpuError
├── InputError          the user can fix it (exit code 1; ``usage=True`` gives exit code 2)
│   ├── VerifierError   a program was refused; carries instruction, path and states
│   └── MapError        a map refused a change, for Linux's reason; carries the error number
├── UnsupportedError    egpu, this machine or this kernel cannot do it
├── DeviceFault         a kernel faulted (real or simulated device)
├── AgentError          the workload side broke: wire, agent, process
└── InternalError       a bug in egpu
"""

from __future__ import annotations


class EgpuError(Exception):
    """Base of every error that egpu raises on purpose.

    ``str(error)`` is one line; ``hint`` (may be empty) says what to do next.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InputError(EgpuError):
    """Something given to egpu is wrong: a file, an argument, a program.

    ``where`` names the place (file, section, offset, line) and is put before the message.
    """

    def __init__(
        self, message: str, *, where: str = "", hint: str = "", usage: bool = False
    ) -> None:
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.where = where
        self.usage = usage


class VerifierError(InputError):
    """A program was refused.

    ``rule`` is the property's id ("P2"), ``pc`` the slot index of the instruction, ``line`` the
    source line if BTF.ext has one, ``path`` the rendered way that led there (one entry per
    instruction, with register states), empty when it was not recorded.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str,
        program: str,
        pc: int,
        insn: str = "",
        line: str = "",
        hint: str = "",
        path: tuple[str, ...] = (),
    ) -> None:
        place = f"{program}: insn {pc}" + (f" ({insn})" if insn else "")
        super().__init__(message, where=f"{place} at {line}" if line else place, hint=hint)
        self.rule = rule
        self.program = program
        self.pc = pc
        self.insn = insn
        self.line = line
        self.path = path


class MapError(InputError):
    """A map refused a change; ``errno`` is Linux's number, as in the errno module."""

    def __init__(self, message: str, *, errno: int, where: str = "", hint: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.errno = errno


class UnsupportedError(EgpuError):
    """``feature`` cannot be done here; ``needs`` says what would make it work."""

    def __init__(self, feature: str, *, needs: str = "") -> None:
        super().__init__(f"not supported: {feature}", hint=f"needs {needs}" if needs else "")
        self.feature = feature
        self.needs = needs


class DeviceFault(EgpuError):
    """A kernel faulted. ``kernel``, ``block`` and ``thread`` say where, if known."""

    def __init__(
        self,
        message: str,
        *,
        kernel: str = "",
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
    ) -> None:
        place = kernel or "device"
        if block is not None:
            place += f", block {block}"
        if thread is not None:
            place += f", thread {thread}"
        super().__init__(f"{place}: {message}")
        self.kernel = kernel
        self.block = block
        self.thread = thread


class AgentError(EgpuError):
    """The agent, its process or the wire between it and the session failed."""


class InternalError(EgpuError):
    """A bug in egpu: an invariant that its own code must keep does not hold."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="this is a bug in egpu, please report it")
