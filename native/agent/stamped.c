/* Stamped slots of rings in device memory, whose form egpu.maps.layout has. */
#include "drain.h"

/* Bytes of a slot; of what groups are multiples of. */
uint64_t egpu_slot_stride(const struct egpu_ring *map)
{
    if (map->stamped == 0)
        return GRANULE;
    return (EGPU_RING_STAMP + map->stamped + GRANULE - 1) / GRANULE * GRANULE;
}

/* Whether rings of this size can be: a power of two, or so many slots. */
bool egpu_ring_fits(const struct egpu_ring *map)
{
    uint64_t size = map->ring_size, stride = 1, most = 1 << 30;
    if (map->stamped != 0) {
        if (map->stamped % 8 != 0 || map->stamped > EGPU_RING_STAMPED_MOST)
            return false;
        stride = egpu_slot_stride(map);
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
    return (uint64_t)(asked + (room < 0 ? room : 0)) * egpu_slot_stride(map);
}
