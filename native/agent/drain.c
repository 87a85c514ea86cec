/* Records of rings in device memory, by the protocol of egpu.maps.ring_table.  On the agent's thread and
 * under the arena lock.
 *
 * The rings of each map are split among lanes, each with a stream that nothing else uses: while one
 * lane's flags are looked at, others' copies are under way.  Everything that is said of an order holds
 * within a lane: a ring's tail, flags, records, head and cleared flags go over its lane's stream only,
 * and the lane's next step begins when that stream is empty.  A step gives out what was published in
 * the records that came, and then copies tails, what the heads that came say was claimed, and heads:
 * behind the records, so that the next step needs to wait for nothing. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "drain.h"

/* Bytes that a ring's copies go on by at once, a multiple of a granule: other lanes' copies come while
 * these are looked at, whose flags are still in the CPU's caches then. */
#ifndef EGPU_AT_ONCE
#define EGPU_AT_ONCE (2 << 20)
#endif

/* Up to where the session is done. */
static uint64_t reader(const struct arena *arena, const struct ring *ring)
{
    uint64_t position = atomic_load_explicit(word(arena, ring, EGPU_RING_READER_AT_POSITION),
                                             memory_order_acquire);
    uint64_t drained = arena->draining.drained[ring->number];
    return position < drained ? position : drained;
}

const char *egpu_drain_begin(struct arena *arena)
{
    struct draining *draining = &arena->draining;
    uint64_t total = 1;
    for (uint32_t i = 0; i < arena->ring_count; i++)
        total += arena->rings[i].count;
    draining->drained = calloc(total, sizeof *draining->drained);
    draining->copied = calloc(total, sizeof *draining->copied);
    if (draining->drained == NULL || draining->copied == NULL || !egpu_upload_begin(arena, total))
        return "out of memory";
    EACH_LANE(arena, lane)
    {
        if (CALL(cuStreamCreate, &lane->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
            return "no stream for records";
    }
    draining->active = true;
    return NULL;
}

static bool moved(struct arena *arena, const struct part *part)
{
    bool any = false;
    EACH_RING(*part, ring)
    {
        uint64_t *last = &arena->positions[ring.number], now = reader(arena, &ring);
        any |= *last != now;
        *last = now;
    }
    return any;
}

/* Room that the session has read goes back to producers.  It may read on meanwhile: no further than
 * its limit, which moves only when this stream is empty. */
static bool copy_tails(struct arena *arena, struct lane *lane)
{
    EACH_PART(arena, lane, part)
    {
        const struct egpu_ring *map = part.map;
        CUDA_MEMCPY2D_v2 copy = {
            .srcMemoryType = CU_MEMORYTYPE_HOST,
            .srcHost = arena->host + map->host_offset + part.first * map->host_stride +
                       EGPU_RING_READER_AT_POSITION,
            .srcPitch = map->host_stride, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
            .dstDevice = arena->address + map->device_offset + part.first * map->device_stride,
            .dstPitch = map->device_stride, .WidthInBytes = sizeof(uint64_t),
            .Height = part.end - part.first,
        };
        if (moved(arena, &part) && CALL(cuMemcpy2DAsync_v2, &copy, lane->stream) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

static bool copy_heads(struct arena *arena, struct lane *lane)
{
    EACH_PART(arena, lane, part)
    {
        uint64_t first = part.first * EGPU_RING_CONTROL_SIZE;
        uint64_t from = part.map->device_offset - EGPU_RING_CONTROL_AT_TAIL + first;
        if (CALL(cuMemcpyDtoHAsync_v2, arena->host + part.map->host_controls + first,
                 arena->address + from, (part.end - part.first) * EGPU_RING_CONTROL_SIZE,
                 lane->stream) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

/* Up to where the ring's room is claimed: no more than a ring, and than the reader has left. */
static uint64_t claimed(const struct arena *arena, const struct ring *ring)
{
    uint64_t head, at = ring->slot * EGPU_RING_CONTROL_SIZE + EGPU_RING_CONTROL_AT_HEAD;
    uint64_t most = reader(arena, ring) + ring->map->ring_size;
    memcpy(&head, arena->host + ring->map->host_controls + at, sizeof head);
    if (ring->map->stamped != 0)
        head = egpu_slots_taken(ring->map, head);
    return (head < most ? head : most) / GRANULE * GRANULE;
}

/* From where the ring is copied.  Slots are given out without being looked at: the session says where
 * it found one that was not whole, each time that it looks.  It is copied again once for that: a session
 * that reads seldom would otherwise have all behind it copied over and over. */
static uint64_t from_where(const struct arena *arena, const struct ring *ring)
{
    uint64_t position = reader(arena, ring), missing = position + 1;
    if (ring->map->stamped == 0)
        return arena->draining.drained[ring->number];
    bool asked = atomic_compare_exchange_strong_explicit(
        word(arena, ring, EGPU_RING_READER_AT_MISSING), &missing, 0, memory_order_relaxed,
        memory_order_relaxed);
    return asked || arena->draining.ending ? position : arena->draining.drained[ring->number];
}

/* Up to where it is copied next.  What was copied already and is not given out may be a part of a group,
 * and is copied with the next piece, however large it is. */
static uint64_t up_to(const struct arena *arena, const struct ring *ring, uint64_t from, uint64_t end)
{
    uint64_t copied = arena->draining.copied[ring->number], step = egpu_slot_stride(ring->map);
    uint64_t most = (copied > from ? copied : from) + EGPU_AT_ONCE / step * step;
    return arena->draining.ending || end < most ? end : most;
}

/* How far rings are to be copied, by the heads that came: zeros at first.  `copied` of their readers is
 * withdrawn for all whose bytes may change, but for slots, which tell by themselves. */
static bool look_at_heads(struct arena *arena, struct lane *lane)
{
    struct draining *draining = &arena->draining;
    bool any = false;
    lane->hurried = false;
    EACH_PART(arena, lane, part)
    EACH_RING(part, ring)
    {
        uint64_t drained = from_where(arena, &ring), end = claimed(arena, &ring);
        uint64_t next = up_to(arena, &ring, drained, end);
        draining->drained[ring.number] = drained;
        draining->copied[ring.number] = next > drained ? next : drained;
        if (next <= drained)
            continue;
        any = true;
        lane->hurried |= end - drained > ring.map->ring_size / 4;
        if (part.map->stamped == 0)
            atomic_store_explicit(word(arena, &ring, EGPU_RING_READER_AT_COPIED), drained,
                                  memory_order_release);
    }
    return any;
}

/* What was claimed: the flags before the records, which are then as new as the flags at least.  Stamped
 * slots have none: each of their words says by itself how new it is. */
static bool copy_records(struct arena *arena, struct lane *lane)
{
    EACH_PART(arena, lane, part)
        if (part.map->stamped == 0)
            egpu_upload_flags(arena, &part);
    if (!egpu_upload(arena, lane->stream))
        return false;
    EACH_PART(arena, lane, part)
        egpu_upload_records(arena, &part);
    return egpu_upload(arena, lane->stream);
}

/* Up to where the ring's groups are published, from where they were drained; all of its slots. */
static bool walk(struct arena *arena, struct lane *lane, const struct ring *ring, uint64_t end)
{
    uint64_t *drained = &arena->draining.drained[ring->number], from, to;
    if (ring->map->stamped != 0) {
        *drained = end;
        return true;
    }
    do {
        from = *drained;
        to = piece(ring, from, end);
        *drained = egpu_published(arena, ring, from, to);
        bool last = from / ring->map->ring_size % EGPU_RING_CLEARED_LAPS ==
                    EGPU_RING_CLEARED_LAPS - 1;
        if (last && !egpu_flags_clear(arena, lane, ring, from, *drained))
            return false;
    } while (*drained == to && to < end);
    return true;
}

/* What is published and was copied: to the reader. */
static bool give_out(struct arena *arena, struct lane *lane)
{
    struct draining *draining = &arena->draining;
    EACH_PART(arena, lane, part)
    EACH_RING(part, ring)
    {
        uint64_t end = draining->copied[ring.number];
        if (draining->drained[ring.number] == end)
            continue;
        if (!walk(arena, lane, &ring, end))
            return false;
        atomic_store_explicit(word(arena, &ring, EGPU_RING_READER_AT_LIMIT),
                              draining->drained[ring.number], memory_order_release);
        atomic_store_explicit(word(arena, &ring, EGPU_RING_READER_AT_COPIED), end,
                              memory_order_release);
    }
    lane->records = false;
    return true;
}

static void stop(struct arena *arena)
{
    arena->draining.active = arena->draining.hurried = false;
    egpu_say("device %u: records can no longer be copied; those that find no room are dropped",
             arena->device.ordinal);
}

/* Whether more was claimed than was copied last. */
static bool grown(const struct arena *arena, const struct lane *lane)
{
    EACH_PART(arena, lane, part)
    EACH_RING(part, ring)
    {
        if (claimed(arena, &ring) > arena->draining.copied[ring.number])
            return true;
    }
    return false;
}

/* The lane's stream is empty.  What waits for a group that is not published is not copied again at
 * once: as long as no copy is on its way the reader has what lies behind that, should the workload be
 * killed. */
static bool step(struct arena *arena, struct lane *lane)
{
    bool gave = lane->records;
    if (gave && !give_out(arena, lane))
        return false;
    lane->records = (!gave || grown(arena, lane)) && look_at_heads(arena, lane);
    return copy_tails(arena, lane) && (!lane->records || copy_records(arena, lane)) &&
           copy_heads(arena, lane);
}

/* The arena's context is current. */
void egpu_drain_turn(struct arena *arena)
{
    struct draining *draining = &arena->draining;
    draining->hurried = false;
    EACH_LANE(arena, lane)
    {
        CUresult result = CALL(cuStreamQuery, lane->stream);
        if (result != CUDA_ERROR_NOT_READY && (result != CUDA_SUCCESS || !step(arena, lane))) {
            stop(arena);
            return;
        }
        draining->hurried |= lane->records || lane->hurried;
    }
}

/* Everything of a lane that is claimed now, while no kernel runs; waits for it, but not for ever.  The
 * second step from now has heads as they are now. */
static bool finish(struct arena *arena, struct lane *lane, uint64_t deadline)
{
    const struct timespec nap = {0, 50000};
    for (int steps = 0; egpu_now() < deadline;) {
        CUresult result = CALL(cuStreamQuery, lane->stream);
        if (result == CUDA_ERROR_NOT_READY) {
            nanosleep(&nap, NULL);
            continue;
        }
        if (result != CUDA_SUCCESS)
            return false;
        if (steps++ == 2)
            return !lane->records || give_out(arena, lane);
        if (!step(arena, lane))
            return false;
    }
    return true;
}

void egpu_drain_all(struct arena *arena, uint64_t deadline)
{
    arena->draining.ending = true;
    EACH_LANE(arena, lane)
    {
        if (arena->draining.active && !finish(arena, lane, deadline))
            stop(arena);
    }
    arena->draining.ending = false;
}
