"""``kretprobe.block``: how the last threads of a block to leave it are found.

A program of this level gets instructions before its own, ``with_arrival``.  One lane of each group
of lanes that leaves together runs them.  It adds its group's lanes to what has arrived of the block
so far; who completes the block goes on with the program, the others are done.  A block that leaves
in one group meets nobody.  Nothing waits.

Groups meet in the hash map ``own_maps.BLOCKS``, whose protocol (``egpu.codegen.hashes``) never has
a key twice.  Key: launch, number of the block in its grid (x first, then y, then z), kernel and
program.  Value: threads that arrived.  Who completes a block deletes its entry before the program
runs; nobody looks for it any more, since all have arrived.  The addition is ordered (RFC 9669: it
gives the old value), so the program sees what the lanes that arrived before did before that.

An arrival that finds no place is counted by the map (``full``, ``busy``): that block is missed.
"""

from __future__ import annotations

from dataclasses import replace

from egpu.bpf.asm import assemble
from egpu.bpf.context import FIELDS
from egpu.bpf.own_maps import BLOCKS, own_map
from egpu.bpf.program import AttachKind, Insn, Level, Program
from egpu.errors import InternalError

_OFFSETS = {field.name: field.offset for field in FIELDS}
_COUNT_BITS = """
mov32 %r1, %r7
rsh32 %r1, 1
and32 %r1, 0x55555555
sub32 %r7, %r1
mov32 %r1, %r7
rsh32 %r1, 2
and32 %r1, 0x33333333
and32 %r7, 0x33333333
add32 %r7, %r1
mov32 %r1, %r7
rsh32 %r1, 4
add32 %r7, %r1
and32 %r7, 0x0f0f0f0f
mul32 %r7, 0x01010101
rsh32 %r7, 24
"""
# r6: the context, r7: lanes of this group, r8: threads of the block; the key lies at r10-24, what a
# new entry begins with at r10-32.
_ARRIVAL = """
mov %r6, %r1
ldxw %r7, [%r6+{active_mask}]
{count_bits}
ldxw %r8, [%r6+{block_dim_x}]
ldxw %r1, [%r6+{block_dim_y}]
mul %r8, %r1
ldxw %r1, [%r6+{block_dim_z}]
mul %r8, %r1
jeq %r7, %r8, complete
ldxdw %r1, [%r6+{launch_id}]
stxdw [%r10-24], %r1
ldxw %r1, [%r6+{block_z}]
ldxw %r2, [%r6+{grid_y}]
mul %r1, %r2
ldxw %r2, [%r6+{block_y}]
add %r1, %r2
ldxw %r2, [%r6+{grid_x}]
mul %r1, %r2
ldxw %r2, [%r6+{block_x}]
add %r1, %r2
stxdw [%r10-16], %r1
ldxw %r1, [%r6+{kernel_id}]
stxw [%r10-8], %r1
stw [%r10-4], {number}
lddw %r1, map_index {map}
mov %r2, %r10
add %r2, -24
call 1
jne %r0, 0, arrive
stdw [%r10-32], 0
lddw %r1, map_index {map}
mov %r2, %r10
add %r2, -24
mov %r3, %r10
add %r3, -32
mov %r4, 1
call 2
lddw %r1, map_index {map}
mov %r2, %r10
add %r2, -24
call 1
jeq %r0, 0, incomplete
arrive:
mov %r1, %r7
lock fetch add [%r0], %r1
add %r1, %r7
jne %r1, %r8, incomplete
lddw %r1, map_index {map}
mov %r2, %r10
add %r2, -24
call 3
ja complete
incomplete:
mov %r0, 0
exit
complete:
mov %r1, %r6
"""


def leaves_blocks(program: Program) -> bool:
    """Whether ``program`` is for the last threads of blocks to leave."""
    return any(
        point.kind is AttachKind.EXIT and point.level is Level.BLOCK for point in program.attach
    )


def with_arrival(program: Program, number: int) -> Program:
    """``program``, one that ``leaves_blocks``, with the arrival before its first instruction.

    ``number`` tells it from other such programs over the same maps.  It must have been verified as
    it was: behind the arrival, parts of the stack and registers look as if it had set them.
    Raises InternalError if its maps lack ``own_maps.BLOCKS`` or it has the arrival already.
    """
    index = own_map(program.maps, BLOCKS)
    if index is None or program.arrives:
        raise InternalError(f"program {program.name} cannot have an arrival")
    added = _arrival(index, number)
    functions = tuple(
        replace(each, start=each.start + len(added))
        if each.start
        else replace(each, length=each.length + len(added))
        for each in program.functions
    )
    lines = tuple(replace(line, pc=line.pc + len(added)) for line in program.lines)
    return replace(
        program, code=added + program.code, functions=functions, lines=lines, arrives=True
    )


def _arrival(index: int, number: int) -> tuple[Insn, ...]:
    text = _ARRIVAL.format(count_bits=_COUNT_BITS, map=index, number=number, **_OFFSETS)
    return assemble(text)
