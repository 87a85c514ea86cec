"""P7: which values are the same for all lanes of a warp, and where all lanes come together.

A dataflow over the control-flow graph, apart from the walk: what one way shows of a value does not
show that the lanes of a warp agree on it.  Two values of a lattice, uniform below varying, for each
register and each byte of the stack.  Varying come: thread indices, clocks, loads from memory that
others may write, results of atomics, whatever is computed from those, and whatever is written while
control varies (between a varying branch and the place where its ways meet), seen from where ways
meet; that covers values that leave a loop at different turns.

"All lanes" are those that entered the probe together.  A value is uniform if any two lanes that
execute the instruction at the same point of the same way see the same; it is never assumed that 32
lanes are there.  The same pass answers for all threads of a launch (``Scope.LAUNCH``).
"""

from __future__ import annotations

import enum
from types import MappingProxyType

from egpu.bpf.context import Field, field_at
from egpu.bpf.helpers import HELPERS, Arg, Helper, Ret
from egpu.bpf.isa import AluOp, AtomicOp, CallSrc, Kind
from egpu.bpf.maptypes import Storage, traits
from egpu.verifier.control import END, Block, Graph
from egpu.verifier.frames import Frames, Place
from egpu.verifier.setting import Setting
from egpu.verifier.structure import Step
from egpu.verifier.verified import Operand, Region, Uniformity


class Scope(enum.Enum):
    """Among whom values are compared."""

    WARP = "the lanes of a warp"
    LAUNCH = "the threads of a launch"


_RESULT = 1  # r0
_ARGUMENTS = 0b111110
# Where equal keys give equal pointers: to every thread, or to those of one SM (a warp is on one).
_SAME_POINTER = {
    Scope.WARP: frozenset({Storage.ARRAY, Storage.PER_SM_ARRAY}),
    Scope.LAUNCH: frozenset({Storage.ARRAY}),
}


def analyse(
    setting: Setting, graph: Graph, frames: Frames, *, scope: Scope, together: bool
) -> Uniformity:
    """The uniformity of every register and of control at every instruction.

    ``together`` is false where the lanes do not even enter together, as in programs that one lane
    runs for its warp: control then varies from the start.
    """
    return _Flow(setting, graph, frames, scope, together).run()


class _Flow:
    def __init__(
        self, setting: Setting, graph: Graph, frames: Frames, scope: Scope, together: bool
    ) -> None:
        self.setting = setting
        self.graph = graph
        self.frames = frames
        self.scope = scope
        self.foreign_writes = frames.foreign_writes()
        count = len(graph.blocks)
        self.entry: list[tuple[int, int] | None] = [None] * count  # registers, stack bytes
        self.taint = [(0, 0)] * count  # what varies where a block begins because ways meet
        self.returned = [0] * len(setting.structure.functions)  # registers that vary at the end
        self.below = dict.fromkeys(self.foreign_writes, 0)  # bytes that callees made varying
        self.ever = [0] * len(setting.structure.functions)  # stack bytes that vary anywhere
        self.varying_functions = set(frames.callbacks)
        if not together:
            self.varying_functions.add(0)
        self.varying_blocks: set[int] = set()
        self.parted: set[int] = set()  # blocks at whose end lanes part
        self.divided: dict[int, list[frozenset[int]]] = {}  # meeting place -> regions taken
        self.changed = True
        self.writes = [self._block_writes(block) for block in graph.blocks]

    def run(self) -> Uniformity:
        self._enter(0, 0)
        for function in self.frames.callbacks:
            self._enter(self.setting.structure.functions[function][0], _ARGUMENTS)
        while self.changed:
            self.changed = False
            for block in self.graph.blocks:
                state = self.entry[block.index]
                if state is not None:
                    self._block(block, state)
        varying: dict[int, int] = {}
        for block in self.graph.blocks:
            state = self.entry[block.index]
            if state is None:
                continue
            registers, stack = self._tainted(block, state)
            for step in block.steps:
                varying[step.pc] = registers
                registers, stack = self._step(step, registers, stack)
        control = frozenset(
            step.pc
            for block in self.graph.blocks
            if self._control_varies(block)
            for step in block.steps
        )
        return Uniformity(control, MappingProxyType(varying))

    # Blocks

    def _tainted(self, block: Block, state: tuple[int, int]) -> tuple[int, int]:
        registers, stack = self.taint[block.index]
        return state[0] | registers, state[1] | stack

    def _enter(self, pc: int, registers: int) -> None:
        """Control comes to a function's first instruction with these registers varying."""
        self._merge(self.graph.block_of[pc], registers, 0)

    def _merge(self, block: int, registers: int, stack: int) -> None:
        known = self.entry[block]
        merged = (registers, stack) if known is None else (known[0] | registers, known[1] | stack)
        if merged != known:
            self.entry[block] = merged
            self.changed = True

    def _block(self, block: Block, state: tuple[int, int]) -> None:
        registers, stack = self._tainted(block, state)
        for step in block.steps:
            if step.kind is Kind.CALL:
                self._note(self.ever, block.function, stack)  # a callee may look at it now
            if step.kind is Kind.CALL and step.src == CallSrc.LOCAL:
                self._enter(step.target, registers & _ARGUMENTS)
                if self._control_varies(block):
                    self._vary(step.target)
            registers, stack = self._step(step, registers, stack)
        last = block.last
        if last.kind is Kind.EXIT:
            self._note(self.returned, block.function, registers & _RESULT)
        if len(block.successors) > 1 and last.reads & registers:
            self._divide(block)
        for successor in block.successors:
            self._merge(successor, registers, stack)

    def _note(self, table: list[int], index: int, bits: int) -> None:
        if bits & ~table[index]:
            table[index] |= bits
            self.changed = True

    # Control

    def _control_varies(self, block: Block) -> bool:
        return block.function in self.varying_functions or block.index in self.varying_blocks

    def _vary(self, target: int) -> None:
        function = self.setting.structure.function_of[target]
        if function not in self.varying_functions:
            self.varying_functions.add(function)
            self.changed = True

    def _divide(self, block: Block) -> None:
        """Lanes part at the end of ``block``: mark its region and what is written there."""
        if block.index in self.parted:
            return
        self.parted.add(block.index)
        meets = self.graph.meets[block.index]
        known = self.divided.setdefault(meets if meets != END else -1 - block.function, [])
        # A region with the same meeting place around this branch has said it all.
        if any(block.index in region for region in known):
            return
        region = self.graph.region(block.index)
        known.append(region)
        self.varying_blocks |= region
        self.changed = True
        registers = stack = 0
        for index in region:
            registers |= self.writes[index][0]
            stack |= self.writes[index][1]
        for index in region | ({meets} if meets != END else set()):
            if index == meets or len(self.graph.blocks[index].predecessors) > 1:
                before = self.taint[index]
                self.taint[index] = before[0] | registers, before[1] | stack
        if meets == END and registers & _RESULT:
            self._note(self.returned, block.function, _RESULT)

    def _block_writes(self, block: Block) -> tuple[int, int]:
        """The registers and the bytes of the own frame that a block may write."""
        registers = stack = 0
        for step in block.steps:
            registers |= step.writes
            for place in self.frames.written(step):
                if block.function in place.functions:
                    stack |= place.bytes
            if step.kind is Kind.CALL:  # of a function, or of a helper that calls back
                stack |= self.foreign_writes.get(block.function, 0)
        return registers, stack

    # Instructions

    def _step(self, step: Step, registers: int, stack: int) -> tuple[int, int]:
        """What varies after ``step``."""
        after = registers & ~step.writes
        match step.kind:
            case Kind.ALU:
                # x ^ x and x - x are 0 whatever x is.
                same = step.register and step.dst == step.src
                if not (same and step.op in (AluOp.XOR, AluOp.SUB)) and step.reads & registers:
                    after |= 1 << step.dst
            case Kind.BYTE_ORDER:
                after |= registers & 1 << step.dst
            case Kind.LOAD | Kind.LOAD_SIGNED:
                if self._loaded(step, registers, stack):
                    after |= 1 << step.dst
            case Kind.STORE_IMM | Kind.STORE_REG:
                value = step.kind is Kind.STORE_REG and bool(registers >> step.src & 1)
                place = self.frames.place(step, step.dst, step.width // 8)
                stack = self._stored(step, place, value or bool(registers >> step.dst & 1), stack)
            case Kind.ATOMIC:
                place = self.frames.place(step, step.dst, step.width // 8)
                stack = self._stored(step, place, True, stack)
                if step.imm & 1:
                    after |= 1 << (0 if step.imm == AtomicOp.CMPXCHG else step.src)
            case Kind.CALL if step.src == CallSrc.LOCAL:
                callee = self.setting.structure.function_of[step.target]
                after |= self.returned[callee] & _RESULT
            case Kind.CALL:
                helper = HELPERS.get(step.imm)
                if helper is not None:
                    after, stack = self._helper(step, helper, registers, after, stack)
        return after, stack

    def _stored(self, step: Step, place: Place | None, varies: bool, stack: int) -> int:
        """The stack after a store of a value that does or does not vary."""
        if place is None:
            return stack
        own = self.setting.structure.function_of[step.pc]
        block = self.graph.blocks[self.graph.block_of[step.pc]]
        for function in place.functions - {own}:
            # Nobody tells the caller's frame where ways meet in here.
            if (varies or self._control_varies(block)) and place.bytes & ~self.below[function]:
                self.below[function] |= place.bytes
                self.changed = True
        if own not in place.functions:
            return stack
        if varies:
            return stack | place.bytes
        return stack & ~place.bytes if place.exact else stack

    def _loaded(self, step: Step, registers: int, stack: int) -> bool:
        operand = self.frames.operand(step.pc, step.src)
        if operand is None:
            return True
        return any(
            self._memory_varies(step, step.src, region, step.width // 8, (registers, stack))
            for region in operand.regions
        )

    def _memory_varies(
        self, step: Step, register: int, region: Region, size: int | None, state: tuple[int, int]
    ) -> bool:
        """Whether what lies behind a pointer varies, where it points into ``region``."""
        operand = self.frames.operands[step.pc, register]
        address = bool(state[0] >> register & 1)
        match region:
            case Region.CONTEXT:
                found = self._field(step, operand, size)
                return found is None or not self._same(found)
            case Region.STACK:
                place = self.frames.place(step, register, size)
                return address or place is None or bool(self._seen(step, place, state[1]))
            case Region.MAP_VALUE if operand.map is not None:
                return address or not self.setting.map(operand.map).read_only
            case Region.NULL:
                return False
            case _:
                return True

    def _seen(self, step: Step, place: Place, stack: int) -> int:
        """Which bytes of a place vary."""
        own = self.setting.structure.function_of[step.pc]
        found = 0
        for function in place.functions:
            here = stack if function == own else self.ever[function]
            found |= place.bytes & (here | self.below.get(function, 0))
        return found

    def _field(self, step: Step, operand: Operand, size: int | None) -> Field | None:
        if operand.offset is None or size is None:
            return None
        return field_at(operand.offset + step.off, size, self.setting.fields)

    def _same(self, row: Field | Helper) -> bool:
        return row.uniform if self.scope is Scope.WARP else row.launch

    # Helpers

    def _helper(
        self, step: Step, helper: Helper, registers: int, after: int, stack: int
    ) -> tuple[int, int]:
        for position, kind in enumerate(helper.args):
            if kind is Arg.OUT_U64:
                register = position + 1
                varies = not self._same(helper) or bool(registers >> register & 1)
                place = self.frames.place(step, register, 8)
                stack = self._stored(step, place, varies, stack)
        if helper.ret is Ret.MAP_VALUE_OR_NULL:
            same = self._same_lookup(step, helper, registers, stack)
        else:
            same = self._same(helper)
        return after if same else after | _RESULT, stack

    def _same_lookup(self, step: Step, helper: Helper, registers: int, stack: int) -> bool:
        """Whether a lookup gives the same pointer: a map that never moves, and the same key."""
        target = self.frames.operand(step.pc, 1)
        if target is None or target.map is None:
            return False
        spec = self.setting.map(target.map)
        if traits(spec.type).storage not in _SAME_POINTER[self.scope]:
            return False
        for position, kind in enumerate(helper.args):
            operand = self.frames.operand(step.pc, position + 1)
            if kind is not Arg.KEY or operand is None:
                continue
            if any(
                self._memory_varies(step, position + 1, region, spec.key_size, (registers, stack))
                for region in operand.regions
            ):
                return False
        return True


def arguments_vary(frames: Frames, uniformity: Uniformity, step: Step, helper: Helper) -> bool:
    """Whether a register that a helper takes differs between lanes."""
    return any(
        uniformity.register_varies(step.pc, position + 1) for position in range(len(helper.args))
    )
