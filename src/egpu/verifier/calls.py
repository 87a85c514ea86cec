"""Helper calls: every argument against its prototype, and what the call leaves behind."""

from __future__ import annotations

from functools import cached_property
from typing import Final, assert_never

from egpu.bpf.helpers import HELPERS, REFUSED, Arg, Helper, Ret
from egpu.bpf.isa import CallSrc
from egpu.bpf.maptypes import EVENTS, PUSHED_MAXIMUM, MapType, Storage, table_slots, traits
from egpu.bpf.program import MISSING_HELPER, NO_MAP, MapSpec
from egpu.verifier import checks, cost
from egpu.verifier.checks import Access
from egpu.verifier.memory import clobber_stack, overwrite_somewhere, touch_stack
from egpu.verifier.prints import PrintChecker
from egpu.verifier.report import Refusal, describe
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import Pointer, State
from egpu.verifier.structure import Step
from egpu.verifier.verified import Policy, Region

_CORE_HINT = "test for it first: bpf_core_field_exists() and its like"
_KEY_SIZE = 4  # of arrays
WRITE_LIMIT = 256  # bytes that a helper writes to memory it is given
PARAMETERS_LIMIT = 512  # of a kernel
_ERRNO_LIMIT = 4095
_LARGEST_KEY = 256  # of tables
_FORMAT_ARGUMENTS = 2  # before the values that a format shows
_LARGEST_VALUE = 1 << 29  # as for pointer offsets

# Types whose first value has a fixed address (.data, .bss, .rodata).
DIRECT_VALUES = frozenset(
    {
        MapType.ARRAY,
        MapType.GPU_ARRAY,
        MapType.GPU_HOST_ARRAY,
        MapType.GPU_KERNEL_SHARED_ARRAY,
    }
)


# Looking a member up in its class takes longer than comparing with it.
_MAP: Final = Arg.MAP
_KEY: Final = Arg.KEY
_NAMES = {kind: kind.name for kind in MapType}
_READ = Access.READ
_CONTEXT, _STACK, _MAP_VALUE = Region.CONTEXT, Region.STACK, Region.MAP_VALUE
_MAP_POINTER, _INNER_MAP = Region.MAP_POINTER, Region.INNER_MAP


_CONTROL_HINT = "allow it with --allow-control"
_EXECUTOR_HINT = "there is none when one thread runs alone; egpu exec --executor interp runs it"


def find_helper(setting: Setting, number: int) -> Helper:
    """The row of a helper that this program may call. Raises Refusal."""
    helper = HELPERS.get(number)
    missing = setting.program.missing
    if 0 <= number - MISSING_HELPER < len(missing):
        raise Refusal("P2", missing[number - MISSING_HELPER], hint=_CORE_HINT)
    if helper is None:
        known = REFUSED.get(number)
        if known is None:
            what, hint = f"helper {number} does not exist", "egpu.bpf.h has the helpers there are"
            raise Refusal("P2", what, hint=hint)
        what = f"helper {number}, {known.name}: {known.why}"
        raise Refusal("P5" if known.waits else "P2", what, hint=known.instead)
    if helper.control and setting.policy is not Policy.CONTROL:
        what = f"helper {helper.name} changes the workload, which a probe may not"
        probe = setting.policy is Policy.PROBE
        raise Refusal("P6", what, hint=_CONTROL_HINT if probe else _EXECUTOR_HINT)
    if not helper.body and not (helper.host and setting.on_host):
        reason = helper.missing or "it has no device body yet"
        raise Refusal(
            "P2",
            f"helper {helper.name} is not available: {reason}",
            hint="egpu.bpf.h has the helpers there are",
        )
    return helper


def call(setting: Setting, recorder: Recorder, state: State, step: Step) -> int:
    """Check a helper call and apply it.

    Gives what it spends beyond its row's cost (packed): ring-buffer bytes, slots looked at.
    """
    assert step.src == CallSrc.HELPER, "local calls are exploration's"
    helper = find_helper(setting, step.imm)
    recorder.helpers.add(helper.id)
    checker = _Call(setting, recorder, state, step, helper)
    registers = state.frame.registers
    for position, kind in enumerate(helper.args):
        register = position + 1
        if kind is Arg.PRINTED:
            checker.prints.value(position - _FORMAT_ARGUMENTS, register, registers[register])
            continue
        value = checks.initialised(setting, registers[register], register)
        recorder.seen(step.pc, register, value, len(state.frames) - 1)
        checker.argument(position, kind, value)
    return checker.finish()


class _Call:
    """One helper call while its arguments are checked."""

    def __init__(
        self, setting: Setting, recorder: Recorder, state: State, step: Step, helper: Helper
    ) -> None:
        self.setting = setting
        self.recorder = recorder
        self.state = state
        self.step = step
        self.helper = helper
        self.map = -1
        self.ring_bytes = 0
        self.record_size = 0
        self.released = 0
        self.written = 0
        self.null_context = False
        self.outputs: list[tuple[Pointer, int]] = []

    @cached_property
    def prints(self) -> PrintChecker:
        """What is shown, in calls that print."""
        return PrintChecker(self.setting, self.recorder, self.state, self.step)

    def _refuse(self, register: int, value: Scalar | Pointer, needs: str, hint: str) -> Refusal:
        is_now = describe(value, self.setting.program)
        text = f"r{register} of {self.helper.name} must be {needs}, is {is_now}"
        return Refusal("P2", text, hint=hint)

    def argument(self, position: int, kind: Arg, value: Scalar | Pointer) -> None:
        register = position + 1
        if kind is _MAP:  # the most common first
            self._map(register, value)
            return
        if kind is _KEY:
            self._memory(register, value, self.setting.map(self.map).key_size, _READ)
            return
        match kind:
            case Arg.SCALAR | Arg.ANYTHING:
                checks.scalar(
                    self.setting, value, register, f"a number of {self.helper.name} leaks a pointer"
                )
            case Arg.VALUE:
                self._memory(register, value, self.setting.map(self.map).value_size, Access.READ)
            case Arg.READ:
                size = self._size(register + 1)
                self._memory(register, value, size, Access.READ)
                self.ring_bytes += _rounded(size)
            case Arg.SIZE | Arg.SIZE_OR_ZERO:  # checked with the pointer before it
                if self.helper.args[position - 1] is Arg.WRITE:
                    self._one_constant(register)
            case Arg.FORMAT:
                length = self._number(register + 1)
                pointer = self._memory(register, value, max(1, length.umax), Access.READ)
                self.prints.format(pointer, length)
            case Arg.FORMAT_SIZE | Arg.PRINTED | Arg.PRINTED_SIZE:
                pass  # checked with what is before it
            case Arg.PRINTED_ARRAY:
                self.prints.array(value, self._number(register + 1))
            case Arg.TEXT:
                self.prints.text(value)
            case Arg.CONST_SIZE:
                self._constant_size(register, value)
            case Arg.WRITE:
                self._written(position, register, value)
            case Arg.PARAMETER:
                self._parameter(register, value)
            case Arg.OUT_U64:
                pointer = self._memory(register, value, 8, Access.WRITE)
                checks.aligned(self.setting, pointer, 8, Access.WRITE)
                self.outputs.append((pointer, 8))
            case Arg.OUT_VALUE:
                self._out_value(register, value)
            case Arg.ATOMIC_U64:
                self._counter(register, value)
            case Arg.RECORD:
                self._record(register, value)
            case Arg.CALLBACK:
                if not isinstance(value, Pointer) or value.region is not Region.FUNCTION:
                    raise self._refuse(
                        register,
                        value,
                        "a function of the program",
                        "pass its name: a static function",
                    )
            case Arg.CALLBACK_CONTEXT:
                null = isinstance(value, Scalar) and value.constant() == 0
                stack = isinstance(value, Pointer) and value.region is Region.STACK
                if not (null or stack):
                    raise self._refuse(
                        register,
                        value,
                        "a pointer into the stack, or 0",
                        "pass a local variable that holds what the callback needs",
                    )
            case Arg.CONTEXT_OR_NULL if isinstance(value, Scalar) and value.constant() == 0:
                self.null_context = True
            case Arg.CONTEXT | Arg.CONTEXT_OR_NULL:
                if not isinstance(value, Pointer) or value != Pointer(Region.CONTEXT):
                    raise self._refuse(register, value, "the context", "pass ctx itself")
            case _:
                assert_never(kind)

    def _map(self, register: int, value: Scalar | Pointer) -> None:
        inner = type(value) is Pointer and value.region is _INNER_MAP
        if type(value) is not Pointer or not (inner or value.region is _MAP_POINTER):
            raise self._refuse(register, value, "a map", "pass &map")
        if value.null:
            raise self._refuse(register, value, "a map", "test it against 0 first")
        if inner and Arg.CALLBACK in self.helper.args:
            hint = "name the map, or look its elements up in a loop"
            raise self._refuse(register, value, "a map of the object", hint)
        spec = self.setting.map(value.owner)
        if _NAMES[spec.type] not in self.helper.map_types:
            names = ", ".join(sorted(self.helper.map_types))
            raise Refusal(
                "P2",
                f"{self.helper.name} does not take map {spec.name} of type {spec.type.name}",
                hint=f"it takes {names}",
            )
        if self.null_context and spec.type is not MapType.GPU_RINGBUF:
            raise self._refuse(1, S64.from_range(0, 0), "the context", "pass ctx itself")
        if Arg.VALUE in self.helper.args or self.helper.body in ("map_delete", "map_pop"):
            checks.written(spec)
        self.map = value.owner
        self.recorder.maps.add(value.owner)

    def _counter(self, register: int, value: Scalar | Pointer) -> None:
        """A number in a map that the helper changes in one step."""
        pointer = checks.dereferenced(self.setting, value, register, Access.ATOMIC)
        if pointer.region is not Region.MAP_VALUE:
            raise self._refuse(register, value, "a pointer into a map value", "keep it in a map")
        checks.in_bounds(self.setting, pointer, 8)
        checks.aligned(self.setting, pointer, 8, Access.ATOMIC)
        self.recorder.maps.add(pointer.owner)

    def _out_value(self, register: int, value: Scalar | Pointer) -> None:
        """Where a value of the map is written; what a Bloom filter is asked about."""
        spec = self.setting.map(self.map)
        if traits(spec.type).storage is Storage.BLOOM:
            self._memory(register, value, spec.value_size, Access.READ)
            return
        pointer = self._memory(register, value, spec.value_size, Access.WRITE)
        self.outputs.append((pointer, spec.value_size))

    def _memory(self, register: int, value: Scalar | Pointer, size: int, access: Access) -> Pointer:
        """``size`` bytes of memory that the helper reads or writes."""
        pointer = checks.dereferenced(self.setting, value, register, access)
        region = pointer.region
        if region is _CONTEXT:
            raise self._refuse(
                register, value, "memory", "copy the fields to the stack: the context is virtual"
            )
        checks.in_bounds(self.setting, pointer, size)
        if region is _MAP_VALUE:
            self.recorder.maps.add(pointer.owner)
        if region is _STACK:
            touch_stack(self.setting, self.recorder, self.state, pointer)
            if access is _READ:
                checks.stack_readable(self.state, pointer, size)
            else:
                checks.stack_writable(self.state, pointer, size)
        return pointer

    def _written(self, position: int, register: int, value: Scalar | Pointer) -> None:
        """A buffer that the helper writes, with its size in the register after it."""
        length = self._number(register + 1)
        size = length.constant()
        least = 0 if self.helper.args[position + 1] is Arg.SIZE_OR_ZERO else 1
        most = WRITE_LIMIT if self.helper.body else _LARGEST_VALUE  # without one: the interpreter's
        if size is None or not least <= size <= most:
            needs = f"a constant size from {least} to {most}"
            raise self._refuse(register + 1, length, needs, "pass sizeof a buffer")
        self.written = size
        if size:
            self.outputs.append((self._memory(register, value, size, Access.WRITE), size))
        else:  # nothing is written, but as in Linux the pointer has to be right
            pointer = checks.dereferenced(self.setting, value, register, Access.WRITE)
            checks.in_bounds(self.setting, pointer, int(pointer.region is _STACK))

    def _one_constant(self, register: int) -> None:
        """An argument that is compiled into the call is the same on every way to it."""
        if self.recorder.operands[self.step.pc, register].value is None:
            raise Refusal(
                "P2",
                f"r{register} of {self.helper.name} is a different constant on different ways "
                "to this call",
                hint="call the helper once for each",
            )

    def _size(self, register: int) -> int:
        """The greatest byte count that a SIZE argument may be."""
        size = self._number(register)
        if not size.umin or size.umax >= 1 << 29:
            raise self._refuse(
                register, size, "a size above 0 with a limit", "compare it with both limits first"
            )
        return size.umax

    def _number(self, register: int) -> Scalar:
        value = checks.initialised(self.setting, self.state.frame.registers[register], register)
        return checks.scalar(self.setting, value, register, "a size leaks a pointer")

    def _parameter(self, register: int, value: Scalar | Pointer) -> None:
        number = checks.scalar(self.setting, value, register, "a number leaks a pointer").constant()
        if number is None or number >= PARAMETERS_LIMIT:
            needs = f"a constant below {PARAMETERS_LIMIT}: which of the kernel's parameters"
            raise self._refuse(register, value, needs, "write the number itself")
        self.recorder.parameters.add(number)
        self._one_constant(register)

    def _constant_size(self, register: int, value: Scalar | Pointer) -> None:
        size = checks.scalar(self.setting, value, register, "a size leaks a pointer").constant()
        if not size or size >= 1 << 29:
            raise self._refuse(register, value, "a constant size above 0", "pass sizeof the record")
        spec = self.setting.map(self.map)
        if size > spec.max_entries:
            raise Refusal(
                "P2",
                f"a record of {size} bytes never fits ring {spec.name} of {spec.max_entries}",
                hint="enlarge the ring (max_entries), or write less",
            )
        self.record_size = size
        self.ring_bytes += _rounded(size)

    def _record(self, register: int, value: Scalar | Pointer) -> None:
        if not isinstance(value, Pointer) or value.region is not Region.RECORD:
            raise self._refuse(
                register, value, "a reserved record", "pass what bpf_ringbuf_reserve gave"
            )
        if value.null:
            raise self._refuse(register, value, "a reserved record", "test it against 0 first")
        if value.offset or value.variable is not None:
            raise self._refuse(
                register,
                value,
                "the start of a reserved record",
                "pass what bpf_ringbuf_reserve gave, not a field of it",
            )
        self.released = value.reference

    def finish(self) -> int:
        """Apply the call: memory written, records released, r0 to r5."""
        if self.helper.control and self.state.references:
            raise Refusal(
                "P2",
                f"{self.helper.name} ends the thread while it holds a record",
                hint="submit or discard the record first",
            )
        for pointer, size in self.outputs:
            if pointer.region is Region.STACK:
                frame = self.state.frames[pointer.owner]
                if pointer.variable is None:
                    clobber_stack(frame, pointer.offset, size)
                else:
                    overwrite_somewhere(frame, pointer, size, S64.unknown)
        if self.released:
            self.state.release(self.released)
        registers = self.state.frame.registers
        registers[1:6] = [None] * 5
        registers[0] = self._result()
        if self.helper.body == "print":
            self.ring_bytes += self.prints.finish()
        spent = cost.ring(self.ring_bytes)
        if self.map < 0:
            return spent
        if _KEY in self.helper.args:
            kind = traits(self.setting.map(self.map).type)
            inserts = Arg.VALUE in self.helper.args
            spent += cost.probes(kind.insertion_probes if inserts else kind.probes)
        if Arg.CALLBACK in self.helper.args:
            spec = self.setting.map(self.map)
            # Every slot of a table is looked at, whether it has an entry or not.
            spent += cost.probes(table_slots(spec.max_entries) if traits(spec.type).hashed else 0)
        return spent

    def _result(self) -> Scalar | Pointer | None:
        match self.helper.ret:
            case Ret.SCALAR:
                if self.helper.counts:  # Linux: do_refine_retval_range
                    return S64.from_signed(-_ERRNO_LIMIT, self.written)
                maximum = self.helper.maximum
                return S64.unknown if maximum is None else S64.from_range(0, maximum)
            case Ret.MAP_VALUE_OR_NULL if self.setting.map(self.map).inner:
                shape = next(n for n in self.setting.map(self.map).inner if n != NO_MAP)
                return Pointer(Region.INNER_MAP, shape, null=self.state.new_link())
            case Ret.MAP_VALUE_OR_NULL:
                return Pointer(Region.MAP_VALUE, self.map, null=self.state.new_link())
            case Ret.RECORD_OR_NULL:
                link = self.state.new_link()
                self.state.references = (*self.state.references, link)
                return Pointer(Region.RECORD, null=link, reference=link, size=self.record_size)
            case Ret.VOID:
                return None
            case _:
                assert_never(self.helper.ret)


def _rounded(size: int) -> int:
    """Record payloads are multiples of 8 bytes."""
    return -(-size // 8) * 8


def check_map(spec: MapSpec) -> None:
    """A map that a program names must be of a type egpu has. Raises Refusal."""
    if traits(spec.type).storage is None:
        raise Refusal(
            "P2",
            f"map {spec.name}: type {spec.type.name} is not supported",
            hint="docs/guide.md lists the types there are",
        )
    if traits(spec.type).keyless:
        _check_keyless(spec)
    if spec.type in EVENTS:
        _check_events(spec)
    if traits(spec.type).storage is Storage.MAPS:
        _check_outer(spec)
    if not traits(spec.type).has_values:
        return
    # Device bodies read keys of 4 bytes and pointers stay within values: sizes must be as agreed.
    smallest, largest = (_KEY_SIZE, _KEY_SIZE) if traits(spec.type).indexed else (1, _LARGEST_KEY)
    if not smallest <= spec.key_size <= largest:
        needs = f"{smallest} to {largest}" if smallest < largest else str(smallest)
        raise Refusal(
            "P2",
            f"map {spec.name}: keys have {spec.key_size} bytes, must have {needs}",
            hint="change the type of its key",
        )
    if spec.max_entries < 1 or not 1 <= spec.value_size < _LARGEST_VALUE:
        raise Refusal(
            "P2",
            f"map {spec.name}: {spec.max_entries} values of {spec.value_size} bytes, "
            f"must be at least 1 of 1 to {_LARGEST_VALUE - 1}",
            hint="change its max_entries or the type of its value",
        )


def _check_keyless(spec: MapSpec) -> None:
    if spec.key_size:
        raise Refusal(
            "P2",
            f"map {spec.name}: keys have {spec.key_size} bytes, must have none",
            hint="leave its key out",
        )
    if spec.max_entries < 1 or not 1 <= spec.value_size <= PUSHED_MAXIMUM:
        raise Refusal(
            "P2",
            f"map {spec.name}: {spec.max_entries} values of {spec.value_size} bytes, "
            f"must be at least 1 of 1 to {PUSHED_MAXIMUM}",
            hint="change its max_entries or the type of its value",
        )


def _check_events(spec: MapSpec) -> None:
    perf = spec.type is MapType.PERF_EVENT_ARRAY
    right = spec.value_size == _KEY_SIZE if perf else spec.value_size > 0
    if spec.key_size != _KEY_SIZE or not right:
        raise Refusal(
            "P2",
            f"map {spec.name}: keys of {spec.key_size} bytes, values of {spec.value_size}",
            hint="both are int" if perf else "the key is an int, the value a record",
        )


def _check_outer(spec: MapSpec) -> None:
    if spec.key_size != _KEY_SIZE or all(index == NO_MAP for index in spec.inner):
        raise Refusal(
            "P2",
            f"map {spec.name}: keys of {spec.key_size} bytes, {len(spec.inner)} maps in it",
            hint="give it int keys and maps where it is declared: .values = {&a, &b}",
        )
