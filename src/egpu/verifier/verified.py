"""What the verifier gives: a program that may run, and what is known of it.

Only :func:`egpu.verifier.verify` can make a :class:`VerifiedProgram`; ``egpu.codegen`` takes
nothing else.  That is the gate: nothing unverified reaches a device.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, NoReturn

from egpu.bpf.budget import Budget
from egpu.bpf.prints import PrintCall
from egpu.bpf.program import Program


class Policy(enum.Enum):
    """What a program may do.

    PROBE      attached to kernels: every rule holds.
    CONTROL    PROBE, and helpers that change the workload (thread exit) are allowed.
    EXECUTOR   run by `egpu exec`, conformance and tests: r1 points at a memory block of a size
               given to verify(), beginning at a multiple of 8, r2 holds that size, wide shifts are
               masked instead of refused, unaligned plain accesses pass (code generation splits
               them).  Can never be attached.
    """

    PROBE = "probe"
    CONTROL = "control"
    EXECUTOR = "executor"


class Region(enum.Enum):
    """What memory a register points into."""

    __hash__ = object.__hash__  # members are single; Enum's own is written in Python and slow

    SCALAR = "scalar"  # not a pointer (value arguments of helpers)
    NULL = "null"
    CONTEXT = "ctx"
    STACK = "stack"
    MAP_POINTER = "map_ptr"  # the map itself, as helpers take it
    INNER_MAP = "inner_map_ptr"  # a map that a map of maps gave; Operand.map is one of its shape
    MAP_VALUE = "map_value"
    MAP_KEY = "map_key"  # a copy of an entry's key, as bpf_for_each_map_elem gives it
    FUNCTION = "function"  # code, as callbacks are given; Operand.value is its first pc
    RECORD = "record"  # memory reserved in a ring buffer
    MEMORY = "mem"  # the memory block of EXECUTOR


class Operand(NamedTuple):
    """What one register is at one instruction, joined over every way that reaches it.

    ``regions``  all regions seen (a helper argument may be {MAP_VALUE, NULL}; a plain access has
                 exactly one region, except STACK with MAP_VALUE, RECORD or MEMORY, which code
                 generation reaches by generic address).
    ``map``      index into Program.maps if it is one and the same map on every way, else None.
    ``offset``   byte offset of the register from the region's start (the instruction's own offset
                 not added) if it is one constant, else None.  STACK counts from the top of ITS
                 frame (so -8 is the first slot below r10).
    ``frame``    for STACK: 0 is the frame of the running function, 1 its caller's, and so on;
                 None if it differs between ways.
    ``align``    proven alignment of the final address in bytes (1, 2, 4, 8), instruction offset
                 included for plain accesses.
    ``value``    for SCALAR: the constant if known on every way, else None.
    """

    regions: frozenset[Region]
    map: int | None = None
    offset: int | None = None
    frame: int | None = None
    align: int = 1
    value: int | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Worst case per thread: counts of instructions, memory operations, atomics, helper calls,
    ring-buffer bytes; ``helpers`` is the weighted cost of helper bodies in instructions."""

    instructions: int
    memory: int = 0
    atomics: int = 0
    helper_calls: int = 0
    helpers: int = 0
    ring_bytes: int = 0


class RmwOp(enum.Enum):
    """What a recognised read-modify-write does to memory; SUB is ADD of a negated operand."""

    ADD = "add"
    AND = "and"
    OR = "or"
    XOR = "xor"


@dataclass(frozen=True, slots=True)
class RmwTerm:
    """One operand of a read-modify-write, evaluated just before the instruction at ``pc``.

    It is the value of ``register``, or the sign-extended ``imm`` where ``register`` is None;
    ``negate`` takes its negative (SUB).
    """

    pc: int
    register: int | None
    imm: int = 0
    negate: bool = False


@dataclass(frozen=True, slots=True)
class Rmw:
    """``*p op= n`` on a per-SM map, written as load, operations and store in one basic block.

    Code generation emits nothing for ``load_pc`` and ``skip_pcs`` (moves and operations that only
    carry the loaded value: every register they leave is dead after the store) and one atomic ``op``
    of ``size`` bytes (4 or 8) without a result at the store, whose operand is all ``terms``
    combined by ``op``, truncated to ``size``.  Between load and store nothing but the stack is
    written.
    """

    load_pc: int
    skip_pcs: tuple[int, ...]
    op: RmwOp
    size: int
    terms: tuple[RmwTerm, ...]


@dataclass(frozen=True)
class Uniformity:
    """What is the same for all lanes that came together (P7).

    ``control``: the instructions that lanes may reach apart from each other.
    """

    control: frozenset[int]
    find_varying: Callable[[], Mapping[int, int]] = field(repr=False, compare=False)

    @cached_property
    def varying(self) -> Mapping[int, int]:
        """Before each instruction that can be reached, the registers that may differ between lanes,
        as a bit set; found when it is asked for."""
        return self.find_varying()

    def control_varies(self, pc: int) -> bool:
        """Whether lanes may come to the instruction at ``pc`` separately."""
        return pc in self.control

    def register_varies(self, pc: int, register: int) -> bool:
        """Whether ``register`` may differ between lanes before the instruction at ``pc``."""
        return bool(self.varying.get(pc, 0) >> register & 1)


PRINTED_VALUE = 16  # beyond all registers: values that a helper takes from an array


@dataclass(frozen=True)
class Facts:
    """What code generation may rely on.

    ``operands[(pc, register)]``: the base register of every load, store and atomic, and r1-r5 (as
    many as its prototype has) of every helper call.  An instruction that no path reaches has none:
    it may be lowered as unreachable.
    ``context_fields``: names of the context fields read (``egpu.bpf.context``).
    ``parameters``: indices of the kernel parameters read through PT_REGS_PARMn (0-based).
    ``helpers``: ids of the helpers called.  ``maps``: indices of the maps used.
    ``stack_depth``: bytes of stack of the deepest call chain.
    ``rmw``: read-modify-writes on per-SM maps by the pc of their store.
    ``prints``: what each call of a printing helper shows; where a value that it takes from an array
    is a text, ``operands`` has it under register PRINTED_VALUE and its position.
    ``budget``: what bounds loops of an unknown number of turns; None if nothing needs it.
    ``uniformity``: what the lanes of a warp have in common; ``launch``: what all threads of a
    launch have in common.
    """

    operands: Mapping[tuple[int, int], Operand]
    context_fields: frozenset[str]
    parameters: frozenset[int]
    helpers: frozenset[int]
    maps: frozenset[int]
    stack_depth: int
    rmw: Mapping[int, Rmw]
    prints: Mapping[int, PrintCall]
    budget: Budget | None
    uniformity: Uniformity
    find_launch: Callable[[], Uniformity] = field(repr=False, compare=False)

    @cached_property
    def launch(self) -> Uniformity:
        """What all threads of a launch have in common; found when it is asked for."""
        return self.find_launch()


@dataclass(frozen=True, slots=True)
class VerifierWarning:
    """Something that passes and that its author should know: ``rule``, what and where, and what to
    do about it.  ``insn`` and ``line`` are the instruction and its source line."""

    rule: str
    message: str
    pc: int
    insn: str = ""
    line: str = ""
    hint: str = ""

    def __str__(self) -> str:
        place = f"insn {self.pc}" + (f" ({self.insn})" if self.insn else "")
        place += f" at {self.line}" if self.line else ""
        return f"{place}: {self.message}" + (f"; {self.hint}" if self.hint else "")


_SEAL = object()


class VerifiedProgram:
    """A program that passed the verifier, with its facts and cost.

    Cannot be constructed, copied with changes or subclassed outside the verifier: the constructor
    wants a seal that only :func:`_issue` has.
    """

    __slots__ = (
        "_cost",
        "_facts",
        "_memory_size",
        "_policy",
        "_program",
        "_warnings",
        "_warp_cost",
    )
    _program: Program
    _policy: Policy
    _facts: Facts
    _cost: Cost
    _warp_cost: Cost
    _memory_size: int
    _warnings: tuple[VerifierWarning, ...]

    def __init_subclass__(cls) -> None:
        raise TypeError("VerifiedProgram cannot be subclassed")

    def __init__(
        self,
        seal: object,
        program: Program,
        policy: Policy,
        *,
        facts: Facts,
        cost: Cost,
        warp_cost: Cost,
        memory_size: int,
        warnings: tuple[VerifierWarning, ...] = (),
    ) -> None:
        if seal is not _SEAL:
            raise TypeError("only egpu.verifier.verify() makes a VerifiedProgram")
        for name, value in (
            ("_program", program),
            ("_policy", policy),
            ("_facts", facts),
            ("_cost", cost),
            ("_warp_cost", warp_cost),
            ("_memory_size", memory_size),
            ("_warnings", warnings),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a VerifiedProgram does not change; {name} cannot be set")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # A copy or a pickle would be built without the seal, with whatever content.
        raise TypeError("a VerifiedProgram cannot be copied or stored; verify the program again")

    @property
    def program(self) -> Program:
        return self._program

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def cost(self) -> Cost:
        return self._cost

    @property
    def warp_cost(self) -> Cost:
        """Worst case of one warp: more than one thread's where lanes come apart."""
        return self._warp_cost

    @property
    def memory_size(self) -> int:
        """Bytes behind r1 under EXECUTOR, 0 otherwise."""
        return self._memory_size

    @property
    def warnings(self) -> tuple[VerifierWarning, ...]:
        """What passes but should be known, by instruction."""
        return self._warnings


def _issue(
    program: Program,
    policy: Policy,
    *,
    facts: Facts,
    cost: Cost,
    warp_cost: Cost,
    memory_size: int,
    warnings: tuple[VerifierWarning, ...],
) -> VerifiedProgram:
    """Seal a verdict. Called by the verifier's last stage and nowhere else (a test greps)."""
    return VerifiedProgram(
        _SEAL,
        program,
        policy,
        facts=facts,
        cost=cost,
        warp_cost=warp_cost,
        memory_size=memory_size,
        warnings=warnings,
    )
