/* Looks through machine code of every length up to a few hundred instructions, random and of few kinds,
 * in memory that ends where it does, and compares with what is found bit by bit. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct egpu_field {
    uint8_t half, shift, width, unused;
};
struct egpu_change {
    const uint8_t *chosen;
    uint64_t opcodes, except_mask, except, mask, value, clear, own, slow, least;
};
uint64_t egpu_code_names(const unsigned char *code, uint64_t begin, uint64_t end,
                         const struct egpu_field *parts, uint64_t part_count,
                         const uint64_t *by_kind, const struct egpu_field *fields,
                         uint64_t *found);
uint64_t egpu_code_change(unsigned char *code, uint64_t count, const struct egpu_change *changes,
                          uint64_t change_count);

enum { MOST = 300, KINDS = 1 << 6, FIELDS = 63, CHANGES = 3, OPCODES = 1 << 4 };
#define UNSEEN (1ull << 63)

static uint64_t state = 88172645463325252ull;

static uint64_t any(void) /* xorshift64 (Marsaglia, 2003) */
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void require(int truth, const char *what)
{
    if (!truth) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static unsigned bit(const unsigned char *instruction, unsigned at)
{
    return instruction[at / 8] >> at % 8 & 1;
}

static uint64_t bits(const unsigned char *instruction, struct egpu_field field)
{
    uint64_t found = 0;
    for (unsigned i = 0; i < field.width; i++)
        found |= (uint64_t)bit(instruction, field.half * 64u + field.shift + i) << i;
    return found;
}

static struct egpu_field any_field(void)
{
    uint8_t width = (uint8_t)(1 + any() % 6);
    return (struct egpu_field){any() % 2, (uint8_t)(any() % (65 - width)), width, 0};
}

static void names(const unsigned char *code, uint64_t count)
{
    const struct egpu_field parts[] = {{0, 0, 4, 0}, {1, 27, 1, 0}, {1, 3, 1, 0}};
    struct egpu_field *fields = malloc(FIELDS * sizeof *fields);
    uint64_t *table = malloc(KINDS * sizeof *table), *found = calloc(FIELDS, sizeof *found);
    uint64_t expected[FIELDS] = {0};
    require(fields != NULL && table != NULL && found != NULL, "no memory");
    for (int i = 0; i < FIELDS; i++)
        fields[i] = any_field();
    for (int i = 0; i < KINDS; i++)
        table[i] = any() % 8 == 0 ? UNSEEN : any() & any() & (UNSEEN - 1);
    uint64_t at = 0;
    while ((at = egpu_code_names(code, at, count, parts, 3, table, fields, found)) < count) {
        const unsigned char *one = code + at * 16;
        uint64_t kind = bits(one, parts[0]) | bits(one, parts[1]) << 4 | bits(one, parts[2]) << 5;
        require(table[kind] == UNSEEN, "ended at a kind that is known");
        table[kind] = any() & (UNSEEN - 1);
    }
    require(at == count, "went on behind the end");
    for (uint64_t i = 0; i < count; i++) {
        const unsigned char *one = code + i * 16;
        uint64_t kind = bits(one, parts[0]) | bits(one, parts[1]) << 4 | bits(one, parts[2]) << 5;
        for (int n = 0; n < FIELDS; n++)
            if (table[kind] >> n & 1)
                expected[n] |= 1ull << bits(one, fields[n]);
    }
    require(memcmp(expected, found, sizeof expected) == 0, "other numbers");
    free(fields);
    free(table);
    free(found);
}

static void changes(unsigned char *code, uint64_t count)
{
    uint8_t chosen[CHANGES][OPCODES];
    struct egpu_change all[CHANGES];
    unsigned char *before = malloc(count * 16 + 1);
    require(before != NULL, "no memory");
    memcpy(before, code, count * 16);
    for (int n = 0; n < CHANGES; n++) {
        for (int i = 0; i < OPCODES; i++)
            chosen[n][i] = any() % 2;
        uint64_t mask = 3ull << any() % 62, slow = 15ull << any() % 60, lowest = slow & -slow;
        all[n] = (struct egpu_change){chosen[n], OPCODES - 1, 0xff0000, any() & 0xff0000, mask,
                                      any() & mask, mask, any() & mask, slow, 2 * lowest};
    }
    uint64_t changed = egpu_code_change(code, count, all, CHANGES), expected = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t was[2], now[2];
        memcpy(was, before + i * 16, 16);
        memcpy(now, code + i * 16, 16);
        for (int n = 0; n < CHANGES; n++) {
            const struct egpu_change *by = &all[n];
            if (!by->chosen[was[0] % OPCODES] || (was[0] & by->except_mask) == by->except ||
                (was[1] & by->mask) != by->value)
                continue;
            was[1] = (was[1] & ~by->clear) | by->own;
            if ((was[1] & by->slow) < by->least)
                was[1] = (was[1] & ~by->slow) | by->least;
            expected++;
            break;
        }
        require(was[0] == now[0] && was[1] == now[1], "changed otherwise");
    }
    require(changed == expected, "counted otherwise");
    free(before);
}

int main(void)
{
    for (uint64_t count = 0; count < MOST; count++)
        for (int round = 0; round < 4; round++) {
            unsigned char *code = malloc(count != 0 ? count * 16 : 1);
            require(code != NULL, "no memory");
            for (uint64_t i = 0; i < count * 16; i++)
                code[i] = (unsigned char)any();
            names(code, count);
            changes(code, count);
            free(code);
        }
    puts("as bit by bit");
    return 0;
}
