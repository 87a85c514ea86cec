"""A producer in Python that follows the ring protocol of maps/layout.py."""

from egpu.maps import layout as L


class Producer:
    """Claims, fills and publishes groups in one SM's ring, as device code does."""

    def __init__(self, arena, place, slot=0, start=0):
        self.arena, self.place, self.slot = arena, place, slot
        self.head = self.tail = start
        self.dropped = self.produced = 0

    def at(self, position):
        size = self.place.ring_size
        return self.place.ring_data + self.slot * size + position % size

    def claim(self, size, count=1):
        """Position of a claimed group, or None if it was dropped. Writes a pad when it must."""
        ring = self.place.ring_size
        need = L.round_up(L.RING_GROUP_HEADER + count * L.round_up(size, 8), 16)
        room_to_end = ring - self.head % ring
        pad = room_to_end if need > room_to_end else 0
        if self.head + pad + need - self.tail > ring:
            self.dropped += count
            return None
        if pad:
            self.header(self.head, 0, L.RING_PAD_COUNT)
            self.commit(self.head)
        position = self.head + pad
        self.head = position + need
        self.produced += count
        return position

    def header(self, position, size, count):
        self.arena.words[self.at(position) // 8] = size | count << 32

    def commit(self, position, flags=0):
        self.arena.words[self.at(position) // 8 + 1] = (position + 1) | flags

    def fill(self, position, records):
        size = len(records[0])
        at = self.at(position) + L.RING_GROUP_HEADER
        for record in records:
            self.arena.bytes[at : at + size] = list(record)
            at += L.round_up(size, 8)
        self.header(position, size, len(records))

    def send(self, records, flags=0):
        """All at once. True if there was room."""
        position = self.claim(len(records[0]), len(records))
        if position is None:
            return False
        self.fill(position, records)
        self.commit(position, flags)
        return True

    def learn_tail(self):
        """What the agent does: copy the reader's position."""
        self.tail = int(
            self.arena.words[(self.place.ring_readers + self.slot * L.READER_STRIDE) // 8]
        )


class SlotProducer:
    """Takes and writes stamped slots in one SM's ring in device memory, word by word in any order;
    ``rng`` makes the records."""

    def __init__(self, device, place, slot, rng, number=0):
        self.device, self.place, self.slot, self.rng = device, place, slot, rng
        self.stride = L.round_up(8 + place.ring_stamped, 16)
        self.slots = place.ring_size // self.stride
        self.records = {}  # by number, as words
        self.dropped = 0
        self.control = (place.offset + slot * place.stride) // 8
        self.device.words[self.control] = number
        self.device.words[self.control + 1] = number * self.stride

    @property
    def head(self):
        """(slots asked for, room)"""
        word = int(self.device.words[self.control])
        room = word >> 40
        return word & ((1 << 40) - 1), room - (1 << 24) if room >> 23 else room

    @property
    def taken(self):
        asked, room = self.head
        return asked + min(room, 0)

    def put_head(self, asked, room):
        self.device.words[self.control] = asked | room % (1 << 24) << 40

    def take(self, count):
        """Numbers of ``count`` slots or fewer; those for which there is no room are asked for in
        vain."""
        asked, room = self.head
        self.put_head(asked + count, room - count)
        numbers = range(asked, asked + min(count, max(room, 0)))
        self.dropped += count - len(numbers)
        self.device.words[self.control + 2] = self.dropped
        for number in numbers:
            words = self.place.ring_stamped // 8
            self.records[number] = [self.rng.getrandbits(64) for _ in range(words)]
        return list(numbers)

    def give_room(self):
        """What a producer does who finds none, if the tail says that there is some."""
        if self.head[1] <= 0:
            tail = int(self.device.words[self.control + 1])
            self.put_head(self.taken, tail // self.stride + self.slots - self.taken)

    def content(self, number):
        """The words of slot ``number``, without what rounds it up."""
        record = self.records[number]
        bits = sum((word & 1) << at for at, word in enumerate(record))
        lap = 1 if number // self.slots % 2 == 0 else 0
        stamp = (number + 1) % (1 << 32)
        return [stamp << 32 | bits, *(word & ~1 | lap for word in record)]

    def at(self, number, data):
        """Index of the slot's first word, in rings that begin at byte ``data``."""
        place = self.slot * self.place.ring_size + number % self.slots * self.stride
        return (data + place) // 8

    def write(self, number, which=None):
        """All words of a slot, or those numbered ``which``."""
        content = self.content(number)
        for word in range(len(content)) if which is None else which:
            self.device.words[self.at(number, self.place.ring_device) + word] = content[word]

    def send(self, count):
        """Whole slots."""
        numbers = self.take(count)
        for number in numbers:
            self.write(number)
        return numbers

    def record(self, number):
        return b"".join(word.to_bytes(8, "little") for word in self.records[number])
