"""Rings of stamped slots: what their reader gives out of what the agent copied, what it skips."""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from ring_producer import SlotProducer

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.maps import layout as L
from egpu.maps import ringbuf, taking
from egpu.maps.memory import HostArena, ring_controls, taken_slots
from egpu.maps.planning import plan as plan_maps
from egpu.maps.ringbuf import RingReader

NATIVE = taking.native_reader()
RINGS = 2
SPEC = MapSpec("events", MapType.RINGBUF, 0, 0, RINGS * 4096, on_device=True, stamped=40)
BEFORE_ROUND = 1 << 32  # numbers whose stamps begin again at 0 are not far


@pytest.fixture(autouse=True, params=["native", "python"])
def reading(request, monkeypatch):
    """Both readers, of which one is C."""
    if request.param == "python":
        monkeypatch.setattr(ringbuf, "native_reader", lambda: None)
    elif NATIVE is None:
        pytest.skip("the native parts are not built (make native)")


class Rig:
    """A device, a host arena and the agent's steps between them."""

    def __init__(self, spec=SPEC, seed=0, laps_left=None):
        self.rng = random.Random(seed)
        self.layout = plan_maps([spec], RINGS)
        self.place = self.layout.places[0]
        self.arena = HostArena.create(self.layout)
        data = np.zeros(self.layout.device_bytes, np.uint8)
        self.device = SimpleNamespace(bytes=data, words=data.view(np.uint64))
        slots = self.place.ring_size // L.stamped_stride(spec.stamped)
        first = 0 if laps_left is None else BEFORE_ROUND - laps_left * slots
        self.producers = [
            SlotProducer(self.device, self.place, slot, self.rng, first) for slot in range(RINGS)
        ]
        self.before = RINGS * first  # slots that this reader knows nothing of
        self.stride = self.producers[0].stride
        self.drained = [first * self.stride] * RINGS
        self.copied = list(self.drained)
        for slot in range(RINGS):
            for name in L.RING_READER:
                self.arena.words[self.word(slot, name)] = first * self.stride
            self.arena.words[self.word(slot, "missing")] = 0
        self.reader = RingReader(self.arena, self.layout, self.place, spec)

    def word(self, slot, name):
        offset = L.RING_READER[name][0]
        return (self.place.ring_readers + slot * L.READER_STRIDE + offset) // 8

    def claimed(self, slot):
        """Copies of a ring begin: from and up to where."""
        position = int(self.arena.words[self.word(slot, "position")])
        if self.arena.words[self.word(slot, "missing")] == position + 1:
            self.arena.words[self.word(slot, "missing")] = 0
            self.drained[slot] = position
        self.copied[slot] = self.producers[slot].taken * self.stride

    def places(self, slot):
        """Words from where it was drained to where it is copied, in the ring."""
        words = np.arange(self.drained[slot] // 8, self.copied[slot] // 8)
        return words % (self.place.ring_size // 8) + slot * self.place.ring_size // 8

    def copy(self, places):
        here, there = self.place.ring_data // 8, self.place.ring_device // 8
        self.arena.words[here + places] = self.device.words[there + places]

    def whole(self, slot, number):
        """Whether all that the slot must hold is in the host arena."""
        producer = self.producers[slot]
        wanted = producer.content(number)
        at = producer.at(number, self.place.ring_data)
        return self.arena.words[at : at + len(wanted)].tolist() == wanted

    def give_out(self, slot):
        self.drained[slot] = self.copied[slot]
        self.arena.words[self.word(slot, "limit")] = self.copied[slot]
        self.arena.words[self.word(slot, "copied")] = self.copied[slot]

    def round(self, slot):
        self.claimed(slot)
        self.copy(self.places(slot))
        self.give_out(slot)

    def learn_tail(self, slot):
        position = self.arena.words[self.word(slot, "position")]
        self.device.words[self.producers[slot].control + 1] = position

    def snapshot(self):
        return SimpleNamespace(data=self.device.bytes[: self.layout.device_size].tobytes())

    def controls(self):
        return ring_controls(self.snapshot(), self.place, RINGS)

    def final(self, controls=None):
        """Records by ring."""
        got = [[] for _ in range(RINGS)]
        for batch in self.reader.drain_final(controls or self.controls()):
            got[batch.sm] += batch.records()
        counts = self.reader.counts
        assert counts.received + counts.holes == counts.produced
        assert counts.dropped == sum(producer.dropped for producer in self.producers)
        return got

    def ready(self, slot):
        """A producer that has found room."""
        producer = self.producers[slot]
        producer.take(1)
        producer.give_room()
        return producer

    def turn(self, slot, laps):
        """The ring goes round some times, all of it read."""
        producer = self.producers[slot]
        for _ in range(laps * producer.slots):
            self.learn_tail(slot)
            producer.give_room()
            (number,) = producer.send(1)
            self.round(slot)
            assert list(self.reader) == [producer.record(number)]
        self.learn_tail(slot)
        producer.give_room()


@pytest.mark.parametrize(
    ("asked", "room", "taken"),
    [
        (0, 0, 0),
        (5, 3, 5),
        (5, -2, 3),
        (1 << 39, -1, (1 << 39) - 1),
        (1 << 24, -(1 << 23), 1 << 23),
    ],
)
def test_slots_asked_for_in_vain_are_not_taken(asked, room, taken):
    assert taken_slots(asked | room % (1 << 24) << 40) == taken


def test_counters_of_a_ring():
    rig = Rig()
    producer = rig.ready(1)
    assert len(producer.send(3)) == 3
    producer.take(producer.slots)
    row = rig.controls()[1]
    slots = producer.slots
    assert (row.produced, row.head, row.tail, row.dropped) == (slots, slots * 48, 0, 4)


@pytest.mark.parametrize("size", range(8, L.RING_STAMPED_MOST + 1, 8))
def test_every_bit_of_every_word_comes_back(size):
    rig = Rig(replace(SPEC, stamped=size))
    producer = rig.ready(0)
    numbers = producer.send(9)
    rig.round(0)
    (batch,) = rig.reader.batches()
    assert (batch.sm, batch.size, batch.count) == (0, size, 9)
    assert list(batch.records()) == [producer.record(number) for number in numbers]


def test_nothing_is_looked_at_beyond_the_limit():
    rig = Rig()
    producer = rig.ready(0)
    first, second = producer.send(2)
    rig.claimed(0)
    rig.copy(rig.places(0))
    assert list(rig.reader) == []
    rig.arena.words[rig.word(0, "limit")] = rig.stride
    assert list(rig.reader) == [producer.record(first)]
    rig.give_out(0)
    assert list(rig.reader) == [producer.record(second)]


@pytest.mark.parametrize("laps", [0, 1])
@pytest.mark.parametrize("word", range(6))
def test_a_slot_that_is_not_whole_is_asked_for(laps, word):
    """Nothing behind it comes before it."""
    rig = Rig(laps_left=None if laps == 0 else 1)
    rig.turn(0, laps)
    producer = rig.producers[0]
    producer.give_room()
    numbers = producer.take(4)
    for number in numbers:
        producer.write(number, set(range(6)) - {word} if number == numbers[1] else None)
    rig.round(0)
    records = [producer.record(number) for number in numbers]
    assert list(rig.reader) == records[:1]
    assert rig.arena.words[rig.word(0, "missing")] == numbers[1] * rig.stride + 1
    producer.write(numbers[1])
    assert list(rig.reader) == []
    rig.round(0)
    assert list(rig.reader) == records[1:]
    rig.learn_tail(0)
    (number,) = producer.send(1)
    rig.round(0)
    assert list(rig.reader) == [producer.record(number)]


@pytest.mark.parametrize("laps_left", [None, 2])
def test_records_on_both_sides_of_the_rings_end(laps_left):
    rig = Rig(laps_left=laps_left)
    rig.turn(0, 3)
    producer = rig.producers[0]
    assert len(producer.send(10)) == 10
    rig.round(0)
    assert len(list(rig.reader)) == 10
    rig.learn_tail(0)
    numbers = producer.send(producer.slots - 10)
    producer.give_room()
    numbers += producer.send(10)
    assert len(numbers) == producer.slots
    rig.round(0)
    assert list(rig.reader) == [producer.record(number) for number in numbers]


def test_more_records_than_are_taken_at_once():
    rig = Rig(replace(SPEC, max_entries=RINGS << 21, stamped=16))
    producer = rig.ready(0)
    numbers = producer.send(producer.slots)
    rig.round(0)
    batches = list(rig.reader.batches())
    assert len(batches) > 1
    assert max(len(batch.payload) for batch in batches) <= taking._AT_ONCE
    got = b"".join(batch.payload for batch in batches)
    assert got == b"".join(producer.record(number) for number in numbers)


@pytest.mark.parametrize("laps", [0, 1, 2])
@pytest.mark.parametrize("missing", range(6))
def test_slots_that_lack_a_word_are_holes(laps, missing):
    """What lies there instead is of an earlier lap, or nothing was ever there."""
    rig = Rig(laps_left=None if laps == 0 else 1)
    rig.turn(1, laps)
    producer = rig.producers[1]
    producer.give_room()
    numbers = producer.take(8)
    for number in numbers:
        torn = number in (numbers[1], numbers[4], numbers[5])
        producer.write(number, set(range(6)) - {missing} if torn else None)
    rig.round(1)
    got = rig.final()
    kept = [number for at, number in enumerate(numbers) if at not in (1, 4, 5)]
    assert got == [[], [producer.record(number) for number in kept]]
    assert rig.reader.counts.holes - rig.before == 3


def test_a_copy_that_was_on_its_way_is_not_looked_at():
    rig = Rig()
    rig.ready(0).send(2)
    rig.claimed(0)
    rig.copy(rig.places(0))  # and the workload is killed
    assert rig.final() == [[], []]
    assert rig.reader.counts.holes == 2


@pytest.mark.parametrize("counted", [0, 2, 3, 4])
def test_what_was_copied_behind_the_last_snapshot_comes_as_well(counted):
    """Wherever that ended, before or behind a slot that is not whole."""
    rig = Rig()
    producer = rig.ready(0)
    sent, controls = [], rig.controls()
    for at in range(6):
        (number,) = producer.take(1)
        if at != 2:
            producer.write(number)
            sent.append(number)
        if at + 1 == counted:
            controls = rig.controls()
    rig.round(0)
    producer.send(1)  # and the workload is killed
    assert rig.final(controls) == [[producer.record(number) for number in sent], []]
    assert (rig.reader.counts.received, rig.reader.counts.holes) == (5, 1)


@pytest.mark.parametrize("size", [8, 16, 24, 40, 256])
@pytest.mark.parametrize("seed", range(8))
def test_every_order_of_steps(seed, size):
    laps_left = None if seed % 2 else 2
    rig = Rig(replace(SPEC, stamped=size), seed, laps_left)
    rng, words = rig.rng, size // 8 + 1
    first = rig.producers[0].taken
    flights, got = [{} for _ in range(RINGS)], [[] for _ in range(RINGS)]
    stages = [iter(()) for _ in range(RINGS)]

    def round_of(slot):
        rig.claimed(slot)
        places = rig.places(slot)
        early = np.array([rng.random() < 0.5 for _ in places], bool)
        yield
        rig.copy(places[early])
        yield
        rig.copy(places[~early])
        yield
        rig.give_out(slot)

    for _ in range(2500):
        slot = rng.randrange(RINGS)
        producer, flying = rig.producers[slot], flights[slot]
        match rng.choice(["take", "room", "write", "write", "agent", "agent", "agent", "read"]):
            case "take":
                for number in producer.take(rng.choice([1, 3, 17])):
                    flying[number] = rng.sample(range(words), words)
            case "room":
                rig.learn_tail(slot)
                producer.give_room()
            case "write":
                for number in rng.sample(sorted(flying), len(flying) - len(flying) // 4):
                    left = flying[number]
                    producer.write(number, [left.pop() for _ in range(rng.randint(0, len(left)))])
                    if not left:
                        del flying[number]
            case "agent":
                if next(stages[slot], stages) is stages:
                    stages[slot] = round_of(slot)
            case "read":
                for batch in rig.reader.batches():
                    got[batch.sm] += batch.records()
    controls = rig.controls()
    for slot in range(RINGS):
        for _ in stages[slot] if seed % 3 else ():
            pass
    kept = []
    for slot, producer in enumerate(rig.producers):
        at, copied = (int(rig.arena.words[rig.word(slot, n)]) for n in ("position", "copied"))
        behind = range(at // rig.stride, copied // rig.stride)
        numbers = [*range(first, at // rig.stride), *(n for n in behind if rig.whole(slot, n))]
        kept.append([producer.record(number) for number in numbers])
        assert producer.taken - first > 2 * producer.slots
    for slot, rest in enumerate(rig.final(controls)):
        assert got[slot] + rest == kept[slot]
    assert rig.reader.counts.produced == sum(p.taken for p in rig.producers)
