"""Queues, stacks and Bloom filters read from Python."""

import pytest
from test_maps_view import BTF, U64

from egpu.bpf.maptypes import MapType, bloom_bits
from egpu.bpf.mixing import bloom_places, mixed
from egpu.bpf.program import MapSpec
from egpu.errors import InputError, InternalError
from egpu.maps.memory import Snapshot
from egpu.maps.planning import plan as plan_maps
from egpu.maps.pushed_view import BloomView, QueueView
from egpu.maps.view import MapCopy


def copy_of(spec, fill):
    plan = plan_maps([spec], 2)
    data = bytearray(plan.device_size)
    fill(data, plan.places[0].offset)
    shot = Snapshot(bytes(data), 1, 1, True)
    return MapCopy(plan.places[0], 2, lambda: shot)


def queue(kind, *, btf=None):
    spec = MapSpec("q", kind, 0, 8, 4, btf=btf, value_type=U64 if btf else 0)

    def fill(data, start):
        data[start : start + 8] = (3 | 3 << 32).to_bytes(8, "little")
        data[start + 24] = 7
        for cell, state, value in ((3, 2, 10), (0, 4 | 2, 20), (1, 2, 30), (2, 4, 99)):
            at = start + 128 + 16 * cell
            data[at], data[at + 8] = state, value

    return spec, copy_of(spec, fill)


def test_queue_and_stack_in_the_order_of_popping():
    spec, copy = queue(MapType.QUEUE, btf=BTF)
    view = QueueView(spec, [copy])
    assert list(view) == [10, 20, 30]
    assert (len(view), view[0], view[1:], 20 in view) == (3, 10, [20, 30], True)
    assert (view.counter("dropped"), view.counter("full")) == (7, 0)
    spec, copy = queue(MapType.STACK)
    assert [value[0] for value in QueueView(spec, [copy])] == [30, 20, 10]
    assert repr(QueueView(spec, [])) == "<QueueView q STACK of at most 4>"
    assert list(QueueView(spec, [])) == []


def test_contexts_are_read_one_by_one():
    spec, copy = queue(MapType.QUEUE)
    view = QueueView(spec, [copy, copy])
    with pytest.raises(InputError, match="exists 2 times"):
        len(view)
    assert [len(one) for one in view.copies()] == [3, 3]
    assert view.counter("dropped") == 14


def test_bloom_filter():
    spec = MapSpec("b", MapType.BLOOM_FILTER, 0, 8, 100, btf=BTF, value_type=U64)
    bits, each = bloom_bits(100, 0)
    assert (bits, each) == (1024, 5)

    def fill(data, start):
        for place in bloom_places((77).to_bytes(8, "little"), bits, each):
            data[start + 128 + place // 8] |= 1 << place % 8

    view = BloomView(spec, [copy_of(spec, fill), copy_of(spec, lambda *_: None)])
    assert 77 in view
    assert (77).to_bytes(8, "little") in view
    assert 78 not in view
    assert 0 < view.fill() <= 5 / 1024
    assert repr(view) == "<BloomView b of 100>"
    untyped = MapSpec("b", MapType.BLOOM_FILTER, 0, 8, 100)
    with pytest.raises(InputError, match="values are 8 bytes"):
        _ = 77 in BloomView(untyped, [])


@pytest.mark.parametrize(
    ("entries", "extra", "expected"),
    [(1, 0, (64, 5)), (1000, 0, (8192, 5)), (1000, 3, (8192, 3)), (100, 31, (4096, 15))],
)
def test_bloom_sizes(entries, extra, expected):
    assert bloom_bits(entries, extra) == expected


def test_the_hash_depends_on_every_word():
    assert len({mixed(data) for data in (b"", b"\1", b"\0" * 9, b"\1" + b"\0" * 8)}) == 4


@pytest.mark.parametrize("view", [QueueView, BloomView])
def test_other_maps_are_refused(view):
    with pytest.raises(InternalError, match="is no"):
        view(MapSpec("a", MapType.ARRAY, 4, 8, 1), [])
