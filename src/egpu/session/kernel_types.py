"""The kernel's types for CO-RE relocations: the running kernel's, or those of a file."""

from __future__ import annotations

import functools
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from egpu.bpf.btf import Btf
from egpu.bpf.core_target import CoreTarget, Provider
from egpu.errors import InputError, UnsupportedError

RUNNING = Path("/sys/kernel/btf/vmlinux")
_LIMIT = 256 << 20  # bytes of BTF; a kernel has 5 to 20 MiB


def kernel_types(path: Path | None = None) -> Provider:
    """Gives the types of ``path``, or the running kernel's, which are read when it is first asked.

    ``path`` holds BTF as it is, or an ELF file (vmlinux) with a section ``.BTF``; InputError if it
    cannot be read, whether or not anybody will ask.  Asking raises UnsupportedError if the running
    kernel has no BTF.
    """

    @functools.cache
    def read() -> CoreTarget:
        if path is None and not RUNNING.exists():
            raise UnsupportedError(
                f"CO-RE relocations on this machine: it has no {RUNNING}",
                needs="a kernel with CONFIG_DEBUG_INFO_BTF, or its BTF by --btf FILE",
            )
        chosen = path or RUNNING
        return CoreTarget.of(Btf.parse(_bytes(chosen), str(chosen)), str(chosen))

    if path is not None:
        read()
    return read


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                file.seek(0)
                data = file.read(_LIMIT + 1)
            else:
                section = ELFFile(file).get_section_by_name(".BTF")
                data = b"" if section is None else section.data()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ELFError, ValueError) as error:
        raise InputError(f"malformed ELF file: {error}", where=str(path)) from error
    if not data or len(data) > _LIMIT:
        raise InputError("it holds no BTF", where=str(path), hint="give vmlinux or its BTF")
    return bytes(data)
