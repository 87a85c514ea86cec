/* The process's device memory, so that probes read what is there and nothing else: a sorted table
 * per context in its arena (src/egpu/bpf/own_maps.py).  Only for sessions that ask for it.
 *
 * Memory leaves the table before the driver is asked to free it, and a change of the table returns
 * when no probe reads by the one before it.  So it does not matter whether the driver waits for
 * kernels (cuMemFree does, cuMemUnmap and cuMemFreeAsync do not): nothing that a probe may still
 * read by the table goes.  Probes never wait while they read, so neither does this for long.
 *
 * What is not known to be readable is not in the table.
 *
 * Lock order: allocations before arena. */
#include <stdlib.h>
#include <string.h>

#include "agent.h"

enum { WAIT_NS = 100000, MOST_DEVICES = 64 };
#define READERS_LIMIT_NS (10ull * 1000000000u)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *known; /* by start; they do not overlap */
static size_t count, room;
static bool said;

bool egpu_allocations_wanted(void)
{
    return atomic_load_explicit(&egpu.phase, memory_order_acquire) != PHASE_INERT &&
           (egpu.features & EGPU_FEATURE_ALLOCATIONS);
}

/* The first one that ends behind address. */
static size_t place_of(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (known[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t egpu_device_bit(int ordinal)
{
    return ordinal >= 0 && ordinal < MOST_DEVICES ? 1ull << ordinal : 0;
}

static bool readable_in(const struct allocation *one, const struct arena *arena)
{
    if (one->context != NULL)
        return one->context == arena->context;
    return (one->devices & egpu_device_bit((int)arena->device.ordinal)) != 0;
}

/* The tables in which it stands are to be written. */
static void changes(const struct allocation *one)
{
    for (struct arena *arena = egpu_arenas(); arena != NULL; arena = arena->next)
        if (readable_in(one, arena))
            arena->allocations_changed = true;
}

/* Whatever of [start, end) is known, and what reaches into it, is not any more. */
static void forget(uint64_t start, uint64_t end)
{
    size_t from = place_of(start), to = from;
    for (; to < count && known[to].start < end; to++)
        changes(&known[to]);
    if (to == from)
        return;
    memmove(known + from, known + to, (count - to) * sizeof *known);
    count -= to - from;
}

static void insert(const struct allocation *one)
{
    forget(one->start, one->end); /* its end was not seen, but this has taken its place */
    if (count == room) {
        size_t more = room != 0 ? 2 * room : 256;
        struct allocation *grown = realloc(known, more * sizeof *grown);
        if (grown == NULL)
            return; /* not in the table: a probe that reads there gets -EFAULT */
        known = grown;
        room = more;
    }
    size_t at = place_of(one->start);
    memmove(known + at + 1, known + at, (count - at) * sizeof *known);
    known[at] = *one;
    count++;
    changes(one);
}

/* The rows of an arena; neighbours become one row, so that a read may go from one to the next. */
static uint64_t rows_of(const struct arena *arena, uint64_t (*rows)[2])
{
    uint64_t found = 0;
    for (size_t i = 0; i < count; i++) {
        if (!readable_in(&known[i], arena))
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

/* How many probes read by that half; 0 if nobody will ever know. */
static uint64_t readers_of(const struct arena *arena, uint64_t half)
{
    static unsigned char stripes[(size_t)EGPU_ALLOCATIONS_STRIPES * EGPU_ALLOCATIONS_STRIDE];
    uint64_t readers = 0;
    if (CALL(cuMemcpyDtoHAsync_v2, stripes,
             arena->address + arena->allocations + EGPU_ALLOCATIONS_READERS,
             sizeof stripes, arena->stream) != CUDA_SUCCESS ||
        CALL(cuStreamSynchronize, arena->stream) != CUDA_SUCCESS)
        return 0; /* the context is lost: no probe runs in it */
    for (size_t i = 0; i < EGPU_ALLOCATIONS_STRIPES; i++) {
        uint64_t here;
        memcpy(&here, stripes + i * EGPU_ALLOCATIONS_STRIDE + half * sizeof here, sizeof here);
        readers += here;
    }
    return readers;
}

static void wait_for_readers(const struct arena *arena, uint64_t half)
{
    const struct timespec pause = {0, WAIT_NS};
    uint64_t until = egpu_now() + READERS_LIMIT_NS;
    while (readers_of(arena, half) != 0) {
        if (egpu_now() > until) {
            egpu_say("device %u: probes have not ended a read of the workload's memory in 10 s; "
                     "memory goes before they do",
                     arena->device.ordinal);
            return;
        }
        nanosleep(&pause, NULL);
    }
}

/* Writes the half that is not in use, then the state; waits for both copies, and until the other
 * half has no readers. */
static void write_table(struct arena *arena)
{
    size_t size = EGPU_ALLOCATIONS_LIMIT * EGPU_ALLOCATIONS_ROW;
    uint64_t before = arena->allocations_state >> 16 & 1, version = arena->allocations_state >> 32;
    uint64_t half = before ^ 1;
    uint64_t at = arena->allocations + EGPU_ALLOCATIONS_HEADER + half * size;
    void *rows = malloc(size); /* without it there are none */
    uint64_t found = rows != NULL ? rows_of(arena, rows) : 0;
    uint64_t state = found | half << 16 | (version + 1) << 32;
    if (found != 0 && CALL(cuMemcpyHtoDAsync_v2, arena->address + at, rows,
                           found * EGPU_ALLOCATIONS_ROW, arena->stream) != CUDA_SUCCESS)
        state &= ~0xffffull;
    if (CALL(cuMemcpyHtoDAsync_v2, arena->address + arena->allocations, &state, sizeof state,
             arena->stream) == CUDA_SUCCESS &&
        CALL(cuStreamSynchronize, arena->stream) == CUDA_SUCCESS) {
        arena->allocations_state = state;
        wait_for_readers(arena, before);
    }
    free(rows);
}

static bool to_write(const struct arena *arena)
{
    return arena->allocations_changed && atomic_load(&arena->state) == ARENA_READY &&
           arena->allocations != 0;
}

/* With the allocations lock held, in relaxed mode. */
static void publish(void)
{
    CUcontext before = NULL;
    struct arena *arena = egpu_arenas();
    while (arena != NULL && !to_write(arena))
        arena = arena->next;
    if (arena == NULL)
        return;
    pthread_mutex_lock(&egpu.arena_lock);
    CALL(cuCtxGetCurrent, &before);
    for (; arena != NULL; arena = arena->next) {
        if (!to_write(arena))
            continue;
        arena->allocations_changed = false;
        if (arena->context == before || CALL(cuCtxSetCurrent, arena->context) == CUDA_SUCCESS)
            write_table(arena);
        if (arena->context != before)
            CALL(cuCtxSetCurrent, before);
    }
    pthread_mutex_unlock(&egpu.arena_lock);
}

struct allocations_change egpu_allocations_change(void)
{
    struct allocations_change change = {.quiet = egpu_quiet()};
    change.mode = egpu_relax();
    pthread_mutex_lock(&lock);
    return change;
}

void egpu_allocations_changed(struct allocations_change change)
{
    publish();
    pthread_mutex_unlock(&lock);
    egpu_restore(change.mode);
    egpu_loud(change.quiet);
}

void egpu_allocations_add(struct allocation one)
{
    if (one.start == 0 || one.end <= one.start)
        return;
    struct allocations_change change = egpu_allocations_change();
    insert(&one);
    egpu_allocations_changed(change);
}

void egpu_allocations_remove(uint64_t start, uint64_t size)
{
    struct allocations_change change = egpu_allocations_change();
    forget(start, size <= UINT64_MAX - start ? start + size : UINT64_MAX);
    egpu_allocations_changed(change);
}

void egpu_allocations_each(uint64_t start, uint64_t end,
                           bool (*keep)(struct allocation *one, const void *what),
                           const void *what)
{
    size_t from = place_of(start), kept = from, i = from;
    for (; i < count && known[i].start < end; i++) {
        struct allocation one = known[i];
        bool stays = keep(&one, what);
        if (!stays || one.devices != known[i].devices)
            changes(&known[i]);
        if (!stays)
            continue;
        if (one.devices != known[i].devices)
            changes(&one);
        known[kept++] = one;
    }
    if (kept == i)
        return;
    memmove(known + kept, known + i, (count - i) * sizeof *known);
    count -= i - kept;
}

/* A context is gone, and its memory with it. */
void egpu_allocations_drop(CUcontext context)
{
    size_t kept = 0;
    if (!egpu_allocations_wanted())
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
    if (!egpu_allocations_wanted() || arena->allocations == 0)
        return;
    pthread_mutex_lock(&lock);
    arena->allocations_changed = true;
    publish();
    pthread_mutex_unlock(&lock);
}
