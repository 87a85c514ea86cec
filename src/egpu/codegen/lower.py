"""eBPF to LLVM IR: a program becomes one internal function per eBPF function, all inlined.

Every function has the signature ``i64 (i64 r1, ..., i64 r5, ptr state, ptr frame1, ...)``:
``state`` is what the program shares (see ``scope``), ``frame k`` the end of the stack frame of the
k-th caller.  Registers are variables that LLVM turns into values; a callee has its own r6-r9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from egpu.bpf.budget import NO_BUDGET
from egpu.bpf.helpers import HELPERS, Arg, calls_back
from egpu.bpf.isa import CallSrc, Form, JmpOp, Kind, form_of, is_wide, jump_target
from egpu.bpf.program import Insn, PseudoSrc
from egpu.codegen import budgets
from egpu.codegen.alu import condition, lower_alu, lower_byte_order
from egpu.codegen.callbacks import lower_calling_back
from egpu.codegen.calls import lower_helper
from egpu.codegen.device_code import Relocation, RelocKind
from egpu.codegen.library import declarations
from egpu.codegen.memory import lower_atomic, lower_load, lower_rmw, lower_store
from egpu.codegen.primitives import ATTRIBUTES, PURE, Together
from egpu.codegen.scope import (
    CALLER_FRAMES,
    STATE_SLOT,
    STATE_SM,
    Scope,
    Unit,
    low_symbol_function,
    symbol_function,
)
from egpu.codegen.targets import Machine, header
from egpu.errors import InternalError, UnsupportedError
from egpu.verifier.verified import Rmw, RmwTerm, VerifiedProgram

_MEMORY_KINDS = frozenset(
    {Kind.LOAD, Kind.LOAD_SIGNED, Kind.STORE_IMM, Kind.STORE_REG, Kind.ATOMIC}
)
_LOADS = frozenset({Kind.LOAD, Kind.LOAD_SIGNED})
_SIGNATURE = ", ".join(
    [*(f"i64 %a{n}" for n in range(1, 6)), "ptr %state"]
    + [f"ptr %frame{n}" for n in range(1, CALLER_FRAMES + 1)]
)


@dataclass(frozen=True, slots=True)
class Lowered:
    """IR of a program for one machine, without the function that starts it.

    ``symbols``: what it needs resolved.  ``start`` gives the IR that prepares its state and runs
    it.
    """

    functions: str
    symbols: tuple[Relocation, ...]
    state_size: int
    uses_sm: bool
    uses_slot: bool
    machine: Machine
    budget: tuple[int, int] | None = None  # where it begins in the state, tokens

    def start(self, r1: str, r2: str) -> str:
        """Instructions that run the program with these r1 and r2 and leave r0 in ``%result``."""
        lines = [f"%state = alloca [{self.state_size} x i8], align 8"]
        lines.append(
            "call void @llvm.memset.p0.i64"
            f"(ptr align 8 %state, i8 0, i64 {self.state_size}, i1 false)"
        )
        if self.uses_sm:
            lines += [
                "%sm = call i32 @egpu.sm()",
                "%sm64 = zext i32 %sm to i64",
                f"%sm.at = getelementptr i8, ptr %state, i64 {STATE_SM}",
                "store i64 %sm64, ptr %sm.at, align 8",
            ]
        if self.uses_slot:
            lines += [
                f"%slots64 = call i64 @{symbol_function(Relocation(RelocKind.SM_SLOTS))}()",
                "%slots = trunc i64 %slots64 to i32",
                "%slot = call i32 @egpu.slot_of(i32 %sm, i32 %slots)",
                "%slot64 = zext i32 %slot to i64",
                f"%slot.at = getelementptr i8, ptr %state, i64 {STATE_SLOT}",
                "store i64 %slot64, ptr %slot.at, align 8",
            ]
        if self.budget is not None:
            lines += budgets.beginning(*self.budget)
        frames = ", ".join(["ptr null"] * CALLER_FRAMES)
        lines.append(
            f"%result = call i64 @egpu.program.0(i64 {r1}, i64 {r2}, i64 0, i64 0, i64 0, "
            f"ptr %state, {frames})"
        )
        if self.budget is not None:
            lines += budgets.ending(self.budget[0])
        return "\n".join(f"  {line}" for line in lines)

    def module(
        self,
        start: str,
        values: Mapping[Relocation, int] | None = None,
        *,
        together: Together = Together.WARP,
    ) -> str:
        """The whole IR module: this program, the function ``start`` that runs it, the library.

        ``values`` gives the symbols' values; None makes them symbols of the PTX text."""
        text = self.functions + start
        symbols = "".join(_symbol(symbol, values) for symbol in self.symbols)
        return (
            header(self.machine)
            + "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
            + declarations(text, self.machine, together)
            + symbols
            + text
        )


def _symbol(symbol: Relocation, values: Mapping[Relocation, int] | None) -> str:
    name, low = symbol_function(symbol), low_symbol_function(symbol)
    # The splicer replaces the statement with the symbol as a whole: see RelocKind.
    whole = f'call i64 asm "mov.b64 $0, {symbol.symbol};", "=l"() {PURE}'
    half = (
        f'call i32 asm "{{{{ .reg .b64 %symbol; mov.b64 %symbol, {symbol.symbol}; '
        f'cvt.u32.u64 $0, %symbol; }}}}", "=r"() {PURE}'
    )
    if values is not None:
        whole = f"add i64 0, {values[symbol]}"
        half = f"add i32 0, {values[symbol] & 0xFFFF_FFFF}"
    return (
        f"define internal i64 @{name}() {ATTRIBUTES} {{\n  %v = {whole}\n  ret i64 %v\n}}\n"
        f"define internal i32 @{low}() {ATTRIBUTES} {{\n  %v = {half}\n  ret i32 %v\n}}\n"
    )


def lower(verified: VerifiedProgram, machine: Machine) -> Lowered:
    """The IR of ``verified`` for ``machine``.

    Raises TypeError for anything that the verifier did not make, UnsupportedError for what has no
    lowering.
    """
    if type(verified) is not VerifiedProgram:
        raise TypeError(
            f"code is generated for a VerifiedProgram only, not for {type(verified).__name__}"
        )
    unit = Unit(verified, machine)
    texts: dict[int, str] = {}
    pending = [0]
    while pending:
        start = pending.pop()
        if start not in texts:
            function = _Function(unit, start)
            texts[start] = function.text()
            pending.extend(function.callees)
    if unit.uses_slot:
        unit.symbols[Relocation(RelocKind.SM_SLOTS)] = None
    chosen = verified.facts.budget
    budget = None if chosen is None else (unit.budget_at, chosen.turns)
    if budget is not None:
        unit.symbols[budgets.ARENA] = None
    symbols = tuple(unit.symbols)
    functions = "".join((*texts.values(), *unit.functions.values()))
    return Lowered(
        functions, symbols, unit.state_size, unit.uses_sm, unit.uses_slot, machine, budget
    )


class _Function:
    """The lowering of one eBPF function: every block that its first instruction reaches."""

    def __init__(self, unit: Unit, start: int) -> None:
        self._unit = unit
        self._code = unit.verified.program.code
        self._scope = Scope(unit, start)
        self._start = start
        self._rmw: Mapping[int, Rmw] = unit.verified.facts.rmw
        self._skipped = {pc for rmw in self._rmw.values() for pc in (rmw.load_pc, *rmw.skip_pcs)}
        # By (pc of the store, number of the term): where each is evaluated, and its value.
        self._wanted: dict[int, list[tuple[tuple[int, int], RmwTerm]]] = {}
        for store_pc, rmw in self._rmw.items():
            for position, term in enumerate(rmw.terms):
                self._wanted.setdefault(term.pc, []).append(((store_pc, position), term))
        self._terms: dict[tuple[int, int], str] = {}
        self.callees: list[int] = []
        self._budget = unit.verified.facts.budget or NO_BUDGET
        self._again: set[int] = set()  # heads of budgeted loops that are turned to

    def text(self) -> str:
        body = self._scope.body
        reached, leaders = self._explore()
        self._prologue()
        for pc in sorted(reached):
            if pc in leaders:
                body.label(_block(pc))
            self._instruction(pc, leaders)
        for head in sorted(self._again):
            self._next_turn(head)
        name = f"egpu.program.{self._start}"
        return (
            f"define internal i64 @{name}({_SIGNATURE}) {ATTRIBUTES} {{\n"
            f"{body.text('arguments')}\n}}\n"
        )

    def _prologue(self) -> None:
        """r1-r5 from the caller; the others start at 0, though no verified program reads them."""
        body = self._scope.body
        body.label("arguments")
        for register in range(10):
            value = f"%a{register}" if 1 <= register <= 5 else "0"
            self._scope.set(register, value)
        body.branch(_block(self._start))

    def _explore(self) -> tuple[set[int], set[int]]:
        """Slots reached from the start without entering calls, and those where a block begins."""
        reached: set[int] = set()
        leaders = {self._start}
        pending = [self._start]
        while pending:
            pc = pending.pop()
            if pc in reached:
                continue
            insn, form = self._at(pc)
            reached.add(pc)
            following = pc + (2 if is_wide(insn) else 1)
            match form.kind:
                case Kind.EXIT:
                    continue
                case Kind.JUMP | Kind.JUMP_ALWAYS:
                    target = jump_target(pc, insn)
                    if target is None:
                        raise InternalError(f"instruction {pc} jumps nowhere")
                    leaders.add(target)
                    pending.append(target)
                    if form.kind is Kind.JUMP:
                        leaders.add(following)
                        pending.append(following)
                case _:
                    pending.append(following)
        return reached, leaders

    def _at(self, pc: int) -> tuple[Insn, Form]:
        if not 0 <= pc < len(self._code):
            raise InternalError(f"execution leaves the program at slot {pc}")
        insn = self._code[pc]
        form = form_of(insn)
        if form is None:
            raise InternalError(f"instruction {pc} has the unknown opcode 0x{insn.opcode:02x}")
        return insn, form

    def _instruction(self, pc: int, leaders: set[int]) -> None:
        insn, form = self._at(pc)
        self._keep_terms(pc)
        ends = pc not in self._skipped and self._lower(pc, insn, form)
        following = pc + (2 if is_wide(insn) else 1)
        if not ends and following in leaders:
            self._scope.body.branch(self._to(pc, following))

    def _to(self, pc: int, target: int | None) -> str:
        """The block where control goes from ``pc`` to ``target``."""
        if target is not None and self._budget.again(pc, target):
            self._again.add(target)
            return f"again{target}"
        return _block(target)

    def _next_turn(self, head: int) -> None:
        """Another turn of a budgeted loop, or the end of the program."""
        body = self._scope.body
        cut = body.fresh("cut")
        body.label(f"again{head}")
        budgets.take(self._scope, _block(head), cut)
        body.label(cut)
        budgets.end(self._scope)

    def _lower(self, pc: int, insn: Insn, form: Form) -> bool:
        """Write one instruction; whether it ended its block."""
        scope = self._scope
        if not self._has_facts(pc, insn, form):
            # No path reaches it (the verifier proved the branch before one-sided).  Its block must
            # end; an ordinary return keeps it defined.
            self._dead_block(pc)
            return False
        match form.kind:
            case Kind.ALU:
                lower_alu(scope, insn, form)
            case Kind.BYTE_ORDER:
                lower_byte_order(scope, insn, form)
            case Kind.LOAD | Kind.LOAD_SIGNED:
                lower_load(scope, pc, insn, form)
            case Kind.STORE_IMM | Kind.STORE_REG if pc in self._rmw:
                rmw = self._rmw[pc]
                terms = [self._terms[pc, position] for position in range(len(rmw.terms))]
                lower_rmw(scope, pc, insn, rmw, terms)
            case Kind.STORE_IMM | Kind.STORE_REG:
                lower_store(scope, pc, insn, form)
            case Kind.ATOMIC:
                lower_atomic(scope, pc, insn, form)
            case Kind.LOAD_IMM64:
                self._load_imm64(pc, insn)
            case Kind.CALL:
                self._call(pc, insn)
            case Kind.EXIT:
                scope.body.line(f"ret i64 {scope.get(0)}")
                return True
            case Kind.JUMP_ALWAYS:
                scope.body.branch(self._to(pc, jump_target(pc, insn)))
                return True
            case Kind.JUMP:
                target, following = self._to(pc, jump_target(pc, insn)), self._to(pc, pc + 1)
                if form.op is JmpOp.JCOND:
                    budgets.take(scope, following, target)
                else:
                    scope.body.branch_if(condition(scope, insn, form), target, following)
                return True
        return False

    def _keep_terms(self, pc: int) -> None:
        """Save what read-modify-writes take from registers before the instruction at ``pc``."""
        for key, term in self._wanted.get(pc, ()):
            value = str(term.imm) if term.register is None else self._scope.get(term.register)
            if term.negate:
                value = self._scope.body.binary("sub", "i64", "0", value)
            self._terms[key] = value

    def _has_facts(self, pc: int, insn: Insn, form: Form) -> bool:
        if form.kind in _MEMORY_KINDS:
            base = insn.src if form.kind in _LOADS else insn.dst
        elif form.kind is Kind.CALL and insn.src == CallSrc.HELPER and insn.imm in HELPERS:
            if not HELPERS[insn.imm].args:
                return True
            base = 1
        else:
            return True
        return (pc, base) in self._unit.verified.facts.operands

    def _dead_block(self, pc: int) -> None:
        body = self._scope.body
        body.line("ret i64 0")
        body.label(f"dead{pc}")

    def _load_imm64(self, pc: int, insn: Insn) -> None:
        scope = self._scope
        high = self._code[pc + 1].imm
        match insn.src:
            case PseudoSrc.CONST:
                value = (high << 32) | (insn.imm & 0xFFFFFFFF)
                scope.set(insn.dst, str(value))
            case PseudoSrc.MAP_INDEX:
                # Helpers know their map from the facts; the program sees a pointer, not null.
                scope.set(insn.dst, str(insn.imm + 1))
            case PseudoSrc.CODE:
                # As for maps: what is called stands in the facts.
                scope.set(insn.dst, str(pc + 1 + insn.imm))
            case PseudoSrc.MAP_INDEX_VALUE:
                scope.set(insn.dst, scope.body.add(scope.map_base(insn.imm), high))
            case _:
                raise UnsupportedError(
                    f"program {self._unit.verified.program.name}, instruction {pc}: "
                    f"64-bit immediate of kind {insn.src}",
                    needs="a constant or a map",
                )

    def _call(self, pc: int, insn: Insn) -> None:
        scope = self._scope
        if insn.src == CallSrc.HELPER and calls_back(insn.imm):
            function = self._callback(pc, insn.imm)
            lower_calling_back(scope, pc, insn.imm, lambda given: self._called(function, given))
            return
        if insn.src == CallSrc.HELPER:
            lower_helper(scope, pc, insn.imm)
            return
        target = jump_target(pc, insn)
        if insn.src != CallSrc.LOCAL or target is None:
            raise UnsupportedError(f"instruction {pc}: call of kind {insn.src}")
        scope.set(0, self._called(target, [scope.get(register) for register in range(1, 6)]))

    def _callback(self, pc: int, number: int) -> int:
        """The function that a helper calls back."""
        register = HELPERS[number].args.index(Arg.CALLBACK) + 1
        target = self._scope.operand(pc, register).value
        if target is None:
            raise InternalError(f"no facts for the callback at instruction {pc}")
        return target

    def _called(self, target: int, registers: list[str]) -> str:
        """Call the function at ``target`` with r1 to r5; its r0."""
        scope = self._scope
        self.callees.append(target)
        arguments = [f"i64 {value}" for value in registers]
        arguments.append("ptr %state")
        arguments.append(f"ptr {scope.frame_top(0)}")
        arguments += [f"ptr %frame{n}" for n in range(1, CALLER_FRAMES)]
        result = scope.body.call("i64", f"egpu.program.{target}", *arguments)
        if self._budget.loops:
            budgets.unwind(scope)
        return result


def _block(pc: int | None) -> str:
    return f"pc{pc}"
