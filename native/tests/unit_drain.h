/* What the parts of agent_unit_drain share: a pretended device and host arena with maps of both kinds, the
 * first GROUPS with groups, the others with stamped slots. */
#ifndef EGPU_UNIT_DRAIN_H
#define EGPU_UNIT_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "../agent/agent.h"

enum { GROUPS = 2, MAPS = 4, SLOTS = 3, STREAMS = EGPU_LANES }; /* SLOTS: rings of a map */
/* ROOM: bytes that are enough for a ring of either kind. */
enum { ROOM = 4096, MAP_DEVICE = SLOTS * ROOM, MAP_FLAGS = MAP_DEVICE / EGPU_RING_GRANULE };
enum { DEVICE = 4096, DEVICE_END = DEVICE + MAPS * (MAP_DEVICE + MAP_FLAGS) };

extern unsigned char device[], host[];
extern struct egpu_ring rings[MAPS];

uint64_t random_below(uint64_t limit);
_Noreturn void bad(const char *what);
uint64_t *control(int map, int slot, unsigned offset);
unsigned char *at(int map, int slot, uint64_t position); /* on the device */
uint64_t content(uint64_t serial, uint64_t word);

/* Its words that the session reads: position, limit, copied. */
static inline uint64_t *reader_of(int map, int slot)
{
    return (uint64_t *)(void *)(host + rings[map].host_offset + slot * EGPU_READER_STRIDE);
}

/* unit_drain_driver.c: copies that are done a word at a time, in any order, when they are pumped. */
struct stream;

extern struct stream *const each_stream[STREAMS];
extern unsigned calls, fail, record_copies; /* `fail`: the call from which on copies fail, 0: none */
extern enum many { MANY_TAKEN, MANY_ABSENT, MANY_REFUSED } many; /* cuMemcpyBatchAsync */
extern bool said; /* something to the user */

void pump(struct stream *stream, uint64_t units);

/* unit_drain_slots.c: `map` is one with stamped slots. */
struct slot_counts {
    uint64_t laps, behind, taken, received, dropped; /* laps: of the ring that went round least */
};

void slots_shape(int map);
uint64_t slots_begin(int map); /* the position that a map's rings begin at */
void slots_produce(int map, int slot, bool begin);
void slots_check(int map, int slot, const unsigned char *record);
void slots_check_behind(int map, int slot);
struct slot_counts slots_counts(void);

#endif
