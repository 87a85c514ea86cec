/* Copies of what is claimed in rings in device memory, to the host arena: as few as can be, and in one
 * call of the driver where it has that. */
#include <stdlib.h>

#include "drain.h"

/* Bytes that are copied for nothing rather than in a copy more, which takes longer (about 2 us, or
 * 110 KB of an H200's link). */
#ifndef EGPU_NEAR
#define EGPU_NEAR (64 << 10)
#endif

/* No ring has more than two pieces. */
bool egpu_upload_begin(struct arena *arena, uint64_t rings)
{
    struct uploads *uploads = &arena->draining.uploads;
    uploads->to = calloc(2 * rings, sizeof *uploads->to);
    uploads->from = calloc(2 * rings, sizeof *uploads->from);
    uploads->sizes = calloc(2 * rings, sizeof *uploads->sizes);
    return uploads->to != NULL && uploads->from != NULL && uploads->sizes != NULL;
}

/* Bytes of a map of which others were wanted since there were `first` copies, none of them behind
 * these.  What lies near is copied with what lies between.  So bytes are copied that nobody asked for;
 * that does no harm.  Those that the reader may look at are the same on the device: their room is no
 * producer's before the tail moves.  The others it looks at only after they were asked for. */
static void want(struct arena *arena, size_t first, uint64_t to, uint64_t from, uint64_t size)
{
    struct uploads *uploads = &arena->draining.uploads;
    size_t last = uploads->count - 1;
    CUdeviceptr begin = arena->address + from;
    if (size == 0)
        return;
    if (uploads->count > first && begin - (uploads->from[last] + uploads->sizes[last]) <= EGPU_NEAR) {
        uploads->sizes[last] = begin + size - uploads->from[last];
        return;
    }
    uploads->to[uploads->count] = (CUdeviceptr)(uintptr_t)(arena->host + to);
    uploads->from[uploads->count] = begin;
    uploads->sizes[uploads->count++] = size;
}

/* From each ring what was claimed, of which `unit` bytes have `bytes` here, in the order of places. */
static void want_rings(struct arena *arena, const struct part *part, uint64_t to, uint64_t from,
                       uint64_t unit, uint64_t bytes)
{
    const struct draining *draining = &arena->draining;
    size_t first = draining->uploads.count;
    EACH_RING(*part, ring)
    {
        uint64_t begin = place(&ring, draining->drained[ring.number]) / unit * bytes;
        uint64_t claimed = draining->copied[ring.number] - draining->drained[ring.number];
        uint64_t start = ring.slot * ring.map->ring_size / unit * bytes;
        uint64_t stop = start + ring.map->ring_size / unit * bytes;
        uint64_t end = draining->copied[ring.number];
        if (claimed == 0)
            continue;
        end = start + end % ring.map->ring_size / unit * bytes;
        if (end <= begin) { /* it goes on at the ring's beginning */
            want(arena, first, to + start, from + start, end - start);
            end = stop;
        }
        want(arena, first, to + begin, from + begin, end - begin);
    }
}

void egpu_upload_flags(struct arena *arena, const struct part *part)
{
    want_rings(arena, part, part->map->host_flags, part->map->device_flags, SPAN, FLAG);
}

void egpu_upload_records(struct arena *arena, const struct part *part)
{
    want_rings(arena, part, part->map->host_data, part->map->device_data, 1, 1);
}

/* By copy engines: a copy by a kernel would wait for one that fills the device. */
static bool together(struct uploads *uploads, CUstream stream)
{
    CUmemcpyAttributes attributes = {
        .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE,
    };
    size_t begin = 0, failed;
    return CALL(cuMemcpyBatchAsync, uploads->to, uploads->from, uploads->sizes, uploads->count,
                &attributes, &begin, 1, &failed, stream) == CUDA_SUCCESS;
}

/* Copies what was wanted, in any order, behind what is in the stream.  A driver that does not take
 * many at once is not asked again; what it may have begun of them is copied twice. */
bool egpu_upload(struct arena *arena, CUstream stream)
{
    struct uploads *uploads = &arena->draining.uploads;
    size_t count = uploads->count;
    uploads->one_by_one |= count > 1 && !uploads->one_by_one && !together(uploads, stream);
    uploads->count = 0;
    for (size_t i = 0; i < count && (count == 1 || uploads->one_by_one); i++)
        if (CALL(cuMemcpyDtoHAsync_v2, (void *)(uintptr_t)uploads->to[i], uploads->from[i],
                 uploads->sizes[i], stream) != CUDA_SUCCESS)
            return false;
    return true;
}
