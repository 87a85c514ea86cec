/* What is put together: bytes, and string tables in which each text is once. */
#include "image.h"

void egpu_put(struct egpu_output *out, const void *bytes, uint64_t size)
{
    if (size != 0 && out->length <= out->room && size <= out->room - out->length)
        memcpy(out->data + out->length, bytes, size);
    out->length += size;
}

void egpu_put_zeros(struct egpu_output *out, uint64_t size)
{
    if (size != 0 && out->length <= out->room && size <= out->room - out->length)
        memset(out->data + out->length, 0, size);
    out->length += size;
}

/* A power of two that leaves half of them free. */
uint64_t egpu_string_slots(uint64_t most)
{
    uint64_t slots = 4;
    while (slots < 2 * most)
        slots *= 2;
    return slots;
}

static uint64_t hash_of(const unsigned char *text, uint64_t length)
{
    uint64_t hash = length, word;
    for (; length >= sizeof word; text += sizeof word, length -= sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, text, length);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* Where a text is.  Names that share their bytes, or were chosen to meet in one slot, are no
 * assembler's: the budget keeps them from taking forever. */
int egpu_string(struct egpu_strings *strings, const unsigned char *text, uint32_t *at)
{
    uint64_t length = strlen((const char *)text);
    *at = 0;
    if (length == 0)
        return EGPU_CUBIN_DONE;
    if (length >= *strings->budget)
        return EGPU_CUBIN_WHOLE;
    *strings->budget -= length;
    uint64_t hash = hash_of(text, length);
    for (uint64_t slot = hash & strings->mask;; slot = (slot + 1) & strings->mask) {
        if (strings->slots[slot] == 0) {
            struct egpu_text new = {text, length, hash, strings->length};
            strings->texts[strings->count++] = new;
            strings->slots[slot] = (uint32_t)strings->count;
            strings->length += length + 1;
            *at = (uint32_t)new.at;
            return EGPU_CUBIN_DONE;
        }
        struct egpu_text *other = &strings->texts[strings->slots[slot] - 1];
        if (other->hash == hash && other->length == length &&
            memcmp(other->text, text, length) == 0) {
            *at = (uint32_t)other->at;
            return EGPU_CUBIN_DONE;
        }
        if (--*strings->budget == 0)
            return EGPU_CUBIN_WHOLE;
    }
}

void egpu_put_strings(struct egpu_output *out, const struct egpu_strings *strings)
{
    egpu_put_zeros(out, 1);
    for (uint64_t i = 0; i < strings->count; i++)
        egpu_put(out, strings->texts[i].text, strings->texts[i].length + 1);
}
