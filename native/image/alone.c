/* One kernel of a cubin, with what it needs: memory for the work, and the answer. */
#include <stdlib.h>

#include "image.h"

__attribute__((visibility("default"))) const uint32_t egpu_facts = EGPU_FACTS;

/* Bytes that alignment and shared names may add to what is kept. */
enum { MORE = 1 << 16 };

/* Parts of one piece of memory, all zeros. */
static void *part(unsigned char **memory, uint64_t count, uint64_t size)
{
    void *found = *memory;
    *memory += (count * size + 7) & ~7ull;
    return found;
}

static int with_symbols(struct egpu_work *work)
{
    uint64_t sections = work->kept_count, symbols = work->kept_symbols;
    uint64_t slots = egpu_string_slots(symbols), name_slots = egpu_string_slots(sections);
    uint64_t strings = symbols + sections;
    unsigned char *memory =
        calloc(1, sections * sizeof(Elf64_Shdr) + strings * sizeof(struct egpu_text) +
                      (strings + slots + name_slots) * sizeof(uint32_t) + 64);
    if (memory == NULL)
        return EGPU_CUBIN_NO_MEMORY;
    unsigned char *next = memory;

    work->rows = part(&next, sections, sizeof *work->rows);
    work->strings.texts = part(&next, symbols, sizeof *work->strings.texts);
    work->names.texts = part(&next, sections, sizeof *work->names.texts);
    work->name_at = part(&next, strings, sizeof *work->name_at);
    work->strings.slots = part(&next, slots, sizeof *work->strings.slots);
    work->names.slots = part(&next, name_slots, sizeof *work->names.slots);
    work->strings.mask = slots - 1;
    work->names.mask = name_slots - 1;
    work->strings.length = work->names.length = 1;
    work->strings.budget = work->names.budget = &work->budget;
    int answer = egpu_write(work);
    free(memory);
    return answer;
}

int egpu_cubin_alone(const struct egpu_cubin *cubin, uint32_t kernel, unsigned char *out,
                     uint64_t room, uint64_t *number)
{
    uint64_t symbols = egpu_content(cubin, cubin->symtab).size / sizeof(Elf64_Sym);
    struct egpu_work work = {.cubin = cubin,
                             .symbol_count = symbols,
                             .budget = cubin->size + MORE,
                             .out = {out, room, 0},
                             .number = number};
    unsigned char *memory = calloc(1, cubin->count * (2 * sizeof(uint32_t) + 1) +
                                          symbols * sizeof(uint32_t) + 32);
    if (memory == NULL)
        return EGPU_CUBIN_NO_MEMORY;
    unsigned char *next = memory;

    work.sections = part(&next, cubin->count, sizeof *work.sections);
    work.kept = part(&next, cubin->count, sizeof *work.kept);
    work.symbols = part(&next, symbols, sizeof *work.symbols);
    work.marks = part(&next, cubin->count, 1);
    int answer = kernel < symbols ? EGPU_CUBIN_DONE : EGPU_CUBIN_MALFORMED;
    if (answer == EGPU_CUBIN_DONE)
        answer = egpu_keep_sections(&work, egpu_symbol(cubin, kernel).st_shndx);
    if (answer == EGPU_CUBIN_DONE)
        answer = egpu_keep_symbols(&work);
    if (answer == EGPU_CUBIN_DONE)
        answer = with_symbols(&work);
    free(memory);
    if (answer != EGPU_CUBIN_DONE)
        return answer;
    *number = work.out.length;
    if (work.out.length > 2 * cubin->size + MORE)
        return EGPU_CUBIN_WHOLE;
    return work.out.length <= room ? EGPU_CUBIN_DONE : EGPU_CUBIN_ROOM;
}
