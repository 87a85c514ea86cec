"""Maps of maps: what they give, by interpreter, host and lanes, is the map under the key."""

import pytest
from codegen_programs import executable
from test_codegen_hash import view

from egpu.bpf.interp import MapState, run
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import NO_MAP, MapSpec
from egpu.codegen import HostProgram
from egpu.errors import InternalError
from egpu.maps import plan
from egpu.maps.initial import initial_chunks
from egpu.maps.outer_view import OuterView
from egpu.session.additive import additive_maps

M64 = 2**64 - 1
# r1 = memory: key of the outer map, key of the inner one, value (8 bytes each).  Gives -1 if there
# is no inner map, else what the update gave.
UPDATE = """
ldxdw %r6, [%r1]
ldxdw %r7, [%r1+8]
ldxdw %r8, [%r1+16]
stxw [%r10-4], %r6
stxw [%r10-8], %r7
stxdw [%r10-16], %r8
lddw %r1, map_index 0
mov %r2, %r10
add %r2, -4
call 1
jne %r0, 0, found
mov %r0, -1
exit
found:
mov %r1, %r0
mov %r2, %r10
add %r2, -8
mov %r3, %r10
add %r3, -16
mov %r4, 0
call 2
exit
"""
KINDS = [MapType.ARRAY, MapType.PERCPU_ARRAY, MapType.HASH, MapType.LRU_HASH, MapType.PERCPU_HASH]


def specs(kind, outer=MapType.ARRAY_OF_MAPS):
    inner = [MapSpec(name, kind, 4, 8, 4) for name in "abc"]
    return MapSpec("outer", outer, 4, 4, 5, inner=(2, NO_MAP, 3, 1)), *inner


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outer", [MapType.ARRAY_OF_MAPS, MapType.HASH_OF_MAPS])
def test_interpreter_and_host_agree(kind, outer):
    maps = specs(kind, outer)
    verified = executable(UPDATE, *maps, memory=24)
    states = [MapState(spec) for spec in maps]
    with HostProgram(verified) as host:
        for key in range(6):
            for number in (1, 3):
                words = (key, number, 100 * key + number)
                memory = b"".join(n.to_bytes(8, "little") for n in words)
                expected = 0 if key in (0, 2, 3) else M64
                assert run(verified.program, bytearray(memory), maps=states) == expected
                assert host.run(bytearray(memory)) == expected
        for key, index in ((0, 2), (2, 3), (3, 1)):
            for number in (1, 3):
                want = (100 * key + number).to_bytes(8, "little")
                if states[index].table:
                    assert bytes(states[index].table[number.to_bytes(4, "little")]) == want
                    continue
                assert bytes(states[index].value(number)) == want
                place = host.arenas.layout.places[index]
                start = place.offset + 8 * number
                assert host.arenas.device[start : start + 8] == want
        if kind is MapType.HASH:
            shown = view_at(host.arenas, maps, 2)
            assert shown == {n.to_bytes(4, "little"): n.to_bytes(8, "little") for n in (1, 3)}


def view_at(arenas, maps, index):
    class Only:
        device = arenas.device
        layout = type("Layout", (), {"places": (arenas.layout.places[index],)})

    return view(Only, maps[index]).to_dict()


def test_inner_maps_are_laid_out_alike():
    """An inner map that only one program adds to would otherwise get more copies than another."""
    maps = specs(MapType.PERCPU_ARRAY)
    assert additive_maps([], maps) == frozenset()


def test_the_table_holds_offsets():
    maps = specs(MapType.HASH)
    layout = plan(maps, 3)
    chunks = dict(initial_chunks(layout, maps, 1))
    table = chunks[layout.places[0].offset]
    offsets = [int.from_bytes(table[at : at + 8], "little") for at in range(0, 32, 8)]
    assert offsets == [layout.places[2].offset, 0, *(layout.places[n].offset for n in (3, 1))]


def test_python_shows_inner_maps():
    maps = specs(MapType.HASH)
    views = {spec.name: object() for spec in maps}
    shown = OuterView(maps[0], [spec.name for spec in maps], views)
    assert shown.names() == {0: "b", 2: "c", 3: "a"}
    assert dict(shown) == {0: views["b"], 2: views["c"], 3: views["a"]}
    assert (len(shown), 1 in shown, repr(shown)) == (
        3,
        False,
        "<OuterView outer ARRAY_OF_MAPS of 3>",
    )
    with pytest.raises(InternalError, match="is no map of maps"):
        OuterView(maps[1], [], {})
