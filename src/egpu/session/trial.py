"""Can this kernel be probed?  Tried for real, without a workload or a device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from egpu.agent.twin import DeviceInfo, KernelSeen, Refused, Twin, Unmatched
from egpu.bpf.program import Object
from egpu.errors import EgpuError
from egpu.image import KernelInfo, Member, MemberKind, kept_ptx, list_kernels, open_image, unpack
from egpu.maps import plan
from egpu.session.additive import additive_maps
from egpu.session.arrivals import verify_all
from egpu.session.assemble import Assembler, find_ptxas
from egpu.session.attached import ProbeSet
from egpu.session.cache import Way
from egpu.session.objects import combine
from egpu.session.twins import TwinBuilder
from egpu.verifier import VerifiedProgram

_SMS = 132  # of the device that is assumed; it changes sizes of maps, not what is possible
_PTX_ARCH = 90  # device for which PTX is tried, unless it is for a later one


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one kernel.

    ``way``: how the probes would get in; NONE with the ``reason`` if they cannot, or if no program
    asks for the kernel.  Registers of a thread before and after, 0 where not known.  ``took_ms``:
    milliseconds.
    """

    kernel: str
    way: Way
    reason: str = ""
    registers_before: int = 0
    registers_after: int = 0
    entry_sites: int = 0
    exit_sites: int = 0
    uncovered: tuple[str, ...] = ()
    took_ms: float = 0.0


class Trials:
    """Tries kernels with the programs of ``objects`` (verified here: VerifierError).

    Without ptxas PTX is spliced and not assembled, and machine code cannot be tried.  A cubin whose
    machine code is refused is tried by the PTX that it may keep.
    """

    def __init__(self, objects: Sequence[Object], *, kernels: str = "") -> None:
        collection = combine(objects)
        self._verified = verify_all(collection.programs)
        self._maps = collection.maps
        self._only = kernels
        ptxas = find_ptxas()
        self._assembler = Assembler(ptxas) if ptxas is not None else None
        # Each keeps what it opened and compiled; members are told apart by the module's number.
        self._by_text = self._builder(machine_code=False)
        self._by_code = self._builder(machine_code=True)
        self._members: list[Member] = []

    @property
    def programs(self) -> tuple[VerifiedProgram, ...]:
        """What is put into the kernels."""
        return self._verified

    def of(self, member: Member, kernel: KernelInfo) -> Trial:
        """Try one kernel of a member. Never raises EgpuError."""
        arch = member.arch
        if member.kind is MemberKind.PTX:
            arch = max(arch, _PTX_ARCH)
        seen = KernelSeen(
            pid=0,
            device=DeviceInfo(0, arch // 10, arch % 10, _SMS, ""),
            kernel=kernel.name,
            module=self._number(member),
            slot=0,
            image=lambda: unpack(member),
        )
        started = time.perf_counter()
        builder = self._by_code if member.kind is MemberKind.CUBIN else self._by_text
        answer = builder.resolve(seen)
        if isinstance(answer, Refused) and kept_ptx(member):
            second = self._by_text.resolve(seen)
            if isinstance(second, Twin):
                builder, answer = self._by_text, second
        took = (time.perf_counter() - started) * 1e3
        match answer:
            case Unmatched():
                return Trial(kernel.name, Way.NONE, "no program asks for it")
            case Refused(reason=reason):
                return Trial(kernel.name, Way.NONE, reason, kernel.registers, took_ms=took)
            case Twin():
                report = next(each for each in builder.reports() if each.kernel == kernel.name)
                return Trial(
                    kernel.name,
                    report.way,
                    "",
                    kernel.registers,
                    _registers(answer.image, kernel.name),
                    report.entry_sites,
                    report.exit_sites,
                    report.uncovered,
                    took,
                )

    def _number(self, member: Member) -> int:
        for number, known in enumerate(self._members):
            if known is member:
                return number
        self._members.append(member)
        return len(self._members) - 1

    def _builder(self, *, machine_code: bool) -> TwinBuilder:
        additive = additive_maps(self._verified, self._maps)
        return TwinBuilder(
            ProbeSet(self._verified, only=self._only),
            self._assembler or (Assembler(None) if machine_code else None),
            None,
            lambda device: plan(self._maps, device.sm_count, additive=additive),
            allow_occupancy_loss=False,
            machine_code=machine_code,
        )


def _registers(image: bytes, kernel: str) -> int:
    """Of the kernel in a built twin; 0 for one that is PTX."""
    try:
        (member,) = open_image(image).members
        return next((k.registers for k in list_kernels(member) if k.name == kernel), 0)
    except EgpuError:
        return 0
