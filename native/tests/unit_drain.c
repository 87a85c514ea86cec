/* Producers on a pretended device, the agent's draining and the session's reader, in a random order
 * of their steps: copies are made word by word, in any order, while producers go on.
 *
 *     agent_unit_drain SEED STEPS FAIL     copies fail from the FAILth on (0: none does)
 *
 * Producers of maps with stamped slots are in unit_drain_slots.c, the driver in unit_drain_driver.c.
 *
 * With an even SEED groups begin at the same places in all laps but one of EGPU_RING_LAPS: a flag from
 * then, which is not written again, must not pass for one of the lap with the same number.
 *
 * Prints laps of the ring that went round least, groups found behind limits, records produced, received,
 * discarded and dropped; the same of stamped slots, none of which is discarded; exits with 1 at the first
 * record that is not what was written, or out of order, or missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../reader/reader.c"
#include "unit_drain.h"

/* RING: bytes of a ring of groups. */
enum { RING = 512, FLIGHT = 4, WORDS = 10, READERS = 4096, HOST_RINGS = 8192 };
enum { CONTROLS = SLOTS * EGPU_RING_CONTROL_SIZE, ZEROS = RING / EGPU_RING_GRANULE };

/* A group that a producer writes; words of all its records, written in order. */
struct flight {
    uint64_t position, size, count, serial, written;
    bool used, discard;
};

struct producer {
    struct flight flight[FLIGHT];
    uint64_t serial, produced, dropped, received, last;
};

_Alignas(16) unsigned char device[DEVICE_END];
_Alignas(16) unsigned char host[HOST_RINGS + MAPS * (MAP_DEVICE + MAP_FLAGS + CONTROLS + ZEROS)];
struct egpu_ring rings[MAPS];
static uint64_t read_to[MAPS][SLOTS];
static struct producer producers[GROUPS][SLOTS];
static uint64_t state, discarded, behind;
static bool regular;

uint64_t random_below(uint64_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % limit;
}

void bad(const char *what)
{
    printf("%s\n", what);
    exit(1);
}

/* ------------------------------------------------------------------ producers */

uint64_t *control(int map, int slot, unsigned offset)
{
    return (uint64_t *)(void *)(device + EGPU_ARENA_HEADER_SIZE / 4 + map * CONTROLS +
                                slot * EGPU_RING_CONTROL_SIZE + offset);
}

unsigned char *at(int map, int slot, uint64_t position)
{
    uint64_t size = rings[map].ring_size;
    return device + rings[map].device_data + slot * size + position % size;
}

static unsigned char *flag_at(int map, int slot, uint64_t position)
{
    uint64_t place = (slot * RING + position % RING) / EGPU_RING_FLAG_SPAN * EGPU_RING_FLAG_SIZE;
    return device + rings[map].device_flags + place;
}

/* The flag of a group without its granules. */
static unsigned flag_of(uint64_t position)
{
    uint64_t second = position % EGPU_RING_FLAG_SPAN == EGPU_RING_GRANULE;
    return (unsigned)(position / RING % EGPU_RING_LAPS << EGPU_RING_FLAG_LAP | second << 8);
}

/* A group that is not published must not look like one that is. */
static void check_flag(int map, int slot, uint64_t position)
{
    uint16_t found;
    memcpy(&found, flag_at(map, slot, position), sizeof found);
    if (found != 0 && (found & ~0xffu) == flag_of(position))
        bad("a flag of an earlier lap passes for this one's");
}

static void publish(int map, int slot, uint64_t position, uint64_t header, uint64_t mark,
                    uint64_t granules)
{
    uint64_t words[2] = {header, (position + 1) | mark};
    uint16_t flag = (uint16_t)(flag_of(position) | granules);
    memcpy(at(map, slot, position), words, sizeof words);
    memcpy(flag_at(map, slot, position), &flag, sizeof flag);
}

uint64_t content(uint64_t serial, uint64_t word)
{
    return word == 0 ? serial : (serial + 1) * 0x9e3779b97f4a7c15 + word;
}

static uint64_t group_bytes(uint64_t size, uint64_t count)
{
    return (EGPU_RING_GROUP_HEADER + size * count + 15) & ~15ull;
}

static struct flight *claim(int map, int slot)
{
    struct producer *producer = &producers[map][slot];
    struct flight *free = NULL;
    for (int i = 0; i < FLIGHT; i++)
        if (!producer->flight[i].used)
            free = &producer->flight[i];
    if (free == NULL)
        return NULL;
    uint64_t *head = control(map, slot, EGPU_RING_CONTROL_AT_HEAD);
    uint64_t tail = *control(map, slot, EGPU_RING_CONTROL_AT_TAIL);
    uint64_t size = 8 * (1 + random_below(WORDS)), count = 1 + random_below(3);
    if (regular) {
        size = *head / RING % EGPU_RING_LAPS == (uint64_t)slot ? 32 : 48;
        count = 1;
    }
    uint64_t bytes = group_bytes(size, count);
    uint64_t room = RING - *head % RING, filler = bytes > room ? room : 0, begin = *head;
    if (begin + filler + bytes - tail > RING) {
        producer->dropped += count;
        return NULL;
    }
    *head += filler + bytes;
    producer->produced += count;
    if (filler != 0)
        publish(map, slot, begin, (uint64_t)EGPU_RING_PAD_COUNT << 32, 0, EGPU_RING_FLAG_FILLER);
    check_flag(map, slot, begin + filler);
    *free = (struct flight){.position = begin + filler, .size = size, .count = count, .used = true,
                            .serial = producer->serial, .discard = random_below(8) == 0};
    producer->serial += count;
    return free;
}

/* One word of a group, or its publication. */
static void write_some(int map, int slot, struct flight *flight)
{
    uint64_t words = flight->size / 8, number = flight->written++;
    if (number < words * flight->count) {
        uint64_t value = content(flight->serial + number / words, number % words);
        memcpy(at(map, slot, flight->position + EGPU_RING_GROUP_HEADER + 8 * number), &value, 8);
        return;
    }
    uint64_t granules = group_bytes(flight->size, flight->count) / EGPU_RING_GRANULE;
    publish(map, slot, flight->position, flight->size | flight->count << 32,
            flight->discard ? EGPU_RING_DISCARD : 0,
            random_below(4) == 0 ? EGPU_RING_FLAG_LARGE : granules);
    flight->used = false;
}

static void produce(bool begin)
{
    int map = (int)random_below(MAPS), slot = (int)random_below(SLOTS);
    if (map >= GROUPS) {
        slots_produce(map, slot, begin);
        return;
    }
    struct flight *flight = &producers[map][slot].flight[random_below(FLIGHT)];
    if (begin && !flight->used)
        claim(map, slot);
    for (uint64_t n = random_below(6); n > 0 && flight->used; n--)
        write_some(map, slot, flight);
}

/* ------------------------------------------------------------------ the session */

static void check(struct producer *producer, const unsigned char *record, uint64_t size)
{
    uint64_t serial, word;
    memcpy(&serial, record, sizeof serial);
    if (serial < producer->last || serial >= producer->serial)
        bad("a record is torn or out of order");
    for (uint64_t i = 0; i < size / 8; i++) {
        memcpy(&word, record + 8 * i, sizeof word);
        if (word != content(serial, i))
            bad("a record is torn");
    }
    producer->last = serial + 1;
    producer->received++;
}

static void read_some(void)
{
    static unsigned char out[RING];
    int map = (int)random_below(MAPS);
    struct egpu_rings from = {.data = host + rings[map].host_data,
                              .readers = host + rings[map].host_offset,
                              .positions = read_to[map], .out = out,
                              .ring_size = rings[map].ring_size, .out_size = sizeof out,
                              .limited = 1, .stamped = rings[map].stamped};
    struct egpu_taken taken = {0};
    for (;;) {
        taken.count = taken.bytes = taken.discarded = 0;
        egpu_rings_take(&from, SLOTS, &taken);
        discarded += taken.discarded;
        if (taken.slot == SLOTS)
            return;
        for (uint64_t i = 0; i < taken.count; i++)
            if (map < GROUPS)
                check(&producers[map][taken.slot], out + i * taken.size, taken.size);
            else
                slots_check(map, (int)taken.slot, out + i * taken.size);
    }
}

/* If the workload were killed now: what the session would find behind its limit. */
static void check_behind(int map, int slot)
{
    if (map >= GROUPS) {
        slots_check_behind(map, slot);
        return;
    }
    const unsigned char *data = host + rings[map].host_data + slot * RING;
    const unsigned char *flags = host + rings[map].host_flags + slot * (RING / EGPU_RING_GRANULE);
    uint64_t *reader = reader_of(map, slot), words[2], serial, word;
    for (uint64_t at = reader[1]; at < reader[2]; at += EGPU_RING_GRANULE) {
        uint16_t found;
        memcpy(&found, flags + at % RING / EGPU_RING_FLAG_SPAN * EGPU_RING_FLAG_SIZE, sizeof found);
        memcpy(words, data + at % RING, sizeof words);
        uint64_t size = words[0] & UINT32_MAX, count = words[0] >> 32;
        if (found == 0 || (found & ~0xffu) != flag_of(at) || count == EGPU_RING_PAD_COUNT)
            continue;
        if ((words[1] & ~EGPU_RING_DISCARD) != at + 1)
            bad("a flag came before its group's header");
        for (uint64_t i = 0; i < size / 8 * count; i++) {
            const unsigned char *record = data + at % RING + EGPU_RING_GROUP_HEADER;
            record += i / (size / 8) * size;
            memcpy(&serial, record, sizeof serial);
            memcpy(&word, record + i % (size / 8) * 8, sizeof word);
            if (word != content(serial, i % (size / 8)))
                bad("a flag came before its group's records");
        }
        behind++;
    }
}

/* ------------------------------------------------------------------ the test */

static void lay_out(struct arena *arena)
{
    uint64_t on_device = DEVICE, on_host = HOST_RINGS;
    for (int map = 0; map < MAPS; map++) {
        uint64_t flags = DEVICE + MAPS * MAP_DEVICE + map * MAP_FLAGS;
        rings[map] = (struct egpu_ring){
            .host_offset = READERS + map * SLOTS * EGPU_READER_STRIDE,
            .host_stride = EGPU_READER_STRIDE,
            .device_offset = EGPU_ARENA_HEADER_SIZE / 4 + map * CONTROLS + EGPU_RING_CONTROL_AT_TAIL,
            .device_stride = EGPU_RING_CONTROL_SIZE, .count = SLOTS, .ring_size = RING,
            .host_data = on_host, .device_data = on_device, .host_flags = on_host + MAP_DEVICE,
            .device_flags = flags, .host_controls = on_host + MAP_DEVICE + MAP_FLAGS,
        };
        if (map >= GROUPS) {
            slots_shape(map);
            rings[map].device_flags = rings[map].host_flags = 1ull << 40;
        }
        on_host += MAP_DEVICE + MAP_FLAGS + CONTROLS + ZEROS;
        on_device += MAP_DEVICE;
    }
    arena->rings = rings;
    arena->ring_count = MAPS;
    arena->address = (CUdeviceptr)(uintptr_t)device;
    arena->host = host;
}

/* What nobody writes and nobody reads is not copied for ever, though the session found slots that were not
 * whole when it looked last. */
static void check_rest(struct arena *arena)
{
    enum { TURNS = 200, REST = 20 };
    unsigned before = 0;
    for (int i = 0; i < 20; i++)
        read_some();
    for (int turn = 0; turn < TURNS && arena->draining.active; turn++) {
        if (turn == TURNS - REST)
            before = record_copies;
        for (int i = 0; i < STREAMS; i++)
            pump(each_stream[i], UINT64_MAX);
        egpu_drain_turn(arena);
    }
    if (arena->draining.active && record_copies != before)
        bad("records are copied again and again");
}

/* Rings of slots may have gone round before. */
static void start(struct arena *arena)
{
    for (int map = GROUPS; map < MAPS; map++)
        for (int slot = 0; slot < SLOTS; slot++) {
            uint64_t at = slots_begin(map), *reader = reader_of(map, slot);
            reader[0] = reader[1] = reader[2] = read_to[map][slot] = at;
            arena->draining.drained[map * SLOTS + slot] = at;
            arena->draining.copied[map * SLOTS + slot] = at;
            *control(map, slot, EGPU_RING_CONTROL_AT_TAIL) = at;
            *control(map, slot, EGPU_RING_CONTROL_AT_HEAD) =
                at / ((rings[map].stamped + 8 + 15) & ~15ull);
        }
}

int main(int argc, char **argv)
{
    static uint64_t positions[MAPS * SLOTS];
    struct arena arena = {.positions = positions};
    if (argc != 4)
        return 2;
    state = strtoull(argv[1], NULL, 10) * 2654435761u + 88172645463325252u;
    many = strtoull(argv[1], NULL, 10) % 3;
    regular = strtoull(argv[1], NULL, 10) % 2 == 0;
    fail = (unsigned)strtoul(argv[3], NULL, 10);
    lay_out(&arena);
    if (egpu_drain_begin(&arena) != NULL)
        bad("no stream");
    start(&arena);
    for (uint64_t step = strtoull(argv[2], NULL, 10); step > 0; step--) {
        uint64_t what = random_below(100);
        if (what < 60)
            produce(true);
        else if (what < 85)
            pump(each_stream[random_below(STREAMS)], random_below(100));
        else if (what < 95 && arena.draining.active)
            egpu_drain_turn(&arena);
        else
            read_some();
        for (int i = 0; step % 16 == 0 && i < MAPS * SLOTS; i++)
            check_behind(i / SLOTS, i % SLOTS);
    }
    uint64_t produced = 0, dropped = 0, received = 0, laps = UINT64_MAX;
    for (int i = 0; i < 1000; i++) /* of which no head says anything yet */
        produce(true);
    for (int i = 0; i < 100000; i++)
        produce(false);
    check_rest(&arena);
    egpu_drain_all(&arena, UINT64_MAX);
    for (int i = 0; i < 100; i++)
        read_some();
    for (int map = 0; map < GROUPS; map++)
        for (int slot = 0; slot < SLOTS; slot++) {
            produced += producers[map][slot].produced;
            dropped += producers[map][slot].dropped;
            received += producers[map][slot].received;
            uint64_t round = *control(map, slot, EGPU_RING_CONTROL_AT_HEAD) / RING;
            laps = round < laps ? round : laps;
        }
    if (said != (fail != 0 && calls >= fail) || said == arena.draining.active)
        bad("a failure was not said");
    if (said ? received + discarded > produced : received + discarded != produced)
        bad("records are missing");
    struct slot_counts counts = slots_counts();
    if (said ? counts.received > counts.taken : counts.received != counts.taken)
        bad("slots are missing");
    uint64_t all[] = {laps, behind, produced, received, discarded, dropped, counts.laps,
                      counts.behind, counts.taken, counts.received, counts.dropped};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        printf("%llu ", (unsigned long long)all[i]);
    free(arena.draining.drained);
    free(arena.draining.copied);
    free(arena.draining.uploads.to);
    free(arena.draining.uploads.from);
    free(arena.draining.uploads.sizes);
    return 0;
}
