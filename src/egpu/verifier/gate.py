"""The gate: every rule in turn, then the seal."""

from __future__ import annotations

from types import MappingProxyType

from egpu.bpf.program import AttachKind, Level, Program
from egpu.errors import InputError
from egpu.verifier import control, races, rmw, rules_warp, structure, uniform
from egpu.verifier import liveness as liveness_of
from egpu.verifier.contention import contention
from egpu.verifier.explore import Exploration, Explored, Stopped, replay
from egpu.verifier.frames import Frames
from egpu.verifier.liveness import Liveness
from egpu.verifier.report import Refusal, error, warning
from egpu.verifier.setting import Limits, Recorder, Setting
from egpu.verifier.verified import Facts, Policy, Rmw, VerifiedProgram, _issue
from egpu.verifier.warp_cost import warp_cost

DEFAULT_LIMITS = Limits()
_FRAME_ROUNDING = 16  # Linux counts frames in multiples of 16 bytes


def verify(
    program: Program,
    *,
    policy: Policy = Policy.PROBE,
    memory_size: int = 0,
    exit_probe: bool | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> VerifiedProgram:
    """Check ``program`` against every rule of ``policy``.

    r1 is the probe context if the program has attach points; otherwise, and always under EXECUTOR,
    a block of ``memory_size`` bytes that begins at a multiple of 8 (the number 0 if there are
    none), and r2 its size.  Under PROBE that stands in for a context in conformance programs, whose
    unaligned plain accesses to it pass and which can never be attached.  ``exit_probe`` says
    whether fields of exit probes may be read; None: if every attach point is an exit.

    Raises VerifierError for the first rule found broken, InputError for a negative memory size.
    """
    if memory_size < 0:
        raise InputError(f"memory size {memory_size} is negative", where=program.name)
    if exit_probe is None:
        exit_probe = bool(program.attach) and all(
            point.kind is AttachKind.EXIT for point in program.attach
        )
    try:
        _check_attach(program, policy)
        shape = structure.analyse(program, policy)
    except Refusal as refusal:
        raise error(program, refusal, 0, ()) from None
    setting = Setting(program, policy, memory_size, exit_probe, limits, shape)
    graph = control.analyse(shape)
    alive = liveness_of.analyse(shape, graph)
    recorder = Recorder()
    try:
        explored = Exploration(setting, alive, recorder).run()
    except Stopped as stopped:
        path = replay(setting, stopped.decisions, stopped.length) if limits.path else ()
        raise error(program, stopped.refusal, stopped.pc, path) from None
    try:
        return _sealed(setting, graph, alive, recorder, explored)
    except Refusal as refusal:
        raise error(program, refusal, 0, ()) from None


def _check_attach(program: Program, policy: Policy) -> None:
    if policy is Policy.EXECUTOR:
        return
    for point in program.attach:
        if point.kind is AttachKind.KERNEL_SPACE:
            raise Refusal(
                "P1",
                f"section {program.section} belongs to the Linux kernel, which verifies it itself",
                0,
                'attach it to a GPU kernel: SEC("kprobe/KERNEL")',
            )


def _sealed(
    setting: Setting,
    graph: control.Graph,
    alive: Liveness,
    recorder: Recorder,
    explored: Explored,
) -> VerifiedProgram:
    """The rules that need the whole walk, and the result."""
    program = setting.program
    matches = rmw.recognise(setting, alive, recorder)
    frames = Frames(setting, recorder)
    together = all(point.level is Level.THREAD for point in program.attach)
    budget, worst = explored.budgets.chosen(explored.worst)
    if budget is not None and budget.loops:
        together = False  # a lane may end in a loop, and the others go on
    lanes, launch = uniform.analyse(setting, graph, frames, together=together)
    facts = Facts(
        operands=MappingProxyType(dict(recorder.operands)),
        context_fields=frozenset(recorder.context_fields),
        parameters=frozenset(recorder.parameters),
        helpers=frozenset(recorder.helpers),
        maps=frozenset(recorder.maps),
        stack_depth=_stack_depth(setting, recorder),
        rmw=_frozen(matches),
        budget=budget,
        prints=MappingProxyType({pc: seen.call() for pc, seen in recorder.prints.items()}),
        uniformity=lanes,
        find_launch=launch,
    )
    cost = worst.public()
    warp = warp_cost(explored.counting, lanes, worst)
    notes: list[Refusal] = []
    if setting.strict:
        rules_warp.check_collective(setting, lanes)
        known = races.Known(setting, graph, frames, launch, matches, budget)
        notes += races.check(known)
        notes += rules_warp.load_warnings(setting, alive, facts, cost)
        notes += contention(known, explored.counting, worst)
    warnings = tuple(sorted((warning(program, note) for note in notes), key=lambda w: w.pc))
    return _issue(
        program,
        setting.policy,
        facts=facts,
        cost=cost,
        warp_cost=warp,
        memory_size=setting.memory_size,
        warnings=warnings,
    )


def _frozen(matches: dict[int, Rmw]) -> MappingProxyType[int, Rmw]:
    return MappingProxyType(matches)


def _stack_depth(setting: Setting, recorder: Recorder) -> int:
    """Bytes of the deepest call chain, each frame to 8. Refuses chains over the limit."""
    shape = setting.structure
    exact: dict[int, int] = {}
    rounded: dict[int, int] = {}
    for function in shape.order:
        own = recorder.depths.get(function, 0)
        callees = shape.callees[function]
        exact[function] = -(-own // 8) * 8 + max((exact[c] for c in callees), default=0)
        linux = -(-max(own, 1) // _FRAME_ROUNDING) * _FRAME_ROUNDING
        rounded[function] = linux + max((rounded[c] for c in callees), default=0)
    limit = setting.limits.stack
    if setting.strict and rounded[0] > limit:
        raise Refusal(
            "P12",
            f"the deepest call chain needs {rounded[0]} bytes of stack, limit {limit}",
            0,
            "move large variables to a map",
        )
    return exact[0]
