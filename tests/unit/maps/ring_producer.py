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
