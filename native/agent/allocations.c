/* The process's device memory, so that probes read what is there and nothing else: a sorted table
 * per context in its arena (src/egpu/bpf/own_maps.py).  Only for sessions that ask for it.
 *
 * Memory leaves the table before the driver frees it.  A kernel that still holds the old table is
 * waited for by the driver itself: cuMemFree returns after the kernels that may use the memory.
 * Pools (cuMemFreeAsync) and mappings (cuMemUnmap) promise no such thing and are not in the table.
 *
 * Lock order: allocations before arena. */
#include <stdlib.h>
#include <string.h>

#include "agent.h"

struct allocation {
    uint64_t start, end;
    CUcontext context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *known; /* by start */
static size_t count, room;
static bool said;

static bool wanted(void)
{
    return atomic_load_explicit(&egpu.phase, memory_order_acquire) != PHASE_INERT &&
           (egpu.features & EGPU_FEATURE_ALLOCATIONS);
}

static size_t place_of(uint64_t start)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (known[middle].start < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(uint64_t start, uint64_t size, CUcontext context)
{
    if (count == room) {
        size_t more = room != 0 ? 2 * room : 256;
        struct allocation *grown = realloc(known, more * sizeof *grown);
        if (grown == NULL)
            return; /* not in the table: a probe that reads there gets -EFAULT */
        known = grown;
        room = more;
    }
    size_t at = place_of(start);
    memmove(known + at + 1, known + at, (count - at) * sizeof *known);
    known[at] = (struct allocation){start, start + size, context};
    count++;
}

/* The rows of a context; neighbours become one row. */
static uint64_t rows_of(CUcontext context, uint64_t (*rows)[2])
{
    uint64_t found = 0;
    for (size_t i = 0; i < count; i++) {
        if (known[i].context != context)
            continue;
        if (found != 0 && rows[found - 1][1] == known[i].start) {
            rows[found - 1][1] = known[i].end;
        } else if (found < EGPU_ALLOCATIONS_LIMIT) {
            rows[found][0] = known[i].start;
            rows[found++][1] = known[i].end;
        } else if (!said) {
            said = true;
            egpu_say("over %u allocations: probes cannot read the others", EGPU_ALLOCATIONS_LIMIT);
        }
    }
    return found;
}

/* Writes the half that is not in use, then the state; waits for both copies. */
static void write_table(struct arena *arena)
{
    uint64_t(*rows)[2] = calloc(EGPU_ALLOCATIONS_LIMIT, sizeof *rows);
    uint64_t half = ~(arena->allocations_state >> 16) & 1, version = arena->allocations_state >> 32;
    uint64_t at = arena->allocations + EGPU_ALLOCATIONS_HEADER +
                  half * EGPU_ALLOCATIONS_LIMIT * EGPU_ALLOCATIONS_ROW;
    uint64_t found = rows != NULL ? rows_of(arena->context, rows) : 0;
    uint64_t state = found | half << 16 | (version + 1) << 32;
    if ((found == 0 || CALL(cuMemcpyHtoDAsync_v2, arena->address + at, rows, found * sizeof *rows,
                            arena->stream) == CUDA_SUCCESS) &&
        CALL(cuMemcpyHtoDAsync_v2, arena->address + arena->allocations, &state, sizeof state,
             arena->stream) == CUDA_SUCCESS &&
        CALL(cuStreamSynchronize, arena->stream) == CUDA_SUCCESS)
        arena->allocations_state = state;
    free(rows);
}

/* With the allocations lock held. */
static void publish(CUcontext context)
{
    pthread_mutex_lock(&egpu.arena_lock);
    for (struct arena *arena = egpu_arenas(); arena != NULL; arena = arena->next)
        if (arena->context == context && arena->allocations != 0 &&
            atomic_load(&arena->state) == ARENA_READY)
            write_table(arena);
    pthread_mutex_unlock(&egpu.arena_lock);
}

static void allocated(CUdeviceptr address, size_t size)
{
    struct quiet quiet = egpu_quiet();
    CUcontext context = NULL;
    int mode = egpu_relax();
    pthread_mutex_lock(&lock);
    if (CALL(cuCtxGetCurrent, &context) == CUDA_SUCCESS && context != NULL && size != 0) {
        insert(address, size, context);
        publish(context);
    }
    pthread_mutex_unlock(&lock);
    egpu_restore(mode);
    egpu_loud(quiet);
}

static void freeing(CUdeviceptr address)
{
    struct quiet quiet = egpu_quiet();
    int mode = egpu_relax();
    pthread_mutex_lock(&lock);
    size_t at = place_of(address);
    if (at < count && known[at].start == address) {
        CUcontext context = known[at].context;
        memmove(known + at, known + at + 1, (count - at - 1) * sizeof *known);
        count--;
        publish(context);
    }
    pthread_mutex_unlock(&lock);
    egpu_restore(mode);
    egpu_loud(quiet);
}

/* A context is gone, and its memory with it. */
void egpu_allocations_drop(CUcontext context)
{
    size_t kept = 0;
    if (!wanted())
        return;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (known[i].context != context)
            known[kept++] = known[i];
    count = kept;
    pthread_mutex_unlock(&lock);
}

/* What there is when an arena becomes ready; not under the arena lock. */
void egpu_allocations_begin(struct arena *arena)
{
    if (!wanted() || arena->allocations == 0)
        return;
    pthread_mutex_lock(&lock);
    publish(arena->context);
    pthread_mutex_unlock(&lock);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    CUresult result = CALL(cuMemAlloc_v2, address, size);
    if (result == CUDA_SUCCESS && address != NULL && wanted())
        allocated(*address, size);
    return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                            unsigned element)
{
    CUresult result = CALL(cuMemAllocPitch_v2, address, pitch, width, height, element);
    if (result == CUDA_SUCCESS && address != NULL && pitch != NULL && wanted())
        allocated(*address, *pitch * height);
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
    CUresult result = CALL(cuMemAllocManaged, address, size, flags);
    if (result == CUDA_SUCCESS && address != NULL && wanted())
        allocated(*address, size);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    if (wanted())
        freeing(address);
    return CALL(cuMemFree_v2, address);
}
