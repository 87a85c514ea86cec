"""A parsed kernel to steps: scopes, labels, variables; calls are expanded in place.

A ``.func`` is expanded at each call, so every call has registers of its own and threads in it need
no stack.  Recursion is expanded up to ``RECURSION`` levels; a thread that goes deeper is refused.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Mapping

from egpu.errors import InputError, UnsupportedError
from egpu.image.ptx.syntax import (
    Block,
    Directive,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Operand,
    Register,
    Statement,
    Symbol,
    Variable,
    Vector,
)
from egpu.sim.declared import block_limits
from egpu.sim.operands import (
    Layout,
    PlaceName,
    RegisterName,
    Scope,
    unsupported,
)
from egpu.sim.ops_warp import mask_operand
from egpu.sim.steps import Action, Barrier, Collective, Kernel, Step
from egpu.sim.system_calls import SYSTEM_CALLS
from egpu.sim.tables import COLLECTIVES, build
from egpu.sim.types import PREDICATE, TYPES, U32

RECURSION = 16
STEP_LIMIT = 200_000


def compile_kernel(module: Module, name: str, globals: Mapping[str, int]) -> Kernel:
    """The steps of kernel ``name``; ``globals`` gives the address of each module variable.

    UnsupportedError names the first instruction that the simulated device lacks, the kernel and the
    line; InputError for a kernel that is not well formed, or absent.
    """
    try:
        function = module.entry(name)
    except KeyError:
        raise InputError(f"the module has no kernel {name}") from None
    return _Compiler(module, function, globals).kernel()


class _Compiler:
    def __init__(self, module: Module, entry: Function, globals: Mapping[str, int]) -> None:
        self.module = module
        self.entry = entry
        self.layout = Layout()
        self.steps: list[Step] = []
        self.label_count = 0
        self.label_steps: dict[int, int] = {}
        self.starts = [0, *(m.end() for m in re.finditer("\n", module.text))]
        self.functions = {f.name: f for f in module.functions if f.body is not None}
        self.calls: list[str] = []
        self.placed = False  # an error on its way out names its line already
        self.root = Scope(None, self.layout)
        for variable in module.variables:
            self._module_variable(variable, globals)

    def kernel(self) -> Kernel:
        scope = Scope(self.root, self.layout)
        for parameter in self.entry.parameters:
            scope.names[parameter.name] = PlaceName("param", parameter.offset)
        self._function(self.entry, scope, None)
        for step in self.steps:
            step.target = self.label_steps.get(step.target, step.target)
            step.targets = tuple(self.label_steps[label] for label in step.targets)
        size = max((p.offset + p.size for p in self.entry.parameters), default=0)
        most, required = block_limits(self.entry)
        return Kernel(self.entry.name, self.steps, self.layout, size, most, required)

    def _module_variable(self, variable: Variable, globals: Mapping[str, int]) -> None:
        if variable.space in ("global", "const"):
            if variable.name in globals:
                self.root.names[variable.name] = PlaceName("global", globals[variable.name])
        elif variable.space == "shared":
            if variable.size == 0:
                self.root.names[variable.name] = PlaceName("shared", 0, dynamic=True)
            elif re.search(rf"(?<![\w$%]){re.escape(variable.name)}(?![\w$])", self._body_text()):
                address = self.layout.place("shared", variable.size, variable.align)
                self.root.names[variable.name] = PlaceName("shared", address)

    def _body_text(self) -> str:
        """Text in which a module-level shared variable counts as used by this kernel."""
        texts = [self.module.text[f.span.start : f.span.end] for f in self.functions.values()]
        others = [f for f in self.functions.values() if f.is_entry and f is not self.entry]
        skip = {self.module.text[f.span.start : f.span.end] for f in others}
        return "\n".join(text for text in texts if text not in skip)

    # Declarations

    def _function(self, function: Function, scope: Scope, leave: int | None) -> None:
        """Steps of a body; ``leave`` is the label that ret goes to, None for the kernel itself."""
        assert function.body is not None
        self._block(function.body, scope, leave)
        if leave is None:  # falling off the end is ret (PTX ISA, ret)
            line = self._line(function.body.span.end - 1)
            self.steps.append(Step(Action.EXIT, line, "end of kernel"))
        else:
            self.label_steps[leave] = len(self.steps)

    def _block(self, block: Block, scope: Scope, leave: int | None) -> None:
        self._declare(block.statements, scope)
        for statement in block.statements:
            match statement:
                case Block():
                    self._block(statement, Scope(scope, self.layout), leave)
                case Label(name=name):
                    self.label_steps[_label(scope, name)] = len(self.steps)
                case Instruction():
                    self._instruction(statement, scope, leave)
                case Variable() | Directive():
                    pass
            if len(self.steps) > STEP_LIMIT:
                raise UnsupportedError(
                    f"kernel {self.entry.name} of more than {STEP_LIMIT} instructions after "
                    "expanding its calls"
                )

    def _declare(self, statements: Iterable[Statement], scope: Scope) -> None:
        for statement in statements:
            match statement:
                case Label(name=name):
                    self.label_count += 1
                    scope.names[name] = f"label {-1 - self.label_count}"
                case Variable():
                    self._variable(statement, scope)
                case Directive(label=label, text=text) if label:
                    scope.names[label] = f"list {text}"
                case _:
                    pass

    def _variable(self, variable: Variable, scope: Scope) -> None:
        if variable.space == "reg":
            type = TYPES.get(variable.type)
            if type is None or variable.vector != 1:
                raise UnsupportedError(f".reg .{variable.type} {variable.name}")
            names = (
                [variable.name]
                if variable.count is None
                else [f"{variable.name}{i}" for i in range(variable.count)]
            )
            for name in names:
                scope.names[name] = RegisterName(len(self.layout.registers), type)
                self.layout.registers.append(type)
        elif variable.space in ("local", "param"):
            address = self.layout.place("local", variable.size, max(variable.align, 1))
            scope.names[variable.name] = PlaceName("local", address)
        elif variable.space == "shared":
            address = self.layout.place("shared", variable.size, variable.align)
            scope.names[variable.name] = PlaceName("shared", address, variable.size == 0)
        else:
            raise UnsupportedError(f"variable {variable.name} in .{variable.space} in a function")

    # Instructions

    def _line(self, offset: int) -> int:
        return bisect.bisect_right(self.starts, offset)

    def _instruction(self, ins: Instruction, scope: Scope, leave: int | None) -> None:
        line = self._line(ins.span.start)
        step = Step(Action.PLAIN, line, self.module.text[ins.span.start : ins.span.end])
        try:
            if ins.guard is not None:
                guard = scope.register(ins.guard)
                step.guard, step.guard_negated = guard.index, ins.guard_negated
            if ins.parts[0] == "call":
                self._call(ins, scope, step)
                return
            self._fill(step, ins, scope, leave)
        except UnsupportedError as error:
            if self.placed:
                raise
            self.placed = True
            raise UnsupportedError(
                f"{error.feature}, kernel {self.entry.name}, line {line}", needs=error.needs
            ) from error
        except InputError as error:
            if self.placed:
                raise
            self.placed = True
            raise InputError(f"kernel {self.entry.name}, line {line}: {error.message}") from error
        self.steps.append(step)

    def _fill(self, step: Step, ins: Instruction, scope: Scope, leave: int | None) -> None:
        match ins.parts[0]:
            case "bra":
                step.action, step.target = Action.BRANCH, _target(scope, ins.operands[0], ins)
            case "brx":
                step.action = Action.SWITCH
                step.index = scope.read(ins.operands[0], U32)
                step.targets = _list_targets(scope, ins.operands[1], ins)
            case "ret" if leave is not None:
                step.action, step.target = Action.BRANCH, leave
            case "ret" | "exit":
                step.action = Action.EXIT
            case "trap":
                step.action = Action.TRAP
            case "brkpt":
                raise unsupported(ins)
            case "bar" | "barrier":
                self._barrier(step, ins, scope)
            case _:
                step.run = build(scope, ins)
                if ins.parts[0] in COLLECTIVES:
                    step.action = Action.COLLECTIVE
                    step.collective = Collective(mask_operand(scope, ins), anywhere=False)

    def _barrier(self, step: Step, ins: Instruction, scope: Scope) -> None:
        """bar, barrier[.cta] in all forms; bar.warp.sync waits for a mask instead."""
        parts = [part for part in ins.parts[1:] if part not in ("cta", "aligned")]
        if parts == ["warp", "sync"]:
            step.action = Action.COLLECTIVE
            step.collective = Collective(mask_operand(scope, ins), anywhere=True)
            return
        step.action = Action.BARRIER
        reads = [scope.read(operand, U32) for operand in ins.operands if _is_value(operand)]
        if parts in (["sync"], ["arrive"]) and len(ins.operands) in (1, 2):
            count = reads[1] if len(reads) > 1 else None
            step.barrier = Barrier(parts[0], reads[0], count)
            return
        if len(parts) == 3 and parts[0] == "red" and parts[1] in ("popc", "and", "or"):
            step.barrier = self._reduction(parts[1], ins, scope)
            return
        raise unsupported(ins)

    def _reduction(self, form: str, ins: Instruction, scope: Scope) -> Barrier:
        target, number, *rest = ins.operands
        type = U32 if form == "popc" else PREDICATE
        return Barrier(
            form,
            scope.read(number, U32),
            scope.read(rest[0], U32) if len(rest) == 2 else None,
            scope.read(rest[-1], PREDICATE),
            scope.write(target, type),
        )

    # Calls

    def _call(self, ins: Instruction, scope: Scope, step: Step) -> None:
        lists = [operand for operand in ins.operands if isinstance(operand, Vector)]
        names = [operand for operand in ins.operands if isinstance(operand, Symbol)]
        called = names[0].name if names else "a function pointer"
        returned = lists[0].items if isinstance(ins.operands[0], Vector) else ()
        given = lists[-1].items if len(lists) > (1 if returned else 0) else ()
        if called in SYSTEM_CALLS and called not in self.functions:
            inputs = tuple(_passed(scope, called, operand).address for operand in given)
            outputs = [_passed(scope, called, operand).address for operand in returned]
            step.run = SYSTEM_CALLS[called](inputs, outputs[0] if outputs else None)
            self.steps.append(step)
            return
        function = self.functions.get(called)
        if function is None:
            raise unsupported(ins, f" of {called}, which has no body here")
        if self.calls.count(function.name) >= RECURSION:
            step.action = Action.REFUSE
            step.refusal = UnsupportedError(
                f"recursion of {function.name} deeper than {RECURSION} calls, "
                f"kernel {self.entry.name}, line {step.line}"
            )
            self.steps.append(step)
            return
        if step.guard is not None:  # skipped by the threads whose guard is false
            self.label_count += 1
            skip = -1 - self.label_count
            step.action, step.target = Action.BRANCH, skip
            step.guard_negated = not step.guard_negated
            self.steps.append(step)
            self._expand(function, scope, given, returned, step)
            self.label_steps[skip] = len(self.steps)
            return
        self._expand(function, scope, given, returned, step)

    def _expand(
        self,
        function: Function,
        scope: Scope,
        given: tuple[Operand, ...],
        returned: tuple[Operand, ...],
        step: Step,
    ) -> None:
        inner = Scope(self.root, self.layout)
        formal = (*function.parameters, *function.returns)
        actual = (*given, *returned)
        if len(formal) != len(actual):
            raise InputError(f"{function.name} takes {len(function.parameters)} arguments")
        for parameter, operand in zip(formal, actual, strict=True):
            found = _passed(scope, function.name, operand)
            inner.names[parameter.name] = found  # the caller fills them anew for each call
        self.label_count += 1
        leave = -1 - self.label_count
        self.calls.append(function.name)
        self._function(function, inner, leave)
        self.calls.pop()


def _passed(scope: Scope, called: str, operand: Operand) -> PlaceName:
    """The .param variable that holds an argument or takes a result."""
    found = scope.find(operand.name) if isinstance(operand, Register | Symbol) else None
    if not isinstance(found, PlaceName) or found.space != "local":
        raise UnsupportedError(
            f"call of {called} with an argument in a register",
            needs="arguments in .param variables, as compilers pass them",
        )
    return found


def _is_value(operand: Operand) -> bool:
    return isinstance(operand, Immediate | Register)


def _label(scope: Scope, name: str) -> int:
    found = scope.find(name)
    if not isinstance(found, str) or not found.startswith("label "):
        raise InputError(f"{name} is not a label of this function")
    return int(found.removeprefix("label "))


def _target(scope: Scope, operand: Operand, ins: Instruction) -> int:
    if not isinstance(operand, Symbol):
        raise unsupported(ins)
    return _label(scope, operand.name)


def _list_targets(scope: Scope, operand: Operand, ins: Instruction) -> tuple[int, ...]:
    found = scope.find(operand.name) if isinstance(operand, Symbol) else None
    if not isinstance(found, str) or not found.startswith("list "):
        raise unsupported(ins)
    _, _, names = found.partition(".branchtargets")
    return tuple(_label(scope, name) for name in re.findall(r"[\w$%]+", names))
