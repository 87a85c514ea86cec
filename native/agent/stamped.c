/* Stamped slots of rings in device memory, whose form egpu.maps.layout has: how many were taken, and which
 * are whole. */
#include "drain.h"

/* Bytes of a slot. */
static uint64_t slot_stride(const struct egpu_ring *map)
{
    return (EGPU_RING_STAMP + map->stamped + GRANULE - 1) / GRANULE * GRANULE;
}

/* Whether rings of this size can be: a power of two, or so many slots. */
bool egpu_ring_fits(const struct egpu_ring *map)
{
    uint64_t size = map->ring_size, stride = 1, most = 1 << 30;
    if (map->stamped != 0) {
        if (map->stamped % 8 != 0 || map->stamped > EGPU_RING_STAMPED_MOST)
            return false;
        stride = slot_stride(map);
        most = stride * EGPU_RING_STAMPED_SLOTS;
    }
    uint64_t count = size / stride;
    return size >= EGPU_RING_CONTROL_SIZE && size <= most && size % stride == 0 &&
           (count & (count - 1)) == 0;
}

/* Bytes of the slots that were taken, by their ring's word: it counts those asked for in vain, too, as
 * room that is missing. */
uint64_t egpu_slots_taken(const struct egpu_ring *map, uint64_t head)
{
    int64_t asked = (int64_t)(head & ((1ull << EGPU_RING_ROOM) - 1));
    int64_t room = (int64_t)head >> EGPU_RING_ROOM;
    return (uint64_t)(asked + (room < 0 ? room : 0)) * slot_stride(map);
}

/* How many of `count` slots are whole, before the first one that is not.  `stamp` is the first one's,
 * `parity` of all.  A word that is not of this lap is of the one before, or 0 as no odd lap comes first:
 * either way its lowest bit is the other. */
static uint64_t whole(const uint64_t *slots, uint64_t count, uint64_t width, uint64_t words,
                      uint32_t stamp, uint64_t parity)
{
    for (uint64_t n = 0; n < count; n++, slots += width, stamp++) {
        uint64_t wrong = 0;
        for (uint64_t i = 1; i <= words; i++)
            wrong |= slots[i] ^ parity;
        if ((wrong & 1) != 0 || (uint32_t)(slots[0] >> 32) != stamp)
            return n;
    }
    return count;
}

/* Up to where whole slots follow each other, from `position` on to `end`, which is in its lap. */
uint64_t egpu_slots_whole(const struct arena *arena, const struct ring *ring, uint64_t position,
                          uint64_t end)
{
    const struct egpu_ring *map = ring->map;
    uint64_t stride = slot_stride(map), lap = position / map->ring_size;
    const uint64_t *slots = (const void *)(arena->host + map->host_data + place(ring, position));
    uint64_t found = whole(slots, (end - position) / stride, stride / 8, map->stamped / 8,
                           (uint32_t)(position / stride + 1), 1 - lap % 2);
    return position + found * stride;
}
