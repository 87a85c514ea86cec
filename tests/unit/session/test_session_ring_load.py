"""Rings against the real grid: a warning once for each kernel, with bytes, capacity, what to do."""

import pytest

from egpu.agent.twin import KernelStats
from egpu.bpf.asm import assemble
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import AttachKind, AttachPoint, Level, MapSpec
from egpu.maps import plan
from egpu.session.attached import ProbeSet
from egpu.session.ring_load import ring_loads
from egpu.verifier import verify

RING = MapSpec("events", MapType.RINGBUF, 0, 0, 1 << 20)
OUTPUT = """
stdw [%r10-16], 1
stdw [%r10-8], 2
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -16
mov %r3, 12
mov %r4, 0
call 130
mov %r0, 0
exit
"""
SMS = 4
CAPACITY = 1 << 20


def probes(level=Level.THREAD, text=OUTPUT, kind=AttachKind.ENTRY, pattern="*", **options):
    point = AttachPoint(kind, pattern, level)
    program = program_from_code(assemble(text), "tells", maps=(RING,), attach=(point,))
    return ProbeSet([verify(program)], **options)


def kernel(launches, blocks, threads, name="k"):
    """A kernel that was launched so often, with so many blocks of so many threads."""
    return KernelStats(
        name=name, kernel_id=0, seen=launches, probed=launches, not_probed={},
        threads=launches * blocks * threads, blocks=launches * blocks,
        threads_probed=launches * blocks * threads, blocks_probed=launches * blocks,
        captured=0, captured_probed=0, failed=0, registers_before=0, registers_after=0,
        refusals=(),
    )  # fmt: skip


def loads(row, of, sms=SMS):
    return ring_loads([row], of, [plan((RING,), sms)])


@pytest.mark.parametrize(("level", "units"), [
    (Level.THREAD, 200 * 33), (Level.WARP, 200 * 2), (Level.BLOCK, 200),
])  # fmt: skip
def test_bytes_are_those_of_one_launch(level, units):
    fitting = CAPACITY // (16 * units)
    assert loads(kernel(3, 200 * fitting, 33), probes(level)) == ()
    (load,) = loads(kernel(3, 200 * (fitting + 1), 33), probes(level))
    assert load.each == 16
    assert load.writers == units * (fitting + 1)
    assert load.bytes == 16 * units * (fitting + 1) > load.capacity == CAPACITY


def test_text():
    (load,) = loads(kernel(7, 4096, 256), probes())
    assert str(load) == (
        "tells writes up to 16 bytes a thread, 16,777,216 in a launch of 1,048,576 threads, and "
        "its rings hold 1,048,576: records are dropped that are not read at once; write once a "
        "warp (kprobe.warp/), count in a map, or enlarge the ring"
    )
    (load,) = loads(kernel(1, 70_000, 1024), probes(Level.BLOCK))
    assert "16 bytes a block, 1,120,000 in a launch of 70,000 blocks" in str(load)


def test_capacity_is_of_all_sms_and_the_smallest_device_counts():
    small, large = plan((RING,), 4), plan((RING,), 1000)
    assert large.places[0].ring_size * 1000 > CAPACITY
    row = kernel(1, 1000, 1024)
    assert ring_loads([row], probes(), [large, small])[0].capacity == CAPACITY
    assert ring_loads([row], probes(), []) == ()


@pytest.mark.parametrize("of", [
    probes(text="mov %r0, 0\nexit"),
    probes(pattern="other"),
    probes(only="other"),
], ids=["writes nothing", "another kernel", "narrowed"])  # fmt: skip
def test_silent(of):
    assert loads(kernel(1, 100_000, 1024), of) == ()


def test_kernels_without_probed_launches_are_silent():
    assert loads(kernel(0, 100_000, 1024), probes()) == ()
