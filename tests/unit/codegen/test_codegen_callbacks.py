"""bpf_for_each_map_elem: exact sums on every executor, alone and by many lanes."""

import pytest
from codegen_programs import ARCHES, assemble_ptx, entry, executable, in_kernel, needs_ptxas, probe
from test_codegen_hash import COUNTED, INSERT, RESULTS, THREAD, Crowd, table
from test_codegen_lanes import Run

from egpu.bpf.interp import MapState, run
from egpu.bpf.maptypes import MapType, traits
from egpu.bpf.program import MapSpec
from egpu.codegen import HostProgram, compile_probe

KINDS = [MapType.ARRAY, MapType.PERCPU_ARRAY, MapType.GPU_ARRAY, MapType.GPU_HOST_ARRAY,
         MapType.HASH, MapType.PERCPU_HASH, MapType.LRU_HASH, MapType.LRU_PERCPU_HASH,
         MapType.GPU_HASH]  # fmt: skip
PUT = """
stw [%r10-4], {key}
stdw [%r10-16], {value}
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
mov %r3, %r10
add %r3, -16
mov %r4, 0
call 2
"""
# The sum of 1000 * key + value over the entries in the low half of r0, how many in the upper.
EACH = """
stdw [%r10-24], 0
lddw %r1, map_index 0
lddw %r2, code body
mov %r3, %r10
add %r3, -24
mov %r4, 0
call 164
lsh %r0, 32
ldxdw %r1, [%r10-24]
or %r0, %r1
{after}
exit
body:
ldxw %r0, [%r2]
mul %r0, 1000
ldxdw %r5, [%r3]
add %r0, %r5
ldxdw %r5, [%r4]
add %r5, %r0
stxdw [%r4], %r5
{more}
mov %r0, 0
{stop}
exit
"""


def spec(kind, entries):
    return MapSpec("m", kind, 4, 8, entries)


def summing(content, after="", more="", stop=""):
    puts = "".join(PUT.format(key=key, value=value) for key, value in content.items())
    return puts + EACH.format(after=after, more=more, stop=stop)


def answers(text, map_spec):
    """r0 by the interpreter, this processor and the simulated device."""
    verified = executable(text, map_spec)
    yield run(verified.program, maps=[MapState(map_spec)])
    with HostProgram(verified) as host:
        yield host.run(bytearray())
    # A probe gives no result: it is stored.
    store = "lddw %r1, map_index_value 1\nstxdw [%r1], %r0\nmov %r0, 0\n"
    done = Run(probe(text.replace("\nexit\nbody:", f"\n{store}exit\nbody:"), map_spec, RESULTS),
               entry(), blocks=1, threads=1)  # fmt: skip
    yield int(done.words(done.layout.places[1].offset, 1)[0])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_entry_once(kind):
    content = {0: 7, 3: 11, 4: 13, 6: 900}
    expected = sum(1000 * key + value for key, value in content.items())
    calls = len(content)
    if traits(kind).indexed:
        calls, expected = 7, expected + 1000 * (1 + 2 + 5)
    assert set(answers(summing(content), spec(kind, 7))) == {calls << 32 | expected}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_empty_and_single(kind):
    calls = 1 if traits(kind).indexed else 0
    assert set(answers(summing({}), spec(kind, 1))) == {calls << 32}
    assert set(answers(summing({0: 5}), spec(kind, 1))) == {1 << 32 | 5}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_ends_it(kind):
    """The call that gives 1 counts; which entries of a table come before is open."""
    found = set(answers(summing({0: 5, 1: 5, 2: 5}, stop="mov %r0, 1"), spec(kind, 3)))
    assert {answer >> 32 for answer in found} == {1}
    sums = {answer & 0xFFFFFFFF for answer in found}
    assert sums <= ({5} if traits(kind).indexed else {5, 1005, 2005})


DELETE = """
mov %r6, %r4
call 3
ldxdw %r5, [%r6]
add %r5, %r0
stxdw [%r6], %r5
"""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if traits(kind).hashed])
def test_entries_deleted_by_the_callback(kind):
    """The map and the key that a callback gets serve its own helper calls."""
    again = EACH.split("call 164", maxsplit=1)[0] + "call 164\n"
    text = summing({1: 2, 30: 4, 5: 6}, after="mov %r7, %r0\n" + again + "lsh %r0, 48\n"
                   "or %r0, %r7", more=DELETE)  # fmt: skip
    assert set(answers(text, spec(kind, 20))) == {3 << 32 | 36012}


def test_wide_keys():
    """Every byte of a key is copied."""
    wide = MapSpec("m", MapType.HASH, 20, 8, 4)
    put = "".join(f"stw [%r10-{48 - 4 * n}], {n + 1}\n" for n in range(5))
    text = put + (
        "stdw [%r10-8], 9\nlddw %r1, map_index 0\nmov %r2, %r10\nadd %r2, -48\nmov %r3, %r10\n"
        "add %r3, -8\nmov %r4, 0\ncall 2\n"
    ) + EACH.format(after="", stop="", more="".join(
        f"ldxw %r0, [%r2+{4 * n}]\nldxdw %r5, [%r4]\nlsh %r5, 3\nadd %r5, %r0\nstxdw [%r4], %r5\n"
        for n in range(5)
    ))  # fmt: skip
    total = 1009
    for word in range(1, 6):
        total = total * 8 + word
    assert set(answers(text, wide)) == {1 << 32 | total}


# Many lanes

ADD = """
lddw %r1, map_index 0
lddw %r2, code body
mov %r3, 0
mov %r4, 0
call 164
mov %r0, 0
exit
body:
{add}
mov %r0, 0
exit
"""
ATOMIC = "ldxw %r5, [%r2]\nadd %r5, 1\nlock add [%r3], %r5"
PLAIN = "ldxdw %r5, [%r3]\nadd %r5, 3\nstxdw [%r3], %r5"


@pytest.mark.parametrize(("blocks", "threads"), [(1, 1), (3, 33), (7, 96), (2, 75)])
def test_sums_of_lanes_are_exact(blocks, threads):
    shared = spec(MapType.ARRAY, 5)
    done = Run(probe(ADD.format(add=ATOMIC), shared), entry(), blocks=blocks, threads=threads)
    total = blocks * threads
    found = done.words(done.layout.places[0].offset, 5).tolist()
    assert found == [total * (key + 1) for key in range(5)]
    per_sm = spec(MapType.PERCPU_ARRAY, 5)
    done = Run(probe(ADD.format(add=PLAIN), per_sm), entry(), blocks=blocks, threads=threads)
    assert [sum(done.values(key)) for key in range(5)] == [3 * total] * 5


# After its own insertion a thread walks over what is there: entries whose second word is not three
# times the key are counted as result 1, its own as result 2, and the end of each walk as 3.
WALK = """
stxdw [%r10-32], %r6
lddw %r1, map_index 0
lddw %r2, code body
mov %r3, %r10
add %r3, -32
mov %r4, 0
call 164
mov %r0, 3
"""
SEEN = """
body:
ldxdw %r6, [%r2]
ldxdw %r7, [%r4]
mov %r8, %r6
mul %r8, 3
ldxdw %r9, [%r3+8]
jeq %r8, %r9, whole
mov %r0, 1
{counted}
whole:
jne %r6, %r7, other
mov %r0, 2
{counted}
other:
mov %r0, 0
exit
"""


@pytest.mark.parametrize("kind", [MapType.HASH, MapType.LRU_HASH, MapType.GPU_HASH])
def test_walks_while_others_insert(kind):
    """No entry is seen half-written, and each lane sees the one that it put there, once."""
    text = THREAD + INSERT.format(flags=1) + COUNTED + WALK + COUNTED + "mov %r0, 0\nexit\n"
    crowd = Crowd(text + SEEN.format(counted=COUNTED), table(1152, kind))
    assert crowd.results == {0: 1152, -2: 1152, -3: 1152}


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_ptx_assembles(tmp_path, arch, kind):
    code = compile_probe(probe(ADD.format(add=ATOMIC), spec(kind, 5)), point=entry())
    assemble_ptx(in_kernel(code), tmp_path, arch)


def test_loop_and_walk_together():
    """A callback of bpf_loop that walks over a map, whose callback adds to the outer frame."""
    text = """
    stdw [%r10-8], 0
    mov %r1, 6
    lddw %r2, code outer
    mov %r3, %r10
    add %r3, -8
    mov %r4, 0
    call 181
    ldxdw %r0, [%r10-8]
    exit
    outer:
    mov %r3, %r2
    stxdw [%r10-8], %r1
    stxdw [%r10-16], %r3
    lddw %r1, map_index 0
    lddw %r2, code inner
    mov %r3, %r10
    add %r3, -16
    mov %r4, 0
    call 164
    ldxdw %r1, [%r10-8]
    jle %r1, 3, on
    mov %r0, 1
    exit
    on:
    mov %r0, 0
    exit
    inner:
    ldxdw %r1, [%r4]
    ldxw %r5, [%r2]
    ldxdw %r0, [%r1]
    add %r0, %r5
    stxdw [%r1], %r0
    mov %r0, 0
    exit
    """
    shared = spec(MapType.ARRAY, 4)
    verified = executable(text, shared)
    assert run(verified.program, maps=[MapState(shared)]) == 5 * (1 + 2 + 3)
    with HostProgram(verified) as host:
        assert host.run(bytearray()) == 5 * 6
