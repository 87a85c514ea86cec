/* What the parts of agent_unit_drain share: a pretended device and host arena with maps of both kinds, the
 * first GROUPS with groups, the others with stamped slots. */
#ifndef EGPU_UNIT_DRAIN_H
#define EGPU_UNIT_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "../agent/agent.h"

enum { GROUPS = 2, MAPS = 4, SLOTS = 3 }; /* SLOTS: rings of a map */

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
