/* The device's clock against the host's: a kernel of one thread writes %globaltimer, and it did so
 * between two readings of CLOCK_MONOTONIC.  Only for sessions that ask for it. */
#include <string.h>

#include "agent.h"

enum { WAIT_NS = 500000000 };
enum { ROUNDS = 32 }; /* the closest pair of readings counts */

static const char TEXT[] = ".version 6.0\n"
                           ".target sm_70\n"
                           ".address_size 64\n"
                           ".visible .entry egpu_clock(.param .u64 to)\n"
                           "{\n"
                           "    .reg .b64 %a, %t;\n"
                           "    ld.param.u64 %a, [to];\n"
                           "    mov.u64 %t, %globaltimer;\n"
                           "    st.global.u64 [%a], %t;\n"
                           "    ret;\n"
                           "}\n";

static _Atomic uint64_t *word(struct arena *arena, unsigned offset)
{
    return (_Atomic uint64_t *)(void *)(arena->host + offset);
}

/* One comparison: the offset, and by how much it may be wrong; 0 if the device did not answer in
 * time (a kernel that fills it may wait for this very thread). */
static uint64_t compare(struct arena *arena, CUstream stream, uint64_t *offset)
{
    CUresult result;
    CUdeviceptr to = arena->host_address + EGPU_HOST_CONTROL_AT_CLOCK_SAMPLE;
    void *parameters[] = {&to};
    uint64_t before = egpu_now();
    if (CALL(cuLaunchKernel, arena->clock, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL))
        return 0;
    while ((result = CALL(cuStreamQuery, stream)) == CUDA_ERROR_NOT_READY)
        if (egpu_now() - before > WAIT_NS)
            return 0;
    uint64_t after = egpu_now();
    if (result != CUDA_SUCCESS)
        return 0;
    uint64_t sample = atomic_load(word(arena, EGPU_HOST_CONTROL_AT_CLOCK_SAMPLE));
    *offset = before + (after - before) / 2 - sample;
    return (after - before) / 2 + 1;
}

static uint64_t compare_best(struct arena *arena, uint64_t *offset)
{
    uint64_t best = 0, found = 0;
    CUstream stream; /* of its own: what waits on the arena's must not wait for this */
    if (CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t error = compare(arena, stream, &found);
        if (error == 0)
            return 0; /* the stream is left: it may still be busy */
        if (best == 0 || error < best) {
            best = error;
            *offset = found;
        }
    }
    CALL(cuStreamDestroy_v2, stream);
    return best;
}

/* When the arena is set up; without it the clock stays the device's own. */
void egpu_clock_begin(struct arena *arena)
{
    CUmodule module;
    uint64_t error = 0;
    arena->clock_offset = 0;
    if (!(egpu.features & EGPU_FEATURE_CLOCK))
        return;
    if (CALL(cuModuleLoadData, &module, TEXT) == CUDA_SUCCESS &&
        CALL(cuModuleGetFunction, &arena->clock, module, "egpu_clock") == CUDA_SUCCESS)
        error = compare_best(arena, &arena->clock_offset);
    if (error == 0) {
        arena->clock = NULL;
        arena->clock_offset = 0;
        egpu_say("device %u: its clock cannot be compared with the host's; bpf_ktime_get_ns gives "
                 "the device's own",
                 arena->device.ordinal);
        return;
    }
    arena->clock_compared = egpu_now();
    atomic_store(word(arena, EGPU_HOST_CONTROL_AT_CLOCK_OFFSET), arena->clock_offset);
    atomic_store(word(arena, EGPU_HOST_CONTROL_AT_CLOCK_ERROR), error);
}

/* Before the last snapshot, the device being idle: how far did the clocks go apart? */
void egpu_clock_end(struct arena *arena)
{
    uint64_t offset = 0, error;
    if (arena->clock == NULL || (error = compare_best(arena, &offset)) == 0)
        return;
    uint64_t first = atomic_load(word(arena, EGPU_HOST_CONTROL_AT_CLOCK_ERROR));
    atomic_store(word(arena, EGPU_HOST_CONTROL_AT_CLOCK_ERROR), error > first ? error : first);
    atomic_store(word(arena, EGPU_HOST_CONTROL_AT_CLOCK_DRIFT), offset - arena->clock_offset);
    atomic_store(word(arena, EGPU_HOST_CONTROL_AT_CLOCK_SPAN), egpu_now() - arena->clock_compared);
}
