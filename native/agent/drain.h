/* Rings in device memory, as drain.c, flags.c, stamped.c and upload.c see them. */
#ifndef EGPU_DRAIN_H
#define EGPU_DRAIN_H

#include "agent.h"

enum { GRANULE = EGPU_RING_GRANULE, SPAN = EGPU_RING_FLAG_SPAN, FLAG = EGPU_RING_FLAG_SIZE };

/* A lane's rings of one map: slots `first` to before `end`; all rings of the arena before the map's. */
struct part {
    const struct egpu_ring *map;
    uint64_t first, end, before;
};

/* One SM's ring of a map: its number there and among all rings of the arena. */
struct ring {
    const struct egpu_ring *map;
    uint64_t slot, number;
};

static inline bool next_part(const struct arena *arena, const struct lane *lane, struct part *part)
{
    uint64_t index = (uint64_t)(lane - arena->draining.lanes);
    do {
        part->before += part->map == NULL ? 0 : part->map->count;
        part->map = part->map == NULL ? arena->rings : part->map + 1;
        if (part->map == arena->rings + arena->ring_count)
            return false;
        part->first = part->map->count * index / EGPU_LANES;
        part->end = part->map->count * (index + 1) / EGPU_LANES;
    } while (part->map->ring_size == 0 || part->first == part->end);
    return true;
}

#define EACH_LANE(arena, lane)                                                                     \
    for (struct lane *lane = (arena)->draining.lanes, *last = lane + EGPU_LANES; lane != last;     \
         lane++)
#define EACH_PART(arena, lane, part) for (struct part part = {0}; next_part(arena, lane, &part);)
#define EACH_RING(part, ring)                                                                      \
    for (struct ring ring = {(part).map, (part).first, (part).before + (part).first};              \
         ring.slot < (part).end; ring.slot++, ring.number++)

/* A word of the ring's reader in the host arena. */
static inline _Atomic uint64_t *word(const struct arena *arena, const struct ring *ring,
                                     unsigned offset)
{
    uint64_t at = ring->map->host_offset + ring->slot * ring->map->host_stride + offset;
    return (_Atomic uint64_t *)(void *)(arena->host + at);
}

/* Where a position lies in the map's rings. */
static inline uint64_t place(const struct ring *ring, uint64_t position)
{
    return ring->slot * ring->map->ring_size + position % ring->map->ring_size;
}

/* Where what begins at `at` ends: at the ring's end at the latest. */
static inline uint64_t piece(const struct ring *ring, uint64_t at, uint64_t end)
{
    uint64_t wrap = at - at % ring->map->ring_size + ring->map->ring_size;
    return wrap < end ? wrap : end;
}

/* flags.c */
uint64_t egpu_published(const struct arena *arena, const struct ring *ring, uint64_t position,
                        uint64_t end);
bool egpu_flags_clear(struct arena *arena, struct lane *lane, const struct ring *ring,
                      uint64_t position, uint64_t end);

/* stamped.c */
uint64_t egpu_slot_stride(const struct egpu_ring *map);
uint64_t egpu_slots_taken(const struct egpu_ring *map, uint64_t head);

/* upload.c */
bool egpu_upload_begin(struct arena *arena, uint64_t rings);
void egpu_upload_flags(struct arena *arena, const struct part *part);
void egpu_upload_records(struct arena *arena, const struct part *part);
bool egpu_upload(struct arena *arena, CUstream stream);

#endif
