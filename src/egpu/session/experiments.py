"""What is not yet proven on a real GPU, and refused there unless it is asked for."""

from __future__ import annotations

from collections.abc import Iterable

from egpu.bpf.maptypes import traits
from egpu.bpf.own_maps import BLOCKS
from egpu.errors import UnsupportedError
from egpu.session.objects import Collection
from egpu.verifier import VerifiedProgram


def refuse_unproven_maps(collection: Collection) -> None:
    """Raise UnsupportedError if there is a hash map.

    They have been exact on the simulated device and on threads of the host only.  On an H200 a
    stress of 3.5 x 10^7 threads over them did not end within minutes.
    """
    for spec, name in zip(collection.maps, collection.names, strict=True):
        if traits(spec.type).hashed:
            what = "kretprobe.block, which needs a map" if name == BLOCKS else f"map {name}"
            raise UnsupportedError(
                f"{what}: {spec.type.name} on a real GPU (contention may take it minutes)",
                needs="the simulated device (--sim), or --hash-maps to try it all the same",
            )


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
