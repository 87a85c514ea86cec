"""Where a hash map's slots, keys and values lie, as ``egpu.maps.layout`` says."""

from __future__ import annotations

from dataclasses import dataclass

from egpu.bpf.maptypes import traits
from egpu.bpf.program import MapSpec
from egpu.codegen.arena import HashTable, hash_table
from egpu.codegen.helper_call import Call
from egpu.codegen.ir import Body


@dataclass(frozen=True, slots=True)
class HashMemory:
    """The memory of map ``index``: addresses of its control block and its first slot."""

    call: Call
    spec: MapSpec
    index: int
    shape: HashTable
    control: str
    table: str

    @property
    def body(self) -> Body:
        return self.call.scope.body

    @property
    def key_words(self) -> int:
        """Words of 8 bytes that a key fills."""
        return -(-self.spec.key_size // 8)

    def slot(self, number: str) -> str:
        """The address of a slot by its number."""
        skip = self.body.binary("mul", "i64", number, str(self.shape.stride))
        return self.body.binary("add", "i64", self.table, skip)

    def key_word(self, slot: str, number: int) -> str:
        """The address of a word of the key in ``slot``."""
        return self.body.add(slot, self.shape.key + 8 * number)

    def value(self, slot: str) -> str:
        """The address of the value of the entry in ``slot``; of this SM's for per-SM maps."""
        if not traits(self.spec.type).per_sm:
            return self.body.add(slot, self.shape.value)
        return self.call.scope.of_slot(self.first_value(slot), self.index)

    def first_value(self, slot: str) -> str:
        """The address of SM slot 0's value of the entry in ``slot``, of a per-SM map."""
        body = self.body
        distance = body.binary("sub", "i64", slot, self.table)
        number = body.binary("udiv", "i64", distance, str(self.shape.stride))
        skip = body.binary("mul", "i64", number, str(self.shape.value_stride))
        return body.binary("add", "i64", body.add(self.control, self.shape.values), skip)


def hash_memory(call: Call) -> HashMemory:
    """The memory of the map of r1."""
    scope = call.scope
    index, spec = scope.map_at(call.pc, 1)
    shape = hash_table(spec)
    control = scope.argument_start(call.pc, 1)
    return HashMemory(call, spec, index, shape, control, scope.body.add(control, shape.table))
