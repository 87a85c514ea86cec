/* What the agent's thread does with the arenas: reader positions down, snapshots up.  Everything
 * goes over private streams and waits for nothing of the workload. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

enum { DRAIN_NS = 50000, TICK_NS = 1000000, IDLE_NS = 100000000, WATCH_NS = 5000000 };

static uint32_t answer_to; /* request of the session's SNAPSHOT, thread only */
static bool answering;
static uint32_t unanswered;

static _Atomic uint64_t *control(struct arena *arena, unsigned offset)
{
    return (_Atomic uint64_t *)(void *)(arena->host + offset);
}

static bool alive(struct arena *arena)
{
    unsigned flags;
    int active = 1;
    if (arena->primary &&
        CALL(cuDevicePrimaryCtxGetState, (CUdevice)arena->device.ordinal, &flags, &active) == 0 &&
        !active)
        return false; /* reset by a call that no hook saw */
    return CALL(cuCtxSetCurrent, arena->context) == CUDA_SUCCESS;
}

/* Has a reader of this ring map moved?  Remembers where they are. */
static bool moved(struct arena *arena, const struct egpu_ring *ring, uint64_t *last)
{
    bool any = false;
    for (uint64_t n = 0; n < ring->count; n++) {
        uint64_t at = ring->host_offset + n * ring->host_stride;
        uint64_t now = atomic_load_explicit((_Atomic uint64_t *)(void *)(arena->host + at),
                                            memory_order_acquire);
        any |= now != last[n];
        last[n] = now;
    }
    return any;
}

/* One copy per ring map whose readers have moved; drain.c does it for those in device memory. */
static bool copy_positions(struct arena *arena)
{
    uint64_t *last = arena->positions;
    for (uint32_t i = 0; i < arena->ring_count; i++) {
        const struct egpu_ring *ring = &arena->rings[i];
        bool wanted = ring->ring_size == 0 && moved(arena, ring, last);
        last += ring->count;
        if (!wanted)
            continue;
        CUDA_MEMCPY2D_v2 copy = {
            .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = arena->host + ring->host_offset,
            .srcPitch = ring->host_stride, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
            .dstDevice = arena->address + ring->device_offset, .dstPitch = ring->device_stride,
            .WidthInBytes = sizeof(uint64_t), .Height = ring->count,
        };
        if (!alive(arena) || CALL(cuMemcpy2DAsync_v2, &copy, arena->stream) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

static bool begin(struct arena *arena)
{
    atomic_fetch_add(control(arena, EGPU_HOST_CONTROL_AT_SEQUENCE), 1); /* odd: being copied */
    arena->copying = true;
    arena->requested = false;
    return CALL(cuMemcpyDtoHAsync_v2, arena->host + arena->snapshot_offset, arena->address,
                arena->device_size, arena->stream) == CUDA_SUCCESS;
}

/* 1 done, 0 not yet, -1 the device no longer answers. */
static int end(struct arena *arena)
{
    CUresult result = CALL(cuStreamQuery, arena->stream);
    if (result == CUDA_ERROR_NOT_READY)
        return 0;
    if (result != CUDA_SUCCESS)
        return -1;
    atomic_store(control(arena, EGPU_HOST_CONTROL_AT_SNAPSHOT_TIME), egpu_now());
    atomic_fetch_add_explicit(control(arena, EGPU_HOST_CONTROL_AT_SEQUENCE), 1, memory_order_release);
    arena->copying = false;
    arena->snapshot_due = egpu_now() + egpu.snapshot_ms * 1000000ull;
    return 1;
}

/* A faulted device: the sequence stays odd over a torn copy, so no reader takes it. */
static void give_up(struct arena *arena)
{
    atomic_store_explicit(&arena->state, ARENA_FAILED, memory_order_release);
}

static bool tick(struct arena *arena, uint64_t now)
{
    if (!copy_positions(arena))
        return false;
    if (arena->draining.active) {
        if (!alive(arena))
            return false;
        egpu_drain_turn(arena);
    }
    bool due = egpu.snapshot_ms != 0 && now >= arena->snapshot_due;
    if (!arena->copying && !arena->requested && !due)
        return true; /* nothing to do: no driver call */
    if (!alive(arena) || (arena->copying && end(arena) < 0))
        return false;
    return arena->copying || !(arena->requested || due) || begin(arena);
}

static void answer(bool waiting, uint32_t ready)
{
    struct egpu_snapshot_done message = {ready, unanswered};
    if (!answering || waiting)
        return;
    answering = false;
    egpu_wire_send(EGPU_SNAPSHOT_DONE, answer_to, &message, sizeof message, NULL, NULL, 0, -1);
}

/* The thread's turn; gives how many ns it may sleep. */
uint64_t egpu_arena_tick(uint64_t now)
{
    uint64_t sleep = IDLE_NS;
    bool waiting = false;
    uint32_t ready = 0;
    pthread_mutex_lock(&egpu.arena_lock);
    for (struct arena *arena = egpu_arenas(); arena != NULL; arena = arena->next) {
        int state = atomic_load(&arena->state);
        if (state == ARENA_FAILED || state == ARENA_GONE)
            egpu_command_turn(arena);
        if (state != ARENA_READY)
            continue;
        if (!tick(arena, now) || (arena->command.kind != 0 && !alive(arena))) {
            give_up(arena);
            unanswered++;
            egpu_command_turn(arena);
            continue;
        }
        egpu_command_turn(arena);
        ready++;
        waiting |= arena->copying || arena->requested;
        bool busy = arena->ring_count != 0 || arena->copying || arena->command.kind != 0;
        uint64_t want = arena->draining.hurried ? DRAIN_NS : busy ? TICK_NS : WATCH_NS;
        sleep = want < sleep ? want : sleep;
    }
    pthread_mutex_unlock(&egpu.arena_lock);
    egpu_commands_answer();
    answer(waiting, ready);
    return sleep;
}

void egpu_snapshot_request(uint32_t request)
{
    pthread_mutex_lock(&egpu.arena_lock);
    for (struct arena *arena = egpu_arenas(); arena != NULL; arena = arena->next)
        if (atomic_load(&arena->state) == ARENA_READY)
            arena->requested = true;
    pthread_mutex_unlock(&egpu.arena_lock);
    if (request != 0) { /* from the session, on the thread; 0: a module is being unloaded */
        answer_to = request;
        answering = true;
        unanswered = 0;
    }
}

static bool finish_copy(struct arena *arena, uint64_t deadline)
{
    const struct timespec nap = {0, 50000};
    int done;
    while ((done = end(arena)) == 0 && egpu_now() < deadline)
        nanosleep(&nap, NULL);
    return done == 1;
}

/* Says that the snapshot just taken is the last of this arena, if it was copied whole. */
void egpu_snapshot_final(struct arena *arena)
{
    if (arena->complete)
        atomic_store((_Atomic uint32_t *)(void *)(arena->host + EGPU_HOST_CONTROL_AT_FINAL), 1);
}

/* A whole snapshot, waited for.  final: the process makes no other. */
void egpu_snapshot_now(struct arena *arena, uint64_t deadline, bool final)
{
    pthread_mutex_lock(&egpu.arena_lock);
    if (atomic_load(&arena->state) == ARENA_READY && alive(arena) && arena->draining.active)
        egpu_drain_all(arena, deadline);
    if (atomic_load(&arena->state) == ARENA_READY && alive(arena) &&
        (!arena->copying || finish_copy(arena, deadline)) && begin(arena) &&
        finish_copy(arena, deadline)) {
        arena->complete = true;
        if (final)
            egpu_snapshot_final(arena);
    } else if (atomic_load(&arena->state) == ARENA_READY) {
        arena->complete = false;
        egpu_say("device %u: no last snapshot; counts are those of the snapshot before",
                 arena->device.ordinal);
    }
    pthread_mutex_unlock(&egpu.arena_lock);
}

/* Begins or ends what the session wants done to the arena, which is in use. */
void egpu_commands(struct arena *arena)
{
    pthread_mutex_lock(&egpu.arena_lock);
    if (arena->command.kind != 0 && (atomic_load(&arena->state) != ARENA_READY || alive(arena)))
        egpu_command_turn(arena);
    pthread_mutex_unlock(&egpu.arena_lock);
    egpu_commands_answer();
}

/* The word that probes of captured launches test. */
void egpu_enable_all(uint32_t enabled)
{
    pthread_mutex_lock(&egpu.arena_lock);
    for (struct arena *arena = egpu_arenas(); arena != NULL; arena = arena->next) {
        if (atomic_load(&arena->state) != ARENA_READY || arena->host_enabled == enabled)
            continue;
        arena->host_enabled = enabled;
        if (!alive(arena) ||
            CALL(cuMemcpyHtoDAsync_v2, arena->address + EGPU_ARENA_HEADER_AT_ENABLED,
                 &arena->host_enabled, sizeof arena->host_enabled, arena->stream) != CUDA_SUCCESS)
            give_up(arena);
    }
    pthread_mutex_unlock(&egpu.arena_lock);
}
