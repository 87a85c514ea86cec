/* Which sections and symbols of a cubin one kernel needs. */
#include "image.h"

enum { QUEUED = 1, KEPT = 2, CONSTANTS = 4 };

/* Entries of a section with relocations: false if it has no whole number of them. */
bool egpu_relocations(const struct egpu_work *work, uint64_t at, uint64_t *step)
{
    Elf64_Shdr row = egpu_row(work->cubin, at);
    *step = row.sh_type == SHT_RELA ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
    return egpu_content(work->cubin, at).size % *step == 0;
}

static uint32_t symbol_of(const unsigned char *relocation)
{
    Elf64_Rel entry;
    memcpy(&entry, relocation, sizeof entry);
    return (uint32_t)ELF64_R_SYM(entry.r_info);
}

/* The greatest symbol that relocations name; 0 if there are none. */
static int greatest(struct egpu_work *work, uint64_t at, int otherwise)
{
    struct egpu_bytes content = egpu_content(work->cubin, at);
    uint64_t step, most = 0;

    *work->number = at;
    if (!egpu_relocations(work, at, &step))
        return EGPU_CUBIN_NO_RELOCATIONS;
    for (uint64_t i = 0; i < content.size; i += step) {
        uint64_t named = symbol_of(content.data + i);
        most = named > most ? named : most;
    }
    *work->number = most;
    return content.size != 0 && most >= work->symbol_count ? otherwise : EGPU_CUBIN_DONE;
}

/* Sections to look at: `kept` holds them until it is filled.  None is put there twice. */
struct queue {
    uint32_t *waiting;
    uint64_t count;
};

static void look_at(struct egpu_work *work, struct queue *queue, uint32_t section)
{
    if (section == 0 || section >= work->cubin->count || work->marks[section] & QUEUED)
        return;
    work->marks[section] |= QUEUED;
    queue->waiting[queue->count++] = section;
}

/* Sections of an assembler do not share bytes: so none is read more than a few times. */
static int keep(struct egpu_work *work, uint64_t at)
{
    if (!(work->marks[at] & KEPT))
        work->bytes += egpu_content(work->cubin, at).size;
    work->marks[at] |= KEPT;
    return work->bytes <= work->cubin->size ? EGPU_CUBIN_DONE : EGPU_CUBIN_WHOLE;
}

static int follow_relocations(struct egpu_work *work, struct queue *queue, uint32_t changed)
{
    const struct egpu_section *sections = work->cubin->sections;

    for (uint32_t at = sections[changed].changing; at != EGPU_NONE; at = sections[at].next) {
        struct egpu_bytes content = egpu_content(work->cubin, at);
        uint64_t step;
        int answer = keep(work, at);
        if (answer == EGPU_CUBIN_DONE)
            answer = greatest(work, at, EGPU_CUBIN_RELOCATION);
        if (answer != EGPU_CUBIN_DONE)
            return answer;
        egpu_relocations(work, at, &step);
        for (uint64_t i = 0; i < content.size; i += step)
            look_at(work, queue, egpu_symbol(work->cubin, symbol_of(content.data + i)).st_shndx);
    }
    return EGPU_CUBIN_DONE;
}

/* Sections of the symbols that a kernel's attributes name. */
static int follow_attributes(struct egpu_work *work, struct queue *queue, uint32_t section)
{
    struct egpu_bytes content = egpu_content(work->cubin, section);
    struct egpu_attribute each;

    for (uint64_t at = 0; at < content.size; at += each.size) {
        int answer = egpu_attribute_at(content, at, &each, work->number);
        if (answer != EGPU_CUBIN_DONE)
            return answer;
        if (egpu_shape(&each) != EGPU_SHAPE_SYMBOLS)
            continue;
        for (uint32_t i = 0; i + sizeof(uint32_t) <= each.length; i += sizeof(uint32_t)) {
            uint32_t named = egpu_word(each.payload + i);
            if (named < work->symbol_count)
                look_at(work, queue, egpu_symbol(work->cubin, named).st_shndx);
        }
    }
    return EGPU_CUBIN_DONE;
}

static int follow(struct egpu_work *work, struct queue *queue, uint32_t at)
{
    const struct egpu_section *sections = work->cubin->sections;
    int answer = keep(work, at);

    for (uint32_t i = sections[at].describing; i != EGPU_NONE; i = sections[i].next)
        look_at(work, queue, i);
    if (answer == EGPU_CUBIN_DONE)
        answer = follow_relocations(work, queue, at);
    if (answer == EGPU_CUBIN_DONE && egpu_begins(egpu_name(work->cubin, at), EGPU_ROWS "."))
        answer = follow_attributes(work, queue, at);
    return answer;
}

/* Sections of the kernel, what it refers to, and what belongs to none, as `kept` and with new numbers;
 * EGPU_CUBIN_WHOLE if in doubt. */
int egpu_keep_sections(struct egpu_work *work, uint32_t kernel)
{
    const struct egpu_cubin *cubin = work->cubin;
    struct queue queue = {work->kept, 0};
    bool known = true;

    look_at(work, &queue, kernel);
    for (uint64_t at = 0; at < cubin->count; at++) {
        if (!(cubin->sections[at].kind & IS_COMMON))
            continue;
        work->marks[at] |= QUEUED; /* among them the one without a number, 0 */
        queue.waiting[queue.count++] = (uint32_t)at;
    }
    while (queue.count > 0) {
        uint32_t at = queue.waiting[--queue.count];
        int answer = work->marks[at] & KEPT ? EGPU_CUBIN_DONE : follow(work, &queue, at);
        if (answer != EGPU_CUBIN_DONE)
            return answer;
    }
    if (!cubin->known)
        return EGPU_CUBIN_WHOLE;
    for (uint64_t at = 0; at < cubin->count && known; at++) {
        if (!(work->marks[at] & KEPT))
            continue;
        if (!(cubin->sections[at].kind & IS_COMMON)) {
            int answer = egpu_is_known(cubin, at, &known, work->number);
            if (answer != EGPU_CUBIN_DONE)
                return answer;
        }
        if (egpu_begins(egpu_name(cubin, at), EGPU_CONSTANTS))
            work->marks[at] |= CONSTANTS;
        work->kept[work->kept_count++] = (uint32_t)at;
        work->sections[at] = (uint32_t)work->kept_count;
    }
    return known ? EGPU_CUBIN_DONE : EGPU_CUBIN_WHOLE;
}

/* Of a section that is kept: all of a constant bank, else what is no variable (code reads constants
 * by their place, so symbols that nothing refers to are not needed). */
static bool is_needed(const struct egpu_work *work, const Elf64_Sym *symbol)
{
    uint32_t section = symbol->st_shndx;
    if (section == SHN_UNDEF || section >= SHN_LORESERVE)
        return true;
    if (section >= work->cubin->count || !(work->marks[section] & KEPT))
        return false;
    return ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || work->marks[section] & CONSTANTS;
}

/* Symbols of kept sections; variables only if something refers to them by their symbol. */
int egpu_keep_symbols(struct egpu_work *work)
{
    const unsigned char *table = egpu_content(work->cubin, work->cubin->symtab).data;
    Elf64_Sym symbol;

    for (uint64_t i = 0; i < work->symbol_count; i++) {
        memcpy(&symbol, table + i * sizeof symbol, sizeof symbol);
        work->symbols[i] = is_needed(work, &symbol);
    }
    for (uint64_t n = 0; n < work->kept_count; n++) {
        uint32_t at = work->kept[n];
        struct egpu_bytes content = egpu_content(work->cubin, at);
        uint64_t step;
        if (!(work->cubin->sections[at].kind & IS_CHANGING))
            continue;
        int answer = greatest(work, at, EGPU_CUBIN_NO_SYMBOL);
        if (answer != EGPU_CUBIN_DONE)
            return answer;
        egpu_relocations(work, at, &step);
        for (uint64_t i = 0; i < content.size; i += step)
            work->symbols[symbol_of(content.data + i)] = 1;
    }
    for (uint64_t i = 0; i < work->symbol_count; i++)
        if (work->symbols[i] != 0)
            work->symbols[i] = (uint32_t)++work->kept_symbols;
    return EGPU_CUBIN_DONE;
}
