/* Flags of groups in device memory, whose form egpu.maps.layout has: which groups are published, and
 * what is done so that no flag is taken for a later group's. */
#include <string.h>

#include "drain.h"

/* Bytes of a published group whose flag does not tell them, 0 if it is none. */
static uint64_t large(const struct arena *arena, const struct ring *ring, uint64_t position)
{
    uint64_t words[2];
    memcpy(words, arena->host + ring->map->host_data + place(ring, position), sizeof words);
    uint64_t size = words[0] & UINT32_MAX, count = words[0] >> 32;
    bool here = (words[1] & ~EGPU_RING_DISCARD) == position + 1;
    return here ? (EGPU_RING_GROUP_HEADER + count * ((size + 7) & ~7ull) + 15) & ~15ull : 0;
}

/* What the flag of a group at this place has for its beginning. */
static uint64_t second(uint64_t at)
{
    return at % SPAN / GRANULE * EGPU_RING_FLAG_SECOND;
}

/* Up to where published groups follow each other, from `position` on to `end`, which is in its lap.
 *
 * A flag of this lap was written by this lap's group: what is found where no group of this lap has
 * written is 0 or of an earlier lap after the last one whose flags were cleared, so of one of the
 * last EGPU_RING_CLEARED_LAPS, whose numbers all differ modulo EGPU_RING_LAPS.
 *
 * Groups mostly are as large as the one before.  Trying that first, the next flag's place does not
 * depend on this flag, and flags are read as fast as they come from memory. */
uint64_t egpu_published(const struct arena *arena, const struct ring *ring, uint64_t position,
                        uint64_t end)
{
    uint64_t size = ring->map->ring_size, at = position % size, stop = at + (end - position);
    uint64_t lap = position / size % EGPU_RING_LAPS << EGPU_RING_FLAG_LAP;
    const uint16_t *flags = (const void *)(arena->host + ring->map->host_flags +
                                           ring->slot * size / SPAN * FLAG);
    while (at < stop) {
        uint64_t step, granules = flags[at / SPAN] ^ (lap | second(at));
        if (granules == 0 || granules > EGPU_RING_FLAG_LARGE)
            break;
        if (granules == EGPU_RING_FLAG_LARGE)
            step = large(arena, ring, position - position % size + at);
        else
            step = granules == EGPU_RING_FLAG_FILLER ? size - at : granules * GRANULE;
        if (step == 0 || step > stop - at)
            break;
        at += step;
        while (granules != EGPU_RING_FLAG_LARGE && step <= stop - at &&
               flags[at / SPAN] == (lap | second(at) | granules))
            at += step;
    }
    return position - position % size + at;
}

/* Zero bytes behind the copies of the map's control blocks. */
uint64_t egpu_ring_zeros(const struct egpu_ring *map)
{
    uint64_t flags = map->ring_size / GRANULE;
    return flags < EGPU_RING_ZEROS ? flags : EGPU_RING_ZEROS;
}

/* The flags of groups from `position` to `end`, which is in its lap.  A group that begins at `end` may
 * be in the middle of its flag's span, which is left.  No producer has this room before the tail is
 * written, which follows in the same stream.  Zeros are copied: a memset may be a kernel, and would
 * wait for one that fills the device. */
bool egpu_flags_clear(struct arena *arena, struct lane *lane, const struct ring *ring,
                      uint64_t position, uint64_t end)
{
    const struct egpu_ring *map = ring->map;
    const unsigned char *zeros = arena->host + map->host_controls +
                                 map->count * EGPU_RING_CONTROL_SIZE;
    uint64_t left = (end / SPAN - position / SPAN) * FLAG, most = egpu_ring_zeros(map), size;
    CUdeviceptr at = arena->address + map->device_flags + place(ring, position) / SPAN * FLAG;
    for (; left > 0; left -= size, at += size) {
        size = left < most ? left : most;
        if (CALL(cuMemcpyHtoDAsync_v2, at, zeros, size, lane->stream) != CUDA_SUCCESS)
            return false;
    }
    return true;
}
