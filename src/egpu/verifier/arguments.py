"""The arguments of a helper call, each against its kind in the helper's prototype."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from egpu.bpf.helpers import Arg, Helper
from egpu.bpf.maptypes import MapType, Storage, traits
from egpu.verifier import checks
from egpu.verifier.checks import Access
from egpu.verifier.memory import touch_stack
from egpu.verifier.prints import PrintChecker
from egpu.verifier.report import Refusal, describe
from egpu.verifier.scalar import S64, Scalar
from egpu.verifier.setting import Recorder, Setting
from egpu.verifier.state import Pointer, State
from egpu.verifier.structure import Step
from egpu.verifier.verified import Region

WRITE_LIMIT = 256  # bytes that a helper writes to memory it is given
PARAMETERS_LIMIT = 512  # of a kernel
_LARGEST_SIZE = 1 << 29  # as for pointer offsets

# Looking a member up in its class takes longer than comparing with it.
_NAMES = {kind: kind.name for kind in MapType}
_READ = Access.READ
_CONTEXT, _STACK, _MAP_VALUE = Region.CONTEXT, Region.STACK, Region.MAP_VALUE
_MAP_POINTER, _INNER_MAP = Region.MAP_POINTER, Region.INNER_MAP


def rounded(size: int) -> int:
    """Record payloads are multiples of 8 bytes."""
    return -(-size // 8) * 8


class Arguments:
    """One helper call while its arguments are checked, and what they say of it: ``map`` its map
    (-1: none), ``ring_bytes`` what it takes from rings, ``record_size`` of a record that it
    reserves, ``released`` the one that it gives back, ``written`` the size of what it writes and
    ``outputs`` all that it writes."""

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
        """Check the argument at ``position``, from 0, in the order of the prototype."""
        check = _CHECKS[kind]
        if check is not None:
            check(self, position + 1, value)

    def _scalar(self, register: int, value: Scalar | Pointer) -> None:
        leak = f"a number of {self.helper.name} leaks a pointer"
        checks.scalar(self.setting, value, register, leak)

    def _key(self, register: int, value: Scalar | Pointer) -> None:
        self._memory(register, value, self.setting.map(self.map).key_size, _READ)

    def _value(self, register: int, value: Scalar | Pointer) -> None:
        self._memory(register, value, self.setting.map(self.map).value_size, _READ)

    def _read(self, register: int, value: Scalar | Pointer) -> None:
        size = self._size(register + 1)
        self._memory(register, value, size, _READ)
        self.ring_bytes += rounded(size)

    def _size_of_written(self, register: int, value: Scalar | Pointer) -> None:
        """A size was checked with the pointer before it, except how it is compiled."""
        if self.helper.args[register - 2] is Arg.WRITE:
            self._one_constant(register)

    def _format(self, register: int, value: Scalar | Pointer) -> None:
        length = self._number(register + 1)
        pointer = self._memory(register, value, max(1, length.umax), _READ)
        self.prints.format(pointer, length)

    def _printed_array(self, register: int, value: Scalar | Pointer) -> None:
        self.prints.array(value, self._number(register + 1))

    def _text(self, register: int, value: Scalar | Pointer) -> None:
        self.prints.text(value)

    def _out_u64(self, register: int, value: Scalar | Pointer) -> None:
        pointer = self._memory(register, value, 8, Access.WRITE)
        checks.aligned(self.setting, pointer, 8, Access.WRITE)
        self.outputs.append((pointer, 8))

    def _callback(self, register: int, value: Scalar | Pointer) -> None:
        if not isinstance(value, Pointer) or value.region is not Region.FUNCTION:
            hint = "pass its name: a static function"
            raise self._refuse(register, value, "a function of the program", hint)

    def _callback_context(self, register: int, value: Scalar | Pointer) -> None:
        null = isinstance(value, Scalar) and value.constant() == 0
        stack = isinstance(value, Pointer) and value.region is Region.STACK
        if not (null or stack):
            hint = "pass a local variable that holds what the callback needs"
            raise self._refuse(register, value, "a pointer into the stack, or 0", hint)

    def _context(self, register: int, value: Scalar | Pointer) -> None:
        if not isinstance(value, Pointer) or value != Pointer(Region.CONTEXT):
            raise self._refuse(register, value, "the context", "pass ctx itself")

    def _context_or_null(self, register: int, value: Scalar | Pointer) -> None:
        if isinstance(value, Scalar) and value.constant() == 0:
            self.null_context = True
        else:
            self._context(register, value)

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

    def _write(self, register: int, value: Scalar | Pointer) -> None:
        """A buffer that the helper writes, with its size in the register after it."""
        length = self._number(register + 1)
        size = length.constant()
        least = 0 if self.helper.args[register] is Arg.SIZE_OR_ZERO else 1
        most = WRITE_LIMIT if self.helper.body else _LARGEST_SIZE  # without one: the interpreter's
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
        if not size.umin or size.umax >= _LARGEST_SIZE:
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
        if not size or size >= _LARGEST_SIZE:
            raise self._refuse(register, value, "a constant size above 0", "pass sizeof the record")
        spec = self.setting.map(self.map)
        if size > spec.max_entries:
            raise Refusal(
                "P2",
                f"a record of {size} bytes never fits ring {spec.name} of {spec.max_entries}",
                hint="enlarge the ring (max_entries), or write less",
            )
        self.record_size = size
        self.ring_bytes += rounded(size)

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


_Check = Callable[[Arguments, int, Scalar | Pointer], None]
# Of each kind of argument, by the number of its register; None: checked with one before it.
# fmt: off
_CHECKS: dict[Arg, _Check | None] = {
    Arg.SCALAR:           Arguments._scalar,
    Arg.ANYTHING:         Arguments._scalar,
    Arg.MAP:              Arguments._map,
    Arg.KEY:              Arguments._key,
    Arg.VALUE:            Arguments._value,
    Arg.READ:             Arguments._read,
    Arg.SIZE:             Arguments._size_of_written,
    Arg.SIZE_OR_ZERO:     Arguments._size_of_written,
    Arg.CONST_SIZE:       Arguments._constant_size,
    Arg.WRITE:            Arguments._write,
    Arg.PARAMETER:        Arguments._parameter,
    Arg.OUT_U64:          Arguments._out_u64,
    Arg.OUT_VALUE:        Arguments._out_value,
    Arg.ATOMIC_U64:       Arguments._counter,
    Arg.RECORD:           Arguments._record,
    Arg.CALLBACK:         Arguments._callback,
    Arg.CALLBACK_CONTEXT: Arguments._callback_context,
    Arg.CONTEXT:          Arguments._context,
    Arg.CONTEXT_OR_NULL:  Arguments._context_or_null,
    Arg.FORMAT:           Arguments._format,
    Arg.FORMAT_SIZE:      None,
    Arg.PRINTED:          None,
    Arg.PRINTED_SIZE:     None,
    Arg.PRINTED_ARRAY:    Arguments._printed_array,
    Arg.TEXT:             Arguments._text,
}
# fmt: on
assert _CHECKS.keys() == set(Arg), "a kind of argument without a check"
