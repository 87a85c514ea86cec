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
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from types import MappingProxyType

from egpu.bpf.context import Field
from egpu.bpf.helpers import HELPERS, Arg, Helper, Ret
from egpu.bpf.isa import AluOp, CallSrc, JmpOp, Kind
from egpu.bpf.maptypes import Storage, traits
from egpu.verifier.control import END, Block, Graph
from egpu.verifier.frames import OUTPUTS, Frames, Place
from egpu.verifier.setting import Setting
from egpu.verifier.structure import Step
from egpu.verifier.uniform_rows import Rows, field_of
from egpu.verifier.verified import Region, Uniformity


class Scope(enum.Enum):
    """Among whom values are compared."""

    __hash__ = object.__hash__  # members are single; Enum's own is written in Python and slow

    WARP = "the lanes of a warp"
    LAUNCH = "the threads of a launch"


_RESULT = 1  # r0
_ARGUMENTS = 0b111110
# Where equal keys give equal pointers: to every thread, or to those of one SM (a warp is on one).
_SAME_POINTER = {
    Scope.WARP: (Storage.ARRAY, Storage.PER_SM_ARRAY),
    Scope.LAUNCH: (Storage.ARRAY,),
}


def analyse(
    setting: Setting, graph: Graph, frames: Frames, *, together: bool
) -> tuple[Uniformity, Callable[[], Uniformity]]:
    """The uniformity of every register and of control at every instruction: among the lanes of a
    warp, and a function that gives that among the threads of a launch, which few programs need.

    ``together`` is false where the lanes do not even enter together, as in programs that one lane
    runs for its warp: control then varies from the start.
    """
    rows = Rows(setting, graph, frames)
    found: list[Uniformity] = []

    def launch() -> Uniformity:
        if not found:
            found.append(_Flow(rows, Scope.LAUNCH, together).run())
        return found[0]

    return _Flow(rows, Scope.WARP, together).run(), launch


_LOADS = frozenset({Kind.LOAD, Kind.LOAD_SIGNED})
_KEY, _STACK = Arg.KEY, Region.STACK
_ALU, _CALL, _EXIT = Kind.ALU, Kind.CALL, Kind.EXIT
_CANCELLING = frozenset({AluOp.XOR, AluOp.SUB})


def _computed(step: Step, registers: int) -> int:
    """What varies after an instruction that computes from what it reads."""
    if not registers & step.reads:
        return registers & ~step.writes
    # x ^ x and x - x are 0 whatever x is.
    if step.dst == step.src and step.register and step.kind is _ALU and step.op in _CANCELLING:
        return registers & ~step.writes
    return registers | step.writes


class _Flow:
    def __init__(self, rows: Rows, scope: Scope, together: bool) -> None:
        self.rows = rows
        self.setting = rows.setting
        self.graph = rows.graph
        self.frames = rows.frames
        self.scope = scope
        self.number = 0 if scope is Scope.WARP else 1
        count = len(self.graph.blocks)
        self.entry: list[tuple[int, int] | None] = [None] * count  # registers, stack bytes
        self.taint = [(0, 0)] * count  # what varies where a block begins because ways meet
        self.waiting: set[int] = set()  # blocks to be looked at again
        self.order: list[int] = []  # the same as a heap
        functions = len(self.setting.structure.functions)
        self.returned = [0] * functions  # registers that vary at the end
        self.below = dict.fromkeys(rows.foreign_writes, 0)  # bytes that callees made varying
        self.ever = [0] * functions  # stack bytes that vary anywhere
        self.varying_functions = set(self.frames.callbacks)
        if not together:
            self.varying_functions.add(0)
        self.varying_blocks: set[int] = set()
        self.parted: set[int] = set()  # blocks at whose end lanes part
        self.divided: dict[int, list[frozenset[int]]] = {}  # meeting place -> regions taken

    def run(self) -> Uniformity:
        self._enter(0, 0)
        for function in self.frames.callbacks:
            self._enter(self.setting.structure.functions[function][0], _ARGUMENTS)
        while self.order:
            index = heappop(self.order)
            self.waiting.discard(index)
            state = self.entry[index]
            if state is not None:
                self._block(self.graph.blocks[index], state)
        return self._result()

    def _result(self) -> Uniformity:
        control: list[int] = []
        for block in self.graph.blocks:
            if self._control_varies(block):
                control += [step.pc for step in block.steps]
        return Uniformity(frozenset(control), self._varying)

    def _varying(self) -> Mapping[int, int]:
        """The registers that vary before each instruction, once nothing changes any more."""
        varying: dict[int, int] = {}
        for block in self.graph.blocks:
            state = self.entry[block.index]
            if state is None:
                continue
            registers, stack = self._tainted(block, state)
            for step in block.steps:
                varying[step.pc] = registers
                registers, stack = self._after(step, registers, stack)
        return MappingProxyType(varying)

    def _again(self, block: int) -> None:
        """Something changed that a block depends on."""
        if block not in self.waiting:
            self.waiting.add(block)
            heappush(self.order, block)

    def _everything(self) -> None:
        """Something changed that any block may depend on."""
        for block in range(len(self.entry)):
            self._again(block)

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
            self._again(block)

    def _block(self, block: Block, state: tuple[int, int]) -> None:
        registers, stack = self._tainted(block, state)
        rows, number = self.rows.rows, self.number
        for step in block.steps:
            kind = step.kind
            if kind is _ALU:  # as most are
                if registers & step.reads:
                    registers = _computed(step, registers)
                else:
                    registers &= ~step.writes
                continue
            row = rows.get(step.pc)
            if row is None:
                registers = _computed(step, registers)
                continue
            if row.step is None:
                registers = registers & ~step.writes | row.varying[number]
                continue
            if kind is _CALL:
                self._note(self.ever, block.function, stack)  # a callee may look at it now
                if step.src == CallSrc.LOCAL:
                    self._enter(step.target, registers & _ARGUMENTS)
                    if self._control_varies(block):
                        self._vary(step.target)
            registers, stack = self._step(step, registers, stack)
        last = block.last
        if last.kind is _EXIT:
            self._note(self.returned, block.function, registers & _RESULT)
        # Lanes that parted before have other budgets left.
        if len(block.successors) > 1 and (last.reads & registers or last.op is JmpOp.JCOND):
            self._divide(block)
        for successor in block.successors:
            self._merge(successor, registers, stack)

    def _note(self, table: list[int], index: int, bits: int) -> None:
        if bits & ~table[index]:
            table[index] |= bits
            if len(table) > 1:  # other functions read it
                self._everything()

    # Control

    def _control_varies(self, block: Block) -> bool:
        return block.function in self.varying_functions or block.index in self.varying_blocks

    def _vary(self, target: int) -> None:
        function = self.setting.structure.function_of[target]
        if function not in self.varying_functions:
            self.varying_functions.add(function)
            self._everything()

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
        registers = stack = 0
        for index in region:
            self._again(index)
            written = self.rows.written(self.graph.blocks[index])
            registers |= written[0]
            stack |= written[1]
        for index in region | ({meets} if meets != END else set()):
            if index == meets or len(self.graph.blocks[index].predecessors) > 1:
                before = self.taint[index]
                self.taint[index] = before[0] | registers, before[1] | stack
                self._again(index)
        if meets == END and registers & _RESULT:
            self._note(self.returned, block.function, _RESULT)

    # Instructions

    def _after(self, step: Step, registers: int, stack: int) -> tuple[int, int]:
        """What varies after an instruction."""
        row = self.rows.rows.get(step.pc)
        if row is None:
            return _computed(step, registers), stack
        if row.step is None:
            return registers & ~step.writes | row.varying[self.number], stack
        return self._step(step, registers, stack)

    def _step(self, step: Step, registers: int, stack: int) -> tuple[int, int]:
        """What varies after a load, a store or a call that is more than its row."""
        after = registers & ~step.writes
        if step.kind in _LOADS:
            if self._loaded(step, registers, stack):
                after |= step.writes
        elif step.kind is _CALL:
            if step.src == CallSrc.LOCAL:
                callee = self.setting.structure.function_of[step.target]
                return after | self.returned[callee] & _RESULT, stack
            helper = HELPERS.get(step.imm)
            if helper is not None:
                return self._helper(step, helper, registers, after, stack)
        else:
            place = self.frames.place(step, step.dst, step.width // 8)
            atomic = step.kind is Kind.ATOMIC
            value = atomic or (step.kind is Kind.STORE_REG and registers >> step.src & 1)
            varies = bool(value or registers >> step.dst & 1)
            stack = self._stored(step, place, varies, stack)
            after |= step.writes
        return after, stack

    def _stored(self, step: Step, place: Place | None, varies: bool, stack: int) -> int:
        """The stack after a store of a value that does or does not vary."""
        if place is None:
            return stack
        if place.exact:
            return stack | place.bytes if varies else stack & ~place.bytes
        own = self.setting.structure.function_of[step.pc]
        block = self.graph.blocks[self.graph.block_of[step.pc]]
        for function in place.functions - {own}:
            # Nobody tells the caller's frame where ways meet in here.
            if (varies or self._control_varies(block)) and place.bytes & ~self.below[function]:
                self.below[function] |= place.bytes
                self._everything()
        if own not in place.functions:
            return stack
        return stack | place.bytes if varies else stack

    def _loaded(self, step: Step, registers: int, stack: int) -> bool:
        operand = self.frames.operand(step.pc, step.src)
        if operand is None:
            return True
        size, state = step.width // 8, (registers, stack)
        for region in operand.regions:
            if self._memory_varies(step, step.src, region, size, state):
                return True
        return False

    def _memory_varies(
        self, step: Step, register: int, region: Region, size: int | None, state: tuple[int, int]
    ) -> bool:
        """Whether what lies behind a pointer varies, where it points into ``region``."""
        operand = self.frames.operands[step.pc, register]
        address = bool(state[0] >> register & 1)
        if region is _STACK:  # as it is most often
            place = self.frames.place(step, register, size)
            return address or place is None or bool(self._seen(step, place, state[1]))
        match region:
            case Region.CONTEXT:
                found = field_of(self.setting, step, operand, size)
                return found is None or not self._same(found)
            case Region.MAP_VALUE if operand.map is not None:
                return address or not self.setting.map(operand.map).read_only
            case Region.NULL:
                return False
            case _:
                return True

    def _seen(self, step: Step, place: Place, stack: int) -> int:
        """Which bytes of a place vary."""
        own = self.setting.structure.function_of[step.pc]
        if place.exact:
            return place.bytes & (stack | self.below.get(own, 0))
        found = 0
        for function in place.functions:
            here = stack if function == own else self.ever[function]
            found |= place.bytes & (here | self.below.get(function, 0))
        return found

    def _same(self, row: Field | Helper) -> bool:
        return row.uniform if self.scope is Scope.WARP else row.launch

    # Helpers

    def _helper(
        self, step: Step, helper: Helper, registers: int, after: int, stack: int
    ) -> tuple[int, int]:
        for position, kind in enumerate(helper.args):
            if kind in OUTPUTS:
                register = position + 1
                varies = not self._same(helper) or bool(registers >> register & 1)
                place = self.frames.place(step, register, self.frames.output_size(step, position))
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
            if kind is not _KEY or operand is None:
                continue
            for region in operand.regions:
                where = step, position + 1, region, spec.key_size
                if self._memory_varies(*where, (registers, stack)):
                    return False
        return True


def arguments_vary(frames: Frames, uniformity: Uniformity, step: Step, helper: Helper) -> bool:
    """Whether a register that a helper takes differs between lanes."""
    return any(
        uniformity.register_varies(step.pc, position + 1) for position in range(len(helper.args))
    )
