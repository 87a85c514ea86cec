"""What one verification is asked, and the facts it gathers on its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from egpu.bpf.context import Field, fields_of
from egpu.bpf.prints import PrintCall
from egpu.bpf.program import AttachKind, MapSpec, Program
from egpu.verifier.report import Refusal
from egpu.verifier.scalar import Scalar
from egpu.verifier.state import Pointer, Value
from egpu.verifier.structure import Structure
from egpu.verifier.verified import Operand, Policy, Region


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a program may cost.

    ``processed``: instructions that the verifier walks before it gives up.  ``cost``: worst-case
    instructions per thread, weighted bodies of helpers included.  ``stack``: bytes of the deepest
    call chain of a probe.  ``path``: the last instructions of a failing way that an error shows
    (0: none).  Above these P11 warns: ``atomics`` of a thread, and ``same_address`` of them to one
    address that all threads share.  ``lost_updates``: P8 warns of updates that other threads could
    lose, and does not refuse them.
    """

    processed: int = 1_000_000
    cost: int = 100_000
    stack: int = 512
    path: int = 32
    atomics: int = 32
    same_address: int = 4
    lost_updates: bool = False


@dataclass(slots=True, eq=False)  # never changed; frozen ones take three times as long to make
class Setting:
    """A program and the question asked of it.

    ``strict``: whether the rules of probes hold, as opposed to those of the test executor.
    ``attached``: whether r1 is a probe context, which has ``fields``; a program without attach
    points gets a memory block.
    """

    program: Program
    policy: Policy
    memory_size: int
    exit_probe: bool
    limits: Limits
    structure: Structure
    # What the LD_IMM64 at each pc gives, as far as they were walked.
    constants: dict[int, Scalar | Pointer] = field(default_factory=dict, repr=False)
    strict: bool = field(init=False)
    attached: bool = field(init=False)
    on_host: bool = field(init=False)
    fields: tuple[Field, ...] = field(init=False)

    def __post_init__(self) -> None:
        points = self.program.attach
        self.strict = self.policy is not Policy.EXECUTOR
        self.attached = self.strict and any(p.kind is not AttachKind.EXECUTOR for p in points)
        self.fields = fields_of(points)
        self.on_host = self.program.on_host

    def map(self, index: int) -> MapSpec:
        maps = self.program.maps
        if not 0 <= index < len(maps):
            raise Refusal(
                "P2",
                f"map {index} does not exist, the program has {self._count()}",
                hint="load the program from its object file",
            )
        return maps[index]

    def _count(self) -> str:
        count = len(self.program.maps)
        return "1 map" if count == 1 else f"{count} maps"


def alignment(pointer: Pointer, more: int = 0) -> int:
    """Proven alignment of the address ``more`` bytes beyond a pointer, up to 8; every region begins
    at a multiple of 8."""
    bits, variable = pointer.offset + more, pointer.variable
    if variable is not None:
        unknown = variable.mask
        # Below the lowest unknown bit the sum is known.
        known = (unknown & -unknown) - 1 if unknown else -1
        bits = (bits + variable.value) & known | unknown
    return _ALIGNED[bits & 7]


_ALIGNED = 8, 1, 2, 1, 4, 1, 2, 1  # by the low three bits of an address


class Text(NamedTuple):
    """A value that is shown: bytes ``wanted`` of its text, 0 for a number, and bytes of ``room``
    that may be read."""

    wanted: int
    room: int


@dataclass(frozen=True, slots=True)
class PrintSeen:
    """What a printing call shows, joined over every way so far; ``others`` are further formats."""

    format: str
    texts: tuple[Text, ...]
    others: tuple[str, ...] = ()

    def call(self) -> PrintCall:
        """As code generation has it: texts as long as is wanted on one way and safe on all."""
        return PrintCall(self.format, tuple(min(text) for text in self.texts), self.others)

    def with_format(self, other: PrintSeen, pc: int) -> PrintSeen:
        """Joined with what the call shows on another way by another format."""
        numbers = not any(text.wanted for text in (*self.texts, *other.texts))
        if len(self.texts) != len(other.texts) or not numbers:
            raise Refusal(
                "P2",
                f"one call shows {self.format!r} or {other.format!r}",
                pc,
                "call the helper once for each format that has a %s or another number of values",
            )
        known = sorted({self.format, *self.others, other.format})
        return PrintSeen(known[0], self.texts, tuple(known[1:]))


# Regions that one instruction may reach on different ways: plain memory behind generic addresses.
GENERIC = frozenset({Region.STACK, Region.MAP_VALUE, Region.MAP_KEY, Region.RECORD, Region.MEMORY})


@dataclass(slots=True)
class Recorder:
    """Facts for code generation, joined over every way explored."""

    operands: dict[tuple[int, int], Operand] = field(default_factory=dict)
    context_fields: set[str] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    helpers: set[int] = field(default_factory=set)
    maps: set[int] = field(default_factory=set)
    depths: dict[int, int] = field(default_factory=dict)  # function -> bytes of its frame
    last: dict[tuple[int, int], tuple[Scalar | Pointer, int]] = field(default_factory=dict)
    prints: dict[int, PrintSeen] = field(default_factory=dict)

    def copy(self) -> Recorder:
        return Recorder(
            dict(self.operands),
            set(self.context_fields),
            set(self.parameters),
            set(self.helpers),
            set(self.maps),
            dict(self.depths),
            dict(self.last),
            dict(self.prints),
        )

    def become(self, other: Recorder) -> None:
        """Take over all that ``other`` has, which began as a copy of this."""
        self.operands, self.last, self.depths = other.operands, other.last, other.depths
        self.context_fields, self.parameters = other.context_fields, other.parameters
        self.helpers, self.maps = other.helpers, other.maps
        self.prints = other.prints

    def printed(self, pc: int, shown: PrintSeen) -> PrintCall:
        """Join what a call shows with what it shows on other ways. Gives the join."""
        before = self.prints.get(pc, shown)
        if shown.format not in (before.format, *before.others):
            before = before.with_format(shown, pc)
        texts = tuple(
            Text(max(one.wanted, other.wanted), min(one.room, other.room))
            for one, other in zip(before.texts, shown.texts, strict=True)
        )
        self.prints[pc] = PrintSeen(before.format, texts, before.others)
        return self.prints[pc].call()

    def has_seen(self, pc: int, register: int, value: Value, frame: int) -> bool:
        """Whether ``register`` held the same when the walk last came to this instruction.

        What an instruction asks of this register alone, it has then answered: walks that end in a
        refusal keep no recorder."""
        return self.last.get((pc, register)) == (value, frame)

    def seen(
        self, pc: int, register: int, value: Scalar | Pointer, frame: int, offset: int = 0
    ) -> None:
        """``register`` holds ``value`` at an instruction of frame number ``frame``."""
        key, now = (pc, register), (value, frame)
        if self.last.get(key) != now:  # most often it is as it was before
            self.operand(pc, register, operand_of(value, frame, offset))
            self.last[key] = now

    def stack(self, function: int, lowest: int) -> None:
        """``function``'s frame is touched down to offset ``lowest``."""
        if -lowest > self.depths.get(function, 0):
            self.depths[function] = -lowest

    def operand(self, pc: int, register: int, seen: Operand) -> None:
        """Join what a register is at an instruction with what it was on other ways."""
        before = self.operands.get((pc, register))
        if before is None or before == seen:
            self.operands[pc, register] = seen
            return
        regions = before.regions | seen.regions
        if len(regions) > 1 and not regions <= GENERIC:
            names = " and ".join(sorted(region.value for region in regions))
            raise Refusal(
                "P2",
                f"r{register} is {names} on different ways to this instruction",
                pc,
                "use one instruction for each kind of memory",
            )
        if regions == {Region.CONTEXT} and before.offset != seen.offset:
            raise Refusal(
                "P2",
                f"different context fields are read on different ways through r{register}",
                pc,
                "read each field by its own instruction",
            )
        if regions == {Region.FUNCTION} and before.value != seen.value:
            raise Refusal(
                "P2",
                f"r{register} is a different function on different ways to this call",
                pc,
                "call the helper once for each function",
            )
        if regions & _MAPS and before.map != seen.map:
            raise Refusal(
                "P2",
                f"r{register} is a different map on different ways to this call",
                pc,
                "call the helper once for each map",
            )
        self.operands[pc, register] = Operand(
            regions,
            before.map if before.map == seen.map else None,
            before.offset if before.offset == seen.offset else None,
            before.frame if before.frame == seen.frame else None,
            min(before.align, seen.align),
            before.value if before.value == seen.value else None,
        )


# Looking a member up in its class takes longer than comparing with it.
_SCALAR, _FUNCTION, _STACK = Region.SCALAR, Region.FUNCTION, Region.STACK
_MAP_VALUE = Region.MAP_VALUE
_ONLY = {region: frozenset({region}) for region in Region}
_NUMBER = _ONLY[_SCALAR]
_new = tuple.__new__  # Operand(...) without matching arguments to names
_OR_NULL = {region: frozenset({region, Region.NULL}) for region in Region}
_MAPS = frozenset({Region.MAP_POINTER, Region.INNER_MAP})


def operand_of(value: Scalar | Pointer, frame: int, offset: int = 0) -> Operand:
    """``value`` as seen from frame number ``frame``; ``offset`` is added for the alignment."""
    if type(value) is Scalar:
        return _new(Operand, (_NUMBER, None, None, None, 1, None if value[1] else value[0]))
    assert type(value) is Pointer, "what is no number is a pointer"
    region, owner, start, variable, null, _, _ = value
    if region is _FUNCTION:
        return Operand(_ONLY[region], value=owner)
    made = (
        _OR_NULL[region] if null else _ONLY[region],
        owner if region is _MAP_VALUE or region in _MAPS else None,
        start if variable is None else None,
        frame - owner if region is _STACK else None,
        alignment(value, offset),
        None,
    )
    return _new(Operand, made)
