"""Per-thread arrays, and the array types that are others by another name."""

import itertools

import pytest
from codegen_programs import ARCHES, assemble_ptx, entry, in_kernel, needs_ptxas, probe
from test_codegen_lanes import Run

from egpu.bpf.interp import MapState, Place, run
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import HostArenas, HostProgram, compile_probe
from egpu.maps.memory import Snapshot
from egpu.maps.thread_view import ThreadView
from egpu.maps.view import MapCopy

PER_THREAD = [MapType.GPU_PER_THREAD_ARRAY, MapType.GPU_PER_THREAD_HOST_ARRAY]
SAME_AS_ARRAY = [MapType.GPU_HOST_ARRAY, MapType.GPU_KERNEL_SHARED_ARRAY]
# Adds 5 to the thread's value of key {key} and sets its second word; r0 = 1, 0 where there is none.
ADD = """
stw [%r10-4], {key}
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
jeq %r0, 0, none
ldxdw %r1, [%r0]
add %r1, 5
stxdw [%r0], %r1
stw [%r0+8], 7
mov %r0, 1
exit
none:
mov %r0, 0
exit
"""
# Key 1 gets what key {key} has, if that can be; -r0 = the answer.
UPDATE = """
stw [%r10-4], {key}
stdw [%r10-24], 3
stdw [%r10-16], 0
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
mov %r3, %r10
add %r3, -24
mov %r4, {flags}
call {call}
neg %r0
exit
"""
VALUE = (5).to_bytes(8, "little") + (7).to_bytes(4, "little")


def spec_of(kind, entries=2):
    return MapSpec("own", kind, 4, 12, entries)


def view_of(spec, layout, data):
    shot = Snapshot(bytes(data), 1, 1, True)
    return ThreadView(spec, [MapCopy(layout.places[0], layout.sm_slots, lambda: shot)])


@pytest.mark.parametrize("kind", PER_THREAD)
@pytest.mark.parametrize(
    "shape",
    [((7, 1, 1), (96, 1, 1)), ((2, 3, 2), (5, 2, 4)), ((1, 1, 3), (1, 33, 1))],
    ids=["line", "box", "column"],
)
def test_every_thread_has_its_own_value(kind, shape):
    spec = spec_of(kind)
    done = Run(probe(ADD.format(key=1), spec), entry(), shape=shape)
    data = done.memory.read(done.device, done.layout.device_size)
    view = view_of(spec, done.layout, data)
    threads = 1
    for size in (*shape[0], *shape[1]):
        threads *= size
    assert view[1] == (VALUE,) * threads + (bytes(12),) * (1024 - threads)
    assert view[0] == (bytes(12),) * 1024
    assert view.raw(1) == VALUE * threads + bytes(12 * (1024 - threads))


def test_threads_are_numbered_as_the_interpreter_does():
    """Each thread stores its own coordinates; the view has them in the order of their numbers."""
    from test_codegen_lanes import OFFSETS  # noqa: PLC0415

    axes = [OFFSETS[f"{what}_{axis}"] for what in ("block", "thread") for axis in "xyz"]
    reads = "\n".join(f"ldxw %r3, [%r6+{offset}]\nlsh %r8, 4\nor %r8, %r3" for offset in axes)
    text = "mov %r6, %r1\nmov %r8, 0\n" + reads
    text += ADD.format(key=0).replace("stw [%r0+8], 7", "stxw [%r0+8], %r8")
    spec = spec_of(MapType.GPU_PER_THREAD_ARRAY)
    grid, block = (2, 3, 2), (3, 2, 2)
    done = Run(probe(text, spec), entry(), shape=(grid, block))
    view = view_of(spec, done.layout, done.memory.read(done.device, done.layout.device_size))
    stored = [int.from_bytes(value[8:], "little") for value in view[0]]
    for bx, by, bz in itertools.product(*map(range, grid)):
        for tx, ty, tz in itertools.product(*map(range, block)):
            place = Place(block=(bx, by, bz), thread=(tx, ty, tz), grid_dim=grid, block_dim=block)
            packed = 0
            for part in (bx, by, bz, tx, ty, tz):
                packed = packed << 4 | part
            assert stored[place.number] == packed


def test_threads_beyond_the_slots_have_no_value():
    spec = spec_of(MapType.GPU_PER_THREAD_ARRAY)
    done = Run(probe(ADD.format(key=1), spec), entry(), thread_slots=50)
    view = view_of(spec, done.layout, done.memory.read(done.device, done.layout.device_size))
    assert view[1] == (VALUE,) * 50
    assert view[0] == (bytes(12),) * 50


def test_numbers_of_threads_have_64_bits():
    place = Place(
        block=(2**31 - 2, 65534, 1),
        grid_dim=(2**31 - 1, 65535, 2),
        block_dim=(1024, 1, 1),
        thread=(1023, 0, 0),
    )
    assert place.number == (65535 + 65534) * (2**31 - 1) * 1024 + (2**31 - 1) * 1024 - 1


@pytest.mark.parametrize("kind", [*PER_THREAD, *SAME_AS_ARRAY])
@pytest.mark.parametrize(
    ("key", "flags", "call", "answer"),
    [(1, 0, 2, 0), (1, 1, 2, 17), (2, 0, 2, 7), (1, 2, 2, 0), (1, 3, 2, 22), (1, 0, 3, 22)],
)
def test_answers(kind, key, flags, call, answer):
    spec = spec_of(kind)
    verified = probe(UPDATE.format(key=key, flags=flags, call=call), spec, points=())
    state = MapState(spec)
    assert run(verified.program, maps=[state]) == answer
    arenas = HostArenas(verified)
    with HostProgram(verified, arenas=arenas) as host:
        assert host.run(bytearray()) == answer
    stored = bytes(arenas.device)
    expected = (3).to_bytes(8, "little") + bytes(4) if answer == 0 else bytes(12)
    place = arenas.layout.places[0]
    start = place.offset + (place.stride or place.entry_stride)
    assert stored[start : start + 12] == expected
    number = state.thread_slots if kind in PER_THREAD else 1
    assert bytes(state.value(number)) == expected


@pytest.mark.parametrize("kind", [*PER_THREAD, *SAME_AS_ARRAY])
@pytest.mark.parametrize(("key", "answer"), [(1, 1), (2, 0)])
def test_look_up(kind, key, answer):
    text = ADD.format(key=key)
    if kind in SAME_AS_ARRAY:
        text = text.replace("ldxdw %r1, [%r0]\nadd %r1, 5\nstxdw [%r0], %r1\n", "")
    verified = probe(text, spec_of(kind), points=())
    assert run(verified.program) == answer
    with HostProgram(verified) as host:
        assert host.run(bytearray()) == answer


def test_interpreter_beyond_the_slots():
    state = MapState(spec_of(MapType.GPU_PER_THREAD_ARRAY), thread_slots=4)
    program = probe(ADD.format(key=1), state.spec, points=()).program
    answers = [
        run(program, maps=[state], place=Place(thread=(n, 0, 0), block_dim=(8, 1, 1)))
        for n in (0, 3, 3, 4)
    ]
    assert answers == [1, 1, 1, 0]
    assert [bytes(state.value(n))[0] for n in range(8)] == [0, 0, 0, 0, 5, 0, 0, 10]


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_it(tmp_path, arch):
    codes = [
        compile_probe(probe(ADD.format(key=1), spec_of(kind)), point=entry()) for kind in PER_THREAD
    ]
    assemble_ptx(in_kernel(*codes), tmp_path, arch)
