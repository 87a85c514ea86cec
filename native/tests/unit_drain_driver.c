/* The driver that unit_drain.c pretends: what a copy brings is there word by word, in any order, and
 * nothing orders copies but their stream. */
#include <string.h>

#include "unit_drain.h"

enum { QUEUE = 256 };

struct job {
    unsigned char *to;
    const unsigned char *from;
    uint64_t size, unit, done, start, step, to_pitch, from_pitch;
};

struct stream {
    struct job queue[QUEUE];
    unsigned first, jobs;
};

unsigned calls, fail, record_copies;
enum many many;
bool said;

static struct stream streams[STREAMS];
static unsigned made;

struct stream *const each_stream[STREAMS] = {&streams[0], &streams[1]};
_Static_assert(STREAMS == 2, "each stream has its place in each_stream");

static CUresult add(CUstream handle, struct job job)
{
    static const uint64_t steps[] = {1, 7, 11, 13};
    struct stream *stream = (void *)handle;
    if (++calls >= fail && fail != 0)
        return 700;
    if (stream->jobs == QUEUE)
        bad("queue full");
    uint64_t count = job.size / job.unit;
    job.start = random_below(count);
    job.step = steps[random_below(4)];
    if (count % 7 == 0 || count % 11 == 0 || count % 13 == 0)
        job.step = random_below(2) ? 1 : count - 1;
    stream->queue[(stream->first + stream->jobs++) % QUEUE] = job;
    return CUDA_SUCCESS;
}

void pump(struct stream *stream, uint64_t units)
{
    for (; units > 0 && stream->jobs > 0; units--) {
        struct job *job = &stream->queue[stream->first];
        uint64_t count = job->size / job->unit;
        uint64_t at = (job->start + job->done * job->step) % count;
        unsigned char *to = job->to + at * job->to_pitch;
        memcpy(to, job->from + at * job->from_pitch, job->unit);
        if (++job->done == count) {
            stream->first = (stream->first + 1) % QUEUE;
            stream->jobs--;
        }
    }
}

/* Rings of slots have no flags: theirs are said to be where nothing is. */
static void check_place(CUdeviceptr place, size_t size)
{
    CUdeviceptr begin = (CUdeviceptr)(uintptr_t)device;
    if (place < begin || size > DEVICE_END || place - begin > DEVICE_END - size)
        bad("a copy of what is not on the device");
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    check_place(from, size);
    record_copies += from >= (CUdeviceptr)(uintptr_t)(device + DEVICE);
    uint64_t unit = (size | (uintptr_t)to | from) % 8 == 0 ? 8 : EGPU_RING_FLAG_SIZE;
    return add(stream, (struct job){.to = to, .from = (unsigned char *)(uintptr_t)from, .size = size,
                                    .unit = unit, .to_pitch = unit, .from_pitch = unit});
}

/* In any order, like the bytes of one copy.  Drivers before 12.8 do not have it; others may refuse. */
static CUresult copy_many(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                          CUmemcpyAttributes *attributes, size_t *firsts, size_t attribute_count,
                          size_t *failed, CUstream stream)
{
    if (attribute_count != 1 || *firsts != 0 || failed == NULL || count == 0 ||
        attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        bad("arguments that no driver takes");
    uint64_t at = random_below(count);
    for (size_t i = 0; i < count; i++, at = (at + 1) % count) {
        if (many == MANY_REFUSED && i > 0)
            return CUDA_ERROR_INVALID_VALUE;
        CUresult result = copy_out((void *)(uintptr_t)to[at], from[at], sizes[at], stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static CUresult copy_words(const CUDA_MEMCPY2D_v2 *copy, CUstream stream)
{
    return add(stream, (struct job){.to = (unsigned char *)(uintptr_t)copy->dstDevice,
                                    .from = copy->srcHost, .size = 8 * copy->Height, .unit = 8,
                                    .to_pitch = copy->dstPitch, .from_pitch = copy->srcPitch});
}

static CUresult copy_in(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    check_place(to, size);
    return add(stream, (struct job){.to = (unsigned char *)(uintptr_t)to, .from = from, .size = size,
                                    .unit = 1, .to_pitch = 1, .from_pitch = 1});
}

static CUresult query(CUstream handle)
{
    struct stream *stream = (void *)handle;
    pump(stream, random_below(200));
    return stream->jobs == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult create(CUstream *stream, unsigned flags)
{
    (void)flags;
    *stream = (CUstream)(void *)&streams[made++];
    return CUDA_SUCCESS;
}

void *egpu_real(enum egpu_entry_point point)
{
    switch (point) {
    case EP_cuMemcpyDtoHAsync_v2:
        return (void *)(uintptr_t)copy_out;
    case EP_cuMemcpyBatchAsync:
        return many == MANY_ABSENT ? NULL : (void *)(uintptr_t)copy_many;
    case EP_cuMemcpy2DAsync_v2:
        return (void *)(uintptr_t)copy_words;
    case EP_cuMemcpyHtoDAsync_v2:
        return (void *)(uintptr_t)copy_in;
    case EP_cuStreamQuery:
        return (void *)(uintptr_t)query;
    case EP_cuStreamCreate:
        return (void *)(uintptr_t)create;
    default:
        return NULL;
    }
}

void egpu_say(const char *format, ...)
{
    (void)format;
    said = true;
}

uint64_t egpu_now(void)
{
    static uint64_t now;
    return ++now;
}
