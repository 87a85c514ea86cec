"""Rings in device memory: where they lie, and what their reader gives out of what was copied."""

import random
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from ring_producer import Producer

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.maps import layout as L
from egpu.maps import ringbuf, taking
from egpu.maps.memory import HostArena, RingControl
from egpu.maps.planning import plan as plan_maps
from egpu.maps.ring_table import ring_table
from egpu.maps.ringbuf import RingReader

NATIVE = taking.native_reader()
SLOTS = 3
SPEC = MapSpec("events", MapType.RINGBUF, 0, 0, SLOTS * 4096, on_device=True)
HOST = replace(SPEC, on_device=False)
ARRAY = MapSpec("a", MapType.ARRAY, 4, 8, 100)


@pytest.fixture(autouse=True, params=["native", "python"])
def reading(request, monkeypatch):
    """Both readers, of which one is C."""
    if request.param == "python":
        monkeypatch.setattr(ringbuf, "native_reader", lambda: None)
    elif NATIVE is None:
        pytest.skip("the native parts are not built (make native)")


def test_maps_lie_where_they_would_without_them():
    here, there = plan_maps([ARRAY, SPEC, ARRAY], 5), plan_maps([ARRAY, HOST, ARRAY], 5)
    assert here.device_size == there.device_size
    assert [place.offset for place in here.places] == [place.offset for place in there.places]
    assert (there.device_rings, there.device_bytes) == (0, there.device_size)
    assert there.places[1].ring_device == there.places[1].host_flags == 0


def test_nothing_overlaps():
    large = MapSpec("more", MapType.RINGBUF, 0, 0, 1 << 20, on_device=True)
    stamped = [replace(SPEC, name=f"s{size}", stamped=size) for size in (8, 40, 256)]
    layout = plan_maps([SPEC, *stamped, HOST, ARRAY, large], 5)
    host, device = [(0, L.HOST_CONTROL_SIZE)], [(0, layout.device_size)]
    for place in layout.places:
        if not place.ring_size:
            continue
        size = 5 * place.ring_size
        host += [(place.ring_readers, 5 * L.READER_STRIDE), (place.ring_data, size)]
        if place.ring_device:
            device += [(place.ring_device, size), (place.ring_flags, size // 16)]
            host += [
                (place.host_flags, size // 16),
                (place.host_controls, 5 * 128 + L.ring_zeros(place)),
            ]
            assert place.ring_device % 16 == place.host_controls % 8 == 0
            assert place.ring_flags % 8 == place.host_flags % 8 == 0
    host += [(layout.commands, L.COMMAND_SIZE), (layout.snapshot, layout.device_size)]
    for parts, end in ((host, layout.host_size), (device, layout.device_bytes)):
        starts = sorted(parts)
        for (start, size), (following, _) in zip(starts, [*starts[1:], (end, 0)], strict=True):
            assert start + size <= following
    assert sum(starts[-1]) == end


@pytest.mark.parametrize("address", [0x7F1200000000, 0x302000200])
def test_flags_are_found_by_the_address_of_a_group(address):
    layout = plan_maps([SPEC, replace(SPEC, name="more", max_entries=1 << 18)], SLOTS)
    for place in layout.places:
        for at in (0, 16, 4080, SLOTS * place.ring_size - 16):
            group = address + place.ring_device + at
            flag = address - (address >> 4) + layout.flags_base + (group >> 4 & ~1)
            assert flag == address + place.ring_flags + at // 32 * 2


def test_the_agent_is_told_of_them():
    layout = plan_maps([HOST, SPEC, replace(SPEC, stamped=40)], SLOTS)
    plain, ring, stamped = ring_table(layout)
    place = layout.places[1]
    assert (plain.ring_size, plain.device_data, plain.host_flags) == (0, 0, 0)
    assert (plain.stamped, ring.stamped, stamped.stamped) == (0, 0, 40)
    assert stamped.ring_size == 128 * L.stamped_stride(40) == 128 * 48
    assert (ring.ring_size, ring.host_data, ring.device_data) == (
        place.ring_size,
        place.ring_data,
        place.ring_device,
    )
    assert (ring.host_flags, ring.device_flags, ring.host_controls) == (
        place.host_flags,
        place.ring_flags,
        place.host_controls,
    )


class DeviceProducer(Producer):
    """As device code does it in device memory, where flags publish."""

    def __init__(self, device, place, slot, host):
        super().__init__(device, replace(place, ring_data=place.ring_device), slot)
        self.flags, self.host = place.ring_flags, host

    def commit(self, position, flags=0):
        super().commit(position, flags)
        size = self.place.ring_size
        place = self.flags + (self.slot * size + position % size) // 32 * 2
        flag = position // size % 128 << 9 | position % 32 // 16 << 8 | 255
        assert self.arena.bytes.view(np.uint16)[place // 2] != flag
        self.arena.bytes.view(np.uint16)[place // 2] = flag

    def learn_tail(self):
        words = self.host.words
        self.tail = int(words[(self.place.ring_readers + self.slot * L.READER_STRIDE) // 8])


class Rig:
    """A device, a host arena and the agent's steps between them."""

    def __init__(self):
        self.layout = plan_maps([SPEC], SLOTS)
        self.place = self.layout.places[0]
        self.arena = HostArena.create(self.layout)
        data = np.zeros(self.layout.device_bytes, np.uint8)
        self.device = SimpleNamespace(bytes=data, words=data.view(np.uint64))
        slots = range(SLOTS)
        self.producers = [DeviceProducer(self.device, self.place, n, self.arena) for n in slots]
        self.reader = RingReader(self.arena, self.layout, self.place, SPEC)
        self.drained, self.copied = [0] * SLOTS, [0] * SLOTS

    def word(self, slot, name):
        offset = L.RING_READER[name][0]
        return (self.place.ring_readers + slot * L.READER_STRIDE + offset) // 8

    def copy(self, slot, unit, device, host):
        """More than is wanted, as the agent does it."""
        size = self.place.ring_size // unit
        found = self.device.bytes[device + slot * size : device + (slot + 1) * size]
        self.arena.bytes[host + slot * size : host + (slot + 1) * size] = found

    def copy_flags(self, slot):
        self.copied[slot] = self.producers[slot].head
        self.arena.words[self.word(slot, "copied")] = self.drained[slot]
        self.copy(slot, 16, self.place.ring_flags, self.place.host_flags)

    def copy_records(self, slot):
        self.copy(slot, 1, self.place.ring_device, self.place.ring_data)

    def give_out(self, slot, groups):
        """``groups``: (position, end) of those that were published when flags were copied."""
        at, ends = self.drained[slot], dict(groups)
        while at in ends and ends[at] <= self.copied[slot]:
            at = ends[at]
        self.drained[slot] = at
        self.arena.words[self.word(slot, "limit")] = at
        self.arena.words[self.word(slot, "copied")] = self.copied[slot]

    def controls(self):
        return [RingControl(p.head, p.tail, p.dropped, p.produced) for p in self.producers]


def test_nothing_is_looked_at_beyond_the_limit():
    """Records whose flags were not copied may be copied in part, their commit words before the
    rest."""
    rig = Rig()
    producer = rig.producers[0]
    for number in range(3):
        assert producer.send([struct.pack("<Q", number)])
    rig.copy_flags(0)
    rig.copy_records(0)
    assert list(rig.reader) == []
    rig.give_out(0, [(0, 32), (32, 64)])
    assert list(rig.reader) == [struct.pack("<Q", number) for number in range(2)]
    rig.give_out(0, [(64, 96)])
    assert list(rig.reader) == [struct.pack("<Q", 2)]


def test_what_was_copied_is_given_out_at_the_end_and_holes_are_counted():
    rig = Rig()
    producer = rig.producers[1]
    hole = producer.claim(8)
    for number in range(2):
        assert producer.send([struct.pack("<Q", number)])
    torn = producer.claim(8, 2)
    assert producer.send([b"8 bytes!"], L.RING_DISCARD)
    rig.copy_flags(1)
    rig.copy_records(1)
    rig.give_out(1, [])
    producer.fill(torn, [b"too late", b"too late"])
    producer.commit(torn)
    assert list(rig.reader) == []
    (batch,) = rig.reader.drain_final(rig.controls())
    assert list(batch.records()) == [struct.pack("<Q", number) for number in range(2)]
    counts = rig.reader.counts
    assert (hole, counts.received, counts.discarded, counts.holes) == (0, 2, 1, 3)


def test_what_was_copied_since_the_last_snapshot_comes_as_well():
    """Behind a hole, too."""
    rig = Rig()
    controls, producer = rig.controls(), rig.producers[1]
    producer.claim(8)
    assert producer.send([b"8 bytes!"])
    rig.copy_flags(1)
    rig.copy_records(1)
    rig.give_out(1, [])
    assert producer.send([b"too late"])
    (batch,) = rig.reader.drain_final(controls)
    assert list(batch.records()) == [b"8 bytes!"]


def test_a_copy_that_was_on_its_way_is_not_looked_at():
    rig = Rig()
    assert rig.producers[0].send([b"8 bytes!"])
    rig.copy_flags(0)  # and the workload is killed
    assert list(rig.reader.drain_final(rig.controls())) == []
    assert rig.reader.counts.holes == 1


class Sent:
    """A group: what it holds, and when it was published and copied."""

    def __init__(self, position, end, records):
        self.position, self.end, self.records = position, end, records
        self.flags = self.seen = self.whole = None


@pytest.mark.parametrize("seed", range(20))
def test_every_order_of_steps(seed):
    rng, rig, serial = random.Random(seed), Rig(), 0
    sent, got = [[] for _ in range(SLOTS)], [[] for _ in range(SLOTS)]
    stages = [iter(()) for _ in range(SLOTS)]

    def round_of(slot):
        rig.copy_flags(slot)
        seen = [each for each in sent[slot] if each.flags is not None]
        yield
        rig.copy_records(slot)
        yield
        rig.give_out(slot, [(each.position, each.end) for each in (*seen, *pads[slot])])
        for each in seen:
            each.whole = True

    pads = [[] for _ in range(SLOTS)]
    for _ in range(3000):
        slot = rng.randrange(SLOTS)
        producer = rig.producers[slot]
        match rng.choice(["claim", "claim", "publish", "agent", "agent", "agent", "read", "tail"]):
            case "claim":
                size, count = rng.choice([8, 12, 40, 200]), rng.choice([1, 1, 3, 17])
                before = producer.head
                position = producer.claim(size, count)
                if position is None:
                    continue
                if position != before:
                    pads[slot].append(Sent(before, position, []))
                records = [struct.pack("<Q", serial + n).ljust(size, b".") for n in range(count)]
                serial += count
                sent[slot].append(Sent(position, producer.head, records))
            case "publish":
                left = [each for each in sent[slot] if each.flags is None]
                if left:
                    each = rng.choice(left)
                    producer.fill(each.position, each.records)
                    each.flags = rng.choice([0, 0, 0, L.RING_DISCARD])
                    producer.commit(each.position, each.flags)
            case "agent":
                if next(stages[slot], stages) is stages:
                    stages[slot] = round_of(slot)
            case "read":
                for batch in rig.reader.batches():
                    got[batch.sm] += list(batch.records())
            case "tail":
                producer.learn_tail()
    for slot in range(SLOTS):
        for _ in stages[slot]:
            pass
    for batch in rig.reader.drain_final(rig.controls()):
        got[batch.sm] += list(batch.records())
    for slot in range(SLOTS):
        kept = [each for each in sent[slot] if each.whole and each.flags == 0]
        assert got[slot] == [record for each in kept for record in each.records]
    counts = rig.reader.counts
    lost = [each for rows in sent for each in rows if not each.whole]
    assert counts.holes == sum(len(each.records) for each in lost)
    assert counts.received + counts.discarded + counts.holes == counts.produced
    assert counts.received > 500
