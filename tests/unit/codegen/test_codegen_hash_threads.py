"""Hash maps by threads of this machine that really run at once, on the same arenas."""

import struct
import threading

import pytest
from test_codegen_hash import view

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import HASH_WINDOW, MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import HostArenas, HostProgram
from egpu.maps.layout import HASH_FULL, hash_table
from egpu.verifier import Limits, Policy, verify

ROUNDS = 500
KEYS = 8
THREADS = 4
SIZE = 8 + 3 * 256
# r1 = memory: a seed, then how often each result came of insertions, updates and deletions (32
# words each).  Each round inserts (NOEXIST) or updates (EXIST) a key, then may delete it.
MIX = f"""
mov %r6, %r1
mov %r7, 0
ldxdw %r8, [%r6]
round:
mul %r8, 1103515245
add %r8, 12345
mov %r9, %r8
rsh %r9, 16
and %r9, {KEYS - 1}
stxdw [%r10-8], %r9
mul %r9, 3
stxdw [%r10-24], %r9
stxdw [%r10-16], %r9
mov %r9, %r8
rsh %r9, 24
and %r9, 1
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
mov %r3, %r10
add %r3, -24
mov %r4, %r9
add %r4, 1
call 2
neg %r0
and %r0, 31
lsh %r0, 3
lsh %r9, 8
mov %r1, %r6
add %r1, %r0
add %r1, %r9
ldxdw %r2, [%r1+8]
add %r2, 1
stxdw [%r1+8], %r2
mov %r9, %r8
rsh %r9, 28
and %r9, 3
jne %r9, 0, next
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
call 3
neg %r0
and %r0, 31
lsh %r0, 3
mov %r1, %r6
add %r1, %r0
ldxdw %r2, [%r1+520]
add %r2, 1
stxdw [%r1+520], %r2
next:
add %r7, 1
jlt %r7, {ROUNDS}, round
mov %r0, 0
exit
"""


@pytest.mark.parametrize("entries", [KEYS + THREADS, KEYS, 3])
def test_totals(entries):
    """Insertions less deletions are what is left, no slot or lock is left held, no value is torn
    between keys; a full map refuses what it has no room for.

    A deletion counts as an entry until it is over (``egpu.codegen.hashes``), and a thread may be
    kept from ending one for long: so there is always room with one entry more for each thread.
    """
    spec = MapSpec("h", MapType.HASH, 8, 16, entries)
    program = program_from_code(assemble(MIX), "p", maps=(spec,))
    limits = Limits(cost=10**9)
    verified = verify(program, policy=Policy.EXECUTOR, memory_size=SIZE, limits=limits)
    arenas = HostArenas(verified)
    blocks = [
        bytearray(seed.to_bytes(8, "little") + bytes(SIZE - 8)) for seed in range(1, THREADS + 1)
    ]

    with HostProgram(verified, arenas=arenas) as host:

        def work(block):
            for _ in range(20):
                host.run(block)

        workers = [threading.Thread(target=work, args=(block,)) for block in blocks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def count(what, answer):
        start = 8 + 256 * what + 8 * answer
        return sum(int.from_bytes(block[start : start + 8], "little") for block in blocks)

    inserted, updated, deleted = ({n: count(what, n) for n in range(32)} for what in range(3))
    assert sum(inserted.values()) + sum(updated.values()) == THREADS * 20 * ROUNDS
    assert {n for n, times in inserted.items() if times} <= {0, 7, 16, 17}
    assert {n for n, times in updated.items() if times} <= {0, 2, 16}
    assert {n for n, times in deleted.items() if times} <= {0, 2}
    shown = view(arenas, spec)
    found = {int.from_bytes(key, "little"): value for key, value in shown.to_dict().items()}
    assert found == {key: (3 * key).to_bytes(8, "little") * 2 for key in found}
    assert len(found) == shown.counter("count") == inserted[0] - deleted[0]
    assert shown.counter("full") == inserted[7]
    if entries > KEYS:
        assert inserted[7] == 0
    if entries < KEYS:
        assert inserted[7] > 0
    # A thread that is kept from running for 2 ** 20 rounds of another may make that one give up.
    assert shown.counter("busy") == inserted[16] + updated[16] <= THREADS
    place, shape = arenas.layout.places[0], hash_table(spec)
    for number in range(shape.slots):
        slot = place.offset + shape.table + number * shape.stride
        state, home, pins = struct.unpack_from("<3Q", arenas.device, slot)
        assert state & 3 in (0, HASH_FULL)
        assert home <= HASH_WINDOW
        assert not pins, "a pin is left"
