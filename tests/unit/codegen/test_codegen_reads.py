"""Memory that goes while threads of this machine that really run at once read it by the table."""

import ctypes
import struct
import threading
import time

from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.own_maps import (
    ALLOCATIONS,
    ALLOCATIONS_HEADER,
    ALLOCATIONS_LIMIT,
    ALLOCATIONS_READERS,
    ALLOCATIONS_ROW,
    own_map,
    with_own_maps,
)
from egpu.codegen import HostArenas, HostProgram
from egpu.verifier import Limits, Policy, verify

ROUNDS, THREADS, SECONDS = 2000, 3, 1.5
PATIENCE = 100  # seconds for enough of everything to happen, however slow this machine is
WORDS = 32  # of a buffer; reads begin at its second byte, so they go byte by byte, and take long
READ = 8 * (WORDS - 1)  # bytes
GOOD, GONE = 0x5555555555555555, 0xEEEEEEEEEEEEEEEE
COUNTS = struct.Struct("<3Q")  # reads, reads that failed, reads of what had gone


def program(addresses):
    """Reads at each address in turn; adds to COUNTS in memory."""
    reads = ""
    for number, address in enumerate(addresses):
        compared = "".join(
            f"ldxdw %r1, [%r10-{8 * word + 8}]\njne %r1, %r8, wrong{number}\n"
            for word in range(WORDS - 1)
        )
        reads += f"""
        mov %r1, %r10
        add %r1, -{READ}
        mov %r2, {READ}
        lddw %r3, {address + 1}
        call 4
        jne %r0, 0, failed{number}
        {compared}
        ldxdw %r1, [%r6]
        add %r1, 1
        stxdw [%r6], %r1
        ja next{number}
        failed{number}:
        ldxdw %r1, [%r6+8]
        add %r1, 1
        stxdw [%r6+8], %r1
        ja next{number}
        wrong{number}:
        ldxdw %r1, [%r6+16]
        add %r1, 1
        stxdw [%r6+16], %r1
        next{number}:
        """
    text = f"""
    mov %r6, %r1
    mov %r7, 0
    lddw %r8, {GOOD}
    round:
    {reads}
    add %r7, 1
    jlt %r7, {ROUNDS}, round
    mov %r0, 0
    exit
    """
    return with_own_maps(program_from_code(assemble(text)))


class Agent:
    """What the agent does to its table (native/agent/allocations.c), here in Python."""

    def __init__(self, arenas, made):
        place = arenas.layout.places[own_map(made.maps, ALLOCATIONS)]
        size = ALLOCATIONS_HEADER + 2 * ALLOCATIONS_LIMIT * ALLOCATIONS_ROW
        self.bytes = arenas.device[place.offset : place.offset + size]
        self.state = 0

    def publish(self, start, size):
        old = self.state >> 16 & 1
        at = ALLOCATIONS_HEADER + (old ^ 1) * ALLOCATIONS_LIMIT * ALLOCATIONS_ROW
        self.bytes[at : at + ALLOCATIONS_ROW] = struct.pack("<2Q", start, start + size)
        self.state = 1 | (old ^ 1) << 16 | ((self.state >> 32) + 1) << 32
        self.bytes[:8] = self.state.to_bytes(8, "little")
        lock = threading.Lock()
        with lock:  # an atomic instruction: what was written is seen before what is read next
            pass
        while any(self.readers(old)):
            time.sleep(0)

    def readers(self, half):
        counters = self.bytes[ALLOCATIONS_READERS:ALLOCATIONS_HEADER].cast("Q")
        return counters[half::8]


def test_nobody_reads_what_has_left_the_table():
    buffers = [(ctypes.c_uint64 * WORDS)(*[GOOD] * WORDS) for _ in range(2)]
    made = program([ctypes.addressof(buffer) for buffer in buffers])
    limits = Limits(cost=10**9)
    verified = verify(made, policy=Policy.EXECUTOR, memory_size=COUNTS.size, limits=limits)
    arenas = HostArenas(verified)
    agent = Agent(arenas, made)
    blocks = [bytearray(COUNTS.size) for _ in range(THREADS)]
    began, over = time.monotonic(), threading.Event()
    changes = 0

    def counted():
        return [sum(each) for each in zip(*map(COUNTS.unpack, blocks), strict=True)]

    with HostProgram(verified, arenas=arenas) as host:

        def work(block):
            while not over.is_set():
                host.run(block)

        workers = [threading.Thread(target=work, args=(block,)) for block in blocks]
        for worker in workers:
            worker.start()
        try:
            while (took := time.monotonic() - began) < SECONDS or (
                took < PATIENCE and min(*counted()[:2], changes) <= 100
            ):
                here, other = buffers[changes % 2], buffers[1 - changes % 2]
                here[:] = [GOOD] * WORDS
                agent.publish(ctypes.addressof(here), ctypes.sizeof(here))
                other[:] = [GONE] * WORDS
                changes += 1
        finally:
            over.set()
            for worker in workers:
                worker.join()

    read, failed, wrong = counted()
    assert wrong == 0
    assert min(read, failed, changes) > 100
    assert not any(agent.bytes[ALLOCATIONS_READERS:ALLOCATIONS_HEADER]), "a reader is left"
