/* Where in the workload launches come from.  Each stack is sent once and then named by a number,
 * which the launch block carries.  Only for sessions that ask for it: a walk takes microseconds. */
#include <execinfo.h>
#include <string.h>

#include "agent.h"

enum { DEPTH = 127, OWN = 8, TRIES = 64 };

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static _Atomic uint64_t seen[EGPU_STACKS_LIMIT]; /* hashes; a stack's number is its place */
static _Atomic bool told[EGPU_STACKS_LIMIT]; /* the session has it */
static _Atomic bool said;

static bool ours(const void *address)
{
    return (const char *)address >= __ehdr_start && (const char *)address < _end;
}

static uint64_t hash_of(const uint64_t *frames, int count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < count; i++) {
        hash = (hash ^ frames[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash | 1; /* 0 is an empty place */
}

static void send(uint32_t number, const uint64_t *frames, int count)
{
    const char *text = (const char *)frames;
    size_t size = (size_t)count * sizeof *frames;
    struct egpu_stack message = {.stack = number, .frames_size = (uint32_t)size};
    egpu_wire_send(EGPU_STACK, 0, &message, sizeof message, &text, &size, 1, -1);
}

/* The number of this thread's stack plus 1; 0 if there is none.  Whoever finds a stack that another
 * thread is about to send sends it too: what names it must not come before it. */
static uint32_t number_of(const uint64_t *frames, int count)
{
    uint64_t hash = hash_of(frames, count);
    for (uint32_t try = 0; try < TRIES; try++) {
        uint32_t place = (uint32_t)(hash + try) % EGPU_STACKS_LIMIT;
        uint64_t found = atomic_load_explicit(&seen[place], memory_order_acquire);
        if (found == 0 && atomic_compare_exchange_strong(&seen[place], &found, hash))
            found = hash;
        if (found != hash)
            continue;
        if (!atomic_load_explicit(&told[place], memory_order_acquire)) {
            send(egpu.stack_base + place, frames, count);
            atomic_store_explicit(&told[place], true, memory_order_release);
        }
        return egpu.stack_base + place + 1;
    }
    if (!atomic_exchange(&said, true))
        egpu_say("over %u different stacks: further ones are not kept", EGPU_STACKS_LIMIT);
    return 0;
}

/* Before the first launch: the C library loads its unwinder at the first walk. */
void egpu_stacks_begin(void)
{
    void *frames[1];
    if (egpu.features & EGPU_FEATURE_STACKS)
        backtrace(frames, 1);
}

/* Which stack a launch came from, for whoever has its id: the session reads the last ones. */
void egpu_keep_stack(const struct launch_block *block)
{
    uint64_t stack = block->flags >> EGPU_LAUNCH_STACK_SHIFT & EGPU_LAUNCH_STACK_MASK;
    if (likely(stack == 0 || egpu.launches == NULL))
        return;
    __atomic_store_n(&egpu.launches[block->launch_id % EGPU_LAUNCHES_KEPT],
                     block->launch_id << EGPU_LAUNCH_ID_SHIFT | stack, __ATOMIC_RELAXED);
}

uint32_t egpu_stack(void)
{
    void *walked[DEPTH + OWN];
    uint64_t frames[DEPTH];
    struct quiet quiet;
    int count, skipped = 0, kept = 0;
    if (likely(!(egpu.features & EGPU_FEATURE_STACKS)))
        return 0;
    quiet = egpu_quiet();
    count = backtrace(walked, DEPTH + OWN);
    for (int i = 0; i < count && i < OWN; i++) /* the walk itself may be in between */
        if (ours(walked[i]))
            skipped = i + 1;
    for (int i = skipped; i < count && kept < DEPTH; i++)
        frames[kept++] = (uint64_t)(uintptr_t)walked[i];
    uint32_t number = kept != 0 ? number_of(frames, kept) : 0;
    egpu_loud(quiet);
    return number;
}
