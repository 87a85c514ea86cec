"""The walk over every way through a program.

Depth-first with an explicit list of pending ways.  At jump targets and function entries the state
is compared: with finished states (one that covers it ends the way) and with the states of the way
itself (an equal one would repeat for ever).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from egpu.bpf import isa
from egpu.bpf.isa import CallSrc, Kind
from egpu.bpf.program import PseudoSrc
from egpu.verifier import arithmetic, branch, calls, checks, memory
from egpu.verifier.cost import NOTHING, Node, Spent, instructions, ring, spends, weight
from egpu.verifier.liveness import Liveness
from egpu.verifier.report import Refusal, path_entry
from egpu.verifier.scalar import S64
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import Frame, Pointer, State, Value
from egpu.verifier.structure import Step
from egpu.verifier.subsume import Live, state_covers, state_key
from egpu.verifier.verified import Region

_REMEMBERED = 32  # finished states compared per instruction; equal ones are found at any number

Observer = Callable[[int, State], None]


@dataclass(frozen=True, slots=True)
class Explored:
    """The worst cost and how many instructions were walked."""

    worst: Spent
    processed: int


class Stopped(Exception):
    """A refusal with the place and the way that led there.

    ``decisions`` are the branches taken, ``length`` the instructions executed on that way.
    """

    def __init__(self, refusal: Refusal, pc: int, decisions: list[bool], length: int) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.pc = pc
        self.decisions = decisions
        self.length = length


def first_state(setting: Setting) -> State:
    """What a program starts with: the context, or the memory block of tests and its size."""
    arguments: list[Value] = [None] * 5
    if setting.attached:
        arguments[0] = Pointer(Region.CONTEXT)
    else:
        size = setting.memory_size
        arguments[0] = Pointer(Region.MEMORY, size=size) if size else S64.zero
        arguments[1] = S64.constant(size)
    return State([Frame.entered(0, arguments, -1)], (), 0)


class Exploration:
    """One walk. ``run`` gives its result or raises Stopped."""

    def __init__(
        self,
        setting: Setting,
        liveness: Liveness,
        recorder: Recorder,
        observer: Observer | None = None,
    ) -> None:
        self.setting = setting
        self.liveness = liveness
        self.recorder = recorder
        self.observer = observer
        self.spends = [0 if step is None else spends(step) for step in setting.structure.steps]
        self.seen: dict[int, dict[tuple[object, ...], Node]] = {}
        self.finished: dict[int, deque[Node]] = {}
        self.pending: list[tuple[State, int, Node, bool]] = []
        self.processed = 0
        self.spent = NOTHING  # since the last node
        self.pc = 0
        self.node = Node(None, 0, NOTHING, ways=1, jumped=None)
        self.jumped: bool | None = None

    def run(self) -> Explored:
        root = self.node
        state: State | None = first_state(self.setting)
        try:
            while state is not None:
                self._walk(state)
                state = self._resume()
        except Refusal as refusal:
            decisions = self.node.decisions()
            if self.jumped is not None:
                decisions.append(self.jumped)
            length = instructions(self.node.total + self.spent)
            raise Stopped(refusal, self.pc, decisions, length) from None
        return Explored(Spent(root.worst), self.processed)

    def _resume(self) -> State | None:
        """Take up the pending way that was left last."""
        if not self.pending:
            return None
        state, self.pc, self.node, self.jumped = self.pending.pop()
        return state

    def _walk(self, state: State) -> None:
        """Follow one way to its end."""
        setting, checkpoints = self.setting, self.setting.structure.checkpoints
        steps, observer, spends = setting.structure.steps, self.observer, self.spends
        limit = setting.limits.processed
        self.spent = NOTHING
        while True:
            pc = self.pc
            if pc in checkpoints:
                if self._compare(state, self.spent):
                    return
                self.spent = NOTHING
            if observer is not None:
                observer(pc, state)
            step = steps[pc]
            assert step is not None, "targets are checked to be instructions"
            self.processed += 1
            if self.processed > limit:
                raise Refusal(
                    "P4",
                    f"more than {limit} instructions processed without coming to an end",
                    hint="make loops shorter or the program smaller (Limits.processed)",
                )
            self.spent += spends[pc]
            kind = step.kind
            if kind is Kind.JUMP:
                fallen, jumping = branch.decide(setting, state, step)
                if fallen is not None and jumping is not None:
                    self._split(step, self.spent, jumping)
                    self.spent = NOTHING
                    state, self.pc = fallen, step.following
                elif fallen is not None:
                    state, self.pc = fallen, step.following
                else:
                    assert jumping is not None, "one way of a jump is possible"
                    state, self.pc = jumping, step.target
                continue
            if kind is Kind.CALL and step.src == CallSrc.HELPER:
                written = calls.call(setting, self.recorder, state, step)
                if written:
                    self.spent += ring(written)
                self.pc = step.following
                continue
            target = apply(setting, self.recorder, state, step)
            if target is None:
                self._end(self.spent)
                return
            self.pc = target

    def _split(self, step: Step, spent: int, jumping: State) -> None:
        node = Node(self.node, step.pc, spent, ways=2, jumped=self.jumped)
        self._check_cost(node.total)
        self.pending.append((jumping, step.target, node, True))
        self.node, self.jumped = node, False

    def _live(self, state: State) -> list[Live]:
        """What of each frame is live: all but the running one wait for a call."""
        suspended = self.liveness.suspended
        live = [suspended[frame.call_site] for frame in state.frames[1:]]
        live.append(self.liveness.entry[self.pc])
        return live

    def _compare(self, state: State, spent: int) -> bool:
        """Compare at a checkpoint; whether the way ends here."""
        live = self._live(state)
        key = state_key(state, live)
        here = self.seen.setdefault(self.pc, {})
        known = here.get(key)
        if known is not None and known.open:
            raise Refusal(
                "P4",
                "infinite loop: this instruction is reached again in the same state",
                hint="count the turns in a register and leave the loop at a constant limit",
            )
        if known is None:
            known = next(
                (
                    node
                    for node in self.finished.get(self.pc, ())
                    if node.state is not None and state_covers(node.state, state, live)
                ),
                None,
            )
        if known is not None:
            total = spent + known.worst
            self._check_cost(self.node.total + total)
            self._end(total)
            return True
        node = Node(self.node, self.pc, spent, ways=1, jumped=self.jumped, state=state.copy())
        self._check_cost(node.total)
        here[key] = node
        self.node, self.jumped = node, None
        return False

    def _end(self, spent: int) -> None:
        for node in self.node.finish_way(spent):
            if node.state is not None:
                kept = self.finished.setdefault(node.pc, deque())
                kept.appendleft(node)
                if len(kept) > _REMEMBERED:
                    kept.pop().state = None

    def _check_cost(self, total: int) -> None:
        limit = self.setting.limits.cost
        if weight(total) > limit:
            raise Refusal(
                "P4",
                f"the worst case is over {limit} instructions a thread, helper bodies included",
                hint="make loops shorter (Limits.cost)",
            )


def apply(setting: Setting, recorder: Recorder, state: State, step: Step) -> int | None:
    """Execute anything but a conditional jump or a helper call; the next pc, None at the end."""
    match step.kind:
        case Kind.ALU:
            arithmetic.execute(setting, state, step)
        case Kind.LOAD | Kind.LOAD_SIGNED:
            memory.load(setting, recorder, state, step)
        case Kind.STORE_REG | Kind.STORE_IMM:
            memory.store(setting, recorder, state, step)
        case Kind.ATOMIC:
            memory.atomic(setting, recorder, state, step)
        case Kind.BYTE_ORDER:
            arithmetic.swap(setting, state, step)
        case Kind.LOAD_IMM64:
            state.frame.registers[step.dst] = _constant(setting, recorder, step)
        case Kind.JUMP_ALWAYS:
            return step.target
        case Kind.CALL:
            return _enter(state, step)
        case Kind.EXIT:
            return _leave(setting, state)
        case _:
            raise AssertionError(f"{step.kind} is handled by the walk")
    return step.following


def _constant(setting: Setting, recorder: Recorder, step: Step) -> Value:
    """LD_IMM64: a number, a map or the first value of a map."""
    low, high = step.imm, setting.program.code[step.pc + 1].imm
    match PseudoSrc(step.src):
        case PseudoSrc.CONST:
            return S64.constant((high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF)
        case PseudoSrc.MAP_INDEX:
            calls.check_map(setting.map(low))
            recorder.maps.add(low)
            return Pointer(Region.MAP_POINTER, low)
        case PseudoSrc.MAP_INDEX_VALUE:
            spec = setting.map(low)
            calls.check_map(spec)
            if spec.type not in calls.DIRECT_VALUES:
                raise Refusal("P2", f"map {spec.name} of type {spec.type.name} has no first value")
            if spec.max_entries != 1:
                raise Refusal(
                    "P2",
                    f"map {spec.name} has {spec.max_entries} values, "
                    "only a single one is reached directly",
                    hint="look an element up instead",
                )
            if not 0 <= high < spec.value_size:
                raise Refusal(
                    "P2", f"offset {high} is outside the {spec.value_size} bytes of {spec.name}"
                )
            recorder.maps.add(low)
            return Pointer(Region.MAP_VALUE, low, offset=high)
        case other:
            raise Refusal("P2", _UNRESOLVED[other], hint="load the program from its object file")


_UNRESOLVED = {
    PseudoSrc.MAP_FD: "a map is named by a file descriptor, which means nothing here",
    PseudoSrc.MAP_FD_VALUE: "a map is named by a file descriptor, which means nothing here",
    PseudoSrc.VARIABLE: "kernel variables do not exist on a device",
    PseudoSrc.CODE: "code addresses (callbacks) are not supported",
}


def _enter(state: State, step: Step) -> int:
    """A local call: r1 to r5 go along, r0 to r5 are lost to the caller."""
    if len(state.frames) >= isa.MAX_CALL_DEPTH:
        raise Refusal("P1", f"calls nest more than {isa.MAX_CALL_DEPTH} deep")
    registers = state.frame.registers
    callee = Frame.entered(len(state.frames), registers[1:6], step.pc)
    registers[0:6] = [None] * 6
    state.frames.append(callee)
    return step.target


def _leave(setting: Setting, state: State) -> int | None:
    """EXIT: back to the caller, or the end of the program."""
    value = state.frame.registers[0]
    if len(state.frames) > 1:
        if isinstance(value, Pointer) and value.region is Region.STACK:
            raise Refusal("P9", "a function returns a pointer to a stack")
        site = state.frames.pop().call_site
        state.frame.registers[0] = value
        _forget_frame(state)
        return setting.structure.step(site).following
    checks.scalar(setting, value, 0, "the program returns a pointer")
    if state.references:
        raise Refusal(
            "P10",
            "a reserved ring-buffer record is neither submitted nor discarded",
            hint="call bpf_ringbuf_submit or bpf_ringbuf_discard on every way",
        )
    return None


def _forget_frame(state: State) -> None:
    """Pointers into the frame that is gone must not survive in what remains."""
    gone = len(state.frames)
    for frame in state.frames:
        for slot in frame.slots.values():
            for spill in slot.spills:
                value = spill.value
                if isinstance(value, Pointer) and (value.region, value.owner) == (
                    Region.STACK,
                    gone,
                ):
                    raise Refusal("P9", "a pointer to the stack of a function outlives it")


def replay(setting: Setting, decisions: list[bool], length: int) -> tuple[str, ...]:
    """The last of the first ``length`` instructions of a way, with the registers before each."""
    state, pc, ways = first_state(setting), 0, iter(decisions)
    lines: list[str] = []
    recorder = Recorder()
    for remaining in range(length, 0, -1):
        step = setting.structure.step(pc)
        if remaining <= setting.limits.path:
            lines.append(path_entry(setting.program, pc, state.frame))
        if remaining == 1:
            break  # the refused one
        if step.kind is Kind.JUMP:
            fallen, jumping = branch.decide(setting, state, step)
            jumps = fallen is None or (jumping is not None and next(ways))
            chosen = jumping if jumps else fallen
            assert chosen is not None, "the way was walked before"
            state, pc = chosen, step.target if jumps else step.following
        elif step.kind is Kind.CALL and step.src == CallSrc.HELPER:
            calls.call(setting, recorder, state, step)
            pc = step.following
        else:
            target = apply(setting, recorder, state, step)
            assert target is not None, "the way was walked further"
            pc = target
    return tuple(lines)
