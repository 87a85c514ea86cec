"""The reference interpreter: faults, frames, maps, helpers, observers."""

import pytest

from egpu.bpf.asm import assemble
from egpu.bpf.helpers import HELPERS
from egpu.bpf.insn import program_from_code
from egpu.bpf.interp import run
from egpu.bpf.interp_helpers import BODIES
from egpu.bpf.interp_state import MapState, Place
from egpu.bpf.maptypes import MAP_TRAITS, MapType
from egpu.bpf.program import Insn, MapSpec
from egpu.errors import DeviceFault, InputError, UnsupportedError

ARRAY = MapSpec("counts", MapType.ARRAY, 4, 12, 3)
RING = MapSpec("events", MapType.RINGBUF, 0, 0, 64)


def program(text, *maps):
    return program_from_code(assemble(text), "p", maps=maps)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ldxb %r0, [%r1+4]\nexit", "offset 4 of memory, which has 4 bytes"),
        ("ldxw %r0, [%r1+1]\nexit", "load of 4 bytes at offset 1 of memory"),
        ("stb [%r1-1], 0\nexit", "store of 1 bytes at offset -1 of memory"),
        ("ldxdw %r0, [%r10]\nexit", "offset 512 of stack"),
        ("ldxdw %r0, [%r10-520]\nexit", "offset -8 of stack"),
        ("mov %r1, 0\nldxw %r0, [%r1]\nexit", "where there is no memory"),
        ("lock add [%r10-7], %r1\nexit", "not aligned to 8 bytes"),
        ("call local f\nldxb %r0, [%r0]\nexit\nf: mov %r0, %r10\nadd %r0, -8\nexit", "no memory"),
        ("mov %r0, 0", "control leaves the program at 1"),
        ("again: call local again\nexit", "nested deeper than 8 frames"),
        ("again: ja again", "more than 1000 instructions"),
    ],
)
def test_faults(text, message):
    with pytest.raises(DeviceFault, match=message) as caught:
        run(program(text), bytearray(4), step_limit=1000)
    assert str(caught.value).startswith("p: ")


def test_fault_names_the_instruction():
    with pytest.raises(DeviceFault, match=r"insn 1 \(ldxw %r0, \[%r1\+8\]\)"):
        run(program("mov %r2, 1\nldxw %r0, [%r1+8]\nexit"), bytearray(8))


def test_eight_frames_are_allowed():
    text = "mov %r0, 0\nmov %r1, 7\ncall local f\nexit\nf: add %r0, 1\nsub %r1, 1\n"
    text += "jeq %r1, 0, +1\ncall local f\nexit"
    assert run(program(text)) == 7


def test_context_is_read_only():
    assert run(program("ldxw %r0, [%r1+4]\nexit"), context=bytes([0, 0, 0, 0, 9, 0, 0, 0])) == 9
    with pytest.raises(DeviceFault, match="read-only"):
        run(program("stb [%r1], 1\nexit"), context=bytes(8))


def test_memory_is_changed_in_place():
    memory = bytearray(8)
    run(program("sth [%r1+2], 0x1234\nmov %r0, 0\nexit"), memory)
    assert memory == bytes.fromhex("0000341200000000")


@pytest.mark.parametrize(
    ("text", "target"), [("ja +1\nexit", 2), ("ja +0\nja -3\nexit", -1), ("ja +1\nlddw %r0, 1", 2)]
)
def test_bad_jump_targets_are_input_errors(text, target):
    with pytest.raises(InputError, match=f"jumps to {target}, which is no instruction"):
        run(program(text))


def test_unknown_helpers():
    with pytest.raises(InputError, match="unknown helper 4711"):
        run(program("call 4711\nexit"))


def test_ending_the_thread_ends_every_function():
    text = "call local inner\nmov %r0, 3\nexit\ninner:\nmov %r0, 2\ncall 507\nmov %r0, 1\nexit"
    assert run(program(text)) == 0


@pytest.mark.parametrize(
    ("insn", "feature"),
    [
        (Insn(0x8D, 1), "callx"),
        (Insn(0x0D, 1), "gotox"),
        (Insn(0x30, imm=2), "legacy packet access"),
        (Insn(0x40, 0, 1), "legacy packet access"),
        (Insn(0xBF, 1, 1, 1, 1), "arena cast"),
        (Insn(0xDB, 1, 1, 0, 0x100), "load-acquire"),
        (Insn(0xDB, 1, 1, 0, 0x110), "store-release"),
        (Insn(0x85, src=2, imm=1), "kfunc"),
    ],
)
def test_refused_by_name_even_where_not_reached(insn, feature):
    code = (*assemble("mov %r0, 0\nexit"), insn, Insn(0x95))
    with pytest.raises(UnsupportedError, match=f"{feature}.*insn 2"):
        run(program_from_code(code, "p"))


def test_own_helpers_replace_the_table():
    seen = []
    bodies = {9: lambda machine, args: seen.append(args) or -1}
    assert run(program("mov %r1, 3\ncall 9\nexit"), helpers=bodies) == 2**64 - 1
    assert seen[0][0] == 3


LOOKUP = """
stw [%r10-4], {key}
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
jeq %r0, 0, exit
{body}
exit
"""


def test_map_values_are_shared_and_bounded():
    state = MapState(ARRAY)
    body = "mov %r1, 5\nlock add32 [%r0+8], %r1\nmov %r0, 1"
    text = LOOKUP.format(key=2, body=body)
    for _ in range(2):
        assert run(program(text, ARRAY), maps=[state]) == 1
    assert bytes(state.value(2)) == bytes(8) + (10).to_bytes(4, "little")
    with pytest.raises(DeviceFault, match=r"counts\[2\], which has 12 bytes"):
        run(program(LOOKUP.format(key=2, body="ldxw %r0, [%r0+12]"), ARRAY), maps=[state])


def test_lookup_past_the_end_is_null():
    assert run(program(LOOKUP.format(key=3, body="mov %r0, 7"), ARRAY)) == 0


UPDATE = """
stw [%r10-4], {key}
stdw [%r10-16], 77
stw [%r10-8], 88
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
mov %r3, %r10
add %r3, -16
mov %r4, {flags}
call 2
exit
"""


@pytest.mark.parametrize(
    ("key", "flags", "answer"), [(1, 0, 0), (1, 2, 0), (1, 1, -17), (3, 0, -7), (1, 5, -22)]
)
def test_update(key, flags, answer):
    state = MapState(ARRAY)
    text = UPDATE.format(key=key, flags=flags)
    assert run(program(text, ARRAY), maps=[state]) == answer & 2**64 - 1
    assert state.value(1)[0] == (77 if answer == 0 else 0)


def test_direct_values_and_read_only_data():
    rodata = MapSpec(".rodata", MapType.ARRAY, 4, 8, 1, initial=b"abcdefgh", read_only=True)
    assert run(program("lddw %r1, map_index_value 0+2\nldxb %r0, [%r1]\nexit", rodata)) == ord("c")
    with pytest.raises(DeviceFault, match="read-only"):
        run(program("lddw %r1, map_index_value 0\nstb [%r1], 1\nexit", rodata))


RESERVE = """
lddw %r1, map_index 0
mov %r2, {size}
mov %r3, 0
call 131
jeq %r0, 0, exit
stdw [%r0], 42
mov %r1, %r0
mov %r2, 0
{end}
mov %r0, 1
exit
"""


def test_ring_records():
    state = MapState(RING)
    text = RESERVE.format(size=16, end="call 132")
    results = [run(program(text, RING), maps=[state]) for _ in range(3)]
    assert results == [1, 1, 0]  # 24 bytes each of 64
    assert state.records == [(42).to_bytes(8, "little") + bytes(8)] * 2
    assert state.dropped == 1


def test_discarded_record_is_not_seen():
    state = MapState(RING)
    assert run(program(RESERVE.format(size=8, end="call 133"), RING), maps=[state]) == 1
    assert state.records == []


def test_leaked_and_stale_records_fault():
    with pytest.raises(DeviceFault, match="never submitted"):
        run(program(RESERVE.format(size=8, end=""), RING))
    with pytest.raises(DeviceFault, match="not the start of a reserved record"):
        run(
            program(
                RESERVE.format(size=8, end="mov %r6, %r1\ncall 132\nmov %r1, %r6\ncall 132"), RING
            )
        )


def test_output_and_query():
    text = """
    stdw [%r10-8], 7
    lddw %r1, map_index 0
    mov %r2, %r10
    add %r2, -8
    mov %r3, 8
    mov %r4, 0
    call 130
    lddw %r1, map_index 0
    mov %r2, 0
    call 134
    exit
    """
    state = MapState(RING)
    assert run(program(text, RING), maps=[state]) == 16
    assert state.records == [(7).to_bytes(8, "little")]


def test_place():
    place = Place(block=(1, 2, 3), sm=9, lane=31)
    text = """
    mov %r1, %r10
    add %r1, -8
    mov %r2, %r10
    add %r2, -16
    mov %r3, %r10
    add %r3, -24
    call 503
    ldxdw %r6, [%r10-24]
    call 509
    lsh %r6, 8
    or %r6, %r0
    call 511
    lsh %r6, 8
    or %r0, %r6
    exit
    """
    assert run(program(text), place=place) == 0x03091F


def test_observer_sees_registers_before_each_instruction():
    seen = []
    run(
        program("mov %r0, 4\nadd %r0, 1\nexit"),
        observe=lambda machine: seen.append((machine.pc, machine.registers[0], machine.depth)),
    )
    assert seen == [(0, 0, 1), (1, 4, 1), (2, 5, 1)]


def test_observer_can_tell_regions():
    places = []

    def observe(machine):
        region, offset = machine.space.locate(machine.registers[10])
        places.append((region.kind, offset))

    run(program("mov %r0, 0\nexit"), observe=observe)
    assert places == [("stack", 512)] * 2


def test_a_map_without_storage_is_refused(monkeypatch):
    monkeypatch.delitem(MAP_TRAITS, MapType.QUEUE)
    with pytest.raises(UnsupportedError, match="QUEUE of map 'h'"):
        MapState(MapSpec("h", MapType.QUEUE, 0, 4, 1))


def test_map_references_are_checked():
    with pytest.raises(InputError, match="map 1 does not exist"):
        run(program("lddw %r1, map_index 1\nexit", ARRAY))
    with pytest.raises(InputError, match="has no values"):
        run(program("lddw %r1, map_index_value 0\nexit", RING))
    with pytest.raises(InputError, match="file descriptors"):
        run(program_from_code([Insn(0x18, 1, 1), Insn(0), Insn(0x95)]))


def test_wrong_number_of_maps():
    with pytest.raises(InputError, match="0 maps given"):
        run(program("exit", ARRAY), maps=[])


def test_every_helper_with_a_body_elsewhere_or_for_the_host_has_one_here():
    assert set(BODIES) == {id for id, helper in HELPERS.items() if helper.body or helper.host}
