"""A key of a hash map: where it lies, or could, and what can be done with its slot."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from egpu.bpf.maptypes import HASH_WINDOW, traits
from egpu.bpf.mixing import FIRST, SECOND, START
from egpu.bpf.program import MapSpec
from egpu.codegen.arena import HASH_CONTROL, HASH_INCARNATION, HASH_SLOT, HashTable
from egpu.codegen.device_code import RelocKind
from egpu.codegen.hash_memory import HashMemory, hash_memory
from egpu.codegen.helper_call import Call, argument_place
from egpu.codegen.ir import GLOBAL, Body
from egpu.codegen.library_hash import (
    CLAIMED,
    DEAD,
    FOUND,
    LOW,
    claim_function,
    find_function,
    settle_function,
)
from egpu.codegen.library_hash_slots import clear_function, evict_function
from egpu.codegen.memory import Place, load_from

_NEARBY = 32  # slots of which the least recently used entry goes where threads fight for it


@dataclass(frozen=True, slots=True)
class HashKey:
    """The key behind r2 in the table of the map of r1; 64-bit values."""

    call: Call
    memory: HashMemory
    hash: str
    words: tuple[str, ...]
    home: str  # address of the home word

    @property
    def body(self) -> Body:
        return self.call.scope.body

    @property
    def spec(self) -> MapSpec:
        return self.memory.spec

    @property
    def shape(self) -> HashTable:
        return self.memory.shape

    @property
    def evicts(self) -> bool:
        """Whether a full map gives up an entry for this one."""
        return traits(self.spec.type).evicts

    def _function(self, what: str, text: str) -> str:
        """Make ``text`` part of the program under a name of its own."""
        name = f"egpu.hash_{what}_{self.memory.index}"
        self.call.scope.unit.functions[name] = text.replace("@NAME(", f"@{name}(")
        return name

    def _key(self) -> tuple[str, ...]:
        return tuple(f"i64 {word}" for word in self.words)

    def reach(self) -> str:
        """How many slots from home the key may lie."""
        return self.body.call("i64", "egpu.load_gpu", f"i64 {self.home}")

    def find(self) -> tuple[str, str]:
        """(slot or 0, state word) of the key's entry."""
        body = self.body
        name = self._function("find", find_function("NAME", self.shape, len(self.words)))
        found = body.call(
            FOUND,
            name,
            f"i64 {self.memory.table}",
            f"i64 {self.hash}",
            *self._key(),
        )
        return (
            body.value(f"extractvalue {FOUND} {found}, 0"),
            body.value(f"extractvalue {FOUND} {found}, 1"),
        )

    def claim(self) -> tuple[str, str, str]:
        """(slot or 0, distance from home, its word): see ``library_hash.claim_function``."""
        body = self.body
        name = self._function("claim", claim_function("NAME", self.shape))
        found = body.call(CLAIMED, name, f"i64 {self.memory.table}", f"i64 {self.hash}")
        return (
            body.value(f"extractvalue {CLAIMED} {found}, 0"),
            body.value(f"extractvalue {CLAIMED} {found}, 1"),
            body.value(f"extractvalue {CLAIMED} {found}, 2"),
        )

    def settle(self, slot: str) -> str:
        """Whether the key, ENTERING in ``slot``, can become an entry there (i1)."""
        name = self._function("settle", settle_function("NAME", self.shape, len(self.words)))
        return self.body.call(
            "i1",
            name,
            f"i64 {self.memory.table}",
            f"i64 {self.hash}",
            f"i64 {self.reach()}",
            f"i64 {slot}",
            *self._key(),
        )

    def evict(self, tries: str, own: str) -> str:
        """Whether an entry other than that in slot ``own`` was freed (i1): at first the least
        recently used of the key's window; in later rounds that of a few slots somewhere, since
        others are after the same."""
        body = self.body
        name = self._function("evict", evict_function("NAME", self.shape))
        again = body.compare("ne", "i64", tries, "0")
        skip = body.binary("mul", "i64", tries, _signed(START))
        far = body.binary("lshr", "i64", skip, "20")
        place = body.binary("add", "i64", self.hash, far)
        place = body.select(again, "i64", place, self.hash)
        count = body.select(again, "i64", str(_NEARBY), str(HASH_WINDOW))
        return body.call(
            "i1",
            name,
            f"i64 {self.memory.table}",
            f"i64 {place}",
            f"i64 {count}",
            f"i64 {own}",
        )

    def value(self, slot: str) -> str:
        """The address of the value of the entry in ``slot``; of this SM's for per-SM maps."""
        return self.memory.value(slot)

    def touch(self, slot: str) -> None:
        """Note that the entry in ``slot`` was used, where that matters."""
        if self.evicts:
            body = self.body
            now = body.call("i64", "egpu.globaltimer")
            target = body.pointer(body.add(slot, HASH_SLOT["used"][0]))
            body.store("i64", now, GLOBAL, target, 8)

    def clear(self, slot: str) -> None:
        """Set the values of a new entry on all SMs to zero, where there are several."""
        if not traits(self.spec.type).per_sm:
            return
        scope = self.call.scope
        name = self._function("clear", clear_function("NAME", self.shape.value_stride // 8))
        self.body.call_void(
            name,
            f"i64 {self.memory.first_value(slot)}",
            f"i64 {scope.symbol(RelocKind.SM_SLOTS)}",
            f"i64 {scope.symbol(RelocKind.MAP_STRIDE, self.memory.index)}",
        )

    def counter(self, name: str) -> str:
        """The address of a counter of the control block."""
        return self.body.add(self.memory.control, HASH_CONTROL[name][0])

    def count(self, name: str, value: int) -> None:
        """Add to a counter of the control block."""
        self.body.call_void("egpu.add_gpu", f"i64 {self.counter(name)}", f"i64 {value}")

    def freed(self, word: str) -> str:
        """The state word of a slot that is freed, given any of its words before."""
        return self.body.add(self.body.binary("and", "i64", word, str(~LOW)), HASH_INCARNATION)

    def deleted(self, word: str) -> str:
        """The state word of an entry's slot after its deletion.

        Without pins nobody could know whether an update still writes into it: it stays unused."""
        free = self.freed(word)
        return free if self.shape.pinned else self.body.binary("or", "i64", free, str(DEAD))


def hash_key(call: Call) -> HashKey:
    """The key behind r2 in the table of the map of r1."""
    body = call.scope.body
    memory = hash_memory(call)
    size = memory.spec.key_size
    words = tuple(memory_words(call, argument_place(call, 2, size), size))
    hashed = hash_words(body, words)
    slot = memory.slot(body.binary("and", "i64", hashed, str(memory.shape.slots - 1)))
    return HashKey(call, memory, hashed, words, body.add(slot, HASH_SLOT["home"][0]))


def memory_words(call: Call, place: Place, size: int) -> Iterator[str]:
    """``size`` bytes as 64-bit words, the last filled up with zeros."""
    body = call.scope.body
    for start in range(0, size, 8):
        word, offset = "0", start
        while offset < min(size, start + 8):
            left = min(size, start + 8) - offset
            step = next(width for width in (8, 4, 2, 1) if width <= left)
            pointer = body.value(f"getelementptr i8, {place.space} {place.pointer}, i64 {offset}")
            align = math.gcd(place.align, offset) if offset else place.align
            piece = Place(pointer, place.space, min(align, 8), place.shared)
            value = body.resize(load_from(call.scope, piece, 8 * step), 8 * step, 64)
            if offset > start:
                value = body.binary("shl", "i64", value, str(8 * (offset - start)))
                value = body.binary("or", "i64", word, value)
            word = value
            offset += step
        yield word


def _signed(value: int) -> str:
    return str(value - (1 << 64) if value >> 63 else value)


def hash_words(body: Body, words: tuple[str, ...]) -> str:
    """``egpu.bpf.mixing.mixed`` of words."""
    value = _signed(START)
    for word in words:
        value = _mixed(body, body.binary("xor", "i64", value, word), 30, FIRST)
    return _mixed(body, _mixed(body, value, 27, SECOND), 31, None)


def _mixed(body: Body, value: str, shift: int, factor: int | None) -> str:
    high = body.binary("lshr", "i64", value, str(shift))
    value = body.binary("xor", "i64", value, high)
    return value if factor is None else body.binary("mul", "i64", value, _signed(factor))
