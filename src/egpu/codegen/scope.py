"""What lowering one function of a program needs: registers, frame, facts and symbols."""

from __future__ import annotations

from dataclasses import dataclass, field

from egpu.bpf.isa import FRAME_POINTER, MAX_CALL_DEPTH, STACK_SIZE
from egpu.bpf.maptypes import traits
from egpu.bpf.program import MapSpec
from egpu.codegen.arena import LAUNCH_BLOCK, copy_stride, round_up
from egpu.codegen.device_code import Relocation, RelocKind
from egpu.codegen.ir import Body
from egpu.codegen.targets import Machine
from egpu.errors import InternalError, UnsupportedError
from egpu.verifier.verified import Operand, Region, VerifiedProgram

CALLER_FRAMES = MAX_CALL_DEPTH - 1
# The state that all functions of a program share, 8 bytes each: the SM, its slot, then one word per
# map (for rings: the position after the last reserved group).
STATE_SM = 0
STATE_SLOT = 8
STATE_MAPS = 16
# The budget, from ``Unit.budget_at`` on: tokens left, whether one was missing, whether that ended
# the program.
BUDGET_LEFT, BUDGET_SHORT, BUDGET_ENDED, BUDGET_SIZE = 0, 8, 16, 24


@dataclass(slots=True)
class Unit:
    """One program while it is lowered: what its functions have in common and what they turned out
    to use."""

    verified: VerifiedProgram
    machine: Machine
    symbols: dict[Relocation, None] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)  # what maps need, by name
    uses_sm: bool = False
    uses_slot: bool = False

    @property
    def state_size(self) -> int:
        return self.budget_at + (BUDGET_SIZE if self.verified.facts.budget else 0)

    @property
    def budget_at(self) -> int:
        """Where the budget begins in the state, if there is one."""
        return STATE_MAPS + 8 * len(self.verified.program.maps)

    @property
    def frame_size(self) -> int:
        """Bytes of a frame: no more than the deepest chain needs, so that what cannot become
        registers stays small."""
        return min(STACK_SIZE, max(8, round_up(self.verified.facts.stack_depth, 8)))


class Scope:
    """One function of a program while it is lowered."""

    def __init__(self, unit: Unit, start: int) -> None:
        self.unit = unit
        self.start = start
        self.body = Body()
        for register in range(FRAME_POINTER):
            self.body.variable(f"r{register}", "i64")
        size = unit.frame_size
        self.body.variable("stack", f"[{size} x i8]")

    def operand(self, pc: int, register: int) -> Operand:
        """What the verifier knows of ``register`` at ``pc``; the instruction is known to be
        reached."""
        found = self.unit.verified.facts.operands.get((pc, register))
        if found is None:
            raise InternalError(f"no facts for r{register} at instruction {pc}")
        return found

    def get(self, register: int) -> str:
        """The 64-bit value of ``register``."""
        if register == FRAME_POINTER:
            return self.body.value(f"ptrtoint ptr {self.frame_top(0)} to i64")
        return self.body.load("i64", "ptr", f"%r{register}", 8)

    def set(self, register: int, value: str) -> None:
        """Give ``register`` a 64-bit value."""
        if register == FRAME_POINTER:
            raise InternalError("the frame pointer was written")
        self.body.store("i64", value, "ptr", f"%r{register}", 8)

    def frame_top(self, frame: int) -> str:
        """A pointer to the end of a frame: 0 is this function's, 1 its caller's, and so on."""
        if frame == 0:
            size = self.unit.frame_size
            return self.body.value(f"getelementptr i8, ptr %stack, i64 {size}")
        if frame > CALLER_FRAMES:
            raise InternalError(f"frame {frame} is beyond the call depth")
        return f"%frame{frame}"

    def symbol(self, kind: RelocKind, index: int = 0) -> str:
        """The 64-bit value of a symbol that is resolved later."""
        relocation = Relocation(kind, index)
        self.unit.symbols[relocation] = None
        return self.body.value(f"call i64 @{symbol_function(relocation)}()")

    def low_symbol(self, kind: RelocKind, index: int = 0) -> str:
        """The low 32 bits of such a value, of which LLVM knows that they are no more: a GPU
        multiplies two of them into 64 bits by one instruction, and any other two by four."""
        relocation = Relocation(kind, index)
        self.unit.symbols[relocation] = None
        return self.body.value(f"call i32 @{low_symbol_function(relocation)}()")

    def launch(self, name: str) -> str:
        """A field of the launch block, zero-extended to 64 bits."""
        offset, size = LAUNCH_BLOCK[name]
        window = offset & ~7
        if (offset, size) == (window, 4):
            return self.body.resize(self.low_symbol(RelocKind.LAUNCH, window), 32, 64)
        value = self.symbol(RelocKind.LAUNCH, window)
        if offset != window:
            value = self.body.binary("lshr", "i64", value, str(8 * (offset - window)))
        if size < 8:
            value = self.body.binary("and", "i64", value, str((1 << 8 * size) - 1))
        return value

    def sm(self) -> str:
        """The SM, as read once when the program began (64 bits)."""
        self.unit.uses_sm = True
        return self.body.load("i64", "ptr", self.state(STATE_SM), 8)

    def slot(self) -> str:
        """The slot of the SM in per-SM maps and rings (64 bits)."""
        self.unit.uses_sm = self.unit.uses_slot = True
        return self.body.load("i64", "ptr", self.state(STATE_SLOT), 8)

    def state(self, offset: int) -> str:
        """A pointer into the program's shared state."""
        return self.body.value(f"getelementptr i8, ptr %state, i64 {offset}")

    def map_at(self, pc: int, register: int) -> tuple[int, MapSpec]:
        """The one map that ``register`` names or points into at ``pc``."""
        index = self.operand(pc, register).map
        if index is None:
            raise UnsupportedError(
                f"program {self.unit.verified.program.name}, instruction {pc}: r{register} may be "
                "one of several maps",
                needs="a separate call for each map",
            )
        return index, self.unit.verified.program.maps[index]

    def map_base(self, index: int, skip: str = "0") -> str:
        """The device address of map ``index``, of this SM's copy for per-SM maps, and ``skip``
        bytes on."""
        body = self.body
        if not self._per_sm(index):
            return body.binary("add", "i64", self.map_start(index), skip)
        copy = self.of_copy(self.launch("device_arena"), index)
        place = body.binary("add", "i64", copy, skip)
        offset = self.symbol(RelocKind.MAP, index)
        return body.call("i64", "egpu.at_offset", f"i64 {place}", f"i64 {offset}")

    def map_start(self, index: int) -> str:
        """The device address of map ``index``."""
        return self.body.binary(
            "add", "i64", self.launch("device_arena"), self.symbol(RelocKind.MAP, index)
        )

    def argument_start(self, pc: int, register: int) -> str:
        """The device address of the map that ``register`` names: what it holds if a map of maps
        gave it, as ``map_at`` tells of what shape."""
        if self._is_inner(pc, register):
            return self.get(register)
        return self.map_start(self.map_at(pc, register)[0])

    def argument_base(self, pc: int, register: int, skip: str = "0") -> str:
        """The same; of this SM's copy for per-SM maps, and ``skip`` bytes on."""
        index, _ = self.map_at(pc, register)
        if not self._is_inner(pc, register):
            return self.map_base(index, skip)
        base = self.body.binary("add", "i64", self.get(register), skip)
        return self.of_copy(base, index) if self._per_sm(index) else base

    def _is_inner(self, pc: int, register: int) -> bool:
        return self.operand(pc, register).regions == {Region.INNER_MAP}

    def _per_sm(self, index: int) -> bool:
        return traits(self.unit.verified.program.maps[index].type).per_sm

    def of_copy(self, base: str, index: int) -> str:
        """``base`` moved to the copy of per-SM map ``index`` that this warp uses.

        Warps of one SM are dealt over the SM's copies: their additions would queue up at one
        address (maps/layout.py says when there is more than one).
        """
        body = self.body
        # The number of a copy fits 32 bits, in which a GPU multiplies four times as fast.
        spread = self.low_symbol(RelocKind.MAP_SPREAD, index)
        last = body.binary("sub", "i32", spread, "1")
        picked = body.binary("and", "i32", body.call("i32", "egpu.pick"), last)
        picked = body.binary("or", "i32", picked, body.call("i32", "egpu.differing"))
        first = body.binary("mul", "i32", body.resize(self.slot(), 64, 32), spread)
        copy = body.resize(body.binary("add", "i32", first, picked), 32, 64)
        skip = body.binary("mul", "i64", copy, self._stride(index))
        return body.binary("add", "i64", base, skip)

    def of_slot(self, base: str, index: int) -> str:
        """``base`` moved to this SM's part of map ``index``."""
        skip = self.body.binary("mul", "i64", self.slot(), self._stride(index))
        return self.body.binary("add", "i64", base, skip)

    def _stride(self, index: int) -> str:
        """Bytes between the copies of map ``index``, 64 bits."""
        if copy_stride(self.unit.verified.program.maps[index]) >> 32:
            return self.symbol(RelocKind.MAP_STRIDE, index)
        return self.body.resize(self.low_symbol(RelocKind.MAP_STRIDE, index), 32, 64)

    def stack_offset(self, operand: Operand, offset: int, size: int) -> int | None:
        """Where ``operand + offset`` lies from its frame's end, None unless that is one constant.

        Raises InternalError if ``size`` bytes there are outside of the frame: the verifier's word
        is checked once more where a mistake would be silent."""
        if operand.regions != {Region.STACK} or operand.offset is None or operand.frame is None:
            return None
        place = operand.offset + offset
        if place < -self.unit.frame_size or place + size > 0:
            raise InternalError(f"stack access at {place} is outside of the frame")
        return place


def symbol_function(relocation: Relocation) -> str:
    """The name of the IR function that gives a symbol's value."""
    return f"egpu.sym.{relocation.symbol}"


def low_symbol_function(relocation: Relocation) -> str:
    """The name of the IR function that gives its low 32 bits."""
    return f"egpu.low.{relocation.symbol}"
