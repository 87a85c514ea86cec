"""Maps read from Python: values by BTF, sums over SMs, clear refusals."""

import struct
from dataclasses import replace

import pytest
from ring_producer import Producer

from egpu.bpf.btf import Btf, BtfKind, BtfMember, BtfType
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.memory import HostArena, Snapshot
from egpu.maps.planning import plan as plan_maps
from egpu.maps.ringbuf import RingReader
from egpu.maps.view import MapCopy, MapView

K = BtfKind
U64, U32, S16, PAIR, ARR, BOOL, MIXED, VAR, SEC, ALIAS = range(1, 11)
BTF = Btf(
    (
        BtfType(0, K.VOID),
        BtfType(U64, K.INT, "u64", 8),
        BtfType(U32, K.INT, "u32", 4),
        BtfType(S16, K.INT, "s16", 2, encoding=1),
        BtfType(
            PAIR,
            K.STRUCT,
            "pair",
            24,
            members=(
                BtfMember("total", U64, 0),
                BtfMember("small", S16, 64),
                BtfMember("rows", ARR, 96),
            ),
        ),
        BtfType(ARR, K.ARRAY, type=U32, count=3),
        BtfType(BOOL, K.INT, "bool", 1, encoding=4),
        BtfType(MIXED, K.STRUCT, "mixed", 1, members=(BtfMember("flag", BOOL, 0),)),
        BtfType(VAR, K.VAR, "__counter", type=U64, encoding=1),
        BtfType(SEC, K.DATASEC, ".bss", 8, members=(BtfMember("", VAR, 0, size=8),)),
        BtfType(ALIAS, K.TYPEDEF, "pair_t", type=PAIR),
    ),
    b"\0",
)


def spec(kind=MapType.ARRAY, size=8, entries=3, value_type=U64, btf=BTF):
    return MapSpec("m", kind, 4, size, entries, btf=btf, value_type=value_type)


def view_of(map_spec, contents, slots=2, copies=1):
    """A view; ``contents`` maps (slot, key) to bytes."""
    plan = plan_maps([map_spec], slots)
    place = plan.places[0]
    data = bytearray(plan.device_size)
    for (slot, key), value in contents.items():
        start = place.offset + slot * place.stride + key * place.entry_stride
        data[start : start + len(value)] = value
    shot = Snapshot(bytes(data), 1, 1, True)
    return MapView(map_spec, [MapCopy(place, slots, lambda: shot)] * copies)


def pair(total, small, *rows):
    return struct.pack("<Qh2x3I", total, small, *rows)


def test_array_is_a_mapping():
    view = view_of(spec(), {(0, 0): b"\x05", (0, 2): b"\x07"})
    assert view[0] == 5
    assert len(view) == 3
    assert list(view) == [0, 1, 2]
    assert list(view.items()) == [(0, 5), (1, 0), (2, 7)]
    assert view.to_dict() == {0: 5, 1: 0, 2: 7}
    assert list(view.values()) == [5, 0, 7]
    assert 2 in view
    assert 3 not in view
    assert view.get(9, "none") == "none"


def test_structs_are_namedtuples():
    view = view_of(spec(size=24, value_type=PAIR), {(0, 1): pair(1, -2, 3, 4, 5)})
    assert view[1].total == 1
    assert view[1].small == -2
    assert view[1].rows == (3, 4, 5)


def test_without_btf_values_are_bytes():
    view = view_of(spec(btf=None, size=3), {(0, 0): b"abc"})
    assert view[0] == b"abc"


def test_per_sm_values_are_summed_field_by_field():
    view = view_of(
        spec(MapType.PERCPU_ARRAY, 24, value_type=PAIR),
        {(0, 1): pair(10, -3, 1, 2, 3), (1, 1): pair(5, 1, 10, 20, 30)},
    )
    assert view[1] == (15, -2, (11, 22, 33))
    assert [part.total for part in view.per_sm(1)] == [10, 5]
    assert view[0] == (0, 0, (0, 0, 0))


def test_sums_wrap_at_the_width_of_their_type():
    top = b"\xff" * 8
    view = view_of(spec(MapType.PERCPU_ARRAY), {(0, 0): top, (1, 0): b"\x02"})
    assert view[0] == 1


def test_what_is_no_integer_is_not_summed():
    view = view_of(spec(MapType.PERCPU_ARRAY, 1, value_type=MIXED), {(0, 0): b"\1"})
    with pytest.raises(InputError, match=r"map m: a INT \(bool\) cannot be summed; .*per_sm"):
        view[0]
    assert view.per_sm(0) == ((True,), (False,))
    bare = view_of(spec(MapType.PERCPU_ARRAY, btf=None), {(1, 0): b"\1"})
    with pytest.raises(InputError, match="without BTF"):
        bare[0]
    assert bare.per_sm(0)[1][0] == 1


def test_bad_keys_are_named():
    view = view_of(spec(), {})
    with pytest.raises(KeyError, match="map m has the keys 0 to 2, not 3"):
        view[3]
    with pytest.raises(KeyError, match="not -1"):
        view[-1]
    with pytest.raises(TypeError, match="keys are integers, not float"):
        view[1.0]
    with pytest.raises(KeyError, match="no global variables"):
        view["x"]
    with pytest.raises(InputError, match="no copy per SM"):
        view.per_sm(0)


def test_global_variables_are_found_by_name():
    view = view_of(spec(entries=1, value_type=SEC), {(0, 0): b"\x2a"})
    assert view["__counter"] == 42
    assert view[0].counter == 42
    with pytest.raises(KeyError, match="no variable other; it has __counter"):
        view["other"]


@pytest.mark.parametrize("kind", [MapType.ARRAY, MapType.PERCPU_ARRAY])
@pytest.mark.parametrize("size", [1, 3, 8, 9])
def test_keys_that_hold_something(kind, size):
    contents = {(0, 5): b"\1", (0, 7): bytes(size - 1) + b"\x80", (0, 99): bytes(size)}
    if kind is MapType.PERCPU_ARRAY:
        contents |= {(1, 0): bytes(size - 1) + b"\1", (2, 5): b"\2"}
    view = view_of(spec(kind, size, 100, 0, None), contents, slots=3, copies=2)
    expected = {key for (_, key), value in contents.items() if any(value)}
    assert view.nonzero_keys() == sorted(expected)


def test_a_large_array_is_looked_at_without_decoding_it():
    view = view_of(spec(entries=1 << 22), {(0, (1 << 22) - 1): b"\7"})
    (copy,) = view.copies()
    assert copy.lookup_batch(copy.nonzero_keys()) == {(1 << 22) - 1: 7}


@pytest.mark.parametrize("size", [3, 8])
def test_keys_that_hold_something_before_any_context(size):
    """What the object begins with, and what was set since; a zero set over it holds nothing."""

    class Host:
        def initial(self):
            return {key.to_bytes(4, "little"): (value,) for key, value in given.items()}

    given = {1: bytes(size), 99: bytes(size - 1) + b"\1", 4: bytes(size)}
    declared = replace(spec(size=size, entries=100), initial=bytes(8) + b"\1" + bytes(7) + b"\2")
    assert MapView(declared, (), Host()).nonzero_keys() == [2, 99]
    assert MapView(declared, ()).nonzero_keys() == []


def test_several_contexts():
    array = view_of(spec(), {(0, 0): b"\5"}, copies=2)
    with pytest.raises(InputError, match=r"exists 2 times.*copies\(\)"):
        array[0]
    assert [copy[0] for copy in array.copies()] == [5, 5]
    counters = view_of(spec(MapType.PERCPU_ARRAY), {(1, 0): b"\5"}, copies=2)
    assert counters[0] == 10
    assert counters.per_sm(0) == (0, 5, 0, 5)


def test_a_ring_has_no_view():
    with pytest.raises(InternalError):
        MapView(MapSpec("r", MapType.RINGBUF, 0, 0, 4096), [])


@pytest.mark.parametrize(("declared", "named"), [(PAIR, ""), (0, "pair"), (0, "pair_t")])
def test_records_are_decoded_by_declared_or_named_type(declared, named):
    ring = MapSpec("r", MapType.RINGBUF, 0, 0, 4096, btf=BTF, value_type=declared)
    plan = plan_maps([ring], 1)
    with HostArena.create(plan) as arena:
        reader = RingReader(arena, plan, plan.places[0], ring, type_name=named)
        producer = Producer(arena, plan.places[0])
        producer.send([pair(7, -1, 1, 2, 3)])
        producer.send([b"short"])
        first, second = reader
        assert first.total == 7
        assert second == b"short"
