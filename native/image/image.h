/* One kernel of a cubin as a cubin of its own.
 *
 * Images come from workloads, which nobody trusts: every offset and number is compared with what is
 * there, and work and memory grow with the image's size only.  What no assembler writes is answered
 * with EGPU_CUBIN_WHOLE: then the cubin is taken as it is.  Nothing is kept from call to call, no lock
 * is taken, and nothing but the image is looked at, which stays as it was when it was read. */
#ifndef EGPU_IMAGE_H
#define EGPU_IMAGE_H

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "facts.h"

#define EGPU_NONE UINT32_MAX /* no section */
/* Further than any assembler goes: times of the image's size, and bytes of memory. */
#define EGPU_NAMES_BUDGET 16u
#define EGPU_MOST_MEMORY (1ull << 48)

enum { IS_CODE = 1, IS_CHANGING = 2, IS_DESCRIBING = 4, IS_COMMON = 8 };

/* Bytes that are put one behind the other; `length` goes on where there is no room for them. */
struct egpu_output {
    unsigned char *data;
    uint64_t room, length;
};

/* A string table that is being written: its texts, each once, and where to look for them. */
struct egpu_strings {
    struct egpu_text {
        const unsigned char *text;
        uint64_t length, hash, at;
    } *texts;
    uint32_t *slots;
    uint64_t count, mask, length;
    uint64_t *budget; /* bytes and slots that may yet be looked at */
};

/* One kernel's cubin while it is made.  New numbers are one more than they will be, 0 of what is left
 * out. */
struct egpu_work {
    const struct egpu_cubin *cubin;
    uint32_t *sections, *symbols;
    unsigned char *marks;     /* of sections, while it is found out which are kept */
    uint32_t *kept;           /* sections, ascending */
    uint64_t kept_count;
    uint64_t symbol_count, kept_symbols;
    uint64_t bytes;           /* of the sections that are kept */
    Elf64_Shdr *rows;         /* new ones, of `kept` */
    uint32_t *name_at;        /* of `kept`; then of the symbols that are kept */
    struct egpu_strings names, strings;
    struct egpu_output out;
    uint64_t budget;
    uint64_t *number;         /* what an answer is about */
};

/* An attribute: its first byte, its payload, and bytes of all. */
struct egpu_attribute {
    const unsigned char *head, *payload;
    uint64_t size;
    uint32_t form, code, value, length;
};

/* Bytes of an image, as far as they were found to be there. */
struct egpu_bytes {
    const unsigned char *data;
    uint64_t size;
};

static inline uint32_t egpu_word(const unsigned char *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline uint64_t egpu_least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* contents.c */
Elf64_Ehdr egpu_head(const struct egpu_cubin *cubin);
Elf64_Shdr egpu_row(const struct egpu_cubin *cubin, uint64_t at);
struct egpu_bytes egpu_content(const struct egpu_cubin *cubin, uint64_t at);
const char *egpu_name(const struct egpu_cubin *cubin, uint64_t at);
Elf64_Sym egpu_symbol(const struct egpu_cubin *cubin, uint64_t index);
bool egpu_begins(const char *name, const char *prefix);
uint64_t egpu_names_end(struct egpu_bytes names);
int egpu_is_known(const struct egpu_cubin *cubin, uint64_t at, bool *known, uint64_t *number);
__attribute__((visibility("default"))) int egpu_cubin_read(struct egpu_cubin *cubin,
                                                           uint64_t *number);

/* attributes.c */
int egpu_attribute_at(struct egpu_bytes content, uint64_t at, struct egpu_attribute *found,
                      uint64_t *number);
uint32_t egpu_shape(const struct egpu_attribute *attribute);
int egpu_put_attributes(struct egpu_work *work, struct egpu_bytes content, bool common);

/* keep.c */
int egpu_keep_sections(struct egpu_work *work, uint32_t kernel);
int egpu_keep_symbols(struct egpu_work *work);
bool egpu_relocations(const struct egpu_work *work, uint64_t at, uint64_t *step);

/* strings.c */
uint64_t egpu_string_slots(uint64_t most);
int egpu_string(struct egpu_strings *strings, const unsigned char *text, uint32_t *at);
void egpu_put_strings(struct egpu_output *out, const struct egpu_strings *strings);
void egpu_put(struct egpu_output *out, const void *bytes, uint64_t size);
void egpu_put_zeros(struct egpu_output *out, uint64_t size);

/* write.c, segments.c */
int egpu_write(struct egpu_work *work);
int egpu_put_segments(struct egpu_work *work, Elf64_Ehdr *head);

/* alone.c */
extern const uint32_t egpu_facts;
__attribute__((visibility("default"))) int egpu_cubin_alone(const struct egpu_cubin *cubin,
                                                            uint32_t kernel, unsigned char *out,
                                                            uint64_t room, uint64_t *number);

#endif
