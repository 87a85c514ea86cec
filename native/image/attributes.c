/* .nv.info sections: attributes one behind the other, some of which hold numbers of symbols. */
#include "image.h"

enum { HEAD = 4, WORD = 4 };

static const unsigned char shapes[256] = {EGPU_SHAPES};

uint32_t egpu_shape(const struct egpu_attribute *attribute)
{
    return shapes[attribute->code];
}

int egpu_attribute_at(struct egpu_bytes content, uint64_t at, struct egpu_attribute *found,
                      uint64_t *number)
{
    uint64_t left = content.size - at;
    if (left < HEAD) {
        *number = left;
        return EGPU_CUBIN_BEHIND_ATTRIBUTES;
    }
    const unsigned char *head = content.data + at;
    uint32_t form = head[0], code = head[1], value = head[2] | (uint32_t)head[3] << 8;
    uint32_t length = form == EGPU_FORM_SIZED ? value : 0;
    if (length > left - HEAD || form == 0 || form > EGPU_FORM_SIZED) {
        *number = (uint64_t)code << 8 | form;
        return EGPU_CUBIN_ATTRIBUTE_CUT_OFF;
    }
    *found = (struct egpu_attribute){head, head + HEAD, HEAD + (uint64_t)length, form, code, value,
                                     length};
    return EGPU_CUBIN_DONE;
}

static uint32_t new_symbol(const struct egpu_work *work, uint32_t was)
{
    return was < work->symbol_count ? work->symbols[was] : 0;
}

static void put_word(struct egpu_output *out, uint32_t word)
{
    egpu_put(out, &word, sizeof word);
}

/* Those symbols of a list that are kept. */
static void put_list(struct egpu_work *work, const struct egpu_attribute *each)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i + WORD <= each->length; i += WORD)
        kept += new_symbol(work, egpu_word(each->payload + i)) != 0;
    put_word(&work->out, each->form | each->code << 8 | kept * WORD << 16);
    for (uint32_t i = 0; i + WORD <= each->length; i += WORD) {
        uint32_t now = new_symbol(work, egpu_word(each->payload + i));
        if (now != 0)
            put_word(&work->out, now - 1);
    }
}

/* An attribute that begins with a symbol; rows that all kernels have in common may be of others. */
static int put_named(struct egpu_work *work, const struct egpu_attribute *each, bool may_go)
{
    if (each->length < WORD)
        return EGPU_CUBIN_WHOLE;
    uint32_t was = egpu_word(each->payload), now = new_symbol(work, was);
    if (now == 0) {
        *work->number = was;
        return may_go ? EGPU_CUBIN_DONE : EGPU_CUBIN_NO_SYMBOL;
    }
    egpu_put(&work->out, each->head, HEAD);
    put_word(&work->out, now - 1);
    egpu_put(&work->out, each->payload + WORD, each->length - WORD);
    return EGPU_CUBIN_DONE;
}

int egpu_put_attributes(struct egpu_work *work, struct egpu_bytes content, bool common)
{
    struct egpu_attribute each;

    for (uint64_t at = 0; at < content.size; at += each.size) {
        int answer = egpu_attribute_at(content, at, &each, work->number);
        if (answer != EGPU_CUBIN_DONE)
            return answer;
        uint32_t shape = egpu_shape(&each);
        bool numbered = shape == EGPU_SHAPE_SYMBOL_VALUE || shape == EGPU_SHAPE_BANK ||
                        shape == EGPU_SHAPE_SYMBOLS;
        if (numbered && each.form != EGPU_FORM_SIZED)
            return EGPU_CUBIN_WHOLE;
        if (shape == EGPU_SHAPE_SYMBOLS)
            put_list(work, &each);
        else if (numbered)
            answer = put_named(work, &each, common && shape == EGPU_SHAPE_SYMBOL_VALUE);
        else
            egpu_put(&work->out, each.head, each.size);
        if (answer != EGPU_CUBIN_DONE)
            return answer;
    }
    return EGPU_CUBIN_DONE;
}
