"""P7, P10, P11 and P12: what a program does as one of many threads.

Errors where lanes would hang or disagree, warnings where the program is right and its load is not.
Everything is read from the facts of the finished walk.
"""

from __future__ import annotations

from collections.abc import Iterator

from egpu.bpf.helpers import HELPERS, Arg, Helper
from egpu.bpf.isa import AtomicOp, CallSrc, Kind
from egpu.bpf.maptypes import EVENTS, Storage, ring_bytes, traits
from egpu.bpf.program import Level
from egpu.verifier.liveness import Liveness
from egpu.verifier.report import Refusal
from egpu.verifier.setting import Setting
from egpu.verifier.structure import Step
from egpu.verifier.verified import Cost, Facts, Region, Uniformity

STACK = 256  # bytes a thread: from there on the warning of P12
# Copies of a probe that a block of 1,024 threads runs.
_COPIES = {Level.THREAD: 1024, Level.WARP: 32, Level.BLOCK: 1}
_RESIDENT = 2048  # threads of an SM (CUDA C++ Programming Guide, compute capabilities 7.0 to 10.0)


def level_of(setting: Setting) -> Level:
    """Who runs the program at its sites; the one that makes most copies."""
    levels = [point.level for point in setting.program.attach] or [Level.THREAD]
    return max(levels, key=_COPIES.__getitem__)


def helper_calls(setting: Setting) -> Iterator[tuple[Step, Helper]]:
    """Every call of a helper that egpu knows."""
    for step in setting.structure.of_kind(Kind.CALL):
        if step.src == CallSrc.HELPER:
            helper = HELPERS.get(step.imm)
            if helper is not None:
                yield step, helper


def check_collective(setting: Setting, uniformity: Uniformity) -> None:
    """Refuse warp-collective helpers where lanes may have parted (rule P7)."""
    for step, helper in helper_calls(setting):
        if not helper.collective or step.pc not in uniformity.varying:
            continue
        if uniformity.control_varies(step.pc):
            raise Refusal(
                "P7",
                f"{helper.name} is for all lanes of a warp together, "
                "and not all of them may come to this call",
                step.pc,
                "call it before anything that depends on the lane, a clock or shared memory",
            )
        for position in range(len(helper.args)):
            register = position + 1
            if uniformity.register_varies(step.pc, register):
                raise Refusal(
                    "P7",
                    f"r{register} of {helper.name} may differ between the lanes of a warp",
                    step.pc,
                    "pass a value that all lanes share",
                )


def load_warnings(setting: Setting, alive: Liveness, facts: Facts, cost: Cost) -> Iterator[Refusal]:
    """The warnings of P10, P11 and P12, but for atomics to one address."""
    yield from _ring(setting, cost)
    yield from _atomics(setting, alive, facts, cost)
    if facts.stack_depth > STACK:
        kib = facts.stack_depth * _RESIDENT // 1024
        yield Refusal(
            "P12",
            f"{facts.stack_depth} bytes of stack a thread: what does not fit registers is "
            f"local memory, up to {kib} KiB on every SM",
            0,
            "move large variables to a map",
        )


_RINGS = frozenset({"RINGBUF", *(kind.name for kind in EVENTS)})


def _ring(setting: Setting, cost: Cost) -> Iterator[Refusal]:
    rings = [
        ring_bytes(spec.type, spec.max_entries, spec.value_size)
        for spec in setting.program.maps
        if traits(spec.type).storage is Storage.RING
    ]
    if not rings:
        return
    copies = _COPIES[level_of(setting)]
    writers = {Arg.CONST_SIZE, Arg.READ}
    calls = [
        step
        for step, helper in helper_calls(setting)
        if writers & set(helper.args) and helper.map_types & _RINGS
    ]
    if calls and cost.ring_bytes * copies > min(rings):
        yield Refusal(
            "P10",
            f"one block of 1,024 threads writes up to {cost.ring_bytes * copies:,} bytes, "
            f"the ring holds {min(rings):,}: records will be dropped",
            calls[0].pc,
            "write a record once a warp (kprobe.warp/), count in a map, or enlarge the ring",
        )


def _atomics(setting: Setting, alive: Liveness, facts: Facts, cost: Cost) -> Iterator[Refusal]:
    steps = setting.structure.of_kind(Kind.ATOMIC)
    if cost.atomics > setting.limits.atomics:
        calls = [step for step, helper in helper_calls(setting) if helper.atomics]
        yield Refusal(
            "P11",
            f"up to {cost.atomics} atomics a thread: threads wait for each other at each",
            (steps or calls)[0].pc,
            "sum in a register first and add once",
        )
    if not steps or level_of(setting) is not Level.THREAD:
        return
    for step in steps:
        if _aggregable(setting, alive, facts, step):
            yield Refusal(
                "P11",
                "every lane of a warp adds the same to the same address",
                step.pc,
                "add once a warp (kprobe.warp/) the number of lanes, or use a PERCPU_ARRAY",
            )


def _aggregable(setting: Setting, alive: Liveness, facts: Facts, step: Step) -> bool:
    """An add of one value to one address of memory that all SMs share, the result unused."""
    operand = facts.operands.get((step.pc, step.dst))
    # Compilers write FETCH_ADD for an unordered add too; what it gives is then dead.
    unused = step.imm == AtomicOp.ADD or (
        step.imm == AtomicOp.FETCH_ADD and not alive.at(step.following).registers >> step.src & 1
    )
    if not unused or operand is None or operand.regions != {Region.MAP_VALUE}:
        return False
    if operand.map is None or traits(setting.map(operand.map).type).per_sm:
        return False
    varies = facts.uniformity.register_varies
    return not varies(step.pc, step.dst) and not varies(step.pc, step.src)
