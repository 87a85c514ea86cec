/* Single kernels out of cubins, and out of the same ones damaged: every field of the headers, tables
 * and lists set to what is least likely to fit, several at once, sections that end where the image
 * does, and lengths that cut it off.  All memory is exactly as large as was said, so that a sanitizer
 * build catches any access beyond it.  Prints how often each answer came. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "image.h"

enum { ROUNDS = 4000, MOST_AT_ONCE = 3, STEP = 3, MOST_CUT = 40, REPEATED = 40 };
enum { ANSWERS = EGPU_CUBIN_ATTRIBUTE_CUT_OFF + 1 };

static uint64_t answers[ANSWERS];

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void *memory(uint64_t size)
{
    void *found = malloc(size > 0 ? size : 1);
    if (found == NULL)
        fail("no memory");
    return found;
}

/* An image of its own size, opened as Python opens it. */
static int open_image(struct egpu_cubin *cubin, const unsigned char *data, uint64_t size)
{
    uint64_t number = 0, sections = 0;
    unsigned char *copy = memory(size);

    memcpy(copy, data, size);
    if (size >= sizeof(Elf64_Ehdr))
        sections = ((const Elf64_Ehdr *)(const void *)copy)->e_shnum;
    *cubin = (struct egpu_cubin){.data = copy, .size = size, .room = sections};
    cubin->sections = memory(sections * sizeof *cubin->sections);
    return egpu_cubin_read(cubin, &number);
}

static void close_image(struct egpu_cubin *cubin)
{
    free(cubin->sections);
    free((void *)(uintptr_t)cubin->data);
}

static uint64_t symbols_of(const struct egpu_cubin *cubin)
{
    return egpu_content(cubin, cubin->symtab).size / sizeof(Elf64_Sym);
}

static bool is_kernel(const struct egpu_cubin *cubin, uint64_t index)
{
    Elf64_Sym symbol = egpu_symbol(cubin, index);
    return ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_other & 0x10;
}

/* One kernel's cubin in memory of its size; NULL for any other answer. */
static unsigned char *alone(const struct egpu_cubin *cubin, uint32_t kernel, uint64_t *size)
{
    uint64_t number = 0;
    int answer = egpu_cubin_alone(cubin, kernel, NULL, 0, &number);

    if (answer < 0 || answer >= ANSWERS)
        fail("no answer");
    if (answer == EGPU_CUBIN_DONE)
        fail("no bytes hold a kernel");
    if (answer != EGPU_CUBIN_ROOM) {
        answers[answer]++;
        return NULL;
    }
    unsigned char *out = memory(number), *less = memory(number / 2);
    *size = number;
    if (egpu_cubin_alone(cubin, kernel, less, number / 2, &number) != EGPU_CUBIN_ROOM ||
        egpu_cubin_alone(cubin, kernel, out, number, &number) != EGPU_CUBIN_DONE || number != *size)
        fail("another answer to the same question");
    free(less);
    answers[EGPU_CUBIN_DONE]++;
    return out;
}

/* What was made can be opened; what was made of a cubin that is in order stays as it is. */
static void look_again(const unsigned char *data, uint64_t size, bool in_order)
{
    struct egpu_cubin cubin;
    int answer = open_image(&cubin, data, size);

    if (answer == EGPU_CUBIN_MALFORMED || (in_order && answer != EGPU_CUBIN_DONE))
        fail("what was made cannot be opened");
    for (uint64_t i = 0; in_order && i < symbols_of(&cubin); i++) {
        uint64_t again_size = 0;
        if (!is_kernel(&cubin, i))
            continue;
        unsigned char *again = alone(&cubin, (uint32_t)i, &again_size);
        if (again == NULL || again_size != size || memcmp(again, data, size) != 0)
            fail("a kernel alone is not what it is alone");
        free(again);
    }
    close_image(&cubin);
}

static void try(const unsigned char *data, uint64_t size, bool in_order)
{
    struct egpu_cubin cubin;
    int answer = open_image(&cubin, data, size);

    if (answer != EGPU_CUBIN_DONE) {
        answers[answer]++;
        close_image(&cubin);
        return;
    }
    for (uint64_t i = 0; i < symbols_of(&cubin); i++) {
        uint64_t made_size = 0;
        if (!is_kernel(&cubin, i))
            continue;
        unsigned char *made = alone(&cubin, (uint32_t)i, &made_size);
        if (made != NULL)
            look_again(made, made_size, in_order);
        free(made);
    }
    if (alone(&cubin, (uint32_t)symbols_of(&cubin), &(uint64_t){0}) != NULL)
        fail("a kernel that is not there");
    close_image(&cubin);
}

/* A number in the image. */
struct field {
    uint64_t at, size;
};

struct fields {
    struct field *all;
    uint64_t count, room;
};

static void add(struct fields *fields, uint64_t at, uint64_t size)
{
    if (fields->count == fields->room) {
        fields->room = 2 * fields->room + 64;
        fields->all = realloc(fields->all, fields->room * sizeof *fields->all);
        if (fields->all == NULL)
            fail("no memory");
    }
    fields->all[fields->count++] = (struct field){at, size};
}

/* `layout`: bytes of each field, one behind the other. */
static void add_row(struct fields *fields, uint64_t at, const char *layout)
{
    for (; *layout != 0; layout++) {
        uint64_t size = (uint64_t)(*layout - '0');
        add(fields, at, size);
        at += size;
    }
}

static void add_all(struct fields *fields, const struct egpu_cubin *cubin)
{
    Elf64_Ehdr head = egpu_head(cubin);

    add_row(fields, 16, "2248884222222");
    for (uint64_t i = 0; i < head.e_phnum; i++)
        add_row(fields, head.e_phoff + i * sizeof(Elf64_Phdr), "44888888");
    for (uint64_t at = 0; at < cubin->count; at++) {
        const char *name = egpu_name(cubin, at);
        Elf64_Shdr row = egpu_row(cubin, at);
        bool bytes = egpu_begins(name, EGPU_ROWS);
        bool relocations = cubin->sections[at].kind & IS_CHANGING;
        bool names = at == cubin->strtab || at == cubin->section_names;
        add_row(fields, head.e_shoff + at * sizeof row, "4488884488");
        if (row.sh_type == SHT_NOBITS)
            continue;
        if (at == cubin->symtab)
            for (uint64_t i = 0; i + sizeof(Elf64_Sym) <= row.sh_size; i += sizeof(Elf64_Sym))
                add_row(fields, row.sh_offset + i, "411288");
        else if (bytes || names)
            for (uint64_t i = 0; i < row.sh_size; i++)
                add(fields, row.sh_offset + i, 1);
        else if (relocations || strcmp(name, EGPU_CALLS) == 0)
            for (uint64_t i = 0; i + 4 <= row.sh_size; i += 4)
                add(fields, row.sh_offset + i, 4);
    }
}

static uint64_t state = 88172645463325252u;

static uint64_t chance(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void damage(unsigned char *data, struct field field, uint64_t how)
{
    uint64_t was = 0;
    memcpy(&was, data + field.at, field.size);
    const uint64_t values[] = {0, UINT64_MAX, was + 1, was - 1, chance(32), chance(UINT64_MAX)};
    memcpy(data + field.at, &values[how], field.size);
}

static void damage_all(const unsigned char *data, uint64_t size, const struct fields *fields)
{
    unsigned char *copy = memory(size);

    for (uint64_t i = 0; i < fields->count; i++)
        for (uint64_t how = 0; how < 4; how++) {
            memcpy(copy, data, size);
            damage(copy, fields->all[i], how);
            try(copy, size, false);
        }
    for (uint64_t i = 0; i < ROUNDS; i++) {
        memcpy(copy, data, size);
        for (uint64_t n = chance(MOST_AT_ONCE) + 1; n > 0; n--)
            damage(copy, fields->all[chance(fields->count)], chance(6));
        try(copy, size, false);
    }
    for (uint64_t length = 0; length < size; length += STEP)
        try(data, length, false);
    free(copy);
}

/* The same with other bytes of a section, behind everything else. */
static void try_at_end(const struct egpu_cubin *cubin, uint64_t section, const void *content,
                       uint64_t length)
{
    unsigned char *copy = memory(cubin->size + length);
    uint64_t row = egpu_head(cubin).e_shoff + section * sizeof(Elf64_Shdr);

    memcpy(copy, cubin->data, cubin->size);
    memcpy(copy + cubin->size, content, length);
    memcpy(copy + row + offsetof(Elf64_Shdr, sh_offset), &cubin->size, sizeof cubin->size);
    memcpy(copy + row + offsetof(Elf64_Shdr, sh_size), &length, sizeof length);
    try(copy, cubin->size + length, false);
    free(copy);
}

/* Attributes of all codes with too few bytes and enough. */
static void try_attributes(const struct egpu_cubin *cubin, uint64_t section)
{
    for (uint32_t code = 0; code < 256; code++)
        for (unsigned char form = 1; form <= EGPU_FORM_SIZED; form += EGPU_FORM_SIZED - 1)
            for (unsigned char length = 0; length <= 9; length++) {
                unsigned char attribute[16] = {form, (unsigned char)code, length};
                try_at_end(cubin, section, attribute, 4u + length);
            }
}

static void try_all_at_end(const struct egpu_cubin *cubin)
{
    for (uint64_t at = 0; at < cubin->count; at++) {
        struct egpu_bytes content = egpu_content(cubin, at);
        for (uint64_t cut = 0; cut <= egpu_least(content.size, MOST_CUT); cut++)
            try_at_end(cubin, at, content.data, content.size - cut);
        if (egpu_begins(egpu_name(cubin, at), EGPU_ROWS))
            try_attributes(cubin, at);
        if (cubin->sections[at].kind & IS_CHANGING) {
            unsigned char *often = memory(REPEATED * content.size);
            for (uint64_t i = 0; i < REPEATED; i++)
                memcpy(often + i * content.size, content.data, content.size);
            try_at_end(cubin, at, often, REPEATED * content.size);
            free(often);
        }
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL || fseek(file, 0, SEEK_END) != 0)
            fail(argv[i]);
        uint64_t size = (uint64_t)ftell(file);
        unsigned char *data = memory(size);
        rewind(file);
        if (fread(data, 1, size, file) != size)
            fail(argv[i]);
        fclose(file);

        struct egpu_cubin cubin;
        struct fields fields = {NULL, 0, 0};
        if (open_image(&cubin, data, size) != EGPU_CUBIN_DONE)
            fail(argv[i]);
        try(data, size, true);
        add_all(&fields, &cubin);
        try_all_at_end(&cubin);
        cubin.room--; /* for one section less */
        if (egpu_cubin_read(&cubin, &(uint64_t){0}) != EGPU_CUBIN_MALFORMED)
            fail("sections without room for them");
        close_image(&cubin);
        damage_all(data, size, &fields);
        free(fields.all);
        free(data);
    }
    for (int i = 0; i < ANSWERS; i++)
        printf("%llu\n", (unsigned long long)answers[i]);
    return 0;
}
