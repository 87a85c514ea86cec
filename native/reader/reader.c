/* Takes records out of a map's rings: what egpu.maps.ringbuf does in Python, by the protocol of
 * egpu.maps.layout, for one reader at a time. */
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "layout.h"

/* A map's rings, one for each slot, the reader's position in each, and where records go. */
struct egpu_rings {
    unsigned char *data, *readers;
    uint64_t *positions;
    unsigned char *out;
    uint64_t ring_size, out_size;
    uint64_t limited; /* not 0: no further than the readers' limits */
    uint64_t stamped; /* not 0: rings of stamped slots, with records of so many bytes */
};

/* Records of one size that were next to each other. */
struct egpu_taken {
    uint64_t slot, size, count, bytes, discarded;
};

/* What stands at a position. */
struct group {
    uint64_t *words;
    uint64_t size, count, step; /* of one record; records; bytes of the group, 0: there is none yet */
    bool given;                 /* neither filler nor discarded */
};

enum { WORD = 8, WORDS_BY_HAND = 16 };

static _Atomic uint64_t *word(void *at)
{
    return at;
}

static struct group look(unsigned char *ring, uint64_t ring_size, uint64_t position)
{
    uint64_t at = position & (ring_size - 1), room = ring_size - at;
    uint64_t *words = (uint64_t *)(void *)(ring + at);
    uint64_t commit = atomic_load_explicit(word(words + 1), memory_order_acquire);
    struct group group = {.words = words};
    if (position % EGPU_RING_GROUP_HEADER != 0 || (commit & ~EGPU_RING_DISCARD) != position + 1)
        return group;
    /* Written with the commit word, by one store or before it: 0 until it is there. */
    uint64_t shape = atomic_load_explicit((_Atomic uint64_t *)(void *)words, memory_order_relaxed);
    group.size = shape & UINT32_MAX;
    group.count = shape >> 32;
    if (group.count == EGPU_RING_PAD_COUNT) {
        group.step = room;
        return group;
    }
    uint64_t records = group.count * ((group.size + 7) & ~7ull); /* with its header below 2^64 */
    uint64_t step = (EGPU_RING_GROUP_HEADER + records + 15) & ~15ull;
    if (group.size != 0 && group.count != 0 && step <= room)
        group.step = step;
    group.given = !(commit & EGPU_RING_DISCARD);
    return group;
}

/* Copies and clears.  What is short is done by words: it has no time for a call. */
static void move(unsigned char *to, uint64_t *from, uint64_t bytes)
{
    if (bytes > WORDS_BY_HAND * WORD) {
        memcpy(to, from, bytes);
        memset(from, 0, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes / WORD; i++) {
        memcpy(to + i * WORD, from + i, WORD);
        from[i] = 0;
    }
}

/* Whether a group that is there can be put beside what was taken. */
static bool fits(const struct egpu_rings *rings, const struct egpu_taken *taken,
                 const struct group *group)
{
    uint64_t bytes = group->step - EGPU_RING_GROUP_HEADER;
    return (taken->count == 0 || taken->size == group->size) &&
           taken->bytes + bytes <= rings->out_size;
}

/* Puts what `group` holds beside what was taken, and clears its room, but for what rounds it up: nobody
 * writes there. */
static void take(const struct egpu_rings *rings, struct egpu_taken *taken, const struct group *group)
{
    uint64_t bytes = group->count * ((group->size + 7) & ~7ull);

    move(rings->out + taken->bytes, group->words + EGPU_RING_GROUP_HEADER / WORD, bytes);
    group->words[0] = group->words[1] = 0;
    taken->size = group->size;
    taken->count += group->count;
    taken->bytes += bytes;
}

/* What was read is free from here on. */
static void free_room(const struct egpu_rings *rings, uint64_t slot, uint64_t position)
{
    unsigned char *reader = rings->readers + slot * EGPU_READER_STRIDE;
    rings->positions[slot] = position;
    atomic_store_explicit(word(reader + EGPU_RING_READER_AT_POSITION), position,
                          memory_order_release);
}

static uint64_t limit_of(const struct egpu_rings *rings, uint64_t slot)
{
    unsigned char *reader = rings->readers + slot * EGPU_READER_STRIDE;
    return atomic_load_explicit(word(reader + EGPU_RING_READER_AT_LIMIT), memory_order_acquire);
}

/* Whether something is there that cannot be put beside what was taken. */
static bool take_slot(const struct egpu_rings *rings, struct egpu_taken *taken)
{
    unsigned char *ring = rings->data + taken->slot * rings->ring_size;
    uint64_t start = rings->positions[taken->slot], position = start;
    uint64_t limit = rings->limited ? limit_of(rings, taken->slot) : UINT64_MAX;
    struct group group = {0};

    while (position < limit && (group = look(ring, rings->ring_size, position)).step != 0) {
        if (group.given && !fits(rings, taken, &group))
            break;
        if (group.given) {
            take(rings, taken, &group);
        } else {
            taken->discarded += group.count == EGPU_RING_PAD_COUNT ? 0 : group.count;
            memset(group.words, 0, group.step);
        }
        position += group.step;
        group.step = 0;
    }
    if (position != start)
        free_room(rings, taken->slot, position);
    return group.step != 0;
}

/* Slots of one lap: how many bytes each has, and words its record; the stamp of the first one, and the
 * lowest bit of every word. */
struct lap {
    uint64_t stride, words;
    uint32_t stamp;
    uint64_t parity;
};

/* Records of the slots that are whole, one after the other with their lowest bits, up to the first slot
 * that is not: how many.  A word that is not of this lap is of the one before, or 0 as no odd lap comes
 * first: either way its lowest bit is the other. */
static uint64_t put_slots(unsigned char *to, const unsigned char *from, uint64_t count,
                          const struct lap *lap)
{
    for (uint64_t n = 0; n < count; n++, from += lap->stride) {
        _Atomic uint64_t *slot = (_Atomic uint64_t *)(void *)from;
        uint64_t first = atomic_load_explicit(slot, memory_order_relaxed), wrong = 0;
        for (uint64_t i = 0; i < lap->words; i++, to += WORD) {
            uint64_t value = atomic_load_explicit(slot + 1 + i, memory_order_relaxed);
            wrong |= value ^ lap->parity;
            value = (value & ~1ull) | (first >> i & 1);
            memcpy(to, &value, WORD);
        }
        if ((wrong & 1) != 0 || (uint32_t)(first >> 32) != (uint32_t)(lap->stamp + n))
            return n;
    }
    return count;
}

/* Takes records of stamped slots, as many as `out` has room for, and asks the agent for one that is not
 * whole.  Nothing is cleared: what is written there next tells itself from this. */
static void take_stamped(const struct egpu_rings *rings, struct egpu_taken *taken)
{
    unsigned char *ring = rings->data + taken->slot * rings->ring_size;
    unsigned char *reader = rings->readers + taken->slot * EGPU_READER_STRIDE;
    uint64_t size = rings->stamped, stride = (EGPU_RING_STAMP + size + 15) & ~15ull;
    uint64_t position = rings->positions[taken->slot], limit = limit_of(rings, taken->slot);
    uint64_t count = limit > position ? (limit - position) / stride : 0;
    uint64_t room = (rings->out_size - taken->bytes) / size;

    count = count < room ? count : room;
    while (count > 0) {
        uint64_t at = position % rings->ring_size, run = (rings->ring_size - at) / stride;
        struct lap lap = {stride, size / WORD, (uint32_t)(position / stride + 1),
                          1 - position / rings->ring_size % 2};
        run = run < count ? run : count;
        uint64_t whole = put_slots(rings->out + taken->bytes, ring + at, run, &lap);
        taken->size = size;
        taken->count += whole;
        taken->bytes += whole * size;
        position += whole * stride;
        count -= whole;
        if (whole < run) {
            atomic_store_explicit(word(reader + EGPU_RING_READER_AT_MISSING), position + 1,
                                  memory_order_relaxed);
            break;
        }
    }
    if (position != rings->positions[taken->slot])
        free_room(rings, taken->slot, position);
}

/* Takes records of the first slot from taken->slot to before `end` that has some; taken->slot is
 * `end` if none has.  taken->count is 0 before that if a group is larger than `out`. */
__attribute__((visibility("default"))) void egpu_rings_take(const struct egpu_rings *rings,
                                                            uint64_t end, struct egpu_taken *taken)
{
    for (; taken->slot < end; taken->slot++) {
        bool more = false;
        if (rings->stamped)
            take_stamped(rings, taken);
        else
            more = take_slot(rings, taken);
        if (more || taken->count != 0)
            return;
    }
}
