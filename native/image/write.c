/* A kernel's cubin: sections in their order, then both header tables; sections and symbols have new
 * numbers. */
#include "image.h"

#define SYMBOL_OF_CODE 0xffffffu /* sh_info of a text section: its symbol, below the registers */
#define NOBODY 0xffffff00u       /* in .nv.callgraph, from here on no symbol */

static uint32_t new_section(const struct egpu_work *work, uint32_t was)
{
    return was < work->cubin->count ? work->sections[was] : 0;
}

static bool has_bytes(const Elf64_Shdr *row)
{
    return row->sh_type != SHT_NULL && row->sh_type != SHT_NOBITS;
}

/* Whether what is written anew is one thing only, and there. */
static bool is_clear(const struct egpu_work *work, uint32_t at)
{
    const struct egpu_cubin *cubin = work->cubin;
    const char *name = egpu_name(cubin, at);
    Elf64_Shdr row = egpu_row(cubin, at);
    bool relocations = cubin->sections[at].kind & IS_CHANGING;
    bool table = at == cubin->symtab || at == cubin->strtab || at == cubin->section_names;
    bool rows = egpu_begins(name, EGPU_ROWS), calls = strcmp(name, EGPU_CALLS) == 0;
    bool code = egpu_begins(name, EGPU_TEXT);

    if (strcmp(name, EGPU_ROWS) == 0 && at != cubin->info)
        return false;
    if (row.sh_type == SHT_NULL && (row.sh_size != 0 || rows || calls))
        return false;
    if (table && (code || !has_bytes(&row)))
        return false;
    return relocations + table + rows + calls <= 1;
}

static bool all_clear(const struct egpu_work *work)
{
    const struct egpu_cubin *cubin = work->cubin;

    if (!new_section(work, cubin->symtab) || !new_section(work, cubin->strtab) ||
        !new_section(work, cubin->section_names) || cubin->strtab == cubin->section_names ||
        cubin->symtab == cubin->strtab || cubin->symtab == cubin->section_names)
        return false;
    for (uint64_t n = 0; n < work->kept_count; n++)
        if (!is_clear(work, work->kept[n]))
            return false;
    return true;
}

/* Names of the symbols that are kept, then of the sections. */
static int name_all(struct egpu_work *work)
{
    struct egpu_bytes names = egpu_content(work->cubin, work->cubin->strtab);
    uint64_t end = egpu_names_end(names);
    uint32_t *name_at = work->name_at + work->kept_count;
    int answer = EGPU_CUBIN_DONE;

    for (uint64_t i = 0; i < work->symbol_count && answer == EGPU_CUBIN_DONE; i++) {
        if (work->symbols[i] == 0)
            continue;
        Elf64_Sym symbol = egpu_symbol(work->cubin, i);
        if (symbol.st_name >= end)
            return EGPU_CUBIN_MALFORMED;
        if (symbol.st_shndx < work->cubin->count && !work->sections[symbol.st_shndx] &&
            symbol.st_shndx != SHN_UNDEF)
            return EGPU_CUBIN_WHOLE; /* named by relocations of what nobody changes */
        answer = egpu_string(&work->strings, names.data + symbol.st_name, name_at++);
    }
    for (uint64_t n = 0; n < work->kept_count && answer == EGPU_CUBIN_DONE; n++)
        answer = egpu_string(&work->names,
                             (const unsigned char *)egpu_name(work->cubin, work->kept[n]),
                             &work->name_at[n]);
    return answer;
}

static void put_symbols(struct egpu_work *work)
{
    const uint32_t *name_at = work->name_at + work->kept_count;

    for (uint64_t i = 0; i < work->symbol_count; i++) {
        if (work->symbols[i] == 0)
            continue;
        Elf64_Sym symbol = egpu_symbol(work->cubin, i);
        uint32_t section = new_section(work, symbol.st_shndx);
        symbol.st_name = *name_at++;
        if (section != 0)
            symbol.st_shndx = (uint16_t)(section - 1);
        egpu_put(&work->out, &symbol, sizeof symbol);
    }
}

static void put_relocations(struct egpu_work *work, uint32_t at)
{
    struct egpu_bytes content = egpu_content(work->cubin, at);
    Elf64_Rela entry;
    uint64_t step;

    egpu_relocations(work, at, &step);
    for (uint64_t i = 0; i < content.size; i += step) {
        memcpy(&entry, content.data + i, step);
        uint64_t symbol = work->symbols[ELF64_R_SYM(entry.r_info)] - 1;
        entry.r_info = ELF64_R_INFO(symbol, ELF64_R_TYPE(entry.r_info));
        egpu_put(&work->out, &entry, step);
    }
}

/* Calls of what is kept: caller and who is called, which may be nobody. */
static void put_calls(struct egpu_work *work, struct egpu_bytes content)
{
    for (uint64_t i = 0; i + 8 <= content.size; i += 8) {
        uint32_t pair[2] = {egpu_word(content.data + i), egpu_word(content.data + i + 4)};
        bool kept[2];
        for (int n = 0; n < 2; n++) {
            uint32_t now = pair[n] < work->symbol_count ? work->symbols[pair[n]] : 0;
            kept[n] = now != 0;
            pair[n] = now != 0 ? now - 1 : pair[n];
        }
        if (kept[0] && (kept[1] || pair[1] >= NOBODY))
            egpu_put(&work->out, pair, sizeof pair);
    }
}

static int put_content(struct egpu_work *work, uint32_t at)
{
    const struct egpu_cubin *cubin = work->cubin;
    struct egpu_bytes content = egpu_content(cubin, at);
    const char *name = egpu_name(cubin, at);

    if (at == cubin->symtab)
        put_symbols(work);
    else if (at == cubin->strtab)
        egpu_put_strings(&work->out, &work->strings);
    else if (at == cubin->section_names)
        egpu_put_strings(&work->out, &work->names);
    else if (cubin->sections[at].kind & IS_CHANGING)
        put_relocations(work, at);
    else if (egpu_begins(name, EGPU_ROWS))
        return egpu_put_attributes(work, content, at == cubin->info);
    else if (strcmp(name, EGPU_CALLS) == 0)
        put_calls(work, content);
    else
        egpu_put(&work->out, content.data, content.size);
    return EGPU_CUBIN_DONE;
}

/* Symbols that are kept of those before `end`. */
static uint32_t kept_before(const struct egpu_work *work, uint32_t end)
{
    uint64_t at = egpu_least(end, work->symbol_count);
    while (at > 0 && work->symbols[at - 1] == 0)
        at--;
    return at > 0 ? work->symbols[at - 1] : 0;
}

/* sh_info: by what the section is, a section, a symbol, a number of symbols, or anything. */
static int new_info(struct egpu_work *work, uint32_t at, const Elf64_Shdr *row, uint32_t *info)
{
    uint32_t kind = work->cubin->sections[at].kind;

    *info = row->sh_info;
    if (!(kind & IS_CHANGING) && kind & IS_CODE) {
        uint32_t was = row->sh_info & SYMBOL_OF_CODE;
        uint32_t now = was < work->symbol_count ? work->symbols[was] : 0;
        *info = (row->sh_info & ~SYMBOL_OF_CODE) | (now != 0 ? now - 1 : 0);
    } else if (at == work->cubin->symtab) {
        *info = kept_before(work, row->sh_info);
    } else if (kind & (IS_CHANGING | IS_DESCRIBING)) {
        uint32_t now = new_section(work, row->sh_info);
        *work->number = row->sh_info;
        if (now == 0)
            return EGPU_CUBIN_NO_SECTION;
        *info = now - 1;
    }
    return EGPU_CUBIN_DONE;
}

static int put_section(struct egpu_work *work, uint64_t n)
{
    uint32_t at = work->kept[n], link;
    Elf64_Shdr was = egpu_row(work->cubin, at), *row = &work->rows[n];
    uint64_t align = was.sh_addralign > 0 ? was.sh_addralign : 1;
    int answer;

    *row = was;
    answer = new_info(work, at, &was, &row->sh_info);
    if (answer != EGPU_CUBIN_DONE)
        return answer;
    if (has_bytes(&was))
        egpu_put_zeros(&work->out, (align - work->out.length % align) % align);
    uint64_t begin = work->out.length;
    answer = put_content(work, at);
    row->sh_name = work->name_at[n];
    row->sh_offset = was.sh_type == SHT_NULL ? 0 : begin;
    if (was.sh_type != SHT_NOBITS)
        row->sh_size = work->out.length - begin;
    link = new_section(work, was.sh_link);
    row->sh_link = link != 0 ? link - 1 : 0;
    return answer;
}

int egpu_write(struct egpu_work *work)
{
    Elf64_Ehdr head = egpu_head(work->cubin);
    int answer = all_clear(work) ? name_all(work) : EGPU_CUBIN_WHOLE;

    egpu_put(&work->out, &head, sizeof head);
    for (uint64_t n = 0; n < work->kept_count && answer == EGPU_CUBIN_DONE; n++)
        answer = put_section(work, n);
    if (answer != EGPU_CUBIN_DONE)
        return answer;
    egpu_put_zeros(&work->out, -work->out.length % 8);
    head.e_shoff = work->out.length;
    head.e_shnum = (uint16_t)work->kept_count;
    head.e_shstrndx = (uint16_t)(new_section(work, work->cubin->section_names) - 1);
    for (uint64_t n = 0; n < work->kept_count; n++)
        egpu_put(&work->out, &work->rows[n], sizeof work->rows[n]);
    answer = egpu_put_segments(work, &head);
    if (work->out.room >= sizeof head)
        memcpy(work->out.data, &head, sizeof head);
    return answer;
}
