/* What is in a cubin, found once for all its kernels: images hold up to thousands of them. */
#include "image.h"

/* As the Python reader, which has refused what these would. */
static bool inside(const struct egpu_cubin *cubin, uint64_t offset, uint64_t size)
{
    return offset <= cubin->size && size <= cubin->size - offset;
}

Elf64_Ehdr egpu_head(const struct egpu_cubin *cubin)
{
    Elf64_Ehdr head;
    memcpy(&head, cubin->data, sizeof head);
    return head;
}

Elf64_Shdr egpu_row(const struct egpu_cubin *cubin, uint64_t at)
{
    Elf64_Shdr row;
    memcpy(&row, cubin->data + egpu_head(cubin).e_shoff + at * sizeof row, sizeof row);
    return row;
}

struct egpu_bytes egpu_content(const struct egpu_cubin *cubin, uint64_t at)
{
    Elf64_Shdr row = egpu_row(cubin, at);
    struct egpu_bytes none = {cubin->data, 0};
    struct egpu_bytes found = {cubin->data + (row.sh_type == SHT_NOBITS ? 0 : row.sh_offset),
                               row.sh_size};
    return row.sh_type == SHT_NOBITS ? none : found;
}

const char *egpu_name(const struct egpu_cubin *cubin, uint64_t at)
{
    struct egpu_bytes names = egpu_content(cubin, cubin->section_names);
    return (const char *)names.data + egpu_row(cubin, at).sh_name;
}

Elf64_Sym egpu_symbol(const struct egpu_cubin *cubin, uint64_t index)
{
    Elf64_Sym symbol;
    memcpy(&symbol, egpu_content(cubin, cubin->symtab).data + index * sizeof symbol, sizeof symbol);
    return symbol;
}

bool egpu_begins(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Names that begin before it end in the table. */
uint64_t egpu_names_end(struct egpu_bytes names)
{
    while (names.size != 0 && names.data[names.size - 1] != 0)
        names.size--;
    return names.size;
}

static const char *const known_names[] = {EGPU_KNOWN};
static const char *const debug_names[] = {EGPU_DEBUG};

static bool begins_with_one(const char *name, const char *const *prefixes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (egpu_begins(name, prefixes[i]))
            return true;
    return false;
}

/* Whether nothing in a section can hold a number that nobody knows of; small attributes have no room
 * for one. */
int egpu_is_known(const struct egpu_cubin *cubin, uint64_t at, bool *known, uint64_t *number)
{
    const char *name = egpu_name(cubin, at);
    struct egpu_bytes content = egpu_content(cubin, at);
    struct egpu_attribute each;

    *known = egpu_row(cubin, at).sh_type == SHT_NULL ||
             begins_with_one(name, known_names, sizeof known_names / sizeof *known_names);
    if (!*known || !egpu_begins(name, EGPU_ROWS))
        return EGPU_CUBIN_DONE;
    for (uint64_t i = 0; i < content.size; i += each.size) {
        int answer = egpu_attribute_at(content, i, &each, number);
        if (answer != EGPU_CUBIN_DONE)
            return answer;
        if (each.form == EGPU_FORM_SIZED && egpu_shape(&each) == EGPU_SHAPE_UNKNOWN)
            *known = false;
    }
    return EGPU_CUBIN_DONE;
}

/* Tables and sections are in the image, and names end there. */
static bool in_order(struct egpu_cubin *cubin)
{
    if (cubin->size < sizeof(Elf64_Ehdr))
        return false;
    Elf64_Ehdr head = egpu_head(cubin);
    cubin->count = head.e_shnum;
    cubin->section_names = head.e_shstrndx;
    if (head.e_shnum == 0 || head.e_shentsize != sizeof(Elf64_Shdr) || head.e_shnum > cubin->room ||
        head.e_shstrndx >= head.e_shnum ||
        !inside(cubin, head.e_shoff, head.e_shnum * sizeof(Elf64_Shdr)))
        return false;
    if (head.e_phnum != 0 && (head.e_phentsize != sizeof(Elf64_Phdr) ||
                              !inside(cubin, head.e_phoff, head.e_phnum * sizeof(Elf64_Phdr))))
        return false;
    for (uint64_t at = 0; at < cubin->count; at++) {
        Elf64_Shdr row = egpu_row(cubin, at);
        if ((row.sh_type != SHT_NOBITS && !inside(cubin, row.sh_offset, row.sh_size)) ||
            row.sh_addralign > EGPU_MOST_ALIGNED)
            return false;
    }
    cubin->names_end = egpu_names_end(egpu_content(cubin, cubin->section_names));
    for (uint64_t at = 0; at < cubin->count; at++)
        if (egpu_row(cubin, at).sh_name >= cubin->names_end)
            return false;
    return true;
}

/* ptxas flags sections that describe one of code; cuBLAS's own assembler only names them after it.
 * `budget`: bytes of names that may yet be looked at, as many may share theirs. */
static bool describes(const struct egpu_cubin *cubin, uint64_t at, uint64_t *budget)
{
    Elf64_Shdr row = egpu_row(cubin, at);
    if (row.sh_info == 0 || row.sh_info >= cubin->count ||
        !(cubin->sections[row.sh_info].kind & IS_CODE))
        return false;
    if (row.sh_flags & SHF_INFO_LINK)
        return true;
    const char *own = egpu_name(cubin, at);
    const char *end = egpu_name(cubin, row.sh_info) + strlen(EGPU_TEXT) - 1;
    if (cubin->sections[at].kind & IS_CODE || *budget == 0)
        return false;
    uint64_t length = strlen(own), wanted = strlen(end);
    *budget -= egpu_least(*budget, length + wanted);
    return wanted <= length &&
           memcmp(own + length - wanted, end, wanted) == 0;
}

static int classify(struct egpu_cubin *cubin)
{
    struct egpu_section *sections = cubin->sections;
    uint64_t budget = EGPU_NAMES_BUDGET * cubin->size;

    for (uint64_t at = 0; at < cubin->count; at++) {
        bool code = egpu_begins(egpu_name(cubin, at), EGPU_TEXT);
        sections[at] = (struct egpu_section){code ? IS_CODE : 0, EGPU_NONE, EGPU_NONE, EGPU_NONE};
    }
    for (uint64_t at = cubin->count; at-- > 0;) { /* so that lists ascend */
        Elf64_Shdr row = egpu_row(cubin, at);
        bool within = row.sh_info < cubin->count;
        uint32_t *list = NULL;
        if (row.sh_type == SHT_REL || row.sh_type == SHT_RELA) {
            sections[at].kind |= IS_CHANGING;
            list = within ? &sections[row.sh_info].changing : NULL;
        } else if (describes(cubin, at, &budget)) {
            sections[at].kind |= IS_DESCRIBING;
            list = &sections[row.sh_info].describing;
        } else if (!(sections[at].kind & IS_CODE) &&
                   !begins_with_one(egpu_name(cubin, at), debug_names,
                                    sizeof debug_names / sizeof *debug_names)) {
            sections[at].kind |= IS_COMMON;
        }
        if (list != NULL) {
            sections[at].next = *list;
            *list = (uint32_t)at;
        }
    }
    return budget != 0 ? EGPU_CUBIN_DONE : EGPU_CUBIN_WHOLE;
}

/* Whether what is common to all kernels is understood. */
static int look_at_common(struct egpu_cubin *cubin, uint64_t *number)
{
    bool known = true, ignored;
    int answer = EGPU_CUBIN_DONE;

    for (uint64_t at = 0; at < cubin->count && answer == EGPU_CUBIN_DONE; at++) {
        if (!(cubin->sections[at].kind & IS_COMMON))
            continue;
        bool info = strcmp(egpu_name(cubin, at), EGPU_ROWS) == 0;
        bool first = info && cubin->info == EGPU_NONE;
        if (first)
            cubin->info = (uint32_t)at;
        if (known)
            answer = egpu_is_known(cubin, at, &known, number);
        else if (first) /* its rows are read in any case */
            answer = egpu_is_known(cubin, at, &ignored, number);
    }
    cubin->known = known;
    return answer;
}

int egpu_cubin_read(struct egpu_cubin *cubin, uint64_t *number)
{
    if (!in_order(cubin))
        return EGPU_CUBIN_MALFORMED;
    /* Numbers of sections would not be told from others, or places not be written. */
    if (cubin->count >= SHN_LORESERVE || cubin->size > UINT32_MAX)
        return EGPU_CUBIN_WHOLE;
    cubin->symtab = cubin->strtab = cubin->info = EGPU_NONE;
    for (uint64_t at = cubin->count; at-- > 0;)
        if (egpu_row(cubin, at).sh_type == SHT_SYMTAB)
            cubin->symtab = (uint32_t)at;
    if (cubin->symtab == EGPU_NONE || egpu_row(cubin, cubin->symtab).sh_link >= cubin->count)
        return EGPU_CUBIN_MALFORMED;
    cubin->strtab = egpu_row(cubin, cubin->symtab).sh_link;
    int answer = classify(cubin);
    return answer == EGPU_CUBIN_DONE ? look_at_common(cubin, number) : answer;
}
