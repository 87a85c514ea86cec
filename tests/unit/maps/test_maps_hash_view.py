"""Hash maps read from Python."""

import pytest
from test_maps_view import BTF, PAIR, U32, U64

from egpu.bpf.btf import Btf, BtfKind, BtfType
from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps import layout as L
from egpu.maps.hash_view import HashView
from egpu.maps.memory import Snapshot
from egpu.maps.planning import plan as plan_maps
from egpu.maps.view import MapCopy


def view_of(spec, entries, *, copies=1, full=0):
    """``entries`` maps slot numbers to (state, key, value)."""
    plan = plan_maps([spec], 2)
    place, shape = plan.places[0], L.hash_table(spec)
    data = bytearray(plan.device_size)
    start = place.offset + L.HASH_CONTROL["full"][0]
    data[start : start + 8] = full.to_bytes(8, "little")
    for number, (state, key, value) in entries.items():
        slot = place.offset + shape.table + number * shape.stride
        data[slot : slot + 8] = state.to_bytes(8, "little")
        data[slot + shape.key : slot + shape.key + len(key)] = key
        data[slot + shape.value : slot + shape.value + len(value)] = value
    shot = Snapshot(bytes(data), 1, 1, True)
    return HashView(spec, [MapCopy(place, 2, lambda: shot)] * copies)


TYPED = MapSpec("h", MapType.HASH, 4, 8, 10, btf=BTF, key_type=U32, value_type=U64)
ENTRIES = {
    0: (5 << 24 | 7 << 2 | L.HASH_FULL, bytes([9, 1, 0, 0]), bytes([1])),
    1: (L.HASH_CLAIMED, bytes([8]), bytes([2])),
    3: (1 << 24, bytes([7]), bytes([3])),
    127: (L.HASH_FULL, bytes([6]), bytes([4, 1])),
}


def test_entries_by_type():
    view = view_of(TYPED, ENTRIES, full=3)
    assert view.to_dict() == dict(view.items()) == {265: 1, 6: 260}
    assert (len(view), sorted(view), view[6], 7 in view) == (2, [6, 265], 260, False)
    assert sorted(view.values()) == [1, 260]
    assert (view.counter("full"), view.counter("busy")) == (3, 0)
    assert repr(view) == "<HashView h HASH of at most 10>"
    with pytest.raises(KeyError):
        view[8]


def test_struct_keys_are_found():
    spec = MapSpec("h", MapType.GPU_HASH, 24, 1, 4, btf=BTF, key_type=PAIR)
    key = bytes([1] + [0] * 7 + [2, 0, 0, 0] + [3, 0, 0, 0] * 3)
    view = view_of(spec, {2: (L.HASH_FULL, key, b"x")})
    (found,) = view
    assert (found.total, found.small, found.rows) == (1, 2, (3, 3, 3))
    assert view[found] == view[1, 2, (3, 3, 3)] == b"x"
    by_name = {"total": 1, "small": 2, "rows": [3, 3, 3]}  # as they are set
    assert view[by_name] == view[key] == b"x"
    assert view.lookup_batch([found, "nothing", (1, 2)]) == {found: b"x"}
    for wrong in ({"total": 1}, [1, 2], "text", None, 7, b"short"):
        assert wrong not in view
        with pytest.raises(KeyError):
            view[wrong]


def test_text_keys_are_found_as_they_are_set():
    btf = Btf(
        (
            BtfType(0, BtfKind.VOID),
            BtfType(1, BtfKind.INT, "char", 1, encoding=2),
            BtfType(2, BtfKind.ARRAY, type=1, count=8),
        ),
        b"\0",
    )
    spec = MapSpec("h", MapType.HASH, 8, 1, 4, btf=btf, key_type=2)
    view = view_of(spec, {2: (L.HASH_FULL, b"ab\0\0\0\0\0\0", b"x")})
    assert view["ab"] == view[b"ab"] == view[b"ab\0\0\0\0\0\0"] == b"x"
    assert "\ud800" not in view


def test_without_types_keys_are_bytes():
    view = view_of(MapSpec("h", MapType.HASH, 3, 2, 4), {5: (L.HASH_FULL, b"abc", b"de")})
    assert view.to_dict() == {b"abc": b"de"}


def test_values_per_sm():
    spec = MapSpec("p", MapType.PERCPU_HASH, 4, 8, 10, btf=BTF, key_type=U32, value_type=U64)
    plan = plan_maps([spec], 3)
    place, shape = plan.places[0], L.hash_table(spec)
    assert (shape.stride, shape.value_stride, shape.values) == (32, 8, 128 + 128 * 32)
    assert (place.stride, plan.device_size >= place.offset + shape.values + 3 * 1024) == (
        1024,
        True,
    )
    data = bytearray(plan.device_size)
    for number, key in ((0, 6), (127, 9)):
        slot = place.offset + shape.table + number * shape.stride
        data[slot], data[slot + shape.key] = L.HASH_FULL, key
        for sm in range(3):
            data[place.offset + shape.values + sm * place.stride + 8 * number] = key + sm
    shot = Snapshot(bytes(data), 1, 1, True)
    view = HashView(spec, [MapCopy(place, 3, lambda: shot)])
    assert view.to_dict() == {6: 21, 9: 30}
    assert view.parts() == {6: (6, 7, 8), 9: (9, 10, 11)}
    assert (len(view), list(view)) == (2, [6, 9])
    untyped = MapSpec("p", MapType.PERCPU_HASH, 4, 8, 10, btf=BTF, key_type=U32)
    view = HashView(untyped, [MapCopy(place, 3, lambda: shot)])
    with pytest.raises(InputError, match="cannot be summed"):
        view.to_dict()
    assert (len(view), view.parts()[6][1][0]) == (2, 7)
    with pytest.raises(InputError, match="no value per SM"):
        view_of(TYPED, ENTRIES).parts()


def test_contexts_are_read_one_by_one():
    view = view_of(TYPED, ENTRIES, copies=2, full=1)
    with pytest.raises(InputError, match="exists 2 times"):
        view.to_dict()
    assert [copy[6] for copy in view.copies()] == [260, 260]
    assert view.counter("full") == 2
    assert view_of(TYPED, {}, copies=0).to_dict() == {}


def test_arrays_are_refused():
    with pytest.raises(InternalError, match="not a hash map"):
        HashView(MapSpec("a", MapType.ARRAY, 4, 8, 1), [])
