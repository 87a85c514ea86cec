"""The bytes of the arenas."""

from dataclasses import replace

import pytest

from egpu.bpf.maptypes import MAP_TRAITS, MapType
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError, UnsupportedError
from egpu.maps import RingTable, initial_chunks, ring_table
from egpu.maps import layout as L
from egpu.maps.planning import plan as plan_maps

ARRAY = MapSpec("a", MapType.ARRAY, 4, 12, 10)
PERCPU = MapSpec("p", MapType.PERCPU_ARRAY, 4, 24, 7)
RING = MapSpec("r", MapType.RINGBUF, 0, 0, 1 << 16)
DATA = MapSpec(".data", MapType.ARRAY, 4, 5, 1, initial=b"hello")


def test_device_places_follow_each_other_aligned():
    plan = plan_maps([ARRAY, PERCPU, RING, DATA], 3)
    array, percpu, ring, data = plan.places
    assert (array.offset, array.stride, array.entry_stride) == (4096, 0, 16)
    assert (percpu.offset, percpu.stride, percpu.entry_stride) == (4352, 256, 24)
    assert (ring.offset, ring.stride) == (4352 + 3 * 256, 128)
    assert data.offset == L.round_up(ring.offset + 3 * 128, 256)
    assert plan.device_size == 8192
    assert plan.device_size % L.PAGE == 0


def test_host_places_do_not_overlap():
    second = MapSpec("r2", MapType.RINGBUF, 0, 0, 1)
    plan = plan_maps([RING, ARRAY, second], 130)
    first, _, last = plan.places
    assert first.ring_readers == 4096
    assert last.ring_readers == 4096 + 130 * 64
    assert first.ring_data >= last.ring_readers + 130 * 64
    assert first.ring_data % 4096 == 0
    assert last.ring_data == first.ring_data + 130 * first.ring_size
    assert plan.commands == last.ring_data + 130 * last.ring_size
    assert plan.snapshot == plan.commands + L.COMMAND_SIZE
    assert plan.host_size == plan.snapshot + plan.device_size


@pytest.mark.parametrize(
    ("entries", "slots", "size"),
    [(1, 1, 4096), (4096, 1, 4096), (4097, 1, 8192), (1 << 20, 132, 8192), (1 << 20, 128, 8192)],
)
def test_ring_of_one_sm_is_a_share_rounded_up(entries, slots, size):
    plan = plan_maps([MapSpec("r", MapType.RINGBUF, 0, 0, entries)], slots)
    assert plan.places[0].ring_size == size
    assert size * slots >= entries


def test_maps_that_cannot_be_laid_out_are_refused_by_name(monkeypatch):
    with monkeypatch.context() as without:
        without.delitem(MAP_TRAITS, MapType.QUEUE)
        with pytest.raises(UnsupportedError, match="map h: map type QUEUE"):
            plan_maps([MapSpec("h", MapType.QUEUE, 0, 4, 1)], 1)
    with pytest.raises(InputError, match="map a: max_entries is 0"):
        plan_maps([MapSpec("a", MapType.ARRAY, 4, 4, 0)], 1)
    with pytest.raises(InputError, match="map a: value size is 0"):
        plan_maps([MapSpec("a", MapType.ARRAY, 4, 0, 1)], 1)
    with pytest.raises(InputError, match="map a: key size is 8"):
        plan_maps([MapSpec("a", MapType.ARRAY, 8, 4, 1)], 1)
    with pytest.raises(InputError, match="map r: 1099511627776 bytes are more than 1 GiB per SM"):
        plan_maps([MapSpec("r", MapType.RINGBUF, 0, 0, 1 << 40)], 1)
    with pytest.raises(InputError, match="initial contents"):
        plan_maps([MapSpec(".data", MapType.ARRAY, 4, 4, 1, initial=b"123456789")], 1)
    with pytest.raises(InternalError):
        plan_maps([], 0)


def test_initial_chunks_hold_header_and_contents():
    maps = [ARRAY, DATA]
    plan = plan_maps(maps, 5)
    (at, header), (data_at, data) = initial_chunks(plan, maps, 4711)
    assert at == 0
    assert header[:8] == b"EGPUARNA"
    fields = {
        name: int.from_bytes(header[o : o + s], "little") for name, (o, s) in L.ARENA_HEADER.items()
    }
    assert fields["version"] == L.LAYOUT_VERSION
    assert fields["sm_slots"] == 5
    assert fields["size"] == plan.device_size
    assert fields["pid"] == 4711
    assert fields["enabled"] == 1
    assert (data_at, data) == (plan.places[1].offset, b"hello")


def test_ring_table_has_a_row_per_ring():
    plan = plan_maps([ARRAY, RING], 2)
    place = plan.places[1]
    assert ring_table(plan) == (RingTable(place.offset, place.ring_readers, 2),)


@pytest.mark.parametrize(
    ("entries", "slots"), [(1, 128), (64, 128), (65, 256), (128, 256), (1 << 20, 1 << 21)]
)
def test_hash_table(entries, slots):
    """Two slots for each entry, and a whole window even in the smallest table."""
    spec = MapSpec("h", MapType.HASH, 5, 12, entries)
    for pins, table in ((8, spec), (0, replace(spec, deletes=False))):
        shape = L.hash_table(table)
        assert (shape.slots, shape.pinned, shape.key) == (slots, bool(pins), 16 + pins)
        assert (shape.value, shape.stride) == (24 + pins, 48)  # a multiple of 16
        assert shape.size == 128 + slots * 48
    first, second = plan_maps([spec, spec], 7).places
    assert second.offset - first.offset >= shape.size


@pytest.mark.parametrize("size", [0, 257])
def test_hash_keys_have_limits(size):
    with pytest.raises(InputError, match=f"map h.*key size is {size}"):
        plan_maps([MapSpec("h", MapType.HASH, size, 8, 4)], 1)


def test_head_and_tail_of_a_ring_can_be_read_with_one_load():
    (head, _), (tail, _) = L.RING_CONTROL["head"], L.RING_CONTROL["tail"]
    assert tail == head + 8
    assert head % 16 == L.RING_CONTROL_SIZE % 16 == L.MAP_ALIGNMENT % 16 == 0
