/* Records of rings in device memory, by the protocol of egpu.maps.layout: heads up, then flags and
 * records up, then what is published to the reader.  On the agent's thread and under the arena lock,
 * over a stream that nothing else uses; one stage begins when that stream is empty. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent.h"

enum { GRANULE = EGPU_RING_GRANULE };

/* One SM's ring of a map: its number there and among all rings of the arena. */
struct ring {
    const struct egpu_ring *map;
    uint64_t slot, number;
};

static struct ring first_ring(const struct arena *arena)
{
    return (struct ring){.map = arena->rings};
}

static bool is_last(const struct arena *arena, const struct ring *ring)
{
    return ring->map == arena->rings + arena->ring_count;
}

static void next_ring(struct ring *ring)
{
    ring->number++;
    if (++ring->slot == ring->map->count) {
        ring->slot = 0;
        ring->map++;
    }
}

#define EACH_RING(arena, ring)                                                                     \
    for (struct ring ring = first_ring(arena); !is_last(arena, &ring); next_ring(&ring))           \
        if ((ring).map->ring_size != 0)

/* A word of the ring's reader in the host arena. */
static _Atomic uint64_t *word(const struct arena *arena, const struct ring *ring, unsigned offset)
{
    uint64_t at = ring->map->host_offset + ring->slot * ring->map->host_stride + offset;
    return (_Atomic uint64_t *)(void *)(arena->host + at);
}

/* Where a position lies in the map's rings. */
static uint64_t place(const struct ring *ring, uint64_t position)
{
    return ring->slot * ring->map->ring_size + position % ring->map->ring_size;
}

/* Where what begins at `at` ends: at the ring's end at the latest. */
static uint64_t piece(const struct ring *ring, uint64_t at, uint64_t end)
{
    uint64_t wrap = at - at % ring->map->ring_size + ring->map->ring_size;
    return wrap < end ? wrap : end;
}

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
    if (draining->drained == NULL || draining->copied == NULL)
        return "out of memory";
    if (CALL(cuStreamCreate, &draining->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
        draining->stream = NULL;
        return "no stream for records";
    }
    return NULL;
}

/* Room that the session has read goes back to producers.  It may read on meanwhile: no further than
 * its limit, which moves only when this stream is empty. */
static bool copy_tails(struct arena *arena)
{
    bool moved = false;
    EACH_RING(arena, ring)
    {
        uint64_t *last = &arena->positions[ring.number], now = reader(arena, &ring);
        moved |= *last != now;
        *last = now;
    }
    for (uint32_t i = 0; moved && i < arena->ring_count; i++) {
        const struct egpu_ring *map = &arena->rings[i];
        CUDA_MEMCPY2D_v2 copy = {
            .srcMemoryType = CU_MEMORYTYPE_HOST,
            .srcHost = arena->host + map->host_offset + EGPU_RING_READER_AT_POSITION,
            .srcPitch = map->host_stride, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
            .dstDevice = arena->address + map->device_offset, .dstPitch = map->device_stride,
            .WidthInBytes = sizeof(uint64_t), .Height = map->count,
        };
        if (map->ring_size != 0 &&
            CALL(cuMemcpy2DAsync_v2, &copy, arena->draining.stream) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

static bool copy_heads(struct arena *arena)
{
    arena->draining.stage = DRAIN_HEADS;
    for (uint32_t i = 0; i < arena->ring_count; i++) {
        const struct egpu_ring *map = &arena->rings[i];
        uint64_t controls = map->device_offset - EGPU_RING_CONTROL_AT_TAIL;
        if (map->ring_size != 0 &&
            CALL(cuMemcpyDtoHAsync_v2, arena->host + map->host_controls, arena->address + controls,
                 map->count * EGPU_RING_CONTROL_SIZE, arena->draining.stream) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

/* The ring's claimed room that is not drained: no more than a ring, and than the reader has left. */
static uint64_t claimed(const struct arena *arena, const struct ring *ring)
{
    uint64_t head, at = ring->slot * EGPU_RING_CONTROL_SIZE + EGPU_RING_CONTROL_AT_HEAD;
    memcpy(&head, arena->host + ring->map->host_controls + at, sizeof head);
    uint64_t most = reader(arena, ring) + ring->map->ring_size;
    return (head < most ? head : most) / GRANULE * GRANULE;
}

/* `unit` bytes of records have one byte in the range that begins at `from` and at `to`. */
static bool copy_range(struct arena *arena, const struct ring *ring, uint64_t from, uint64_t to,
                       uint64_t unit)
{
    uint64_t position = arena->draining.drained[ring->number];
    uint64_t end = arena->draining.copied[ring->number];
    for (uint64_t next; position < end; position = next) {
        uint64_t at = place(ring, position) / unit;
        next = piece(ring, position, end);
        if (CALL(cuMemcpyDtoHAsync_v2, arena->host + to + at, arena->address + from + at,
                 (next - position) / unit, arena->draining.stream) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

/* What was claimed: the flags before the records, which are then as new as the flags at least. */
static bool copy_records(struct arena *arena)
{
    struct draining *draining = &arena->draining;
    bool any = false;
    draining->hurried = false;
    EACH_RING(arena, ring)
    {
        uint64_t drained = draining->drained[ring.number], end = claimed(arena, &ring);
        draining->copied[ring.number] = end > drained ? end : drained;
        if (end <= drained)
            continue;
        any = true;
        draining->hurried |= end - drained > ring.map->ring_size / 4;
        atomic_store_explicit(word(arena, &ring, EGPU_RING_READER_AT_COPIED), drained,
                              memory_order_release);
        if (!copy_range(arena, &ring, ring.map->device_flags, ring.map->host_flags, GRANULE) ||
            !copy_range(arena, &ring, ring.map->device_data, ring.map->host_data, 1))
            return false;
    }
    draining->stage = any ? DRAIN_RECORDS : DRAIN_IDLE;
    return true;
}

/* Bytes of the group at a position, all of it before `end`; 0: it is not published, or is none. */
static uint64_t group(const struct arena *arena, const struct ring *ring, uint64_t position,
                      uint64_t end)
{
    uint64_t words[2], at = place(ring, position);
    uint64_t room = ring->map->ring_size - position % ring->map->ring_size;
    if (arena->host[ring->map->host_flags + at / GRANULE] == 0)
        return 0;
    memcpy(words, arena->host + ring->map->host_data + at, sizeof words);
    uint64_t size = words[0] & UINT32_MAX, count = words[0] >> 32, step = room;
    if (count != EGPU_RING_PAD_COUNT)
        step = (EGPU_RING_GROUP_HEADER + count * ((size + 7) & ~7ull) + 15) & ~15ull;
    bool whole = (words[1] & ~EGPU_RING_DISCARD) == position + 1 && count != 0 && step <= room;
    return whole && step <= end - position ? step : 0;
}

/* Zero bytes behind the copies of the map's control blocks. */
uint64_t egpu_ring_zeros(const struct egpu_ring *map)
{
    uint64_t flags = map->ring_size / GRANULE;
    return flags < EGPU_RING_ZEROS ? flags : EGPU_RING_ZEROS;
}

/* No producer has this room before the tail is written, which follows in the same stream.  Zeros are
 * copied: a memset may be a kernel, and would wait for one that fills the device. */
static bool clear_flags(struct arena *arena, const struct ring *ring, uint64_t position,
                        uint64_t end)
{
    const struct egpu_ring *map = ring->map;
    uint64_t most = egpu_ring_zeros(map) * GRANULE;
    const unsigned char *zeros = arena->host + map->host_controls +
                                 map->count * EGPU_RING_CONTROL_SIZE;
    for (uint64_t next; position < end; position = next) {
        next = piece(ring, position, end);
        if (next - position > most)
            next = position + most;
        CUdeviceptr flags = arena->address + map->device_flags + place(ring, position) / GRANULE;
        if (CALL(cuMemcpyHtoDAsync_v2, flags, zeros, (next - position) / GRANULE,
                 arena->draining.stream) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

/* What is published and was copied: to the reader. */
static bool give_out(struct arena *arena)
{
    struct draining *draining = &arena->draining;
    EACH_RING(arena, ring)
    {
        uint64_t drained = draining->drained[ring.number], end = draining->copied[ring.number];
        uint64_t position = drained, step;
        while (position < end && (step = group(arena, &ring, position, end)) != 0)
            position += step;
        if (!clear_flags(arena, &ring, drained, position))
            return false;
        draining->drained[ring.number] = position;
        atomic_store_explicit(word(arena, &ring, EGPU_RING_READER_AT_LIMIT), position,
                              memory_order_release);
        atomic_store_explicit(word(arena, &ring, EGPU_RING_READER_AT_COPIED), end,
                              memory_order_release);
    }
    draining->stage = DRAIN_IDLE;
    return true;
}

static void stop(struct arena *arena)
{
    arena->draining.stream = NULL;
    arena->draining.hurried = false;
    arena->draining.stage = DRAIN_IDLE;
    egpu_say("device %u: records can no longer be copied; those that find no room are dropped",
             arena->device.ordinal);
}

/* What follows a stage that is over. */
static bool advance(struct arena *arena)
{
    switch (arena->draining.stage) {
    case DRAIN_RECORDS:
        return give_out(arena);
    case DRAIN_HEADS:
        return copy_records(arena);
    default:
        return true;
    }
}

static bool begin(struct arena *arena)
{
    return copy_tails(arena) && copy_heads(arena);
}

/* The arena's context is current. */
void egpu_drain_turn(struct arena *arena)
{
    struct draining *draining = &arena->draining;
    CUresult result = CALL(cuStreamQuery, draining->stream);
    if (result == CUDA_ERROR_NOT_READY)
        return;
    if (result != CUDA_SUCCESS || !advance(arena) ||
        (draining->stage == DRAIN_IDLE && !begin(arena)))
        stop(arena);
}

/* Everything that is claimed now, while no kernel runs; waits for it, but not for ever. */
void egpu_drain_all(struct arena *arena, uint64_t deadline)
{
    const struct timespec nap = {0, 50000};
    struct draining *draining = &arena->draining;
    bool begun = false, done = false;
    while (draining->stream != NULL && !done && egpu_now() < deadline) {
        CUresult result = CALL(cuStreamQuery, draining->stream);
        if (result == CUDA_ERROR_NOT_READY) {
            nanosleep(&nap, NULL);
            continue;
        }
        bool good = result == CUDA_SUCCESS && advance(arena);
        done = good && begun && draining->stage == DRAIN_IDLE;
        if (good && !done && draining->stage == DRAIN_IDLE)
            good = begun = begin(arena);
        if (!good)
            stop(arena);
    }
}
