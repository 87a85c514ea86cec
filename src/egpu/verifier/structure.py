"""P1: the shape of a program, checked before anything is executed abstractly.

Every instruction is well formed, jumps stay inside their function and land on instructions, no
function falls off its end, every instruction can be reached, calls do not recurse and nest at most
eight deep.  What comes out is the program decoded once, in the form the later stages walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from egpu.bpf import isa
from egpu.bpf.helpers import HELPERS
from egpu.bpf.isa import AluOp, AtomicOp, CallSrc, JmpOp, Kind
from egpu.bpf.program import Insn, Program, PseudoSrc
from egpu.verifier.report import Refusal
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.verified import Policy


class Step(NamedTuple):
    """One decoded instruction; ``width`` are its bits, ``swaps`` tells a byte swap from a no-op.

    ``reads`` and ``writes`` are bit sets of registers: those whose value it takes (of a local call
    all that may be arguments), and those whose old value is gone afterwards.
    """

    pc: int
    kind: Kind
    op: AluOp | JmpOp | None
    width: int
    register: bool
    dst: int
    src: int
    off: int
    imm: int
    following: int  # pc of the next instruction
    target: int  # of a jump or a local call, -1 for others
    swaps: bool
    constant: Scalar  # the immediate as a second operand
    reads: int
    writes: int


@dataclass(frozen=True, slots=True)
class Structure:
    """The decoded program.

    ``steps`` by pc (None in the second slot of LD_IMM64); ``functions`` as (first pc, end pc) in
    order; ``function_of`` the index of the function of each pc; ``callees`` per function;
    ``order`` the functions with every callee before its callers; ``checkpoints`` the pcs at which
    exploration compares states.
    """

    steps: tuple[Step | None, ...]
    functions: tuple[tuple[int, int], ...]
    function_of: tuple[int, ...]
    callees: tuple[frozenset[int], ...]
    order: tuple[int, ...]
    checkpoints: frozenset[int]

    def step(self, pc: int) -> Step:
        step = self.steps[pc]
        assert step is not None, "targets are checked to be instructions"
        return step

    def successors(self, step: Step) -> tuple[int, ...]:
        """Where control goes inside the function; a call goes to the instruction after it."""
        kind = step.kind
        if kind is _JUMP:
            return step.following, step.target
        if kind is _EXIT:
            return ()
        return (step.target,) if kind is _JUMP_ALWAYS else (step.following,)

    def walk(self, function: int) -> Iterator[Step]:
        """The instructions of a function in order."""
        for pc in range(*self.functions[function]):
            step = self.steps[pc]
            if step is not None:
                yield step


def analyse(program: Program, policy: Policy) -> Structure:
    """The structure of ``program``. Raises Refusal (rule P1)."""
    functions = _functions(program)
    steps = _decode(program.code, policy)
    function_of = tuple(
        index for index, (start, end) in enumerate(functions) for _ in range(start, end)
    )
    starts = {start: index for index, (start, _) in enumerate(functions)}
    callees: list[set[int]] = [set() for _ in functions]
    checkpoints: set[int] = set()
    for pc, step in enumerate(steps):
        if step is None:
            continue
        kind = step.kind
        end = functions[function_of[pc]][1]
        if kind is _CALL and step.src == _LOCAL:
            if step.target not in starts:
                raise Refusal(
                    "P1", f"local call to slot {step.target}, where no function starts", pc
                )
            callees[function_of[pc]].add(starts[step.target])
            checkpoints.update((step.target, step.following))
        elif kind is _LOAD_IMM64 and (callback := code_reference(step)) is not None:
            if callback not in starts:
                raise Refusal("P1", f"address of slot {callback}, where no function starts", pc)
            callees[function_of[pc]].add(starts[callback])
            checkpoints.add(callback)
        elif kind is _JUMP or kind is _JUMP_ALWAYS:
            _check_target(steps, step, functions[function_of[pc]][0], end)
            checkpoints.add(step.target)
        if step.following >= end and kind is not _EXIT and kind is not _JUMP_ALWAYS:
            raise Refusal(
                "P1",
                "the function can run past its last instruction",
                pc,
                "end every way with exit or an unconditional jump",
            )
    structure = Structure(
        steps,
        functions,
        function_of,
        tuple(frozenset(called) for called in callees),
        _order(functions, callees),
        frozenset(checkpoints),
    )
    if policy is not Policy.EXECUTOR:
        _check_reachable(structure)
    return structure


def _functions(program: Program) -> tuple[tuple[int, int], ...]:
    """The functions as ranges, checked to tile the code."""
    if not program.code:
        raise Refusal("P1", "the program has no instructions", 0)
    expected, ranges = 0, []
    for function in sorted(program.functions, key=lambda f: f.start):
        if function.start != expected or function.length < 1:
            raise Refusal(
                "P1",
                f"function {function.name} starts at slot {function.start}, expected {expected}",
                min(function.start, len(program.code) - 1),
            )
        expected = function.start + function.length
        ranges.append((function.start, expected))
    if expected != len(program.code):
        raise Refusal(
            "P1", f"functions cover {expected} of {len(program.code)} slots", len(program.code) - 1
        )
    return tuple(ranges)


# Looking a member up in its class takes longer than comparing with it.
_ALU, _CALL, _EXIT = Kind.ALU, Kind.CALL, Kind.EXIT
_JUMP, _JUMP_ALWAYS, _LOAD_IMM64 = Kind.JUMP, Kind.JUMP_ALWAYS, Kind.LOAD_IMM64
_LOCAL = int(CallSrc.LOCAL)


class _Row(NamedTuple):
    """What decoding takes from a form; ``reads_dst``, ``reads_src`` and ``writes_dst`` are 0 or 1.

    ``plain``: the fields that need no further check, None if there always is one.
    """

    kind: Kind
    op: AluOp | JmpOp | None
    width: int
    register: bool
    swaps: bool
    reads_dst: int
    reads_src: int
    writes_dst: int
    plain: isa.Plain | None


def _decode(code: tuple[Insn, ...], policy: Policy) -> tuple[Step | None, ...]:
    steps: list[Step | None] = [None] * len(code)
    pc = 0
    while pc < len(code):
        insn = code[pc]
        dst, src, off, imm = insn.dst, insn.src, insn.off, insn.imm
        row = _ROWS.get(insn.opcode)
        plain = None if row is None else row.plain
        if (
            plain is None
            or not 0 <= dst <= plain.dst
            or not 0 <= src <= plain.src
            or (plain.off is not None and off not in plain.off)
            or (plain.imm is not None and imm not in plain.imm)
        ):
            following = code[pc + 1] if pc + 1 < len(code) else None
            reason = isa.check_fields(insn, following) or _check_operand(insn, policy)
            if reason is not None:
                raise Refusal("P1", reason, pc)
        assert row is not None, "check_fields refuses opcodes without a form"
        kind, op, width, register, swaps, reads_dst, reads_src, writes_dst, _ = row
        after, target = pc + 1, -1
        reads, writes = reads_dst << dst | reads_src << src, writes_dst << dst
        if kind is _JUMP:
            target = after + off
        elif plain is None or kind is _JUMP_ALWAYS:
            found = isa.jump_target(pc, insn)
            target = -1 if found is None else found
            reads, writes = _registers(kind, insn)
            after += kind is _LOAD_IMM64
        steps[pc] = _new(
            Step,
            (
                *(pc, kind, op, width, register, dst, src, off, imm, after, target, swaps),
                *(_constant(imm), reads, writes),
            ),
        )
        pc = after
    return tuple(steps)


_new = tuple.__new__  # Step(...) without matching arguments to names
_constant = S64.constant


def _registers(kind: Kind, insn: Insn) -> tuple[int, int]:
    """``reads`` and ``writes`` of the kinds that are not alike for all fields."""
    dst, src = 1 << insn.dst, 1 << insn.src
    match kind:
        case Kind.ATOMIC if insn.imm == AtomicOp.CMPXCHG:
            return dst | src | 1, 1
        case Kind.ATOMIC:
            return dst | src, src if insn.imm & isa.FETCH else 0
        case Kind.CALL:
            helper = HELPERS.get(insn.imm) if insn.src == CallSrc.HELPER else None
            return (1 << (5 if helper is None else len(helper.args)) + 1) - 2, 0b111111
        case Kind.LOAD_IMM64:
            return 0, dst
        case _:
            return 0, 0


_TO_LITTLE_ENDIAN = isa.Class.ALU | AluOp.END
_SHIFTS = frozenset({AluOp.LSH, AluOp.RSH, AluOp.ARSH})
_STORES = frozenset({Kind.STORE_IMM, Kind.STORE_REG})
_LOADS = frozenset({Kind.LOAD, Kind.LOAD_SIGNED})


def _row(form: isa.Form) -> _Row:
    kind, plain = form.kind, isa.PLAIN.get(form.opcode)
    if kind is Kind.ALU and not form.register and plain is not None:
        # What _check_operand looks at is not plain.
        if form.op in _SHIFTS:
            plain = plain._replace(imm=frozenset(range(form.width)))
        elif form.op in (AluOp.DIV, AluOp.MOD):
            plain = plain._replace(imm=frozenset())
    # EXIT reads r0, and its destination field is 0.
    always = kind in _STORES or kind in (Kind.BYTE_ORDER, Kind.JUMP, Kind.EXIT)
    return _Row(
        kind,
        form.op,
        form.width,
        form.register,
        # To little endian does not swap: the machine is little-endian.
        kind is Kind.BYTE_ORDER and form.opcode != _TO_LITTLE_ENDIAN,
        int(always or (kind is Kind.ALU and form.op is not AluOp.MOV)),
        int(form.register),
        int(kind in _LOADS or kind in (Kind.ALU, Kind.BYTE_ORDER)),
        plain,
    )


_ROWS = {opcode: _row(form) for opcode, form in isa.FORMS.items()}


def _check_operand(insn: Insn, policy: Policy) -> str | None:
    """Immediates that are defined but surely a mistake: Linux refuses them too."""
    form = isa.form_of(insn)
    if form is None or form.register or form.kind is not Kind.ALU or policy is Policy.EXECUTOR:
        return None
    if form.op in _SHIFTS and not 0 <= insn.imm < form.width:
        return f"shift of a {form.width}-bit value by {insn.imm}, must be 0 to {form.width - 1}"
    if form.op in (AluOp.DIV, AluOp.MOD) and not insn.imm:
        return "division by the constant 0"
    return None


def _check_target(steps: tuple[Step | None, ...], step: Step, start: int, end: int) -> None:
    if not start <= step.target < end:
        raise Refusal("P1", f"jump to slot {step.target} leaves its function", step.pc)
    if steps[step.target] is None:
        raise Refusal(
            "P1", f"jump into the second half of the 64-bit immediate at {step.target - 1}", step.pc
        )


def _order(functions: tuple[tuple[int, int], ...], callees: list[set[int]]) -> tuple[int, ...]:
    """Functions with callees first. Refuses recursion and chains of more than eight frames."""
    depth: dict[int, int] = {}
    order: list[int] = []
    for root in range(len(functions)):
        work, path = [(root, False)], set()
        while work:
            function, done = work.pop()
            if done:
                path.discard(function)
                if function not in depth:
                    depth[function] = 1 + max((depth[c] for c in callees[function]), default=0)
                    order.append(function)
            elif function in path:
                start = functions[function][0]
                raise Refusal("P1", "the function calls itself, directly or through others", start)
            elif function not in depth:
                path.add(function)
                work.append((function, True))
                work.extend((callee, False) for callee in sorted(callees[function]))
    if depth[0] > isa.MAX_CALL_DEPTH:
        raise Refusal("P1", f"calls nest {depth[0]} deep, limit {isa.MAX_CALL_DEPTH}", 0)
    return tuple(order)


def _check_reachable(structure: Structure) -> None:
    seen: set[int] = set()
    work = [0]
    while work:
        pc = work.pop()
        while pc not in seen:
            seen.add(pc)
            step = structure.steps[pc]
            assert step is not None, "targets are checked to be instructions"
            kind, pc = step.kind, step.following
            if kind is _JUMP or (kind is _CALL and step.src == _LOCAL):
                work.append(step.target)
            elif kind is _JUMP_ALWAYS:
                pc = step.target
            elif kind is _EXIT:
                break
            elif kind is _LOAD_IMM64 and (callback := code_reference(step)) is not None:
                work.append(callback)
    if len(seen) == len(structure.steps):
        return
    for pc, candidate in enumerate(structure.steps):
        if candidate is not None and pc not in seen:
            raise Refusal(
                "P1", "the instruction can never be reached", pc, "remove it or jump to it"
            )


def code_reference(step: Step) -> int | None:
    """The pc of the function whose address an instruction loads, None for others."""
    if step.kind is Kind.LOAD_IMM64 and step.src == PseudoSrc.CODE:
        return step.pc + 1 + step.imm
    return None


def map_reference(step: Step) -> int | None:
    """The map index of an LD_IMM64 that names a map, None for others."""
    if step.kind is Kind.LOAD_IMM64 and step.src in (
        PseudoSrc.MAP_INDEX,
        PseudoSrc.MAP_INDEX_VALUE,
    ):
        return step.imm
    return None
