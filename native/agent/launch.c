/* The launch path: no allocation, no lock, unless a kernel is seen for the first time. */
#include <string.h>

#include "agent.h"

enum form { KERNEL = EGPU_CALL_KERNEL, KERNEL_EX = EGPU_CALL_KERNEL_EX,
            COOPERATIVE = EGPU_CALL_COOPERATIVE };

/* The agent's own part of a launch: the time since it began, without the driver's. */
struct timing {
    uint64_t since, spent; /* CLOCK_MONOTONIC, ns; since 0: not timed */
};
enum { TIMED_EVERY = 64, TIMED_FIRST = 7 }; /* which probed launches are timed, by their id */

struct call {
    enum form form;
    bool ptsz;
    void *f;
    struct shape shape;
    CUstream stream;
    void **params, **extra;
    struct timing *timing; /* or NULL */
};

static CUresult call_driver(const struct call *c, void *f, void **params, void **extra)
{
    const struct shape *s = &c->shape;
    switch (c->form) {
    case KERNEL_EX:
        return c->ptsz ? CALL(cuLaunchKernelEx_ptsz, s->config, f, params, extra)
                       : CALL(cuLaunchKernelEx, s->config, f, params, extra);
    case COOPERATIVE:
        return c->ptsz ? CALL(cuLaunchCooperativeKernel_ptsz, f, s->grid[0], s->grid[1],
                              s->grid[2], s->block[0], s->block[1], s->block[2], s->shared,
                              c->stream, params)
                       : CALL(cuLaunchCooperativeKernel, f, s->grid[0], s->grid[1], s->grid[2],
                              s->block[0], s->block[1], s->block[2], s->shared, c->stream, params);
    case KERNEL:
        break;
    }
    return c->ptsz ? CALL(cuLaunchKernel_ptsz, f, s->grid[0], s->grid[1], s->grid[2], s->block[0],
                          s->block[1], s->block[2], s->shared, c->stream, params, extra)
                   : CALL(cuLaunchKernel, f, s->grid[0], s->grid[1], s->grid[2], s->block[0],
                          s->block[1], s->block[2], s->shared, c->stream, params, extra);
}

static CUresult issue(const struct call *c, void *f, void **params, void **extra)
{
    if (likely(c->timing == NULL))
        return call_driver(c, f, params, extra);
    c->timing->spent += egpu_now() - c->timing->since;
    CUresult result = call_driver(c, f, params, extra);
    c->timing->since = egpu_now();
    return result;
}

static bool captured(const struct call *c)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUstream stream = c->ptsz && c->stream == NULL ? CU_STREAM_PER_THREAD : c->stream;
    return CALL(cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void count(struct egpu_stats_slot *stats, const struct shape *s, CUresult result,
                  bool capture, bool probed, uint32_t reason)
{
    uint64_t blocks = (uint64_t)s->grid[0] * s->grid[1] * s->grid[2];
    uint64_t threads = blocks * s->block[0] * s->block[1] * s->block[2];
    if (unlikely(result != CUDA_SUCCESS)) {
        egpu_add(&stats->failed, 1);
        return;
    }
    if (!probed && reason != EGPU_REASON_UNMATCHED) /* that one is what remains */
        egpu_add(&stats->not_probed[reason], 1);
    if (capture) {
        egpu_add(&stats->captured, 1);
        if (probed)
            egpu_add(&stats->captured_probed, 1);
        return;
    }
    egpu_add(&stats->launches, 1);
    egpu_add(&stats->threads, threads);
    egpu_add(&stats->blocks, blocks);
    if (probed) {
        egpu_add(&stats->probed, 1);
        egpu_add(&stats->probed_threads, threads);
        egpu_add(&stats->probed_blocks, blocks);
    }
}

/* Packed parameters: finds buffer and size; false for what is not understood. */
static bool packed(void **extra, void **buffer, size_t *size)
{
    size_t *size_at = NULL;
    *buffer = NULL;
    for (int i = 0; i < 8; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_END)
            break;
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size_at = extra[i + 1];
        else
            return false;
    }
    *size = size_at != NULL ? *size_at : 0;
    return size_at != NULL && (*buffer != NULL || *size == 0);
}

/* Packed parameters as pointers, of which a graph node keeps a copy each: read back they are what
 * the program set, without the launch block.  False for what is not understood. */
bool egpu_unpacked(const struct twin *twin, void **extra, void **params)
{
    void *buffer;
    size_t size;
    if (!packed(extra, &buffer, &size))
        return false;
    for (uint32_t i = 0; i < twin->parameters; i++) {
        size_t offset, bytes;
        if (CALL(cuFuncGetParamInfo, twin->function, i, &offset, &bytes) != CUDA_SUCCESS ||
            offset + bytes > size)
            return false;
        params[i] = (char *)buffer + offset;
    }
    return true;
}

static CUresult issue_packed(const struct call *c, const struct twin *twin, char *room,
                             const void *buffer, size_t size, const struct launch_block *block)
{
    size_t total = twin->hidden_offset + sizeof *block;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, room, CU_LAUNCH_PARAM_BUFFER_SIZE, &total,
                     CU_LAUNCH_PARAM_END};
    if (size != 0)
        memcpy(room, buffer, size);
    memset(room + size, 0, twin->hidden_offset - size);
    memcpy(room + twin->hidden_offset, block, sizeof *block);
    return issue(c, twin->function, NULL, extra);
}

/* Apart, so that only such a launch has the large frame. */
static __attribute__((noinline)) CUresult issue_large(const struct call *c,
                                                      const struct twin *twin, const void *buffer,
                                                      size_t size,
                                                      const struct launch_block *block)
{
    char room[MAX_PACKED + sizeof *block] __attribute__((aligned(16)));
    return issue_packed(c, twin, room, buffer, size, block);
}

static __attribute__((noinline)) CUresult issue_small(const struct call *c,
                                                      const struct twin *twin, const void *buffer,
                                                      size_t size,
                                                      const struct launch_block *block)
{
    char room[4096 + sizeof *block] __attribute__((aligned(16)));
    return issue_packed(c, twin, room, buffer, size, block);
}

static __attribute__((noinline)) CUresult issue_pointers(const struct call *c,
                                                         const struct twin *twin,
                                                         struct launch_block *block)
{
    void *params[MAX_PARAMETERS + 1];
    if (twin->parameters != 0)
        memcpy(params, c->params, twin->parameters * sizeof *params);
    params[twin->parameters] = block;
    return issue(c, twin->function, params, NULL);
}

/* Into a graph. */
static __attribute__((noinline)) bool issue_unpacked(const struct call *c, const struct twin *twin,
                                                     struct launch_block *block, CUresult *result)
{
    void *params[MAX_PARAMETERS + 1];
    if (!egpu_unpacked(twin, c->extra, params))
        return false;
    params[twin->parameters] = block;
    *result = issue(c, twin->function, params, NULL);
    return true;
}

/* Launches the twin; false if the parameters came in a form that cannot be extended. */
static bool issue_twin(const struct call *c, const struct twin *twin, struct launch_block *block,
                       CUresult *result)
{
    bool capture = (block->flags & EGPU_LAUNCH_FLAG_CAPTURED) != 0;
    void *buffer;
    size_t size;
    if (c->extra == NULL) {
        if (c->params == NULL && twin->parameters != 0)
            return false; /* the driver will refuse it */
        *result = issue_pointers(c, twin, block);
        return true;
    }
    if (c->params != NULL || c->form == COOPERATIVE || !packed(c->extra, &buffer, &size) ||
        size > twin->hidden_offset)
        return false;
    if (capture)
        return issue_unpacked(c, twin, block, result);
    *result = twin->hidden_offset <= 4096 ? issue_small(c, twin, buffer, size, block)
                                          : issue_large(c, twin, buffer, size, block);
    return true;
}

/* Starts timing one launch in TIMED_EVERY, if it will not wait for its twin. */
static void start_timing(struct call *c, struct timing *timing)
{
    uint64_t id = atomic_load_explicit(&egpu.launch_id, memory_order_relaxed);
    if (id % TIMED_EVERY == TIMED_FIRST) {
        timing->since = egpu_now();
        c->timing = timing;
    }
}

static void end_timing(struct call *c)
{
    if (likely(c->timing == NULL))
        return;
    egpu_add(&egpu.stats->timed_ns, c->timing->spent + egpu_now() - c->timing->since);
    egpu_add(&egpu.stats->timed, 1);
    c->timing = NULL;
}

static __attribute__((noinline)) CUresult launch_matched(struct call *c, struct entry *entry)
{
    uint32_t reason = EGPU_REASON_DETACHED;
    struct timing timing = {0, 0};
    CUresult result;
    start_timing(c, &timing);
    bool capture = captured(c);
    struct variant *variant = egpu_variant(entry, capture);
    if (variant != NULL && !egpu_settled(variant))
        c->timing = NULL; /* it is about to wait, which is counted by itself */
    struct twin *twin = variant != NULL ? egpu_twin(entry, variant, &reason) : NULL;
    struct egpu_stats_slot *stats = entry->stats;
    if (twin != NULL && atomic_load_explicit(&twin->arena->state, memory_order_acquire) !=
                            ARENA_READY) {
        reason = EGPU_REASON_ARENA;
        twin = NULL;
    }
    if (twin != NULL && !capture && egpu.sample > 1 &&
        atomic_fetch_add_explicit(&entry->turn, 1, memory_order_relaxed) % egpu.sample != 0) {
        reason = EGPU_REASON_SAMPLED;
        twin = NULL;
    }
    if (twin != NULL && egpu_fits(twin, &c->shape, stats, &reason)) {
        struct launch_block block = {
            twin->arena->address, twin->arena->host_address,
            atomic_fetch_add_explicit(&egpu.launch_id, 1, memory_order_relaxed) + 1,
            twin->kernel_id,
            (capture ? EGPU_LAUNCH_FLAG_CAPTURED : 0) | egpu_stack() << EGPU_LAUNCH_STACK_SHIFT |
                EGPU_LAYOUT_VERSION << 24};
        egpu_keep_stack(&block);
        bool tried = issue_twin(c, twin, &block, &result);
        if (likely(tried && result == CUDA_SUCCESS)) {
            count(stats, &c->shape, result, capture, true, 0);
            end_timing(c);
            return result;
        }
        /* What the driver refuses of a twin it may take of the original; what the program did wrong
         * it refuses of both. */
        reason = tried ? EGPU_REASON_RESOURCES : EGPU_REASON_PARAMETERS;
    }
    c->timing = NULL;
    result = issue(c, c->f, c->params, c->extra);
    count(stats, &c->shape, result, capture, false, reason);
    return result;
}

static CUresult launch(struct call *c)
{
    if (atomic_load_explicit(&egpu.phase, memory_order_acquire) == PHASE_INERT)
        return issue(c, c->f, c->params, c->extra);
    struct entry *entry = egpu_find(c->f);
    if (unlikely(entry == NULL)) {
        struct quiet quiet = egpu_quiet();
        entry = egpu_learn(c->f);
        egpu_loud(quiet);
    }
    if (unlikely(entry != NULL && entry->kind == HANDLE_TWIN)) {
        entry = entry->owner->entry; /* read out of a graph by a call that no hook translates */
        c->f = entry->handle;
    }
    if (unlikely(entry == NULL)) {
        CUresult result = issue(c, c->f, c->params, c->extra);
        count(egpu.slots, &c->shape, result, false, false, EGPU_REASON_REFUSED);
        return result;
    }
    uint32_t epoch = atomic_load_explicit(&egpu.epoch, memory_order_relaxed);
    if (atomic_load_explicit(&entry->unmatched, memory_order_acquire) != epoch + 1)
        return launch_matched(c, entry);
    CUresult result = issue(c, c->f, c->params, c->extra);
    count(entry->stats, &c->shape, result, false, false, EGPU_REASON_UNMATCHED);
    return result;
}

/* With the programs that the session runs around it, if it has any. */
static CUresult launch_watched(struct call *c)
{
    uint32_t features =
        atomic_load_explicit(&egpu.phase, memory_order_acquire) == PHASE_LIVE ? egpu.features : 0;
    if (unlikely(features & EGPU_FEATURE_HOST_ENTRY))
        egpu_host_call((enum egpu_launch_call)c->form, false);
    CUresult result = launch(c);
    if (unlikely(features & EGPU_FEATURE_HOST_EXIT))
        egpu_host_call((enum egpu_launch_call)c->form, true);
    return result;
}

static CUresult launch_plain(enum form form, bool ptsz, CUfunction f, const unsigned *grid,
                             const unsigned *block, unsigned shared, CUstream stream,
                             void **params, void **extra)
{
    struct call c = {.form = form, .ptsz = ptsz, .f = f, .stream = stream, .params = params,
                     .extra = extra};
    memcpy(c.shape.grid, grid, sizeof c.shape.grid);
    memcpy(c.shape.block, block, sizeof c.shape.block);
    c.shape.shared = shared;
    c.shape.cooperative = form == COOPERATIVE;
    return launch_watched(&c);
}

#define PLAIN(form, ptsz, extra)                                                                   \
    launch_plain(form, ptsz, f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared,        \
                 stream, params, extra)

CUresult cuLaunchKernel LAUNCH_PARAMETERS
{
    return PLAIN(KERNEL, false, extra);
}

CUresult cuLaunchKernel_ptsz LAUNCH_PARAMETERS
{
    return PLAIN(KERNEL, true, extra);
}

CUresult cuLaunchCooperativeKernel COOPERATIVE_PARAMETERS
{
    return PLAIN(COOPERATIVE, false, NULL);
}

CUresult cuLaunchCooperativeKernel_ptsz COOPERATIVE_PARAMETERS
{
    return PLAIN(COOPERATIVE, true, NULL);
}

static CUresult launch_ex(bool ptsz, const CUlaunchConfig *config, CUfunction f, void **params,
                          void **extra)
{
    struct call c = {.form = KERNEL_EX, .ptsz = ptsz, .f = f, .params = params, .extra = extra};
    c.shape.config = config;
    if (config == NULL)
        return issue(&c, f, params, extra);
    c.stream = config->hStream;
    c.shape = (struct shape){{config->gridDimX, config->gridDimY, config->gridDimZ},
                             {config->blockDimX, config->blockDimY, config->blockDimZ},
                             config->sharedMemBytes, false, config, {0, 0, 0}};
    for (unsigned i = 0; config->attrs != NULL && i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            c.shape.cooperative = attribute->value.cooperative != 0;
        else if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            memcpy(c.shape.cluster, &attribute->value.cluster, sizeof c.shape.cluster);
    }
    return launch_watched(&c);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    return launch_ex(false, config, f, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params,
                               void **extra)
{
    return launch_ex(true, config, f, params, extra);
}

/* Forms that carry no hidden parameter: counted, never probed. */
static CUresult other(CUresult result)
{
    if (result == CUDA_SUCCESS &&
        atomic_load_explicit(&egpu.phase, memory_order_acquire) != PHASE_INERT) {
        egpu_add(&egpu.slots->launches, 1);
        egpu_add(&egpu.slots->not_probed[EGPU_REASON_FORM], 1);
    }
    return result;
}

CUresult cuLaunch(CUfunction f)
{
    return other(CALL(cuLaunch, f));
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
    return other(CALL(cuLaunchGrid, f, width, height));
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
    return other(CALL(cuLaunchGridAsync, f, width, height, stream));
}

CUresult cuLaunchCooperativeKernelMultiDevice(void *list, unsigned number, unsigned flags)
{
    return other(CALL(cuLaunchCooperativeKernelMultiDevice, list, number, flags));
}
