/* May this twin be launched in this shape?  Decided before launching: a launch that fails can break
 * a stream capture, and persistent kernels size their grids from the original's occupancy. */
#include "agent.h"

/* A cached decision is the shape's 61 bits and the verdict: 1 fits, 2 occupancy, 3 resources.
 * Threads 11 bits, shared memory 19 bits, cluster 3 x 5 bits, cooperative 1 bit. */
enum { FITS = 1, FEWER_BLOCKS = 2, TOO_LARGE = 3 };

static uint64_t key_of(const struct shape *s, uint64_t threads)
{
    if (threads >= 1 << 11 || s->shared >= 1 << 19 || s->cluster[0] >= 32 || s->cluster[1] >= 32 ||
        s->cluster[2] >= 32)
        return 0;
    return threads << 2 | (uint64_t)s->shared << 13 | (uint64_t)s->cluster[0] << 32 |
           (uint64_t)s->cluster[1] << 37 | (uint64_t)s->cluster[2] << 42 |
           (uint64_t)s->cooperative << 47;
}

static bool resident(CUfunction f, const struct shape *s, uint64_t threads, int *count)
{
    if (s->cluster[0] != 0)
        return CALL(cuOccupancyMaxActiveClusters, count, f, s->config) == CUDA_SUCCESS;
    return CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, count, f, (int)threads, s->shared) ==
           CUDA_SUCCESS;
}

/* For reports; STATS_SLOT_END of agent/protocol.py says which bits are what. */
static void note(struct egpu_stats_slot *stats, const struct shape *s, uint64_t threads,
                 int original, int ours)
{
    if (s->cluster[0] != 0 || original > UINT8_MAX || ours > UINT8_MAX)
        return; /* the driver counted clusters */
    uint64_t word = (uint64_t)s->shared | threads << 32 | (uint64_t)original << 48 |
                    (uint64_t)ours << 56;
    __atomic_store_n(&stats->resident, word, __ATOMIC_RELAXED);
}

static unsigned decide(const struct twin *twin, const struct shape *s, uint64_t threads,
                       struct egpu_stats_slot *stats)
{
    int original = 0, ours = 0;
    if (threads == 0 || threads > (uint64_t)twin->max_threads)
        return TOO_LARGE;
    if (!resident(twin->original, s, threads, &original) ||
        !resident(twin->function, s, threads, &ours))
        return TOO_LARGE; /* what cannot be told is not tried */
    note(stats, s, threads, original, ours);
    if (ours == 0)
        return TOO_LARGE;
    if (ours < original && !(twin->allow_occupancy && !s->cooperative))
        return FEWER_BLOCKS;
    return FITS;
}

bool egpu_fits(struct twin *twin, const struct shape *s, struct egpu_stats_slot *stats,
               uint32_t *reason)
{
    uint64_t threads = (uint64_t)s->block[0] * s->block[1] * s->block[2];
    uint64_t key = key_of(s, threads);
    _Atomic uint64_t *cell = &twin->shapes[(key * 0x9e3779b97f4a7c15u) >> 60 & (SHAPES - 1)];
    uint64_t cached = atomic_load_explicit(cell, memory_order_relaxed);
    unsigned verdict = key != 0 && (cached & ~3ull) == key ? (unsigned)(cached & 3) : 0;
    if (verdict == 0) {
        struct quiet quiet = egpu_quiet();
        int mode = egpu_relax();
        verdict = decide(twin, s, threads, stats);
        egpu_restore(mode);
        egpu_loud(quiet);
        if (key != 0)
            atomic_store_explicit(cell, key | verdict, memory_order_relaxed);
    }
    *reason = verdict == FEWER_BLOCKS ? EGPU_REASON_OCCUPANCY : EGPU_REASON_RESOURCES;
    return verdict == FITS;
}

static void apply(struct entry *entry, int attribute, int value)
{
    for (struct variant *v = atomic_load(&entry->variants); v != NULL; v = v->next) {
        struct twin *twin = atomic_load(&v->twin);
        if (twin == NULL)
            continue;
        int mode = egpu_relax();
        CUresult result = attribute >= 0
                              ? CALL(cuFuncSetAttribute, twin->function, attribute, value)
                              : CALL(cuFuncSetCacheConfig, twin->function, value);
        egpu_restore(mode);
        for (int i = 0; i < SHAPES; i++)
            atomic_store(&twin->shapes[i], 0);
        if (result != CUDA_SUCCESS && attribute >= 0) {
            atomic_store(&v->reason, EGPU_REASON_RESOURCES);
            atomic_store(&v->twin, NULL);
        }
    }
}

void egpu_set_attribute(struct entry *entry, int attribute, int value)
{
    if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTES)
        return;
    entry->value[attribute] = value;
    entry->set |= 1u << attribute;
    apply(entry, attribute, value);
}

void egpu_set_cache_config(struct entry *entry, int config)
{
    entry->cache_config = config;
    apply(entry, -1, config);
}
