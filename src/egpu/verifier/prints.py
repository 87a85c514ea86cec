"""bpf_printk and its like: the format is known before the program runs, and every value fits it."""

from __future__ import annotations

from egpu.bpf.print_format import Shown, Specifier, parse_format
from egpu.bpf.prints import TEXT_LIMIT, VALUES_LIMIT
from egpu.errors import InputError
from egpu.verifier import checks
from egpu.verifier.checks import Access, span
from egpu.verifier.memory import touch_stack
from egpu.verifier.report import Refusal, describe
from egpu.verifier.scalar import Scalar
from egpu.verifier.setting import PrintSeen, Recorder, Setting, Text
from egpu.verifier.state import EMPTY_SLOT, SLOT, ZERO, Pointer, State, Value
from egpu.verifier.structure import Step
from egpu.verifier.verified import PRINTED_VALUE, Region

_FORMAT_LIMIT = 1024  # bytes
_NUMBER = Text(0, 0)
_FORMATS = "docs/guide.md has the formats there are"
_CONSTANT = "write the format as a literal: bpf_printk() does"
_MEMORY = frozenset({Region.STACK, Region.MAP_VALUE, Region.RECORD, Region.MEMORY})


class PrintChecker:
    """One call while it is checked: format first, then the values."""

    def __init__(self, setting: Setting, recorder: Recorder, state: State, step: Step) -> None:
        self._setting = setting
        self._recorder = recorder
        self._state = state
        self._step = step
        self._format = ""
        self._wanted: tuple[Specifier, ...] = ()
        self._values: list[Text] = []

    def format(self, pointer: Pointer, size: Scalar) -> None:
        """The format behind ``pointer``, of which ``size`` bytes were checked to be readable."""
        length = size.constant()
        if length is None or not 0 < length <= _FORMAT_LIMIT:
            raise Refusal("P2", "the size of a format must be a constant", hint=_CONSTANT)
        content = self._content(pointer, length)
        try:
            parsed = parse_format(content)
        except InputError as error:
            raise Refusal("P2", str(error), hint=_FORMATS) from None
        if len(parsed.values) > VALUES_LIMIT:
            raise Refusal(
                "P2",
                f"a format shows {len(parsed.values)} values, {VALUES_LIMIT} fit",
                hint="print in two calls",
            )
        self._format = content.partition(b"\0")[0].decode()
        self._wanted = parsed.values

    def value(self, position: int, register: int, value: Value) -> None:
        """Value ``position`` of the format is in ``register``; one too many is not looked at."""
        if position >= len(self._wanted):
            return
        known = checks.initialised(self._setting, value, register)
        self._values.append(self._size(self._wanted[position], known, f"r{register}", register))

    def array(self, value: Scalar | Pointer, size: Scalar) -> None:
        """The values are 8 bytes each behind ``value``, a constant place of the stack."""
        length = size.constant()
        if length is None or length % SLOT or length > SLOT * VALUES_LIMIT:
            raise Refusal(
                "P2",
                "the values' size must be a constant, a multiple of 8, at most 96",
                hint="use bpf_printk, which gets it right",
            )
        if not length and isinstance(value, Scalar) and value.constant() == 0:
            return
        pointer = checks.dereferenced(self._setting, value, 3, Access.READ)
        checks.in_bounds(self._setting, pointer, length)
        if pointer.region is not Region.STACK or pointer.variable is not None or pointer.offset % 8:
            raise Refusal(
                "P2",
                "the values must be at a constant, aligned place of the stack",
                hint="pass an array of __u64 that is a local variable",
            )
        touch_stack(self._setting, self._recorder, self._state, pointer)
        for position in range(min(length // SLOT, len(self._wanted))):
            place = pointer.at(SLOT * position)
            register = PRINTED_VALUE + position
            spilled = self._spilled(place)
            if spilled is None:
                checks.stack_readable(self._state, place, SLOT)
                self._values.append(self._size(self._wanted[position], None, "a number", register))
            else:
                wanted = self._wanted[position]
                self._values.append(self._size(wanted, spilled, "a value", register))

    def text(self, pointer: Scalar | Pointer) -> None:
        """The call shows one text and nothing else."""
        self._format, self._wanted = "%s", parse_format(b"%s\0").values
        self._values.append(self._size(self._wanted[0], pointer, "r1", 1))

    def finish(self) -> int:
        """Note the call; gives the bytes of a record."""
        if len(self._values) < len(self._wanted):
            raise Refusal(
                "P2",
                f"the format {self._format!r} shows {len(self._wanted)} values, "
                f"{len(self._values)} are given",
                hint="give a value for each",
            )
        seen = PrintSeen(self._format, tuple(self._values))
        return self._recorder.printed(self._step.pc, seen).size

    def _spilled(self, place: Pointer) -> Pointer | None:
        slot = self._state.frames[place.owner].slots.get(place.offset // SLOT, EMPTY_SLOT)
        spill = slot.spill_at(0)
        if spill is not None and spill.size == SLOT and isinstance(spill.value, Pointer):
            return spill.value
        return None

    def _size(
        self, wanted: Specifier, value: Scalar | Pointer | None, name: str, register: int
    ) -> Text:
        """What is to be copied of ``value``: nothing of a number."""
        if wanted.shown is not Shown.TEXT:
            if isinstance(value, Pointer):
                shown = describe(value, self._setting.program)
                raise Refusal(
                    "P9",
                    f"{name} is printed as a number and is a pointer ({shown})",
                    hint="print what it points to",
                )
            return _NUMBER
        if not isinstance(value, Pointer) or value.region not in _MEMORY or value.null:
            is_now = "a number" if value is None else describe(value, self._setting.program)
            raise Refusal(
                "P2",
                f"{name} is shown as text (%s) and is {is_now}",
                hint="pass a pointer to text in memory of the program, or show it as a number",
            )
        frame = len(self._state.frames) - 1
        self._recorder.seen(self._step.pc, register, value, frame)
        if value.region is Region.STACK:
            return self._stack_text(value)
        checks.in_bounds(self._setting, value, 1)
        if value.region is Region.MAP_VALUE:
            self._recorder.maps.add(value.owner)
        room = checks.region_size(self._setting, value) - span(value)[1]
        return self._constant_text(value, min(room, TEXT_LIMIT))

    def _constant_text(self, pointer: Pointer, room: int) -> Text:
        content = self._read_only(pointer, room)
        end = -1 if content is None else content.find(b"\0")
        return Text(room if end < 0 else end + 1, room)

    def _stack_text(self, pointer: Pointer) -> Text:
        """Bytes from ``pointer`` on that are initialised and no part of a pointer."""
        if pointer.variable is not None:
            raise Refusal(
                "P2",
                "text on the stack is shown from a constant place only",
                hint="pass the start of a local variable",
            )
        checks.in_bounds(self._setting, pointer, 1)
        touch_stack(self._setting, self._recorder, self._state, pointer)
        room = 0
        while room < min(TEXT_LIMIT, -pointer.offset):
            try:
                checks.stack_readable(self._state, pointer.at(room), 1)
            except Refusal:
                if not room:
                    raise
                break
            room += 1
        return Text(room, room)

    def _content(self, pointer: Pointer, size: int) -> bytes:
        """The constant bytes behind ``pointer``. Raises Refusal if they are none."""
        content = self._read_only(pointer, size)
        if content is None and pointer.region is Region.STACK and pointer.variable is None:
            found = [self._stack_byte(pointer.owner, pointer.offset + at) for at in range(size)]
            if None not in found:
                content = bytes(byte for byte in found if byte is not None)
        if content is None:
            raise Refusal("P2", "the format is not known before the program runs", hint=_CONSTANT)
        return content

    def _read_only(self, pointer: Pointer, size: int) -> bytes | None:
        if pointer.region is not Region.MAP_VALUE or pointer.variable is not None:
            return None
        spec = self._setting.map(pointer.owner)
        if not spec.read_only or spec.max_entries != 1:
            return None
        content = (spec.initial or b"").ljust(spec.value_size, b"\0")
        return content[pointer.offset : pointer.offset + size]

    def _stack_byte(self, owner: int, offset: int) -> int | None:
        slot = self._state.frames[owner].slots.get(offset // SLOT, EMPTY_SLOT)
        at = offset % SLOT
        spill = slot.spill_at(at)
        if spill is not None and isinstance(spill.value, Scalar):
            value = spill.value.constant()
            return None if value is None else value >> 8 * (at - spill.at) & 0xFF
        return 0 if slot.kinds[at] == ZERO else None
