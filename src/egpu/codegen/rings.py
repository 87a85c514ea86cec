"""Ring-buffer helpers: the ring of this SM, by the protocol of ``egpu.maps.layout``.

Claiming, publishing and whatever several lanes do together are functions of the device library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from egpu.bpf.helpers import HELPERS
from egpu.bpf.isa import CallSrc, Kind, form_of
from egpu.bpf.maptypes import BPF_F_CURRENT_CPU, GPU_RING_FULL, MapType, Storage, traits
from egpu.bpf.program import Insn
from egpu.codegen.arena import RING_CONTROL, RING_GRANULE, RING_GROUP_HEADER
from egpu.codegen.device_code import RelocKind
from egpu.codegen.helper_call import Call, argument_place, copy, copy_run_time, is_straight
from egpu.codegen.library_ring import BY_COMMIT, BY_FLAG, GROUP
from egpu.codegen.scope import STATE_MAPS, Scope
from egpu.codegen.stamped import write_alone
from egpu.errors import InternalError

# Linux's errno values as helpers give them (uapi/asm-generic/errno-base.h).
_E2BIG, _EAGAIN, _EINVAL, _ENOSPC, _EOPNOTSUPP = -7, -11, -22, -28, -95
_RING_FLAGS = 3  # BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP: nobody sleeps, so both do nothing
_LARGEST_RECORD = 1 << 30  # bytes, no ring is larger
_RESERVED_SIZE = 2  # register of bpf_ringbuf_reserve's size


@dataclass(frozen=True, slots=True)
class Ring:
    """This SM's ring of a map: 64-bit values."""

    control: str
    data: str
    size: str
    state: str  # pointer to the word that holds the end of the last reserved group
    more: tuple[str, ...]  # arguments that its functions have more than other rings'

    def function(self, name: str) -> str:
        """The library's function for this kind of ring."""
        return f"egpu.{name}{(BY_FLAG if self.more else BY_COMMIT).suffix}"


def _ring_records(scope: Scope, index: int) -> str:
    """Where the records of ring map ``index`` begin: SM slot 0's ring."""
    arena = "device_arena" if _on_device(scope, index) else "host_arena"
    return scope.body.binary(
        "add", "i64", scope.launch(arena), scope.symbol(RelocKind.RING_DATA, index)
    )


def _on_device(scope: Scope, index: int) -> bool:
    return scope.unit.verified.program.maps[index].on_device


def _flags(scope: Scope, index: int, size: str) -> tuple[str, ...]:
    """``Ring.more`` of a ring of ``size`` bytes: what finds its groups' flags, the same for all
    maps (``ArenaLayout.flags_base`` and the arena's part), and in which lap they are."""
    if not _on_device(scope, index):
        return ()
    body, arena = scope.body, scope.launch("device_arena")
    part = body.binary("lshr", "i64", arena, str(RING_GRANULE.bit_length() - 1))
    rest = body.binary("sub", "i64", arena, part)
    flags = body.binary("add", "i64", rest, scope.symbol(RelocKind.RING_FLAGS))
    wrap = body.resize(body.binary("sub", "i64", size, "1"), 64, 32)
    turn = body.resize(body.call("i32", "llvm.ctpop.i32", f"i32 {wrap}"), 32, 64)
    return f"i64 {flags}", f"i64 {turn}"


def _ring(call: Call) -> Ring:
    index, _ = call.scope.map_at(call.pc, 1)
    return ring_at(call.scope, index)


def ring_at(scope: Scope, index: int) -> Ring:
    """This SM's ring of map ``index``."""
    body = scope.body
    control = body.binary(
        "add", "i64", scope.launch("device_arena"), scope.symbol(RelocKind.MAP, index)
    )
    size = scope.symbol(RelocKind.RING_SIZE, index)
    skip = body.binary("mul", "i64", scope.slot(), size)
    data = body.binary("add", "i64", _ring_records(scope, index), skip)
    state = scope.state(STATE_MAPS + 8 * index)
    return Ring(scope.of_slot(control, index), data, size, state, _flags(scope, index, size))


def ring_arguments(ring: Ring, size: str) -> tuple[str, str, str, str]:
    return f"i64 {ring.control}", f"i64 {ring.data}", f"i64 {ring.size}", f"i64 {size}"


def _unless_oversize(call: Call, ring: Ring, size: str, labels: tuple[str, str]) -> None:
    """Go on in block ``labels[0]`` if a record of ``size`` bytes fits an empty ring; else count it
    as dropped and go to ``labels[1]``."""
    body = call.scope.body
    claim, done = labels
    small = body.compare("ule", "i64", size, str(_LARGEST_RECORD))  # so that the sum cannot wrap
    group = body.binary("and", "i64", body.add(size, RING_GROUP_HEADER + 15), "-16")
    fits = body.binary("and", "i1", small, body.compare("ule", "i64", group, ring.size))
    oversize = body.fresh("oversize")
    body.branch_if(fits, claim, oversize)
    body.label(oversize)
    dropped = body.add(ring.control, RING_CONTROL["dropped"][0])
    body.call_void("egpu.add_gpu", f"i64 {dropped}", "i64 1")
    body.branch(done)
    body.label(claim)


@dataclass(frozen=True, slots=True)
class _Output:
    """A record to be written: the registers of its bytes and their number, what the helper gives if
    the arguments are wrong (a value; 0 if they are right), if it is larger than a ring, if the ring
    is full."""

    data: int
    size: int
    wrong: str
    too_large: int
    full: int


def ring_output(call: Call) -> str:
    body, flags = call.scope.body, call.scope.get(4)
    unknown = body.compare("ugt", "i64", flags, str(_RING_FLAGS))
    wrong = body.binary("or", "i1", unknown, body.compare("eq", "i64", _size(call, 3), "0"))
    answer = body.select(wrong, "i64", str(_EINVAL), "0")
    index, _ = call.scope.map_at(call.pc, 1)
    return _write(call, index, _Output(2, 3, answer, _E2BIG, _EAGAIN))


def perf_output(call: Call) -> str:
    """As Linux's bpf_perf_event_output, where a CPU is an SM; of bpftime's map, which has no flags
    that mean anything, as bpftime's."""
    scope, body = call.scope, call.scope.body
    index, spec = scope.map_at(call.pc, 2)
    if spec.type is MapType.GPU_RINGBUF:
        large = body.compare("ugt", "i64", _size(call, 5), str(spec.value_size))
        answer = body.select(large, "i64", str(_E2BIG), "0")
        return _write(call, index, _Output(4, 5, answer, _E2BIG, GPU_RING_FULL))
    flags = scope.get(3)
    cpu = body.binary("and", "i64", flags, str(BPF_F_CURRENT_CPU))
    current = body.compare("eq", "i64", cpu, str(BPF_F_CURRENT_CPU))
    own = body.binary("or", "i1", current, body.compare("eq", "i64", cpu, scope.sm()))
    answer = body.select(own, "i64", "0", str(_EOPNOTSUPP))
    if spec.max_entries:
        beyond = body.compare("uge", "i64", cpu, str(spec.max_entries))
        beyond = body.binary("and", "i1", beyond, body.binary("xor", "i1", own, "true"))
        answer = body.select(beyond, "i64", str(_E2BIG), answer)
    high = body.binary("lshr", "i64", flags, "32")
    known = body.compare("eq", "i64", high, "0")
    answer = body.select(known, "i64", answer, str(_EINVAL))
    return _write(call, index, _Output(4, 5, answer, _E2BIG, _ENOSPC))


def _size(call: Call, register: int) -> str:
    known = call.scope.operand(call.pc, register).value
    return str(known) if known is not None else call.scope.get(register)


def _write(call: Call, index: int, output: _Output) -> str:
    """Write a record to this SM's ring of map ``index``; what the helper gives."""
    if call.scope.unit.verified.program.maps[index].stamped:
        return write_alone(call, index, output.data, wrong=output.wrong, full=output.full)
    return _write_together(call, ring_at(call.scope, index), output)


def _write_together(call: Call, ring: Ring, output: _Output) -> str:
    """The same with the other lanes that do."""
    scope, body = call.scope, call.scope.body
    known = scope.operand(call.pc, output.size).value
    size = _size(call, output.size)
    result = body.variable(body.fresh("output"), "i64")
    body.store("i64", output.wrong, "ptr", result, 8)
    claim, write, done = body.fresh("claim"), body.fresh("write"), body.fresh("done")
    right = body.fresh("right")
    body.branch_if(body.compare("eq", "i64", output.wrong, "0"), right, done)
    body.label(right)
    body.store("i64", str(output.too_large), "ptr", result, 8)
    _unless_oversize(call, ring, size, (claim, done))
    arguments = ring_arguments(ring, size)
    together = "true" if is_straight(known) else "false"
    begin, end = ring.function("output_begin"), ring.function("output_end")
    begun = body.call(GROUP, begin, *arguments, f"i1 {together}", *ring.more)
    record = body.value(f"extractvalue {GROUP} {begun}, 0")
    body.store("i64", str(output.full), "ptr", result, 8)
    body.branch_if(body.compare("eq", "i64", record, "0"), done, write)
    body.label(write)
    source = argument_place(call, output.data, known or 1)
    if known is not None:
        # Records begin at a multiple of 16 if those before them in the group end at one.
        copy(call, record, source, known, align=8 if known % 16 else 16)
    else:
        copy_run_time(call, record, source, size)
    position = body.value(f"extractvalue {GROUP} {begun}, 1")
    mask = body.value(f"extractvalue {GROUP} {begun}, 2")
    joint = body.value(f"extractvalue {GROUP} {begun}, 3")
    ends = (f"i64 {position}", f"i32 {mask}", f"i1 {joint}")
    body.call_void(end, *arguments[1:], *ends, *ring.more)
    body.store("i64", "0", "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)


def ring_reserve(call: Call) -> str:
    scope, body = call.scope, call.scope.body
    ring = _ring(call)
    size = scope.get(2)
    result = body.variable(body.fresh("record"), "i64")
    body.store("i64", "0", "ptr", result, 8)
    claim, done = body.fresh("claim"), body.fresh("done")
    right = body.fresh("right")
    body.branch_if(body.compare("eq", "i64", scope.get(3), "0"), right, done)  # as Linux
    body.label(right)
    _unless_oversize(call, ring, size, (claim, done))
    same = "false" if scope.operand(call.pc, 2).value is None else "true"
    later = "true" if _reserved(scope) else "false"
    arguments = (*ring_arguments(ring, size), f"i1 {same}", f"ptr {ring.state}", f"i1 {later}")
    record = body.call("i64", ring.function("reserve"), *arguments, *ring.more)
    body.store("i64", record, "ptr", result, 8)
    body.branch(done)
    body.label(done)
    return body.load("i64", "ptr", result, 8)


def ring_commit(flag: int) -> Callable[[Call], None]:
    def build(call: Call) -> None:
        scope = call.scope
        record = scope.get(1)
        data, size, state, more = _ring_of_record(call, record)
        scope.body.call_void(
            f"egpu.commit{(BY_FLAG if more else BY_COMMIT).suffix}",
            f"i64 {record}",
            f"i64 {data}",
            f"i64 {size}",
            f"ptr {state}",
            f"i64 {flag}",
            f"i64 {_reserved(scope)}",
            *more,
        )

    return build


def _reserved(scope: Scope) -> int:
    """Bytes of every record that the program reserves, 0 if they are not all the same."""
    verified = scope.unit.verified
    sizes = {
        operand.value
        for (pc, register), operand in verified.facts.operands.items()
        if register == _RESERVED_SIZE and _reserves(verified.program.code[pc])
    }
    return (sizes.pop() if len(sizes) == 1 else None) or 0


def _reserves(insn: Insn) -> bool:
    form = form_of(insn)
    return (
        form is not None
        and form.kind is Kind.CALL
        and insn.src == CallSrc.HELPER
        and insn.imm in HELPERS
        and HELPERS[insn.imm].body == "ringbuf_reserve"
    )


def _ring_of_record(call: Call, record: str) -> tuple[str, str, str, tuple[str, ...]]:
    """(first byte of the map's rings, bytes of one ring, state word, ``Ring.more``) of the map of a
    record.

    A record's address says which map it is of, where the facts do not."""
    scope, body = call.scope, call.scope.body
    known = scope.operand(call.pc, 1).map
    program = scope.unit.verified.program
    rings = [
        index
        for index, spec in enumerate(program.maps)
        if traits(spec.type).storage is Storage.RING
    ]
    if known is None and not rings:
        raise InternalError(f"instruction {call.pc} releases a record, but no map is a ring")
    first, *others = rings if known is None else [known]
    data, size, state = _candidate(scope, first)
    for index in others:
        other = _candidate(scope, index)
        distance = body.binary("sub", "i64", record, other[0])
        extent = body.binary("mul", "i64", scope.symbol(RelocKind.SM_SLOTS), other[1])
        here = body.compare("ult", "i64", distance, extent)
        data = body.select(here, "i64", other[0], data)
        size = body.select(here, "i64", other[1], size)
        state = body.select(here, "ptr", other[2], state)
    if len({program.maps[index].on_device for index in (first, *others)}) > 1:
        raise InternalError(f"instruction {call.pc} releases a record of either kind of ring")
    return data, size, state, _flags(scope, first, size)


def _candidate(scope: Scope, index: int) -> tuple[str, str, str]:
    return (
        _ring_records(scope, index),
        scope.symbol(RelocKind.RING_SIZE, index),
        scope.state(STATE_MAPS + 8 * index),
    )


def ring_query(call: Call) -> str:
    ring = _ring(call)
    return call.scope.body.call(
        "i64",
        "egpu.query",
        f"i64 {ring.control}",
        f"i64 {ring.size}",
        f"i64 {call.scope.get(2)}",
    )
