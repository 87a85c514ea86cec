/* Contexts that end take their arenas with them: last snapshot first, then nothing of the agent may
 * touch them. */
#include "agent.h"

static bool watching(void)
{
    return atomic_load_explicit(&egpu.phase, memory_order_acquire) != PHASE_INERT && egpu_mine();
}

static struct arena *arena_of(CUcontext context)
{
    struct arena *arena = egpu_arenas();
    while (arena != NULL &&
           (arena->context != context || atomic_load(&arena->state) == ARENA_GONE))
        arena = arena->next;
    return arena;
}

static struct arena *primary_of(CUdevice device)
{
    struct arena *arena = egpu_arenas();
    while (arena != NULL &&
           (!arena->primary || arena->device.ordinal != (uint32_t)device ||
            atomic_load(&arena->state) == ARENA_GONE))
        arena = arena->next;
    return arena;
}

static void unpin(struct arena *arena)
{
    CUcontext before = NULL;
    int mode = egpu_relax();
    CALL(cuCtxGetCurrent, &before);
    if (CALL(cuCtxSetCurrent, arena->context) == CUDA_SUCCESS)
        egpu_arena_close(arena, true);
    CALL(cuCtxSetCurrent, before);
    egpu_restore(mode);
}

static CUresult destroy(CUcontext context, CUresult (*real)(CUcontext))
{
    if (real == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (!watching() || context == NULL)
        return real(context);
    struct quiet quiet = egpu_quiet();
    egpu_finish(context);
    egpu_drop_context(context);
    egpu_allocations_drop(context);
    pthread_mutex_lock(&egpu.arena_lock);
    struct arena *arena = arena_of(context);
    if (arena != NULL) {
        if (atomic_exchange(&arena->state, ARENA_GONE) == ARENA_READY)
            unpin(arena);
    }
    CUresult result = real(context);
    pthread_mutex_unlock(&egpu.arena_lock);
    egpu_loud(quiet);
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    return destroy(context, REAL(cuCtxDestroy));
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    return destroy(context, REAL(cuCtxDestroy_v2));
}

/* A release ends the context only when it was the last; afterwards the driver says which it was. */
static CUresult let_go(CUdevice device, CUresult (*real)(CUdevice), bool reset)
{
    unsigned flags;
    int active = 0;
    if (real == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (!watching())
        return real(device);
    struct quiet quiet = egpu_quiet();
    struct arena *arena = primary_of(device);
    if (arena != NULL)
        egpu_finish(arena->context);
    if (reset)
        egpu_memory_primary_ended();
    pthread_mutex_lock(&egpu.arena_lock);
    CUresult result = real(device);
    bool ended = result == CUDA_SUCCESS &&
                 (CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS ||
                  !active);
    bool gone = ended && arena != NULL;
    if (gone) {
        egpu_arena_close(arena, false);
        atomic_store(&arena->state, ARENA_GONE);
    }
    pthread_mutex_unlock(&egpu.arena_lock);
    if (gone) {
        egpu_drop_context(arena->context);
        egpu_allocations_drop(arena->context);
    }
    if (ended)
        egpu_memory_primary_ended();
    egpu_loud(quiet);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return let_go(device, REAL(cuDevicePrimaryCtxRelease), false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return let_go(device, REAL(cuDevicePrimaryCtxRelease_v2), false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return let_go(device, REAL(cuDevicePrimaryCtxReset), true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return let_go(device, REAL(cuDevicePrimaryCtxReset_v2), true);
}
