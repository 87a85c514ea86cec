/* Producers of stamped slots for unit_drain.c, and what the session may find of them.
 *
 * A ring's numbers go on without a gap, so a record's content is its slot's number: any that is torn, of
 * another lap, doubled or left out is seen at once. */
#include <string.h>

#include "unit_drain.h"

enum { FLIGHT = 6, FEW = 8, MANY = 16, WORDS = EGPU_RING_STAMPED_MOST / 8 };
enum { STAMPS_LEFT = 40 }; /* laps from which on stamps begin again at 0 */

/* A slot that is being written, its words in any order. */
struct flight {
    uint64_t number, written, start, step;
    bool used;
};

static struct {
    struct flight flight[FLIGHT];
    uint64_t dropped, received;
} producers[MAPS][SLOTS];
static uint64_t behind;

static uint64_t stride(int map)
{
    return (rings[map].stamped + 8 + 15) & ~15ull;
}

static uint64_t slots(int map)
{
    return rings[map].ring_size / stride(map);
}

void slots_shape(int map)
{
    rings[map].stamped = 8 * (1 + random_below(random_below(2) ? 5 : WORDS));
    rings[map].ring_size = stride(map) * (stride(map) > 64 ? FEW : MANY);
}

/* In an even lap, as at the very beginning. */
static uint64_t first(int map)
{
    return map % 2 == 0 ? 0 : (1ull << 32) - STAMPS_LEFT * slots(map);
}

uint64_t slots_begin(int map)
{
    return first(map) * stride(map);
}

/* Slots taken, by the head. */
static int64_t taken(int map, int slot, int64_t *room)
{
    uint64_t head = *control(map, slot, EGPU_RING_CONTROL_AT_HEAD);
    *room = (int64_t)head / (1ll << 40) - ((int64_t)head < 0 && head % (1ull << 40) != 0);
    return (int64_t)(head % (1ull << 40)) + (*room < 0 ? *room : 0);
}

/* Gives the ring the room that its tail tells of, if all that there was is taken. */
static void give_room(int map, int slot)
{
    int64_t room, number = taken(map, slot, &room);
    uint64_t tail = *control(map, slot, EGPU_RING_CONTROL_AT_TAIL);
    uint64_t found = tail / stride(map) + slots(map) - (uint64_t)number;
    if (found > slots(map))
        bad("a tail is not where its reader was");
    if (room <= 0 && found != 0)
        *control(map, slot, EGPU_RING_CONTROL_AT_HEAD) = (uint64_t)number | found << 40;
}

/* Asks for some slots, of which there may be fewer. */
static void take(int map, int slot)
{
    uint64_t *head = control(map, slot, EGPU_RING_CONTROL_AT_HEAD);
    uint64_t wanted = 1 + random_below(3), number = *head % (1ull << 40), words = stride(map) / 8;
    int64_t room;
    taken(map, slot, &room);
    *head += wanted * (1 - (1ull << 40));
    for (int i = 0; i < FLIGHT && wanted > 0 && room > 0; i++) {
        struct flight *flight = &producers[map][slot].flight[i];
        if (flight->used)
            continue;
        *flight = (struct flight){.number = number++, .used = true, .start = random_below(words),
                                  .step = random_below(2) ? 1 : words - 1};
        wanted--;
        room--;
    }
    producers[map][slot].dropped += wanted;
}

static uint64_t word_of(int map, uint64_t number, uint64_t word)
{
    uint64_t lap = number / slots(map), words = rings[map].stamped / 8, bits = 0;
    if (word > words)
        return 0; /* nobody looks at what rounds a slot up */
    if (word != 0)
        return (content(number, word - 1) & ~1ull) | (lap % 2 == 0);
    for (uint64_t i = 0; i < words; i++)
        bits |= (content(number, i) & 1) << i;
    return (number + 1) << 32 | bits;
}

static void write_word(int map, int slot, struct flight *flight)
{
    uint64_t words = stride(map) / 8;
    uint64_t word = (flight->start + flight->written * flight->step) % words;
    uint64_t value = word_of(map, flight->number, word);
    memcpy(at(map, slot, flight->number * stride(map) + 8 * word), &value, sizeof value);
    flight->used = ++flight->written < words;
}

static int idle(int map, int slot)
{
    int count = 0;
    for (int i = 0; i < FLIGHT; i++)
        count += !producers[map][slot].flight[i].used;
    return count;
}

/* `begin`: slots may be taken, by producers who are there to write as many as they ask for. */
void slots_produce(int map, int slot, bool begin)
{
    struct flight *flight = &producers[map][slot].flight[random_below(FLIGHT)];
    if (begin && idle(map, slot) >= 3)
        take(map, slot);
    if (begin && random_below(4) == 0)
        give_room(map, slot);
    for (uint64_t n = random_below(2 * stride(map) / 8); n > 0 && flight->used; n--)
        write_word(map, slot, flight);
}

static bool is_whole(int map, const unsigned char *at, uint64_t number)
{
    uint64_t word, lap = number / slots(map);
    memcpy(&word, at, sizeof word);
    if (word >> 32 != (number + 1) % (1ull << 32))
        return false;
    for (uint64_t i = 1; i <= rings[map].stamped / 8; i++) {
        memcpy(&word, at + 8 * i, sizeof word);
        if (word % 2 == lap % 2)
            return false;
    }
    return true;
}

void slots_check(int map, int slot, const unsigned char *record)
{
    uint64_t word, number = first(map) + producers[map][slot].received++;
    for (uint64_t i = 0; i < rings[map].stamped / 8; i++) {
        memcpy(&word, record + 8 * i, sizeof word);
        if (word != content(number, i))
            bad("a slot is torn, or not the next one");
    }
}

/* If the workload were killed now: what the session would find, and whether it would look at what nobody
 * has taken. */
void slots_check_behind(int map, int slot)
{
    const unsigned char *ring = host + rings[map].host_data + slot * rings[map].ring_size;
    uint64_t position = reader_of(map, slot)[0], copied = reader_of(map, slot)[2], word;
    int64_t room;
    if (copied > (uint64_t)taken(map, slot, &room) * stride(map))
        bad("slots were copied that nobody has taken");
    for (uint64_t number = position / stride(map); number < copied / stride(map); number++) {
        const unsigned char *found = ring + number % slots(map) * stride(map);
        if (!is_whole(map, found, number))
            continue;
        for (uint64_t i = 0; i <= rings[map].stamped / 8; i++) {
            memcpy(&word, found + 8 * i, sizeof word);
            if (word != word_of(map, number, i))
                bad("a slot seems to be whole and is not");
        }
        behind++;
    }
}

struct slot_counts slots_counts(void)
{
    struct slot_counts counts = {.laps = UINT64_MAX, .behind = behind};
    for (int map = GROUPS; map < MAPS; map++)
        for (int slot = 0; slot < SLOTS; slot++) {
            int64_t room;
            uint64_t count = (uint64_t)taken(map, slot, &room) - first(map);
            counts.laps = count / slots(map) < counts.laps ? count / slots(map) : counts.laps;
            counts.taken += count;
            counts.received += producers[map][slot].received;
            counts.dropped += producers[map][slot].dropped;
        }
    return counts;
}
