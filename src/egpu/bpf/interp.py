"""The reference interpreter: RFC 9669's semantics, exactly, with every access checked.

It is the judge of every other executor and of the verifier, so it is written to be read, not to be
fast.  It has no clock and no randomness of its own: a run is a function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from egpu.bpf import arith, isa
from egpu.bpf.asm import format_insn
from egpu.bpf.budget import NO_BUDGET, Budget, Tokens
from egpu.bpf.helpers import HELPERS
from egpu.bpf.insn import imm64
from egpu.bpf.interp_callbacks import CALLING_BACK, Turns
from egpu.bpf.interp_helpers import BODIES
from egpu.bpf.interp_state import MapState, Place
from egpu.bpf.interp_workload import ThreadEndedError
from egpu.bpf.isa import AtomicOp, Form, Kind
from egpu.bpf.memory import AddressSpace, Region
from egpu.bpf.program import Insn, Program, PseudoSrc
from egpu.errors import DeviceFault, InputError, UnsupportedError

STEP_LIMIT = 1_000_000

HelperBody = Callable[["Machine", Sequence[int]], int]
"""A helper: gets the machine and r1-r5, gives r0 (any int; its low 64 bits count)."""


def run(
    program: Program,
    memory: bytearray | None = None,
    *,
    context: bytes | None = None,
    maps: Sequence[MapState] | None = None,
    helpers: Mapping[int, HelperBody] = BODIES,
    place: Place | None = None,
    step_limit: int = STEP_LIMIT,
    observe: Callable[[Machine], None] | None = None,
    budget: Budget = NO_BUDGET,
    ended: Callable[[Machine], None] | None = None,
) -> int:
    """Run ``program`` and give r0, unsigned 64 bits.

    r1 points at ``memory`` and r2 is its length; with ``context``, r1 points at those bytes
    (read-only) and r2 is 0.  ``memory`` and ``maps`` (one MapState for each of ``program.maps``,
    fresh if left out) are changed in place.  ``place`` is where on the device the thread is.
    ``observe`` is called before each instruction; it sees ``machine.pc`` and ``machine.registers``;
    ``ended`` after the run, with its ``machine.tokens``.  ``budget`` bounds loops, as a verifier
    chose it.

    Raises DeviceFault on a bad access, a call too deep, a leaked record or more than ``step_limit``
    instructions; InputError for malformed code; UnsupportedError for instructions and helpers that
    egpu knows by name and does not have.
    """
    states = [MapState(spec) for spec in program.maps] if maps is None else list(maps)
    machine = Machine(program, states, helpers, place or Place(), budget)
    machine.start(memory, context)
    result = machine.run(step_limit, observe)
    if ended is not None:
        ended(machine)
    return result


@dataclass(slots=True)
class _Calls:
    """A helper's calls of the function at ``start``: ``left`` gives r1, r2 and so on for each, and
    ``done`` of them ended."""

    start: int
    left: Turns
    done: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """A caller's state to come back to."""

    pc: int
    saved: tuple[int, ...]  # r6-r10
    stack: Region
    calls: _Calls | None = None


class OutOfTurnsError(Exception):
    """A budgeted loop would turn again and no token is left: the program ends."""


class Machine:
    """One thread. ``pc``, ``registers``, ``steps`` and ``depth`` may be read by observers."""

    def __init__(
        self,
        program: Program,
        maps: Sequence[MapState],
        helpers: Mapping[int, HelperBody],
        place: Place,
        budget: Budget = NO_BUDGET,
    ) -> None:
        if len(maps) != len(program.maps):
            raise InputError(
                f"{len(maps)} maps given, the program has {len(program.maps)}", where=program.name
            )
        self.program = program
        self.maps = maps
        self.place = place
        self.tokens = Tokens(budget.turns)
        self._budget = budget
        self.space = AddressSpace()
        self.pc = 0
        self.steps = 0
        self.registers = [0] * 11
        self._helpers = helpers
        self._forms = prepare(program, helpers)
        self._frames: list[_Frame] = []
        self._map_handles = [
            self.space.add("map", bytearray(), writable=False, name=state.spec.name)
            for state in maps
        ]
        self._code = self.space.add("code", bytearray(), writable=False)
        self._values: dict[tuple[int, int], Region] = {}
        self._entries: dict[int, Region] = {}
        self._records: dict[int, tuple[MapState, Region]] = {}

    @property
    def depth(self) -> int:
        """Frames in use, 1 in the main function."""
        return len(self._frames) + 1

    def start(self, memory: bytearray | None, context: bytes | None) -> None:
        """Set r1, r2 and r10 as ``run`` describes."""
        if context is not None:
            data = bytearray(context)
            self.registers[1] = self.space.add("ctx", data, writable=False).base
        elif memory:
            self.registers[1] = self.space.add("memory", memory).base
            self.registers[2] = len(memory)
        self._stack = self._new_stack()

    def run(self, step_limit: int, observe: Callable[[Machine], None] | None) -> int:
        """Execute up to the main function's exit and give r0, 0 if the program ends the thread."""
        code = self.program.code
        while True:
            if not 0 <= self.pc < len(code):
                raise DeviceFault(f"control leaves the program at {self.pc}", kernel=self._name)
            if self.steps >= step_limit:
                raise DeviceFault(f"more than {step_limit} instructions", kernel=self._name)
            if observe is not None:
                observe(self)
            self.steps += 1
            insn, form = code[self.pc], self._forms[self.pc]
            if form is None:
                raise DeviceFault(
                    f"control enters the second half of insn {self.pc - 1}", kernel=self._name
                )
            try:
                if form.kind is Kind.EXIT and not self._frames:
                    self._check_records()
                    return self.registers[0]
                self._step(insn, form)
            except (ThreadEndedError, OutOfTurnsError):
                self._check_records()
                return 0
            except DeviceFault as fault:
                following = code[self.pc + 1] if self.pc + 1 < len(code) else None
                text = format_insn(insn, following)
                raise DeviceFault(
                    f"insn {self.pc} ({text}): {fault.message.partition(': ')[2]}",
                    kernel=self._name,
                ) from fault

    @property
    def _name(self) -> str:
        return self.program.name

    def _step(self, insn: Insn, form: Form) -> None:
        """Execute one instruction and move ``pc``."""
        registers = self.registers
        src = registers[insn.src] if form.register else arith.extend(insn.imm)
        source, after = self.pc, self.pc + 1
        match form.kind:
            case Kind.ALU:
                assert isinstance(form.op, isa.AluOp)
                dst = registers[insn.dst]
                registers[insn.dst] = arith.alu(form.op, form.width, insn.off, dst, src)
            case Kind.BYTE_ORDER:
                swap = insn.opcode != isa.Class.ALU | isa.AluOp.END
                registers[insn.dst] = arith.convert(registers[insn.dst], insn.imm, swap)
            case Kind.LOAD | Kind.LOAD_SIGNED:
                value = self.space.load(src + insn.off & arith.MASK64, form.width // 8)
                if form.kind is Kind.LOAD_SIGNED:
                    value = arith.signed(value, form.width) & arith.MASK64
                registers[insn.dst] = value
            case Kind.STORE_REG | Kind.STORE_IMM:
                address = registers[insn.dst] + insn.off & arith.MASK64
                self.space.store(address, form.width // 8, src)
            case Kind.ATOMIC:
                self._atomic(insn, form.width)
            case Kind.LOAD_IMM64:
                registers[insn.dst] = self._wide(insn, self.program.code[self.pc + 1])
                after += 1
            case Kind.JUMP if insn.opcode == isa.MAY_GOTO:
                if not self.tokens.take():
                    after += insn.off
            case Kind.JUMP:
                assert isinstance(form.op, isa.JmpOp)
                if arith.compare(form.op, form.width, registers[insn.dst], src):
                    after += insn.off
            case Kind.JUMP_ALWAYS:
                after += insn.off if form.width == 16 else insn.imm
            case Kind.CALL if insn.src == isa.CallSrc.LOCAL:
                self._enter(after)
                after += insn.imm
            case Kind.CALL if insn.imm in CALLING_BACK:
                after = self._call_back(after, insn.imm)
            case Kind.CALL:
                body = self._helpers[insn.imm]
                registers[0] = body(self, tuple(registers[1:6])) & arith.MASK64
            case Kind.EXIT:
                after = self._leave()
                source = after - 1  # the call
        if self._budget.again(source, after) and not self.tokens.take():
            raise OutOfTurnsError
        self.pc = after

    def _atomic(self, insn: Insn, width: int) -> None:
        registers = self.registers
        address = registers[insn.dst] + insn.off & arith.MASK64
        if address % (width // 8):
            raise DeviceFault(f"atomic at 0x{address:x} is not aligned to {width // 8} bytes")
        operation = AtomicOp(insn.imm)
        old = self.space.load(address, width // 8)
        new = arith.atomic(operation, width, old, registers[insn.src], registers[0])
        self.space.store(address, width // 8, new)
        if operation is AtomicOp.CMPXCHG:
            registers[0] = old
        elif operation & isa.FETCH:
            registers[insn.src] = old

    def _wide(self, insn: Insn, following: Insn) -> int:
        match insn.src:
            case PseudoSrc.MAP_INDEX:
                return self._map_handles[insn.imm].base
            case PseudoSrc.MAP_INDEX_VALUE:
                return self.value_address(insn.imm, 0) + following.imm
            case PseudoSrc.CODE:
                return self.code_address(self.pc + 1 + insn.imm)
        return imm64(insn, following)

    def _new_stack(self) -> Region:
        region = self.space.add("stack", bytearray(isa.STACK_SIZE))
        self.registers[isa.FRAME_POINTER] = region.base + isa.STACK_SIZE
        return region

    def _enter(self, after: int, calls: _Calls | None = None) -> None:
        if self.depth >= isa.MAX_CALL_DEPTH:
            raise DeviceFault(f"calls are nested deeper than {isa.MAX_CALL_DEPTH} frames")
        self._frames.append(_Frame(after, tuple(self.registers[6:]), self._stack, calls))
        self._stack = self._new_stack()

    def _call_back(self, after: int, helper: int) -> int:
        """A helper that calls back: the pc of its first call, or ``after`` if there is none."""
        arguments = tuple(self.registers[1:5])
        left = CALLING_BACK[helper](self, arguments)
        if self.pc in self._budget.calls and not isinstance(left, int):
            left = self._paid(left)
        if isinstance(left, int):
            self.registers[0] = left & arith.MASK64
            return after
        function = arguments[1]
        start, rest = divmod(function - self._code.base, 8)
        if rest or not 0 <= start < len(self.program.code):
            name = HELPERS[helper].name
            raise DeviceFault(f"{name} calls 0x{function:x}, which is no function")
        first = next(left, None)
        if first is None:
            self.registers[0] = 0
            return after
        self._enter(after, _Calls(start, left))
        self.registers[1 : 1 + len(first)] = first
        return start

    def _paid(self, calls: Turns) -> Turns:
        """Those of ``calls`` for which there are tokens."""
        for arguments in calls:
            if not self.tokens.take():
                return
            yield arguments

    def _leave(self) -> int:
        calls = self._frames[-1].calls
        if calls is not None:
            calls.done += 1
            following = None if self.registers[0] else next(calls.left, None)
            if following is not None:
                self.space.remove(self._stack)
                self._stack = self._new_stack()
                self.registers[1 : 1 + len(following)] = following
                return calls.start
            calls.left.close()
            self.registers[0] = calls.done
        self.space.remove(self._stack)
        frame = self._frames.pop()
        self.registers[6:] = frame.saved
        self._stack = frame.stack
        return frame.pc

    # What helper bodies need.

    def map_index(self, handle: int) -> int:
        """The index of the map whose LD_IMM64 value is ``handle``. Raises DeviceFault."""
        for index, region in enumerate(self._map_handles):
            if region.base == handle:
                return index
        raise DeviceFault(f"0x{handle:x} is not a map")

    def map_handle(self, index: int) -> int:
        """What LD_IMM64 gives for map ``index``."""
        return self._map_handles[index].base

    def value_address(self, index: int, entry: int) -> int:
        """The address of value ``entry`` of map ``index``; each value is a region of its own."""
        region = self._values.get((index, entry))
        if region is None:
            state = self.maps[index]
            region = self.space.add(
                "map value",
                state.value(entry),
                writable=state.spec.writable,
                name=f"{state.spec.name}[{entry}]",
            )
            self._values[index, entry] = region
        return region.base

    def entry_address(self, index: int, value: bytearray) -> int:
        """The address of a hash entry's value; it stays valid when the entry is deleted."""
        region = self._entries.get(id(value))
        if region is None:
            region = self.space.add("map value", value, name=self.maps[index].spec.name)
            self._entries[id(value)] = region  # whose data keeps the value, so the id stays its own
        return region.base

    def code_address(self, pc: int) -> int:
        """What LD_IMM64 gives for the function that starts at ``pc``."""
        return self._code.base + 8 * pc

    def map_address(self, index: int) -> int:
        """What LD_IMM64 gives for map ``index``."""
        return self._map_handles[index].base

    def add_record(self, state: MapState, size: int) -> int:
        """Reserve a ring-buffer record of ``size`` bytes and give its address."""
        region = self.space.add("record", bytearray(size), name=state.spec.name)
        self._records[region.base] = state, region
        return region.base

    def take_record(self, address: int) -> tuple[MapState, bytes]:
        """End the record at ``address``; gives its map and content. Raises DeviceFault."""
        if address not in self._records:
            raise DeviceFault(f"0x{address:x} is not the start of a reserved record")
        state, region = self._records.pop(address)
        self.space.remove(region)
        return state, bytes(region.data)

    def _check_records(self) -> None:
        if self._records:
            names = ", ".join(state.spec.name for state, _ in self._records.values())
            raise DeviceFault(f"a record of {names} was reserved and never submitted or discarded")


def prepare(program: Program, helpers: Container[int] = BODIES) -> tuple[Form | None, ...]:
    """The form of each slot, None for second slots; ``helpers`` are the ids that exist.

    Raises InputError for malformed instructions, jumps out of the program, unknown helpers and map
    references; UnsupportedError for what ``isa.refused`` names and for helpers without a body.
    """
    code = program.code
    forms: list[Form | None] = [None] * len(code)
    for pc, insn, following in isa.instructions(code):
        where = f"{program.name}: insn {pc}"
        feature = isa.refused(insn)
        if feature is not None:
            raise UnsupportedError(f"{feature} at {where}")
        reason = isa.check_fields(insn, following)
        if reason is not None:
            raise InputError(reason, where=where)
        forms[pc] = isa.FORMS[insn.opcode]
        if insn.opcode == isa.LD_IMM64:
            _check_map(program, insn, where)
        elif insn.opcode == isa.CALL and insn.src == isa.CallSrc.HELPER:
            _check_helper(insn.imm, helpers, where)
    for pc, insn, _ in isa.instructions(code):
        target = isa.jump_target(pc, insn)
        if target is not None and not (0 <= target < len(code) and forms[target] is not None):
            raise InputError(
                f"jumps to {target}, which is no instruction", where=f"{program.name}: insn {pc}"
            )
    return tuple(forms)


def _check_helper(number: int, helpers: Container[int], where: str) -> None:
    if number in helpers:
        return
    if number in HELPERS:
        helper = HELPERS[number]
        raise UnsupportedError(f"helper {helper.name} at {where}", needs=helper.missing)
    raise InputError(f"unknown helper {number}", where=where)


def _check_map(program: Program, insn: Insn, where: str) -> None:
    if insn.src in (PseudoSrc.MAP_FD, PseudoSrc.MAP_FD_VALUE):
        raise InputError("map file descriptors mean nothing outside Linux", where=where)
    if insn.src in (PseudoSrc.MAP_INDEX, PseudoSrc.MAP_INDEX_VALUE):
        if not 0 <= insn.imm < len(program.maps):
            raise InputError(
                f"map {insn.imm} does not exist, the program has {len(program.maps)}", where=where
            )
        if insn.src == PseudoSrc.MAP_INDEX_VALUE and not MapState.has_values(
            program.maps[insn.imm]
        ):
            raise InputError(f"map {program.maps[insn.imm].name} has no values", where=where)
