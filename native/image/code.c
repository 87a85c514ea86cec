/* Looks over a kernel's instructions for egpu.splice: what the numpy code there does in a dozen passes
 * over small arrays is one loop here.  What bits mean is in the tables there. */
#include <stdint.h>
#include <string.h>

enum { WORDS = 2 }; /* of 64 bits, an instruction */
#define UNSEEN (1ull << 63)

/* Where a field of a few bits lies; none reaches over both halves. */
struct egpu_field {
    uint8_t half, shift, width, unused;
};

static inline uint64_t field_of(const uint64_t *halves, struct egpu_field field)
{
    return halves[field.half] >> field.shift & ((1ull << field.width) - 1);
}

/* Instructions of a kind name something in some fields: bit n of by_kind[kind] for the n-th of them.
 * An instruction's kind is its fields parts[0], parts[1], ..., the first one lowest.  found[n] gets
 * a bit for each number that field n (of at most 6 bits) holds in one of the instructions from begin
 * to before end.  Ends at an instruction of a kind that is not in the table yet: which one. */
__attribute__((visibility("default"))) uint64_t
egpu_code_names(const unsigned char *code, uint64_t begin, uint64_t end,
                const struct egpu_field *parts, uint64_t part_count, const uint64_t *by_kind,
                const struct egpu_field *fields, uint64_t *found)
{
    for (uint64_t at = begin; at < end; at++) {
        uint64_t halves[WORDS], kind = 0;
        memcpy(halves, code + at * sizeof halves, sizeof halves);
        for (uint64_t i = part_count; i-- > 0;)
            kind = kind << parts[i].width | field_of(halves, parts[i]);
        uint64_t named = by_kind[kind];
        if (named == UNSEEN)
            return at;
        for (; named != 0; named &= named - 1) {
            int n = __builtin_ctzll(named);
            found[n] |= 1ull << field_of(halves, fields[n]);
        }
    }
    return end;
}

/* What becomes of instructions whose opcode (the lowest bits) is not 0 in chosen, whose upper half has
 * value in the bits of mask, and whose lower half has not except in those of except_mask: in the upper
 * half the bits of clear become own, and those of slow are least at least. */
struct egpu_change {
    const uint8_t *chosen;
    uint64_t opcodes, except_mask, except, mask, value, clear, own, slow, least;
};

static void change(uint64_t *upper, const struct egpu_change *by)
{
    *upper = (*upper & ~by->clear) | by->own;
    if ((*upper & by->slow) < by->least)
        *upper = (*upper & ~by->slow) | by->least;
}

/* How many were changed, each by the first of the changes that is about it. */
__attribute__((visibility("default"))) uint64_t
egpu_code_change(unsigned char *code, uint64_t count, const struct egpu_change *changes,
                 uint64_t change_count)
{
    uint64_t changed = 0;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t halves[WORDS];
        unsigned char *instruction = code + at * sizeof halves;
        memcpy(halves, instruction, sizeof halves);
        for (uint64_t i = 0; i < change_count; i++) {
            const struct egpu_change *by = &changes[i];
            if (!by->chosen[halves[0] & by->opcodes] ||
                (halves[0] & by->except_mask) == by->except || (halves[1] & by->mask) != by->value)
                continue;
            change(&halves[1], by);
            memcpy(instruction, halves, sizeof halves);
            changed++;
            break;
        }
    }
    return changed;
}
