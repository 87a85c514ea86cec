"""Operations on maps from outside of kernels: the device library's own code, run on request.

An operator is an eBPF program that does one update, deletion, push or pop, so it changes a map by
exactly the protocol by which probes do.  It runs as a kernel of its own in the workload, or on this
machine over memory that no device has yet.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from functools import partial

from egpu.agent.twin import DeviceInfo
from egpu.bpf.asm import assemble
from egpu.bpf.maptypes import Storage, traits
from egpu.bpf.program import Function, MapSpec, Program
from egpu.codegen import HostArenas, HostProgram, compile_operate_ptx
from egpu.errors import UnsupportedError
from egpu.maps import ArenaLayout, UpdateFlag
from egpu.maps.layout import COMMAND_SIZE, PAGE, round_up
from egpu.session.assemble import Assembler
from egpu.verifier import Policy, VerifiedProgram, verify

_UPDATE, _DELETE, _REPLACE = range(3)
_KEY = 16  # offset of the key in an operation, behind the kind of operation and the flag
_RESULT = 8
# PTX that the operator's text says; every device takes it.
_TARGET = "sm_70"
# r1 = an operation.  A value of a per-SM map is what the sum over SMs becomes, so an entry that is
# there goes first: a key that appears has zeros on all other SMs.
_TEXT = """
mov %r6, %r1
ldxdw %r7, [%r6]
ldxdw %r8, [%r6+8]
lddw %r1, map_index {index}
mov %r2, %r6
add %r2, {key}
{delete}
update:
mov %r3, %r6
add %r3, {value}
mov %r4, %r8
call 2
exit
"""
_DELETIONS = """
jeq %r7, 0, update
jeq %r7, 1, delete
jeq %r8, 1, update
call 3
jeq %r0, 0, insert
jeq %r8, 2, done
insert:
mov %r8, 0
lddw %r1, map_index {index}
mov %r2, %r6
add %r2, {key}
ja update
delete:
call 3
done:
exit
"""
# The same for maps without keys, whose values lie where keys do.
_PUSH, _POP = range(2)
_PUSHES = """
mov %r6, %r1
ldxdw %r7, [%r6]
ldxdw %r3, [%r6+8]
lddw %r1, map_index {index}
mov %r2, %r6
add %r2, {key}
{pops}
call 87
exit
"""
_POPS = """
jeq %r7, 0, push
call 88
exit
push:
"""


class Operators:
    """The operators of a session's maps, made when they are first needed; thread-safe."""

    def __init__(self, maps: Sequence[MapSpec], assembler: Assembler | None) -> None:
        self._maps = tuple(maps)
        self._assembler = assembler
        self._lock = threading.Lock()
        self._verified: dict[int, VerifiedProgram] = {}
        self._images: dict[tuple[int, ArenaLayout, int], bytes] = {}

    def stride(self, index: int) -> int:
        """Bytes of an operation on map ``index``; UnsupportedError if the command area is too
        small for one."""
        spec = self._maps[index]
        size = _KEY + round_up(spec.key_size, 8) + round_up(spec.value_size, 8)
        if size + _RESULT > COMMAND_SIZE:
            raise UnsupportedError(
                f"changing map {spec.name} from outside: values of {spec.value_size} bytes",
                needs=f"values of less than {COMMAND_SIZE} bytes",
            )
        return size

    def update(self, index: int, key: bytes, value: bytes, flag: UpdateFlag) -> bytes:
        """The operation that sets a key."""
        replaces = traits(self._maps[index].type).per_sm and self.deletes(index)
        return self._operation(index, _REPLACE if replaces else _UPDATE, flag, key, value)

    def delete(self, index: int, key: bytes) -> bytes:
        """The operation that deletes a key."""
        return self._operation(index, _DELETE, UpdateFlag.ANY, key, b"")

    def push(self, index: int, value: bytes, flag: UpdateFlag) -> bytes:
        """The operation that pushes a value to a map without keys."""
        return self._operation(index, _PUSH, flag, b"", value)

    def pop(self, index: int) -> bytes:
        """The operation that takes a value, which ``popped`` finds in it afterwards."""
        return self._operation(index, _POP, UpdateFlag.ANY, b"", b"")

    def popped(self, index: int, operation: bytes) -> bytes:
        """The value that a pop left in its operation."""
        return operation[_KEY : _KEY + self._maps[index].value_size]

    def deletes(self, index: int) -> bool:
        """Whether the table of map ``index`` is laid out for deletions."""
        spec = self._maps[index]
        return spec.deletes or traits(spec.type).evicts

    def _operation(self, index: int, kind: int, flag: int, key: bytes, value: bytes) -> bytes:
        size = round_up(self._maps[index].key_size, 8)
        head = struct.pack("<QQ", kind, flag) + key.ljust(size, b"\0") + value
        return head.ljust(self.stride(index), b"\0")

    def image(self, index: int, layout: ArenaLayout, device: DeviceInfo) -> bytes:
        """What the agent loads to operate on map ``index``."""
        with self._lock:
            found = self._images.get((index, layout, device.arch))
            if found is None:
                text = compile_operate_ptx(self._program(index), layout)
                if self._assembler is None:
                    found = text.encode() + b"\0"
                else:
                    found = self._assembler.assemble(text, _TARGET, device.arch)
                self._images[index, layout, device.arch] = found
            return found

    def chunks(
        self, index: int, layout: ArenaLayout, operations: Sequence[bytes]
    ) -> Iterator[tuple[int, bytes]]:
        """Map ``index`` after these operations as a device arena has it: pages not all zero."""
        with self._lock:
            verified = self._program(index)
            arenas = HostArenas(verified, layout)
            with HostProgram(verified, arenas=arenas) as program:
                for operation in operations:
                    program.run(bytearray(operation))
        start = layout.places[index].offset
        end = min(
            (place.offset for place in layout.places if place.offset > start),
            default=layout.device_size,
        )
        for at in range(start, end, PAGE):
            part = bytes(arenas.device[at : min(at + PAGE, end)])
            if any(part):
                yield at, part

    def _program(self, index: int) -> VerifiedProgram:
        found = self._verified.get(index)
        if found is None:
            key, size = _KEY, self.stride(index)
            value = key + round_up(self._maps[index].key_size, 8)
            place = partial(str.format, index=index, key=key, value=value)
            kind = traits(self._maps[index].type)
            if kind.keyless:
                pops = place(_POPS) if kind.storage is Storage.DEQUE else ""
                code = assemble(place(_PUSHES, pops=pops))
            else:
                deletions = place(_DELETIONS) if self.deletes(index) else ""
                code = assemble(place(_TEXT, delete=deletions))
            name = f"operate_{index}"
            program = Program(name, "", code, (Function(name, 0, len(code)),), maps=self._maps)
            found = verify(program, policy=Policy.EXECUTOR, memory_size=size)
            self._verified[index] = found
        return found
