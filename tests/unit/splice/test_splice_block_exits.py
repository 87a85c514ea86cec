"""kretprobe.block: once a block, by who leaves it last, whatever its shape and its ways out."""

import re
import struct

import pytest
from sass_corpus import ARCHS, PTXAS, assemble, cubin, disassembled, needs_tools

from egpu.bpf.asm import assemble as bpf
from egpu.bpf.block_exits import leaves_blocks, with_arrival
from egpu.bpf.context import FIELDS
from egpu.bpf.insn import program_from_code
from egpu.bpf.maptypes import MapType
from egpu.bpf.own_maps import BLOCKS, SPECS, own_map, with_own_maps
from egpu.bpf.program import AttachKind, AttachPoint, Level, MapSpec
from egpu.codegen import Launch, compile_probe
from egpu.errors import InputError, InternalError, VerifierError
from egpu.image.ptx import parse
from egpu.maps import plan
from egpu.maps.layout import HASH_CONTROL, LAUNCH_FLAG_CAPTURED
from egpu.session.arrivals import verify_all
from egpu.sim import DeviceMemory, Machine
from egpu.splice import splice_ptx
from egpu.splice.sass import splice_sass
from egpu.verifier import verify

EXIT = AttachKind.EXIT
OFFSETS = {field.name: field.offset for field in FIELDS}
GONE = MapSpec("gone", MapType.ARRAY, 4, 8, 64)  # threads that left, by block
TOTALS = MapSpec("totals", MapType.ARRAY, 4, 8, 2)  # blocks with all threads gone, others
NUMBER = """
ldxw %r7, [%r1+{block_z}]
ldxw %r2, [%r1+{grid_y}]
mul %r7, %r2
ldxw %r2, [%r1+{block_y}]
add %r7, %r2
ldxw %r2, [%r1+{grid_x}]
mul %r7, %r2
ldxw %r2, [%r1+{block_x}]
add %r7, %r2
stxw [%r10-4], %r7
ldxw %r8, [%r1+{block_dim_x}]
ldxw %r2, [%r1+{block_dim_y}]
mul %r8, %r2
ldxw %r2, [%r1+{block_dim_z}]
mul %r8, %r2
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
jeq %r0, 0, done
""".format(**OFFSETS)
LEAVE = NUMBER + "mov %r1, 1\nlock add [%r0], %r1\ndone:\nmov %r0, 0\nexit"
LAST = (
    NUMBER
    + """
ldxdw %r1, [%r0]
stw [%r10-8], 1
jne %r1, %r8, count
stw [%r10-8], 0
count:
lddw %r1, map_index 1
mov %r2, %r10
add %r2, -8
call 1
jeq %r0, 0, done
mov %r1, 1
lock add [%r0], %r1
done:
mov %r0, 0
exit
"""
)
# Threads leave at once (way 0), the thirds of a warp apart (1), or one of five in each turn (2).
KERNEL = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry leaves(.param .u32 way)
{
.reg .pred %p<4>; .reg .b32 %r<9>;
ld.param.u32 %r1, [way];
mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ntid.x;
mad.lo.u32 %r2, %r3, %r4, %r2;
setp.eq.u32 %p1, %r1, 0;
@%p1 ret;
rem.u32 %r5, %r2, 3;
setp.eq.u32 %p2, %r1, 2;
@%p2 bra turns;
setp.eq.u32 %p1, %r5, 1;
@%p1 exit;
setp.eq.u32 %p1, %r5, 2;
@%p1 exit;
ret;
turns:
rem.u32 %r5, %r2, 5;
mov.u32 %r6, 0;
again:
setp.eq.u32 %p1, %r6, %r5;
@%p1 exit;
add.u32 %r6, %r6, 1;
bra again;
}
"""


def programs(maps=(GONE, TOTALS), last=LAST):
    level = AttachPoint(EXIT, "*", Level.BLOCK)
    block = with_own_maps(program_from_code(bpf(last), "last", maps=maps, attach=(level,)))
    thread = program_from_code(
        bpf(LEAVE), "leave", maps=block.maps, attach=(AttachPoint(EXIT, "*"),)
    )
    return thread, block


def compiled(given, launch=Launch.DIRECT):
    return [
        compile_probe(each, point=each.program.attach[0], launch=launch)
        for each in verify_all(given)
    ]


class Device:
    """Launches of the twin of KERNEL over one arena."""

    def __init__(self, given, launch=Launch.DIRECT):
        self.maps = given[0].maps
        self.layout = plan(self.maps, 4)
        image = splice_ptx(parse(KERNEL), "leaves", compiled(given, launch), self.layout)
        self.image, self.twin = image, parse(image.text)
        self.memory = DeviceMemory()
        self.machine = Machine(self.memory)
        self.arena = self.memory.allocate(self.layout.device_size)
        self.memory.write(self.arena + 64, struct.pack("<I", 1))  # header: enabled
        self.launches = 0

    def launch(self, grid, block, way, number=None, flags=0):
        self.launches += 1
        number = self.launches if number is None else number
        params = struct.pack("<I", way).ljust(self.image.hidden_offset, b"\0")
        params += struct.pack("<3QII", self.arena, 0, number, 3, flags)
        self.machine.launch(self.twin, self.image.kernel, grid, block, params)

    def word(self, index, offset):
        return struct.unpack(
            "<Q", self.memory.read(self.arena + self.layout.places[index].offset + offset, 8)
        )[0]

    def totals(self):
        return self.word(1, 0), self.word(1, 8)

    def forget(self):
        """Begin counting threads anew."""
        self.memory.write(self.arena + self.layout.places[0].offset, bytes(8 * GONE.max_entries))

    def entries(self):
        return self.word(own_map(self.maps, BLOCKS), HASH_CONTROL["count"][0]) & 0xFFFFFFFF


SHAPES = [
    ((5, 1, 1), (1, 1, 1)), ((3, 1, 1), (31, 1, 1)), ((3, 2, 1), (32, 1, 1)),
    ((2, 2, 3), (33, 1, 1)), ((4, 1, 1), (96, 1, 1)), ((2, 1, 1), (257, 1, 1)),
    ((2, 1, 1), (1024, 1, 1)), ((2, 3, 2), (7, 5, 3)), ((1, 1, 2), (2, 3, 64)),
]  # fmt: skip


@pytest.mark.parametrize("way", [0, 1, 2])
@pytest.mark.parametrize(("grid", "block"), SHAPES)
def test_once_a_block_when_all_have_left(grid, block, way):
    device = Device(programs())
    for turn in range(1, 3):
        device.forget()
        device.launch(grid, block, way)
        blocks = grid[0] * grid[1] * grid[2]
        assert device.totals() == (turn * blocks, 0)
        assert device.entries() == 0


def test_replays_of_a_graph_have_one_number():
    device = Device(programs(), Launch.CAPTURED)
    for turn in range(1, 4):
        device.forget()
        device.launch((3, 1, 1), (70, 1, 1), 2, number=9, flags=LAUNCH_FLAG_CAPTURED)
        assert device.totals() == (3 * turn, 0)


def test_two_programs_meet_apart():
    thread, block = programs()
    device = Device((thread, block, block))
    device.launch((4, 1, 1), (96, 1, 1), 1)
    assert device.totals() == (8, 0)
    assert device.entries() == 0


def test_what_finds_no_place_is_counted():
    thread, block = programs()
    small = tuple(MapSpec(BLOCKS, MapType.HASH, 24, 8, 1) if m == SPECS[BLOCKS] else m
                  for m in block.maps)  # fmt: skip
    given = [program_from_code(each.code, each.name, maps=small, attach=each.attach)
             for each in (thread, block)]  # fmt: skip
    device = Device(given)
    place = own_map(small, BLOCKS)
    # Somebody else's entry takes all the room there is.
    device.memory.write(
        device.arena + device.layout.places[place].offset + HASH_CONTROL["count"][0],
        struct.pack("<I", 1),
    )
    device.launch((1, 1, 1), (33, 1, 1), 0)
    assert device.totals() == (0, 0)
    assert device.word(place, HASH_CONTROL["full"][0]) == 2


def test_only_such_programs_pay():
    thread, block = programs()
    assert (leaves_blocks(thread), leaves_blocks(block)) == (False, True)
    assert own_map(with_own_maps(program_from_code(bpf(LEAVE), "p", maps=(GONE,),
                   attach=thread.attach)).maps, BLOCKS) is None  # fmt: skip
    found = verify_all((thread, block))
    assert found[0].program == thread
    assert found[1].program.arrives
    assert len(found[1].program.code) > len(block.code)
    assert found[1].cost.instructions > verify_all((thread,))[0].cost.instructions


def test_a_mistake_is_said_of_the_programs_own_instructions():
    _, block = programs(last="ldxdw %r0, [%r10-8]\nexit")
    with pytest.raises(VerifierError) as caught:
        verify_all((block,))
    assert caught.value.pc == 0


def test_programs_without_their_arrival_are_refused():
    _, block = programs()
    whole = with_arrival(block, 0)
    with pytest.raises(InternalError, match="cannot have an arrival"):
        with_arrival(whole, 0)
    with pytest.raises(InternalError, match="cannot have an arrival"):
        with_arrival(program_from_code(block.code, "p", attach=block.attach), 0)
    with pytest.raises(InputError, match="which exits of a block are the last"):
        compile_probe(verify(block), point=block.attach[0])


@needs_tools
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["early_exits", "matmul", "histogram", "no_parameters"])
def test_machine_code_takes_it(arch, name):
    _, block = programs()  # threads that leave could part in the other one
    layout = plan(block.maps, 132)
    spliced = splice_sass(cubin("plain", arch), name, compiled((block,)), layout, assemble)
    lines = disassembled(spliced.image)[name]
    assert any(line.name.startswith("ATOM") for line in lines)
    assert any(line.name == "POPC" for line in lines)


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas (the cuda extra)")
@pytest.mark.parametrize("arch", ["80", "90", "120"])
def test_ptxas_takes_the_twin(arch):
    device = Device(programs())
    text = device.image.text
    assert re.search(r"activemask\.b32", text)
    assert assemble(text, f"sm_{arch}")
