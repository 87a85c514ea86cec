"""Hash maps: against a dictionary, and by many lanes with totals that are known."""

import numpy as np
import pytest
from codegen_programs import (
    ARCHES,
    assemble_ptx,
    entry,
    executable,
    in_kernel,
    needs_ptxas,
    probe,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_codegen_lanes import OFFSETS, Run

from egpu.bpf.interp import MapState, run
from egpu.bpf.maptypes import HASH_WINDOW, MapType
from egpu.bpf.program import MapSpec
from egpu.codegen import HostProgram, compile_probe
from egpu.maps.hash_view import HashView
from egpu.maps.layout import HASH_CONTROL, HASH_FULL, hash_table
from egpu.maps.memory import Snapshot
from egpu.maps.view import MapCopy

HASHES = [MapType.HASH, MapType.GPU_HASH, MapType.PERCPU_HASH]
M64 = 2**64 - 1
ENOENT, E2BIG, EEXIST, EINVAL = (-n & M64 for n in (2, 7, 17, 22))

# r1 = memory: operation, key, value, flags (8 bytes each); r0 = what the helper gave, for a lookup
# the value or all ones.
OPERATE = """
ldxdw %r6, [%r1]
ldxdw %r7, [%r1+8]
ldxdw %r8, [%r1+16]
ldxdw %r9, [%r1+24]
{keys}
stxdw [%r10-{value}], %r8
stxdw [%r10-{value}+8], %r8
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -{key}
jeq %r6, 1, update
jeq %r6, 2, delete
call 1
jeq %r0, 0, none
ldxw %r0, [%r0+{last}]
exit
none:
mov %r0, -1
exit
update:
mov %r3, %r10
add %r3, -{value}
mov %r4, %r9
call 2
exit
delete:
call 3
exit
"""
LOOKUP, UPDATE, DELETE = range(3)
PER_SM = MapType.PERCPU_HASH
LRU = [MapType.LRU_HASH, MapType.LRU_PERCPU_HASH]


def operations(spec):
    """The program that does one operation on ``spec``; every word of the key depends on it."""
    words = -(-spec.key_size // 8)
    keys = "\n".join(f"stxdw [%r10-{8 * words - 8 * n}], %r7" for n in range(words))
    return executable(
        OPERATE.format(
            keys=keys, key=8 * words, value=8 * words + 16, last=spec.value_size - 4
        ).replace(f"-{8 * words + 16}+8", f"-{8 * words + 8}"),
        spec,
        memory=32,
    )


def view(arenas, spec):
    shot = Snapshot(bytes(arenas.device), 1, 1, True)
    return HashView(spec, [MapCopy(arenas.layout.places[0], 1, lambda: shot)])


class Model:
    """What Linux's hash map does; one that evicts takes the least recently used entry."""

    def __init__(self, room, *, evicts=False):
        self.room = room
        self.evicts = evicts
        self.evicted = 0
        self.table = {}
        self.full = 0

    def do(self, operation, key, value, flags):
        if operation == LOOKUP:
            self.touch(key)
            return self.table.get(key, M64)
        if operation == DELETE:
            return ENOENT if self.table.pop(key, None) is None else 0
        if flags > 2:
            return EINVAL
        if key in self.table:
            if flags == 1:
                return EEXIST
        elif flags == 2:
            return ENOENT
        elif len(self.table) == self.room:
            if not self.evicts:
                self.full += 1
                return E2BIG
            self.evicted += 1
            del self.table[next(iter(self.table))]
        self.table[key] = value
        self.touch(key)
        return 0

    def touch(self, key):
        if self.evicts and key in self.table:
            self.table[key] = self.table.pop(key)


STEPS = st.lists(
    st.tuples(
        st.sampled_from([LOOKUP, UPDATE, UPDATE, DELETE]),
        st.integers(0, 9),
        st.integers(0, 2**31 - 1),
        st.sampled_from([0, 0, 1, 2, 3]),
    ),
    max_size=40,
)


@settings(max_examples=12, deadline=None)
@given(
    steps=STEPS,
    key_size=st.sampled_from([1, 4, 7, 8, 12, 24]),
    value_size=st.sampled_from([4, 12]),
    kind=st.sampled_from([*HASHES, *LRU]),
    deletes=st.booleans(),
)
def test_as_a_dictionary(steps, key_size, value_size, kind, deletes):
    spec = MapSpec("h", kind, key_size, value_size, 5, deletes=deletes)
    verified = operations(spec)
    model, state = Model(5, evicts=kind in LRU), MapState(spec)
    with HostProgram(verified) as host:
        arenas = host.arenas
        for step in steps:
            memory = b"".join(word.to_bytes(8, "little") for word in step)
            expected = model.do(*step)
            answers = (
                run(verified.program, bytearray(memory), maps=[state]),
                host.run(bytearray(memory)),
            )
            assert answers == (expected, expected), step
    words = -(-key_size // 8)
    wanted = {
        (key.to_bytes(8, "little") * words)[:key_size]: (value.to_bytes(8, "little") * 2)[
            :value_size
        ]
        for key, value in model.table.items()
    }
    assert {key: bytes(value) for key, value in state.table.items()} == wanted
    shown = view(arenas, spec)
    if kind in (MapType.PERCPU_HASH, MapType.LRU_PERCPU_HASH):
        assert shown.parts() == {key: (value,) for key, value in wanted.items()}
    else:
        assert shown.to_dict() == wanted
    assert len(shown) == shown.counter("count") == len(wanted)
    assert shown.counter("full") == model.full
    assert shown.counter("evicted") == model.evicted
    assert shown.counter("busy") == 0


def test_deleted_slots_are_used_again():
    spec = MapSpec("h", MapType.HASH, 8, 8, 3)
    with HostProgram(operations(spec)) as host:
        for key in range(1000):
            answers = []
            for operation in (UPDATE, LOOKUP, DELETE, LOOKUP):
                memory = b"".join(n.to_bytes(8, "little") for n in (operation, key, key << 32, 1))
                answers.append(host.run(bytearray(memory)))
            assert answers == [0, key, 0, M64]  # the lookup reads the value's upper half
        assert view(host.arenas, spec).to_dict() == {}


def test_an_entry_that_is_deleted_before_it_is_counted_leaves_room():
    """Somebody's entry, ENTERING by the counters, has been deleted: -1 entries for a moment."""
    spec = MapSpec("h", MapType.HASH, 8, 8, 1)
    with HostProgram(operations(spec)) as host:
        control = host.arenas.layout.places[0].offset + HASH_CONTROL["count"][0]
        host.arenas.device[control : control + 8] = ((1 << 32) - 1).to_bytes(8, "little")
        update = b"".join(n.to_bytes(8, "little") for n in (UPDATE, 7, 21, 1))
        assert host.run(bytearray(update)) == 0
        assert view(host.arenas, spec).counter("full") == 0
        counted = int.from_bytes(host.arenas.device[control : control + 8], "little")
        assert counted == 1 << 32  # one entry less, one more; the other insertion is not over


# Many threads.  Each prelude leaves the key in r6 and 0 or 1 for the result in map 1.
THREAD = f"""
ldxw %r6, [%r1+{OFFSETS["block_x"]}]
mul %r6, 96
ldxw %r7, [%r1+{OFFSETS["thread_x"]}]
add %r6, %r7
"""
# Update key r6 with value 3 * key; count the result -r0 in map 1.
INSERT = """
stxdw [%r10-8], %r6
mov %r7, %r6
mul %r7, 3
stxdw [%r10-16], %r7
stxdw [%r10-24], %r7
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
mov %r3, %r10
add %r3, -24
mov %r4, {flags}
call 2
neg %r0
"""
ERASE = """
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
call 3
neg %r0
"""
COUNTED = """
and %r0, 31
lsh %r0, 3
lddw %r1, map_index_value 1
add %r1, %r0
mov %r2, 1
lock add [%r1], %r2
"""
END = "mov %r0, 0\nexit\n"
RESULTS = MapSpec("results", MapType.ARRAY, 4, 256, 1)
BLOCKS, THREADS = 12, 96
ALL = BLOCKS * THREADS


class Crowd:
    """What 1,152 threads left in map 0, and how often each result came."""

    def __init__(self, text, spec):
        verified = probe(text, spec, RESULTS)
        done = Run(verified, entry(), blocks=BLOCKS, threads=THREADS)
        data = done.memory.read(done.device, done.layout.device_size)
        shot = Snapshot(bytes(data), 1, 1, True)
        place = MapCopy(done.layout.places[0], done.layout.sm_slots, lambda: shot)
        self.view = HashView(spec, [place])
        counts = done.words(done.layout.places[1].offset, 32)
        self.results = {-n: int(count) for n, count in enumerate(counts) if count}
        self.check_table(data, done.layout.places[0], spec)

    def check_table(self, data, place, spec):
        """No key twice, no slot held, no lock left, counters as the slots."""
        shape = hash_table(spec)
        words = np.frombuffer(data, np.uint64)
        start, step = (place.offset + shape.table) // 8, shape.stride // 8
        states = words[start : start + shape.slots * step : step]
        homes = words[start + 1 : start + 1 + shape.slots * step : step]
        full = states & np.uint64(3) == HASH_FULL
        assert set((states & np.uint64(3)).tolist()) <= {0, HASH_FULL}
        assert (homes <= HASH_WINDOW).all()
        if shape.pinned:
            pins = words[start + 2 : start + 2 + shape.slots * step : step]
            assert not pins.any(), "a pin is left"
        first = start + shape.key // 8
        keys = words[first : first + shape.slots * step : step][full]
        assert len(set(keys.tolist())) == len(keys)
        count = place.offset + HASH_CONTROL["count"][0]
        assert int(words[count // 8]) == len(keys), "an insertion is under way"
        claiming = place.offset + HASH_CONTROL["claiming"][0]
        assert not words[claiming // 8]

    def numbers(self):
        """The two words of each value; of a per-SM map their sums."""
        entries = self.view.to_dict() if self.view.spec.type is not PER_SM else self.view.parts()
        return {
            int.from_bytes(key, "little"): tuple(
                np.frombuffer(value if isinstance(value, bytes) else b"".join(value), np.uint64)
                .reshape(-1, 2)
                .sum(0)
                .tolist()
            )
            for key, value in entries.items()
        }


def table(entries, kind=MapType.HASH, *, deletes=True):
    return MapSpec("h", kind, 8, 16, entries, deletes=deletes)


def values(keys):
    return {key: (3 * key, 3 * key) for key in keys}


@pytest.mark.parametrize("kind", HASHES)
def test_every_thread_inserts_its_own_key(kind):
    crowd = Crowd(THREAD + INSERT.format(flags=1) + COUNTED + END, table(ALL, kind))
    assert crowd.results == {0: ALL}
    assert crowd.numbers() == values(range(ALL))


@pytest.mark.parametrize("keys", [1, 2, 5, 33, 100])
@pytest.mark.parametrize("flags", [0, 1])
@pytest.mark.parametrize("deletes", [False, True])
def test_threads_insert_the_same_keys(keys, flags, deletes):
    """The map has exactly as much room as there are keys: nobody is refused."""
    text = THREAD + f"mod %r6, {keys}\n" + INSERT.format(flags=flags) + COUNTED + END
    crowd = Crowd(text, table(keys, deletes=deletes))
    winners = {0: keys, -17: ALL - keys} if flags else {0: ALL}
    assert crowd.results == winners
    assert crowd.numbers() == values(range(keys))


def test_full_map_refuses_and_loses_nothing():
    crowd = Crowd(THREAD + INSERT.format(flags=0) + COUNTED + END, table(500))
    assert crowd.results == {0: 500, -7: ALL - 500}
    found = crowd.numbers()
    assert len(found) == 500
    assert found == values(found)
    assert crowd.view.counter("full") == ALL - 500


@pytest.mark.parametrize("keys", [1, 7, 64])
def test_inserted_and_deleted_again_and_again(keys):
    """Of each key, as many deletions succeed as insertions, less one if it is there at the end."""
    text = THREAD + f"mod %r6, {keys}\n" + INSERT.format(flags=1) + COUNTED
    text += ERASE + "jeq %r0, 0, deleted\nadd %r0, 8\ndeleted:\nadd %r0, 4\n" + COUNTED + END
    crowd = Crowd(text, table(keys))
    inserted, deleted = crowd.results[0], crowd.results[-4]
    assert inserted + crowd.results.get(-17, 0) == ALL
    assert deleted + crowd.results.get(-14, 0) == ALL
    left = crowd.numbers()
    assert inserted - deleted == len(left)
    assert left == values(left)


def test_counting_in_values():
    """The idiom of every counting program: insert zero with NOEXIST, look up, add."""
    lookup = """
stxdw [%r10-8], %r6
stdw [%r10-24], 0
stdw [%r10-16], 0
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
mov %r3, %r10
add %r3, -24
mov %r4, 1
call 2
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
call 1
jeq %r0, 0, lost
mov %r1, 2
lock add [%r0], %r1
lost:
"""
    crowd = Crowd(THREAD + "mod %r6, 9\n" + lookup + END, table(9))
    assert crowd.numbers() == dict.fromkeys(range(9), (2 * (ALL // 9), 0))


ADD = """
stxdw [%r10-8], %r6
stdw [%r10-24], 0
stdw [%r10-16], 0
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
mov %r3, %r10
add %r3, -24
mov %r4, 1
call 2
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -8
call 1
jeq %r0, 0, lost
ldxdw %r1, [%r0+8]
add %r1, 2
stxdw [%r0+8], %r1
lost:
"""


@pytest.mark.parametrize("kind", LRU)
def test_least_recently_used_go_when_the_map_is_full(kind):
    crowd = Crowd(THREAD + INSERT.format(flags=1) + COUNTED + END, table(500, kind))
    assert crowd.results == {0: ALL}
    assert len(crowd.view) == 500
    assert crowd.view.counter("evicted") == ALL - 500
    found = crowd.numbers() if kind is MapType.LRU_HASH else crowd.view.parts()
    assert len(found) == 500
    if kind is MapType.LRU_HASH:
        assert found == values(found)


@pytest.mark.parametrize("kind", LRU)
def test_nothing_goes_while_there_is_room(kind):
    text = THREAD + "mod %r6, 100\n" + INSERT.format(flags=1) + COUNTED + END
    crowd = Crowd(text, table(100, kind))
    assert crowd.results == {0: 100, -17: ALL - 100}
    assert (len(crowd.view), crowd.view.counter("evicted")) == (100, 0)


def test_counting_per_sm():
    """The plain idiom; 12 blocks on 4 SMs, of which the last shares the last of 3 slots."""
    crowd = Crowd(THREAD + "mod %r6, 8\n" + ADD + END, table(8, PER_SM))
    each = THREADS // 8 * 2
    parts = {
        int.from_bytes(key, "little"): [int.from_bytes(value[8:], "little") for value in values]
        for key, values in crowd.view.parts().items()
    }
    assert parts == {key: [3 * each, 3 * each, 6 * each] for key in range(8)}


def test_new_entries_begin_at_zero_on_every_sm():
    """Slots go from keys of one SM to keys of another; nothing of the old values may be seen."""
    text = THREAD + "mod %r6, 200\n" + INSERT.format(flags=1) + ERASE + INSERT.format(flags=0) + END
    crowd = Crowd(text, table(200, PER_SM))
    for key, (first, second) in crowd.numbers().items():
        # Each SM that updated the key last has 3 * key, the others zero.
        assert first == second
        assert first in {3 * key * sms for sms in (1, 2, 3)}


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_ptxas_takes_it(tmp_path, arch):
    text = THREAD + INSERT.format(flags=0) + COUNTED + ERASE + COUNTED + END
    wide = MapSpec("wide", MapType.HASH, 8, 300, 4)
    codes = [
        compile_probe(probe(text, spec, RESULTS), point=entry())
        for spec in (
            *(table(9, kind) for kind in (*HASHES, LRU[0])),
            table(9, deletes=False),
        )
    ]
    look = THREAD + "stxdw [%r10-8], %r6\n" + ERASE.replace("call 3\nneg %r0", "call 1") + END
    codes.append(compile_probe(probe(look, wide), point=entry()))
    assemble_ptx(in_kernel(*codes), tmp_path, arch)
