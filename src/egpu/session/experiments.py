"""What is not yet proven on a real GPU, and refused there."""

from __future__ import annotations

from collections.abc import Iterable

from egpu.bpf.maptypes import traits
from egpu.errors import UnsupportedError
from egpu.verifier import VerifiedProgram


def refuse_in_machine_code(programs: Iterable[VerifiedProgram]) -> None:
    """Raise UnsupportedError if one of them works on a hash map.

    On an H200 a kernel with a ``kretprobe.block`` program in its machine code, which meets in a
    hash map, ended with an illegal instruction; why is not known.
    """
    for verified in programs:
        if any(traits(spec.type).hashed for spec in verified.program.maps):
            raise UnsupportedError(
                f"{verified.program.name} works on a hash map, in machine code",
                needs="a kernel with PTX in its image (a kernel has faulted on a real GPU)",
            )
