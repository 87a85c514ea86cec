"""Ring buffers are read whole, in order, and what is missing is counted."""

import random
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_producer import Producer

from egpu.bpf.maptypes import MapType
from egpu.bpf.program import MapSpec
from egpu.errors import InputError
from egpu.maps import layout as L
from egpu.maps import ringbuf, taking
from egpu.maps.memory import HostArena, RingControl
from egpu.maps.planning import plan as plan_maps
from egpu.maps.ringbuf import RingReader

NATIVE = taking.native_reader()


@pytest.fixture(scope="module", autouse=True, params=["native", "python"])
def reading(request):
    """Both readers, of which one is C."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(ringbuf, "native_reader", lambda: None)
        elif NATIVE is None:
            pytest.skip("the native parts are not built (make native)")
        yield


SPEC = MapSpec("events", MapType.RINGBUF, 0, 0, 4096)
MULTI = MapSpec("events", MapType.RINGBUF, 0, 0, 3 * 4096)


class Rig:
    def __init__(self, spec=SPEC, slots=1, start=0):
        self.layout = plan_maps([spec], slots)
        self.place = self.layout.places[0]
        self.arena = HostArena.create(self.layout)
        for slot in range(slots):
            at = (self.place.ring_readers + slot * L.READER_STRIDE) // 8
            self.arena.words[at] = start
        self.producers = [Producer(self.arena, self.place, slot, start) for slot in range(slots)]
        self.reader = RingReader(self.arena, self.layout, self.place, spec)

    def controls(self):
        return [RingControl(p.head, p.tail, p.dropped, p.produced) for p in self.producers]

    def final(self):
        rest = [r for batch in self.reader.drain_final(self.controls()) for r in batch.records()]
        counts = self.reader.counts
        assert counts.received + counts.discarded + counts.holes == counts.produced
        assert counts.dropped == sum(p.dropped for p in self.producers)
        return rest

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.arena.close()


def word(number):
    return struct.pack("<Q", number)


def test_records_come_in_order_and_free_their_room():
    with Rig() as rig:
        producer = rig.producers[0]
        for number in range(100):
            assert producer.send([word(number)])
        assert list(rig.reader) == [word(n) for n in range(100)]
        assert list(rig.reader) == []
        producer.learn_tail()
        assert producer.tail == producer.head
        assert rig.final() == []
        assert rig.reader.counts.received == 100


def test_groups_of_odd_sizes_keep_their_records_apart():
    with Rig() as rig:
        records = [bytes([n] * 13) for n in range(32)]
        rig.producers[0].send(records)
        rig.producers[0].send([b"z"])
        (first, second) = rig.reader.batches()
        assert (first.size, first.count, first.stride) == (13, 32, 16)
        assert list(first.records()) == records
        assert list(second.records()) == [b"z"]


def test_a_full_ring_drops_and_the_drops_are_counted():
    with Rig() as rig:
        producer = rig.producers[0]
        sent = sum(producer.send([word(n)]) for n in range(200))
        assert sent == 4096 // 32
        assert len(list(rig.reader)) == sent
        assert producer.send([word(1)]) is False  # the tail has not been copied yet
        producer.learn_tail()
        assert producer.send([word(777)])
        assert rig.final() == [word(777)]
        assert rig.reader.counts.dropped == 200 - sent + 1


def test_pads_are_skipped_at_the_ring_end():
    with Rig() as rig:
        producer = rig.producers[0]
        seen = []
        for number in range(500):
            record = struct.pack("<Q", number) * 5  # 56-byte groups do not divide 4096
            assert producer.send([record])
            seen += [struct.unpack_from("<Q", r)[0] for r in rig.reader]
            producer.learn_tail()
        assert seen == list(range(500))


def test_an_unpublished_group_stops_the_reader_until_it_is_published():
    with Rig() as rig:
        producer = rig.producers[0]
        torn = producer.claim(8)
        producer.send([word(2)])
        assert list(rig.reader) == []
        producer.fill(torn, [word(1)])
        assert list(rig.reader) == []
        producer.commit(torn)
        assert list(rig.reader) == [word(1), word(2)]


def test_a_commit_word_that_comes_before_size_and_count_is_waited_for():
    with Rig() as rig:
        producer = rig.producers[0]
        producer.send([word(1)])
        late = producer.claim(8)
        producer.fill(late, [word(2)])
        producer.header(late, 0, 0)
        producer.commit(late)
        producer.send([word(3)])
        assert list(rig.reader) == [word(1)]
        producer.header(late, 8, 1)
        assert list(rig.reader) == [word(2), word(3)]
        assert rig.final() == []
        assert rig.reader.counts.received == 3


def test_a_torn_group_is_a_hole_at_the_end_and_nothing_behind_it_is_lost():
    with Rig() as rig:
        producer = rig.producers[0]
        producer.send([word(1)])
        torn = producer.claim(24, 3)
        producer.fill(torn, [b"x" * 24] * 3)  # filled, never published
        producer.send([word(2), word(3)])
        producer.claim(8)
        assert list(rig.reader) == [word(1)]
        assert rig.final() == [word(2), word(3)]
        assert rig.reader.counts.holes == 4
        producer.learn_tail()
        assert producer.tail == producer.head


def test_a_hole_across_the_ring_end():
    with Rig(start=4096 * 5 - 64) as rig:
        producer = rig.producers[0]
        producer.claim(32)  # 48 bytes: 16 are left to the end
        producer.claim(64)  # pads, then lies at the start
        producer.send([word(9)])
        assert rig.final() == [word(9)]
        assert rig.reader.counts.holes == 2


def test_old_payload_that_looks_like_a_commit_word_is_not_believed():
    with Rig() as rig:
        producer = rig.producers[0]
        lap = 4096
        for index in range(lap // 64):  # payload words that equal later positions + 1
            position = index * 64
            fake = struct.pack("<6Q", *[position + lap + 16 * k + 1 for k in range(6)])
            assert producer.send([fake])
        assert len(list(rig.reader)) == 64
        producer.learn_tail()
        producer.claim(40)
        assert list(rig.reader) == []


def test_discarded_groups_are_counted_and_not_given():
    with Rig() as rig:
        rig.producers[0].send([word(1)] * 2, flags=L.RING_DISCARD)
        rig.producers[0].send([word(2)])
        assert list(rig.reader) == [word(2)]
        assert rig.reader.counts.discarded == 2
        rig.final()


@pytest.mark.parametrize(
    ("start", "size", "count"), [(0, 1 << 30, 5), (0, 0xFFFFFFFF, 0xFFFFFFFE), (4032, 8, 10)]
)
def test_impossible_header_never_reads_outside_the_ring(start, size, count):
    with Rig(start=start) as rig:
        producer = rig.producers[0]
        bad = producer.claim(8)
        producer.header(bad, size, count)
        producer.commit(bad)
        producer.send([word(5)])
        assert list(rig.reader) == []
        assert rig.final() == [word(5)]
        assert rig.reader.counts.holes == 1


def test_records_newer_than_the_last_snapshot_are_given():
    with Rig() as rig:
        producer = rig.producers[0]
        producer.send([word(1)])
        old = rig.controls()
        producer.send([word(2)])
        rest = [r for batch in rig.reader.drain_final(old) for r in batch.records()]
        assert rest == [word(1), word(2)]
        assert rig.reader.counts.produced == 2


def test_sms_are_apart():
    with Rig(MULTI, slots=3) as rig:
        for slot, producer in enumerate(rig.producers):
            producer.send([word(slot * 10), word(slot * 10 + 1)])
        assert [(b.sm, b.count) for b in rig.reader.batches()] == [(0, 2), (1, 2), (2, 2)]


def test_a_reader_continues_where_the_last_one_stopped():
    with Rig() as rig:
        rig.producers[0].send([word(1)])
        assert list(rig.reader) == [word(1)]
        rig.producers[0].send([word(2)])
        other = RingReader(rig.arena, rig.layout, rig.place, SPEC)
        assert list(other) == [word(2)]


def test_groups_of_one_size_and_others_come_in_order():
    with Rig() as rig:
        producer = rig.producers[0]
        sent = []
        for number, (size, count) in enumerate([(8, 1), (8, 3), (8, 2), (20, 2), (8, 1), (16, 5)]):
            records = [bytes([10 * number + n]) * size for n in range(count)]
            producer.send(records, flags=L.RING_DISCARD if number == 2 else 0)
            sent += records if number != 2 else []
        batches = list(rig.reader.batches())
        assert [r for batch in batches for r in batch.records()] == sent
        assert all(len(batch.payload) == batch.count * batch.stride for batch in batches)
        assert not rig.arena.words[rig.place.ring_data // 8 :][: rig.place.ring_size // 8].any()
        assert rig.final() == []


def test_a_group_larger_than_what_is_taken_at_once():
    spec = MapSpec("events", MapType.RINGBUF, 0, 0, 8 << 20)
    with Rig(spec) as rig:
        size = taking._AT_ONCE // 8
        for number in range(3):
            rig.producers[0].send([word(number)])
            rig.producers[0].send([bytes([number]) * size] * 32)
        got = list(rig.reader)
        assert got == [r for n in range(3) for r in [word(n), *[bytes([n]) * size] * 32]]
        assert rig.final() == []


def test_a_producer_and_the_reader_at_the_same_time():
    with Rig() as rig:
        producer, total = rig.producers[0], 4000

        def produce():
            number = 0
            while number < total:
                producer.learn_tail()
                records = [word(n) for n in range(number, min(total, number + 1 + number % 5))]
                dropped = producer.dropped
                if producer.send(records):
                    number += len(records)
                producer.dropped = dropped  # it tries again

        thread = threading.Thread(target=produce)
        thread.start()
        got = list(rig.reader.follow(thread.is_alive, interval_s=0))
        thread.join()
        got += rig.final()
        assert got == [word(n) for n in range(total)]


def test_follow_ends_after_the_last_record():
    with Rig() as rig:
        rounds = iter([True, True, False])

        def running():
            alive = next(rounds)
            rig.producers[0].send([word(int(alive))])
            return alive

        got = list(rig.reader.follow(running, interval_s=0))
        assert got == [word(1), word(1), word(0)]


def test_an_unknown_record_type_is_refused():
    with Rig() as rig, pytest.raises(InputError, match="no struct event"):
        RingReader(rig.arena, rig.layout, rig.place, SPEC, type_name="event")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**62))
def test_random_schedules_account_for_everything(seed, start):
    """Claims, late publications, drops, discards and reads in any order."""
    rng = random.Random(seed)
    with Rig(MULTI, slots=3, start=start - start % 16) as rig:
        serial = 0
        sent = [[] for _ in range(3)]  # published, in claim order
        open_groups = []
        got = [[] for _ in range(3)]

        def read():
            for batch in rig.reader.batches():
                got[batch.sm] += list(batch.records())

        for _ in range(120):
            match rng.choice(["claim", "claim", "publish", "read", "tail"]):
                case "claim":
                    slot = rng.randrange(3)
                    size, count = rng.choice([8, 12, 40, 200]), rng.choice([1, 1, 3, 17])
                    position = rig.producers[slot].claim(size, count)
                    if position is not None:
                        records = []
                        for _ in range(count):
                            records.append(struct.pack("<Q", serial).ljust(size, b"."))
                            serial += 1
                        entry = [slot, position, records, None]
                        sent[slot].append(entry)
                        open_groups.append(entry)
                case "publish" if open_groups:
                    entry = open_groups.pop(rng.randrange(len(open_groups)))
                    slot, position, records, _ = entry
                    rig.producers[slot].fill(position, records)
                    entry[3] = rng.choice([0, 0, 0, L.RING_DISCARD])
                    rig.producers[slot].commit(position, entry[3])
                case "read":
                    read()
                case "tail":
                    rig.producers[rng.randrange(3)].learn_tail()
        for batch in rig.reader.drain_final(rig.controls()):
            got[batch.sm] += list(batch.records())
        for slot in range(3):
            assert got[slot] == [r for e in sent[slot] if e[3] == 0 for r in e[2]]
        counts = rig.reader.counts
        assert counts.holes == sum(len(e[2]) for e in open_groups)
        assert counts.received + counts.discarded + counts.holes == counts.produced


@pytest.mark.parametrize("name", ["libegpu_nothing.so", "libc.so.6"])
def test_a_library_that_is_no_reader_is_not_used(monkeypatch, name):
    """One that is not there, and one without the function: Python reads."""
    path = name if name.startswith("libc.") else f"/nowhere/{name}"
    load = taking.ctypes.CDLL
    monkeypatch.setattr(taking.ctypes, "CDLL", lambda _: load(path))
    assert taking.native_reader.__wrapped__() is None
